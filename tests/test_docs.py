"""The documentation is true: its code runs, its tutorial prints what it says, its links and commands exist."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import mnemoscope
from mnemoscope.cli import COMMANDS
from mnemoscope.kernels._cpu import library
from mnemoscope.layers import LAYERS
from mnemoscope.layers._run import _choose_kernel
from mnemoscope.report._charts.registry import CHARTS
from mnemoscope.scopes import SCOPES
from mnemoscope.tasks import TASKS
from mnemoscope.theory import STATEMENTS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "RESULTS.md"])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# What a page takes for granted: (text, what the test puts in its place), to keep it short.
SHORTER = {
    "examine": [("needs=120", 'needs=120, scopes=["horizon"]'), ("200, 8", "9, 2")],
    "scopes": [("needs=120", 'needs=120, scopes=["horizon"]'), ("200, 8", "9, 2")],
    "training": [("updates=2000", "updates=2"), (r"with_length\(400\)", "with_length(30)")],
    "scale": [("updates=300", "updates=2, evaluate_batches=1"), (r"range\(5\)", "range(2)"), ("T=40", "T=4")],
    "tutorial": [("updates=400", "updates=2")],
    "reinforcement": [("frames=100_000", "updates=1, evaluate_episodes=2"), ("episodes=200", "episodes=2")],
    "tasks": [(r"task\.with_length\(300\)", "task.with_length(3)")],
}


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in BLOCK.findall(page.read_text()) if kind == language]


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix("")).removeprefix("docs/")


def run(code: str, page: str, names: dict[str, Any]) -> None:
    exec(compile(code, page, "exec", dont_inherit=True), names)  # not with this file's annotations


@pytest.fixture
def registries() -> Iterator[None]:
    """A page may register a scope, a chart or a statement of its own; they go with the test."""
    before = [(registry, dict(registry)) for registry in (SCOPES, CHARTS, STATEMENTS)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=ids)
@pytest.mark.usefixtures("registries")
def test_python_blocks_run(page, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}  # nothing else: a reader pastes what is there
    for code in blocks(page, "python"):
        for pattern, replacement in SHORTER.get(page.stem, []):
            code = re.sub(pattern, replacement, code, flags=re.MULTILINE)
        if not torch.cuda.is_available():
            code = code.replace('"cuda"', '"cpu"')
        run(code, str(page), names)


def test_readme_prints_a_verdict_and_saves_the_findings(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in blocks(ROOT / "README.md", "python"):
        run(code, "README.md", names)
    assert re.match(r"Gradients reach \d+ steps back.*; the task needs 80", capsys.readouterr().out)
    assert (tmp_path / "examined" / "findings.json").exists()
    assert names["out"].shape == (500, 32, 128)


@pytest.mark.skipif(not library.available(torch.float32), reason="no compiled CPU kernels here")
def test_all_layers_have_fused_kernels_but_for_what_the_readme_names() -> None:
    x = torch.randn(5, 2, 4)
    for name, layer in LAYERS.items():
        assert _choose_kernel(layer(4, 8), x), name
    for options in ({"preactivation": True}, {"nonlinearity": "sigmoid"}):
        assert _choose_kernel(mnemoscope.RNN(4, 8, **options), x) is None


def test_layer_of_layers_md_has_the_whole_interface() -> None:
    names: dict[str, Any] = {"__name__": "docs"}
    code = next(code for code in blocks(ROOT / "docs" / "layers.md", "python") if "class Leaky" in code)
    run(code, "layers.md", names)
    packed = pack_padded_sequence(torch.randn(5, 3, 10), torch.tensor([5, 4, 2]))
    output, h = names["Leaky"](10, 6, num_layers=2, bidirectional=True)(packed)
    assert output.data.shape == (11, 12)
    assert h.shape == (4, 3, 6)


def tutorial() -> Iterator[tuple[str, str]]:
    """The code of the tutorial and the output that the page shows below it ("" where it shows none)."""
    found = BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text())
    for (kind, code), (after, text) in zip(found, [*found[1:], ("", "")], strict=True):
        if kind == "python":
            yield code, text if after == "text" else ""


def assert_alike(printed: str, shown: str, rel: float) -> None:
    """The same words; numbers may differ as much as another machine's rounding makes them."""
    number = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
    assert number.sub("#", " ".join(printed.split())) == number.sub("#", " ".join(shown.split()))
    for ours, theirs in zip(number.findall(printed), number.findall(shown), strict=True):
        assert float(ours) == pytest.approx(float(theirs), rel=rel, abs=4)


def run_tutorial(updates: int) -> None:
    names: dict[str, Any] = {}
    trained = False
    for code, shown in tutorial():
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            run(code.replace("updates=400", f"updates={updates}"), "tutorial.md", names)
        trained = trained or "train(net)" in code
        if updates == 400 or not (trained and "verdict" not in code):
            assert_alike(out.getvalue(), shown, rel=0.75 if trained else 0.25)  # training multiplies rounding errors


def test_tutorial_prints_what_it_shows() -> None:
    """Up to the first training, and of the untrained RelRNN: the rest takes a minute."""
    run_tutorial(updates=2)


@pytest.mark.slow
def test_tutorial_prints_what_it_shows_after_training() -> None:
    run_tutorial(updates=400)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        target, _, anchor = link.partition("#")
        if re.match(r"https?:|mailto:", target):
            continue
        path = page.parent / target if target else page
        assert path.exists(), link
        if anchor:
            heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, link


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_exist(page) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join([*blocks(page, "sh"), *blocks(page, ""), *re.findall(r"`([^`\n]+)`", page.read_text())])
    for command in re.findall(r"^mnemoscope (\w+)", text, re.MULTILINE):
        assert command in COMMANDS, command
    for target in re.findall(r"^make ([a-z][\w-]*)", text, re.MULTILINE):
        assert target in targets, target


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page.name


def test_pictures_of_the_architecture_are_those_that_the_script_draws(tmp_path) -> None:
    names: dict[str, Any] = {"__name__": "diagrams", "__file__": str(ROOT / "docs" / "diagrams.py")}
    exec((ROOT / "docs" / "diagrams.py").read_text(), names)
    names["IMAGES"] = tmp_path
    for draw in ("layer_call", "training_run", "examination"):
        names[draw]()
    for drawn in tmp_path.iterdir():
        assert drawn.read_text() == (ROOT / "docs" / "images" / drawn.name).read_text()


@pytest.mark.parametrize("name", [*LAYERS, *SCOPES, *TASKS])
def test_every_layer_scope_and_task_has_its_row(name) -> None:
    page = {**dict.fromkeys(LAYERS, "layers"), **dict.fromkeys(SCOPES, "scopes"), **dict.fromkeys(TASKS, "tasks")}[name]
    rows = [line for line in (ROOT / "docs" / f"{page}.md").read_text().splitlines() if line.startswith("|")]
    assert any(f"`{name}`" in row.split("|")[1] for row in rows), name
