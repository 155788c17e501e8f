"""The commands as their users meet them: exit codes, user errors in one line, JSON for machines."""

from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import tyro

from mnemoscope import MnemoscopeError
from mnemoscope.cli import COMMANDS, main
from mnemoscope.cli._console import error_line, parse
from mnemoscope.systems import SYSTEMS
from mnemoscope.tasks import TASKS
from mnemoscope.theory import Row, Statement
from mnemoscope.training import Run

SMALL = ["--model", "torch.RNN", "--hidden-size", "4", "--batch-size", "2", "--evaluate-batches", "1", "--threads", "1"]
SHORT = [*SMALL, "--updates", "4", "--evaluate-every", "2", "--task.T", "2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "copy", *SHORT, "--out", str(folder), "--quiet"]) == 0
    return folder


def fails(arguments: list[str], capsys: Any, code: int = 2) -> str:
    """The one line with which a command fails."""
    capsys.readouterr()
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mnemoscope: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "'trian' is not a command; commands are train, resume, sweep, evaluate"),
        (["trian"], "did you mean train?"),
        (["train"], "no task was given; mnemoscope train TASK takes one of copy, denoise"),
        (["train", "cpy"], "'cpy' is not a task"),
        (["train", "cpoy"], "start-end, tmaze, minigrid, gym; did you mean copy?"),
        (["train", "copy", "--lr", "fast"], "mnemoscope: --lr = 'fast' is not a number\n"),
        (["train", "copy", "--lr", "nan"], "lr = nan is not allowed; it must be a finite number"),
        (["train", "copy", "--lr", "-1"], "lr = -1.0 is not allowed; it must be above 0"),
        (["train", "copy", "--optimizer", "lion"], "'lion'"),
        (["train", "copy", "--task.T", "0"], "T = 0 is not allowed"),
        (["train", "copy", "--modle", "LSTM"], "did you mean --model?"),
        (["train", "copy", "--fit.updtes", "3"], "did you mean --updates?"),
        (["train", "copy", "--fit.lr", "3"], "did you mean --lr?"),
        (["train", "copy", "--checkpoint"], "--checkpoint-activations"),
        (["train", "copy", "--model", "Lstm"], "model = 'Lstm' is not a layer; layers are LinearSystem, RNN"),
        (["train", "copy", "--model", "relrnn"], "torch.GRU; did you mean RelRNN?"),
        (
            ["train", "copy", "--model", "GRU", "--buffer", "3"],
            "GRU has no option 'buffer'; its options are",
        ),
        (["train", "copy", "--model", "GRU", "--stable", "0.9"], "the stable sets are known for"),
        (["train", "--config", "nowhere.json"], "cannot read nowhere.json: No such file"),
        (["train", "--config"], "--config needs a value"),
        (["train", "copy", "--hidden-size", str(10**12)], "out of memory"),
        (["resume", "nowhere"], "mnemoscope: there is no folder nowhere\n"),
        (["resume", "."], ". is not a run folder: it has no config.json"),
        (["resume"], "mnemoscope: no RUN was given to mnemoscope resume: The run's folder.\n"),
        (["evaluate"], "no run was given"),
        (["evaluate", "nowhere"], "there is no folder nowhere"),
        (["compare"], "no run was given"),
        (["compare", "nowhere"], "there is no folder nowhere"),
        (["theory", "no-such-lemma"], "'no-such-lemma' is not a statement"),
        (["theory", "kerg-theorm-1"], "'kerg-theorm-1' is not a statement; did you mean kerg-theorem-1"),
        (["list", "--all"], "mnemoscope: Unrecognized options: --all\n"),
        (["list", "layers"], "kinds = 'layers' is not allowed; it must be one of models, tasks"),
    ],
)
def test_user_errors_are_one_line(arguments, message: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in fails(arguments, capsys)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@dataclass
class Lengths:
    name: tyro.conf.Positional[str]
    """A name."""
    length: int = 1
    kind: Literal["short", "long"] = "short"
    needs: float | None = None
    dtype: Literal["float32", "float64"] | None = None
    steps: tuple[int, ...] = ()
    which: Literal["first", "last"] | int = "last"


TYRO_ERRORS = [
    ([], "no STR was given to mnemoscope test: A name."),
    (["a", "b"], "Unrecognized options: b"),
    (["a", "--lenght", "3"], "Unrecognized options: --lenght; did you mean --length?"),
    (["a", "b", "--lenght", "3", "--wdith"], "Unrecognized options: b, --lenght, --wdith"),
    (["a", "--length"], "Missing value for argument '--length'. Expected 1 values."),
    (["a", "--length", "x"], "--length = 'x' is not a whole number"),
    (["a", "--needs", "x"], "--needs = 'x' is not a number"),
    (["a", "--kind", "x"], "--kind = 'x' is not allowed; it must be one of short, long"),
    (["a", "--which", "x"], "--which = 'x' is not allowed; it must be {first,last} or INT"),
    (["a", "--steps", "1", "x"], "--steps = 'x' is not a whole number"),
]


def test_options_that_may_be_none_and_that_take_several_values() -> None:
    assert parse(Lengths, ["a"], "test") == Lengths("a")
    given = parse(Lengths, ["a", "--needs", "2", "--dtype", "float64", "--steps", "1", "2"], "test")
    assert given == Lengths("a", needs=2.0, dtype="float64", steps=(1, 2))
    assert parse(Lengths, ["a", "--needs", "None", "--dtype", "None", "--steps"], "test", default=given) == Lengths("a")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize(("arguments", "message"), TYRO_ERRORS)
def test_error_boxes_of_tyro_become_one_line(arguments, message: str, encoding: str, monkeypatch) -> None:
    """These are the words of tyro and the frames that it draws: if this fails after an update, see `error_line`."""
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    with pytest.raises(MnemoscopeError) as error:
        parse(Lengths, arguments, "test")
    assert str(error.value) == message


def test_an_error_box_that_is_not_understood_still_says_something() -> None:
    assert error_line("some new format: bad value\nin two lines") == "some new format: bad value in two lines"
    assert error_line("") == "the options are not understood; --help shows them"
    assert error_line("\x1b[31m╭─ Parsing error ─╮\n│ Wrong: --x      │\n╰─────────────────╯\x1b[0m\n") == "Wrong: --x"


def test_help_names_every_command_task_and_option(capsys) -> None:
    assert main([]) == main(["--help"]) == main(["train", "--help"]) == main(["evaluate", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*COMMANDS, *TASKS))
    with pytest.raises(SystemExit, match="0"):
        main(["train", "copy", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for option, help in [
        ("--task.T", "Steps between the symbols and their repetition."),
        ("--clip", "Largest norm of the gradient"),
        ("--buffer", "nu, how many of the last states"),
        ("--no-stop-when-solved", "Whether to stop once the held-out metric"),
    ]:
        assert option in text
        assert help in text


@pytest.mark.parametrize(
    ("command", "takes"),
    [
        ("examine", "TARGET..."),
        ("report", "FOLDER..."),
        ("compare", "RUN..."),
        ("reproduce", "[STUDY...]"),
        ("theory", "[STATEMENT...]"),
    ],
)
def test_usage_says_what_a_command_takes(command: str, takes: str, capsys) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    usage = capsys.readouterr().out.splitlines()[0]
    assert f" {takes}" in usage


def test_a_shell_is_offered_no_functions(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["train", "copy", "--model", "RNN", "--help"])
    assert "pointwise" not in " ".join(capsys.readouterr().out.split())


def test_settings_of_the_papers_are_flags(capsys, tmp_path: Path) -> None:
    """Milestones, snapshots, training metrics, the truncated model and a start from the task's system."""
    folder = str(tmp_path / "run")
    network = "--model RNN --hidden-size 3 --skip --init system --truncated 3 --stable 1"
    task = "--task.T 5 --task.features 2 --task.hidden 3 --batch-size 1"
    fit = "--updates 4 --evaluate-every 2 --evaluate-train --scale-clip --threads 1"
    moments = "--schedule milestones --milestones 1 3 --snapshot-at 1 --snapshot-every 2"
    words = [*network.split(), *task.split(), *fit.split(), *moments.split()]
    assert main(["train", "gaussian", *words, "--out", folder, "--quiet"]) == 0
    capsys.readouterr()
    assert Run(folder).snapshots() == [0, 1, 2, 4]
    assert {record.get("split") for record in Run(folder).metrics()} == {"valid", "train"}
    assert main(["evaluate", folder, "--which", "1", "--split", "train", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["split"] == "train"
    assert "has no snapshot of update 3" in fails(["evaluate", folder, "--which", "3"], capsys)
    text = tmp_path / "text.txt"
    text.write_text("the sea and the sand " * 30)
    small = "--task.bptt 8 --model MemRNN --hidden-size 3 --updates 2 --batch-size 2 --evaluate-batches 1"
    options = ["--task.data", str(text), *small.split(), "--out", str(tmp_path / "text")]
    assert "set carry-memory = 0" in fails(["train", "characters", *options, "--quiet"], capsys)
    assert main(["train", "characters", *options, "--carry-memory", "0", "--quiet"]) == 0
    assert main(["evaluate", str(tmp_path / "text"), "--batch-size", "2", "--quiet"]) == 0


def test_a_runs_folder_is_as_good_as_its_config(run: Path, tmp_path: Path) -> None:
    assert main(["train", "--config", str(run), "--updates", "1", "--out", str(tmp_path / "again"), "--quiet"]) == 0
    assert Run(tmp_path / "again").config.task == Run(run).config.task


def test_a_folder_of_runs_or_a_file_where_a_run_should_be(run: Path, tmp_path: Path, capsys) -> None:
    error = fails(["compare", str(run.parent)], capsys)
    assert f"it has no config.json; it holds the runs {run}: name some of them" in error
    assert "is a file, not the folder of a run" in fails(["resume", str(run / "config.json")], capsys)
    error = fails(["report", str(run), "--out", str(run / "nowhere")], capsys)
    assert f"{run} is a run that was not examined; first: mnemoscope examine {run}" in error
    two = Path(shutil.copytree(run, tmp_path / "two words"))
    assert f"first: mnemoscope examine '{two}'" in fails(["report", str(two)], capsys)  # as a shell takes it


def test_evaluate_names_the_task_that_was_meant(run: Path, capsys) -> None:
    assert "did you mean adding?" in fails(["evaluate", str(run), "--task", "ading"], capsys)


def test_divergence_has_its_own_exit_code(capsys, tmp_path: Path) -> None:
    options = [*SHORT, "--optimizer", "sgd", "--lr", "1e30", "--clip", "0", "--out", str(tmp_path / "run")]
    message = fails(["train", "copy", *options, "--quiet"], capsys, code=3)
    assert "diverged at update 2: the loss is " in message
    assert "last good checkpoint: " in message
    assert "00000000.safetensors" in message
    assert "try a lower lr (it was 1e+30)" in message


def test_train_prints_progress_lines_and_json(capsys, tmp_path: Path) -> None:
    assert main(["train", "copy", *SHORT, "--out", str(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert summary["run"] == str(tmp_path / "run")
    assert summary["updates"] == 4
    assert summary["metric"] == "accuracy"
    assert [line.split("  ")[0] for line in err.splitlines()] == ["update 2/4", "update 4/4"]
    assert "memoryless loss 0.9452" in err  # 10 ln 8 / 22
    assert "\x1b" not in err  # no colors where it is not a terminal


def test_train_config_repeats_a_run(run: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert main(["train", "--config", str(run / "config.json"), "--out", str(again), "--quiet"]) == 0
    for name in ("config.json", "metrics.jsonl", "checkpoints/00000004.safetensors"):
        assert (again / name).read_bytes() == (run / name).read_bytes()
    other = tmp_path / "other"
    assert main(["train", "--config", str(run / "config.json"), "--lr", "0.1", "--out", str(other), "--quiet"]) == 0
    assert json.loads((other / "config.json").read_text())["fit"]["lr"] == 0.1
    assert (other / "metrics.jsonl").read_bytes() != (run / "metrics.jsonl").read_bytes()


def test_train_makes_a_new_run_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["train", "copy", *SHORT, "--quiet"]) == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["copy-torch.RNN", "copy-torch.RNN-2"]


def test_resume_of_a_finished_run_prints_its_outcome(run: Path, capsys) -> None:
    assert main(["resume", str(run)]) == 0
    assert "budget spent after 4 updates: best held-out accuracy" in capsys.readouterr().out


def test_evaluate_on_another_length_and_another_task(run: Path, capsys) -> None:
    other = [(["--task.T", "9"], "copy", 29), (["--task", "denoise"], "denoise", 120)]
    for extra, task, length in [([], "copy", 22), *other]:
        assert main(["evaluate", str(run), *extra, "--batches", "2", "--json", "--which", "best"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["task"], found["length"], found["split"]) == (task, length, "test")
        assert found["metrics"]["loss"] > 0
    assert main(["evaluate", str(run)]) == 0
    assert "loss without memory" in capsys.readouterr().out
    assert "it reads 10 inputs and gives 9 outputs; adding has 2 and wants 1" in fails(
        ["evaluate", str(run), "--task", "adding"], capsys
    )


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_compare_writes_figure_table_and_json(run: Path, tmp_path: Path, capsys, suffix: str) -> None:
    figure = tmp_path / f"curves.{suffix}"
    assert main(["compare", str(run), str(run), "--figure", str(figure)]) == 0
    table = capsys.readouterr().out
    assert table.count("torch.RNN") == 2
    assert str(figure) in table.replace("\n", "")
    assert figure.read_bytes()[:4] in (b"\x89PNG", b"<?xm")
    assert main(["compare", str(run), "--figure", str(figure), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["runs"][0]
    assert [record["update"] for record in row["curve"]] == [2, 4]
    assert "must end in .png, .svg, .pdf" in fails(["compare", str(run), "--figure", "x.gif"], capsys)


def test_compare_does_not_replace_an_earlier_figure(run: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("learning-curves.png", "learning-curves-2.png"):
        assert main(["compare", str(run)]) == 0
        out = capsys.readouterr().out
        assert f"learning curves: {name}" in out
        assert "copy, T = 2" in out
        assert (tmp_path / name).is_file()


def test_compare_leaves_nothing_but_the_figure(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    assert main(["compare", str(run), "--figure", str(folder / "curves.png"), "--quiet"]) == 0
    assert [path.name for path in folder.iterdir()] == ["curves.png"]


def test_list_wraps_its_sentences_in_a_narrow_terminal(capsys, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["list", "tasks"]) == 0
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m|│", " ", capsys.readouterr().out).split())
    assert "repeat the symbols." in text
    assert "classify at the end which two" in text


def test_list_names_models_tasks_scopes_and_systems(capsys) -> None:
    assert main(["list", "--json"]) == 0
    rooms = json.loads(capsys.readouterr().out)
    assert {"RelRNN", "LSTM", "torch.LSTM"} <= set(rooms["models"])
    assert set(rooms["tasks"]) == set(TASKS)
    assert "horizon" in rooms["scopes"]
    assert set(rooms["systems"]) == {f"system:{name}" for name in SYSTEMS}
    assert rooms["systems"]["system:chaotic-lstm"].endswith("chaotic at s = 1. (--with s=1)")
    assert all(rooms["models"].values())
    assert main(["list", "scopes", "--json"]) == 0
    (scopes,) = json.loads(capsys.readouterr().out).values()
    assert scopes["entropy"].endswith("press them together? (--set entropy.OPTION: points)")
    assert main(["list"]) == 0
    assert "[s_{t-1}, x_t]" in capsys.readouterr().out.replace("\n", " ")  # brackets are not markup


@pytest.fixture
def statements(monkeypatch) -> None:
    def statement(name: str, status: Any, rows: list[Row]) -> Statement:
        claim, remark = f"{name} [claims]", f"{name} [slips]"
        return Statement(name, "A paper 2020", "Lemma 1", status, claim, lambda: iter(rows), remark=remark)

    good, bad = Row("n = 3", bound=2.0, measured=1.0), Row("n = 4", bound=1.0, measured=4.0)
    every = [statement("a-1", "holds", [good]), statement("a-2", "open", [bad]), statement("b", "holds", [good, bad])]
    monkeypatch.setattr("mnemoscope.cli._commands.theory.load", lambda: {s.name: s for s in every})


def test_theory_lists_and_checks(statements, capsys) -> None:
    assert main(["theory"]) == 0
    listed = capsys.readouterr().out
    assert "3 statements" in listed
    assert "b [claims]" in listed
    assert main(["theory", "a"]) == 0  # what is open may fail
    checked = capsys.readouterr().out
    assert "0.5" in checked
    assert "does not hold" in checked
    assert "Remark: a-1 [slips]" in checked
    assert main(["theory", "--all", "--json"]) == 1
    about = json.loads(capsys.readouterr().out)[2]
    assert about["remark"] == "b [slips]"
    rows = about["rows"]
    assert [(row["ratio"], row["holds"]) for row in rows] == [(0.5, True), (4.0, False)]
