"""The kinds of case: each takes random numbers and a sandbox, and raises if the library does what it must not."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch

from fuzz.damage import NUMBERS, STRINGS, array, damaged_bytes, damaged_json
from fuzz.pages import pages
from fuzz.sandbox import Sandbox
from mnemoscope.cli import COMMANDS
from mnemoscope.cli._targets import read_options
from mnemoscope.cli._weights import load_weights, read_inputs
from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import to_json
from mnemoscope.finding import Examination
from mnemoscope.layers import LAYERS
from mnemoscope.recurrence import leaves, map_state, rebuild
from mnemoscope.report import all_charts, write_figures
from mnemoscope.scopes import SCOPES
from mnemoscope.tasks import TASKS, Characters, Words
from mnemoscope.tasks._archives import parse_idx, read_file, read_member
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, Stop, models, train
from mnemoscope.training._checkpoint import _digest

Rng = random.Random
SMALL = ("--batches", "1", "--batch-size", "2", "--quiet")


def make_template(folder: Path) -> None:
    """Write what cases damage: a run that was stopped, one that ended, findings, weights, inputs, texts, archives."""

    def stop(progress: Any) -> None:
        if progress.update == 4:
            raise Stop

    text = "".join("abcdefgh"[i * i % 8] + " the sea\n"[i % 9] for i in range(300))
    (folder / "text.txt").write_text(text)
    fit = FitConfig(
        6,
        batch_size=2,
        evaluate_every=2,
        evaluate_batches=1,
        log_every=1,
        checkpoint_every=2,
        threads=1,
        record_every=3,
    )
    copy = RunConfig(TASKS["copy"](T=3), NetworkConfig("torch.RNN", 4), fit)  # type: ignore[call-arg]
    carried = NetworkConfig("RelRNN", 4, options={"buffer": 2, "relevant": 2})
    for name, config in (("copy", copy), ("carried", RunConfig(Characters(str(folder / "text.txt"), 5), carried, fit))):
        with contextlib.suppress(Stop):
            train(config, folder / name, stop)
    train(copy, folder / "ended")

    # Findings with the series and shapes that the scopes really make.
    from mnemoscope.scopes import examine

    torch.manual_seed(0)
    model = LAYERS["RNN"](2, 3)
    examine(model, torch.randn(12, 2, 2)).save(folder / "findings")

    # Weights and inputs.
    torch.save(model.state_dict(), folder / "weights.pt")
    torch.save(torch.randn(5, 2, 2), folder / "inputs.pt")
    safetensors.numpy.save_file(
        {name: tensor.numpy() for name, tensor in model.state_dict().items()}, folder / "weights.safetensors"
    )
    np.save(folder / "inputs.npy", np.random.default_rng(0).standard_normal((5, 2, 2)))

    # Packed files.
    (folder / "text.txt.gz").write_bytes(gzip.compress(text.encode()))
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("inner/text.txt", text)
    with tarfile.open(folder / "archive.tgz", "w:gz") as tar:
        info = tarfile.TarInfo("inner/text.txt")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
    (folder / "digits.idx").write_bytes(b"\0\0\x08\x02" + (3).to_bytes(4, "big") + (4).to_bytes(4, "big") + bytes(12))


def run_folder(rng: Rng, box: Sandbox) -> None:
    """A file of a run was damaged: JSON in its values, signed again where it is signed, or any file in its bytes."""
    run = box.copy(rng.choice(["copy", "copy", "ended", "carried"]))
    for _ in range(rng.choice([1, 1, 1, 3])):
        found = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
        path = rng.choice(found)
        if path.suffix == ".json":
            data = damaged_json(rng, path.read_bytes())
            path.write_bytes(_signed(data) if path.parent.name == "checkpoints" and rng.random() < 0.8 else data)
        elif path.suffix == ".safetensors" and rng.random() < 0.5:
            _change_tensors(rng, path)
        else:
            path.write_bytes(damaged_bytes(rng, path.read_bytes()))
    _run_command(rng, box, run)


def _run_command(rng: Rng, box: Sandbox, run: Path) -> None:
    commands: list[tuple[Any, ...]] = [
        ("evaluate", run, "--which", rng.choice(["last", "best"]), *SMALL),
        ("evaluate", run, *SMALL),
        ("resume", run, "--quiet"),
        ("resume", run, "--quiet", "--allow-changed", "data", "metrics"),
        ("report", run.parent),
        ("train", "--config", run / "config.json", "--updates", "1", "--batch-size", "2", "--out", "new", "--quiet"),
    ]
    if rng.random() < 0.1:
        commands = [("compare", run, "--figure", "f.svg")]  # drawing is slow
    box.command(*rng.choice(commands))


def _signed(data: bytes) -> bytes:
    """A checkpoint's JSON with the checksum that fits it."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(body, dict):
        return data
    body.pop("sha256", None)
    try:
        return to_json({**body, "sha256": _digest(body)})
    except ValueError:
        return data


def _change_tensors(rng: Rng, path: Path) -> None:
    """Replace, drop or reshape tensors of a checkpoint, and sign it again."""
    try:
        tensors = safetensors.numpy.load_file(path)
    except safetensors.SafetensorError:  # it is damaged already
        return
    if not tensors:
        return
    name = rng.choice(sorted(tensors))  # a file lists them in another order each time
    kind = rng.randrange(4)
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[name + rng.choice(["", "x", ".0", "0"])] = array(rng)
    elif kind == 2:
        tensors[name] = tensors[name].reshape(-1)[: rng.randrange(4)]
    else:
        tensors[name] = tensors[name].astype(rng.choice(["float64", "float32", "int64", "bool"]))
    data = safetensors.numpy.save({key: np.ascontiguousarray(tensor) for key, tensor in tensors.items()})
    path.write_bytes(data)
    for beside in path.parent.glob("*.json"):
        try:
            body = json.loads(beside.read_bytes())
        except (ValueError, RecursionError):
            continue
        if isinstance(body, dict) and body.get("tensors") == path.name:
            import hashlib

            beside.write_bytes(
                _signed(json.dumps({**body, "tensors_sha256": hashlib.sha256(data).hexdigest()}).encode())
            )


def odd_entries(rng: Rng, box: Sandbox) -> None:
    """A file is a folder, a FIFO, a link, or may not be read; a folder is a file; names are long or not UTF-8."""
    run = box.copy(rng.choice(["copy", "ended", "findings"]))
    path = rng.choice(sorted(run.rglob("*")))
    kind = rng.randrange(7)
    if path.is_dir():
        path.rename(run / "moved")
        if kind % 2:
            path.write_bytes(b"x")
        else:
            path.symlink_to(rng.choice(["/tmp", "moved", "../outside", str(box.root / "victim")]))
    elif kind == 0:
        path.unlink()
        path.mkdir()
    elif kind == 1:
        path.unlink()
        os.mkfifo(path)
    elif kind == 2:
        path.unlink()
        path.symlink_to(rng.choice(["/dev/zero", "/dev/null", "/etc/passwd", path.name, str(box.root / "victim/file")]))
    elif kind == 3:
        path.unlink()
    elif kind == 4:
        with path.open("r+b") as file:
            file.truncate(rng.choice([0, 1, 1 << 36]))
    elif kind == 5:
        strange = os.fsdecode(rng.choice([b"\xff\xfe", b"\x1b[31m", b"a b&c<d>", b"x" * 250]))
        path.rename(path.with_name(strange))
        run = run.rename(run.with_name(strange))
    else:
        run = run.rename(run.with_name(rng.choice(["100%", "a#b?c", "-x", "c:d", "\u202e"])))
    if run.name.startswith("findings") or (run / "findings.json").exists():
        box.command("report", run)
    else:
        _run_command(rng, box, run)


def findings(rng: Rng, box: Sandbox) -> None:
    """The findings of a model were damaged, then reported."""
    folder = box.copy("findings")
    path = folder / "findings.json"
    arrays = next(folder.glob("arrays-*"))
    kind = rng.randrange(4)
    if kind == 0:
        arrays.write_bytes(damaged_bytes(rng, arrays.read_bytes()))
    elif kind == 1:
        content = safetensors.numpy.load_file(arrays)
        for _ in range(rng.choice([1, 3, 10])):
            content[rng.choice(sorted(content))] = array(rng)
        arrays.write_bytes(safetensors.numpy.save(content))
    else:
        path.write_bytes(damaged_json(rng, path.read_bytes()))
    if box.command("report", folder) == 0 and rng.random() < 0.05:  # all figures would take seconds
        box.guarded(lambda: _draw(rng, Examination.load(folder), box.box / "figures"))


def _draw(rng: Rng, examination: Examination, folder: Path) -> None:
    charts = all_charts(examination)
    write_figures(rng.sample(charts, min(len(charts), 2)), folder, ["svg"])


def data_files(rng: Rng, box: Sandbox) -> None:
    """Weights, inputs, texts and archives were damaged, then read."""
    readers: dict[str, Callable[[Path], Any]] = {
        "weights.pt": lambda path: load_weights(LAYERS["RNN"](2, 3), path),
        "weights.safetensors": lambda path: load_weights(LAYERS["RNN"](2, 3), path),
        "inputs.pt": read_inputs,
        "inputs.npy": read_inputs,
        "text.txt": lambda path: _read_text(rng, path),
        "text.txt.gz": lambda path: _read_text(rng, path),
        "archive.zip": lambda path: read_member(path, "text.txt", 10_000),
        "archive.tgz": lambda path: read_member(path, "text.txt", 10_000),
        "digits.idx": lambda path: parse_idx(read_file(path, 10_000), str(path)),
    }
    name = rng.choice(list(readers))
    path = box.copy(name)
    path.write_bytes(damaged_bytes(rng, path.read_bytes()))

    def read() -> None:
        readers[name](path)

    box.guarded(read)


def _read_text(rng: Rng, path: Path) -> None:
    task = rng.choice([Characters, Words])(str(path), rng.choice([1, 5, 10**6]))
    task.batch(rng.choice([0, 3, 10**6]), rng.choice([1, 2, 50]), rng.choice(["train", "valid", "test"]))


NEW_FORMS: tuple[Callable[[torch.Tensor, Rng], torch.Tensor], ...] = (
    lambda t, rng: t.float(),
    lambda t, rng: t.double(),
    lambda t, rng: t.long(),
    lambda t, rng: t.half(),
    lambda t, rng: t.flatten(),
    lambda t, rng: t[..., :0],
    lambda t, rng: t[..., :1],
    lambda t, rng: t.unsqueeze(0),
    lambda t, rng: torch.cat([t, t], -1) if t.dim() else t,
    lambda t, rng: torch.cat([t, t], 0) if t.dim() else t,
    lambda t, rng: torch.full_like(t, rng.choice([-1, -5, 3, 100])),
    lambda t, rng: torch.full_like(t, rng.choice([2**31 - 1, -(2**31)]) if t.dtype == torch.int64 else 1e38),
    lambda t, rng: torch.full_like(t, float("nan")) if t.is_floating_point() else torch.full_like(t, 2**62),
    lambda t, rng: t.transpose(0, -1) if t.dim() > 1 else t,
    lambda t, rng: t.expand(2, *t.shape),
    lambda t, rng: torch.zeros(()),
    lambda t, rng: t.to("meta"),
)


def states(rng: Rng, box: Sandbox) -> None:
    """A tensor of a layer's state, or the state's structure, does not fit; the layer goes on from it, and back."""
    name = rng.choice(list(LAYERS))
    options = {"buffer": rng.choice([1, 2, 3]), "relevant": rng.choice([1, 2])} if name.startswith("Rel") else {}
    torch.manual_seed(rng.randrange(10**6))
    layer = LAYERS[name](2, 4, **options)
    x = torch.randn(rng.choice([1, 3, 6]), 2, 2)
    _, state = layer(x)
    tensors = leaves(state)
    i = rng.randrange(len(tensors))
    kind = rng.randrange(8)

    def go_on() -> None:
        nonlocal state
        if kind == 0:
            state = rng.choice([(), (state,), [state], None, "state", 5, {"h": state}, tensors[0], tuple(tensors)])
        elif kind == 1:
            state = map_state(lambda t: rng.choice(NEW_FORMS)(t, rng), state)
        else:
            changed = [rng.choice(NEW_FORMS)(t, rng) if j == i else t for j, t in enumerate(tensors)]
            state = rebuild(state, changed)
        try:
            y, _ = layer(x.clone().requires_grad_(), state)
            if y.requires_grad and not y.is_meta:
                y.sum().backward()
        except (TypeError, RuntimeError, ValueError, NotImplementedError) as error:  # in Python any plain error will do
            raise MnemoscopeError(str(error)) from error

    box.guarded(go_on)


WORDS = (
    *("--help", "--quiet", "--json", "--updates", "--lr", "--seed", "--batch-size", "--hidden-size", "--out", "--task"),
    *("--task.T", "--task.seed", "--model", "--config", "--which", "--split", "--with", "--inputs", "--checkpoint"),
    *("--scopes", "--fail-if", "--figures", "--figure", "--features", "--steps", "--batch", "--budget", "--needs"),
    *("--threads", "--device", "--precision", "--dropout", "--clip", "--stable", "--schedule", "--evaluate-every"),
    *("--log-every", "--checkpoint-every", "--allow-changed", "--dtype", "--task.data", "--tied", "--embedding"),
    *("x={[]:1}", "x=" + "(" * 200, "hidden_size=8", "=", "x", "horizon<100", "horizon<", "horizon<1:certified", "a:b"),
    *("json:loads", "torch.nn:GRU", "os:system", "missing.py:f", ":", "::", "copy", "ended", "findings", "text.txt"),
    "--all",
)


def arguments(rng: Rng, box: Sandbox) -> None:
    """A command with arguments of any kind. What would train or measure for long is kept short."""
    box.copy("ended")
    box.copy("text.txt")
    command = rng.choice([*COMMANDS, *COMMANDS, "", "x", "trian", "\x1b[2J"])
    pools = (WORDS, STRINGS, tuple(map(str, NUMBERS)), tuple(TASKS), tuple(models()), tuple(SCOPES))
    words = [rng.choice(rng.choice(pools)) for _ in range(rng.randrange(6))]
    if command == "theory" and rng.random() < 0.9:
        words = [word for word in words if word != "--all"] + ["no-such-statement"]
    if command == "train":
        words = [rng.choice(["copy", "adding", *words[:1]]), *words]
        words += ["--updates", "1", "--batch-size", "2", "--hidden-size", "4", "--num-layers", "1", "--embedding", "0"]
        words += [
            "--evaluate-batches",
            "1",
            "--out",
            rng.choice(["new", "new", "ended", "text.txt", "x" * 300, "a\0b"]),
        ]
        words += ["--task.T", "3"] if words[0] in ("copy", "adding") else ["--epochs", "0"]
    elif command in ("evaluate", "resume"):
        words = ["ended", *words]
        if command == "evaluate":
            words += SMALL
    elif command == "examine":
        target = rng.choice(["RNN", "ended", "system:henon", "torch.nn:GRU", *words[:1]])
        words = [target, *words]
        ends = ["--scopes", "no-such-scope"] if rng.random() < 0.97 else ["--scopes", "recurrence", "--budget", "1"]
        words += ["--steps", "5", "--batch", "2", "--features", "2", "--out", "new", *ends]
        box.guarded(lambda: read_options([word for word in words if "=" in word]) and None)
    elif command == "compare":
        words = (
            [*words, "--figure", rng.choice(["x.bmp", "x", "text.txt/x.png", "\0.png"])]
            if rng.random() < 0.95
            else words
        )
    box.command(command, *words)


KINDS: dict[str, tuple[int, Callable[[Rng, Sandbox], None]]] = {
    "run folder": (20, run_folder),
    "odd entries": (10, odd_entries),
    "findings": (15, findings),
    "data files": (15, data_files),
    "states": (15, states),
    "arguments": (15, arguments),
    "pages": (10, pages),
}
"""Every kind of case with its share of the cases."""


def run_case(number: int, seed: int, box: Sandbox) -> str:
    """Run one case and return its kind. The same number and seed make the same case."""
    rng = random.Random(f"{seed}/{number}")
    kinds = list(KINDS)
    kind = rng.choices(kinds, [KINDS[name][0] for name in kinds])[0]
    box.empty()
    try:
        KINDS[kind][1](rng, box)
    except BaseException as error:
        error.add_note(f"kind: {kind}")
        raise
    return kind
