"""Tables 6 to 9: hyper-parameters. Nothing to reproduce: each row is carried out for a few updates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mnemoscope.report import Axis, Chart
from mnemoscope.studies import Claim, Done, Scale, Source, Study, band, settings, study, table, train
from mnemoscope.studies.kerg._published import PAPER_BATCH, TABLES, Printed, TableName
from mnemoscope.sweeps import Job
from mnemoscope.tasks import Characters, Copy, Denoise, Digits, Task
from mnemoscope.training import NetworkConfig, RunConfig, layer_options

UPDATES = 20
HALVED = "RelRNN, halved sum"
COLUMNS = ("lr", "nu", "rho", "carried out")
WORK: dict[TableName, tuple[str, int, str]] = {
    "6": ("Copy at T = 100", 128, ""),
    "7": ("Denoise at T = 100", 128, ""),
    "8": ("MNIST, a pixel a step", 100, "mnist"),
    "9": ("characters of PTB, 150 steps", 128, "ptb-char"),
}


def _task(number: TableName, seed: int) -> Task:
    match number:
        case "6":
            return Copy(T=100, seed=seed)
        case "7":
            return Denoise(T=100, seed=seed)
        case "8":
            return Digits(seed=seed)
        case "9":
            return Characters(seed=seed)


def _runnable(row: Printed) -> Printed:
    """The row with Table 7's settings where GORU's are blank."""
    return row if row.lr is not None else next(other for other in TABLES["7"] if other.model == row.model)


def jobs(number: TableName, scale: Scale, seed: int) -> dict[Any, Job]:
    _, units, _ = WORK[number]
    task = _task(number, seed)
    found: dict[Any, Job] = {}
    for row in TABLES[number]:
        given = _runnable(row)
        fit = given.fit(
            updates=UPDATES, batch_size=PAPER_BATCH, evaluate_every=UPDATES, evaluate_batches=1, log_every=1, seed=seed
        )
        networks: dict[str, NetworkConfig] = {row.model: given.network(128 if row.model == "GORU" else units)}
        if row.model == "RelRNN":
            networks[HALVED] = given.network(units, mix="mean")
        found |= {name: train(RunConfig(task, network, fit)) for name, network in networks.items()}
    return found


def cells(number: TableName, scale: Scale, done: Done) -> dict[tuple[str, str], float | None]:
    rows = {row.model: row for row in TABLES[number]}
    found: dict[tuple[str, str], float | None] = {}
    for name, run in done.items():
        config = run.run.config
        row = rows["RelRNN" if name == HALVED else name]
        found[name, "lr"] = config.fit.lr if row.lr is not None else None
        found[name, "nu"] = _option(config.network, "buffer")
        found[name, "rho"] = _option(config.network, "relevant")
        found[name, "carried out"] = 0.0 if run.diverged else 1.0
    return found


def _option(network: NetworkConfig, name: str) -> Any:
    """An option that a run was made with, or its default; None of a layer that does not have it."""
    known = layer_options(network.model).get(name)
    return None if known is None else network.options.get(name, known.default)


def charts(number: TableName, scale: Scale, done: Sequence[Done]) -> list[Chart]:
    lines = [
        band(name, {one.seed: one[name].curve("loss", split=None) for one in done}, index)
        for index, name in enumerate(done[0])
    ]
    y = Axis("training loss", log=True)
    return [Chart("loss", f"Table {number}: the first {UPDATES} updates", Axis("updates"), y, tuple(lines))]


def _batch(number: TableName) -> tuple[int, Source] | tuple[int, Source, str]:
    """The batches of these few updates, and who gave them: the authors' code has larger ones for Tables 8 and 9."""
    in_code = {"8": 100, "9": 128}.get(number, PAPER_BATCH)
    return (PAPER_BATCH, "code") if in_code == PAPER_BATCH else (PAPER_BATCH, "ours", f"the code has {in_code}")


def register(number: TableName) -> None:
    """Register one of the tables."""
    where, units, data = WORK[number]
    others = tuple(row.model for row in TABLES[number] if row.model != "RelRNN")
    explodes = number in ("7", "8")
    rel: tuple[Claim, ...] = (Claim("RelRNN's row can be carried out", "RelRNN", "carried out", at_least=1.0),)
    if explodes:  # the table does not say how h and c are mixed
        text = "RelRNN's row can be carried out with s ="
        rel = (
            Claim(f"{text} (h + c)/2, as in the code", HALVED, "carried out", at_least=1.0),
            Claim(f"{text} h + c, as in eq. 91", "RelRNN", "carried out", at_least=1.0, headline=False),
        )
    study(
        Study(
            f"kerg/table{number}",
            f"Table {number}",
            f"hyper-parameters for {where.split(' at ')[0].split(',')[0]}, carried out",
            partial(jobs, number),
            partial(cells, number),
            partial(charts, number),
            claims=(Claim(f"the rows of {', '.join(others)} can be carried out", others, "carried out", 1.0), *rel),
            published=table(
                [row.model for row in TABLES[number]],
                COLUMNS,
                [[row.lr, row.buffer, row.relevant, None] for row in TABLES[number]],
                row_title="model",
                column_title="settings, and whether 20 updates can be made",
                note="settings, not results; the table also has optimizers and nonlinearities",
                within=1e-6,
            ),
            settings=settings(
                **{
                    row.model: (
                        " ".join(str(part) for part in (row.optimizer, row.lr, row.nonlinearity) if part is not None)
                        or "blank",
                        "paper",
                        "" if row.lr is not None else "run with Table 7's",
                    )
                    for row in TABLES[number]
                },
                task=(where, "paper"),
                n=(units, "code" if number != "9" else "ours", "" if number != "9" else "the code has 1024"),
                batch_size=_batch(number),
                updates=(UPDATES, "ours", "enough to see whether a row can be run"),
            ),
            errata=(
                (
                    "The table does not say how h and c are mixed. RelRNN's row (modReLU, an orthogonal V) explodes "
                    "with s = h + c, Remark 4 and eq. 91; it belongs to the code's s = (h + c)/2.",
                )
                if explodes
                else ()
            ),
            would_change="The blank cells of LSTM and GORU." if number in ("8", "9") else "",
            surprise=(
                "RelRNN's row cannot be run with the s = h + c of eq. 91: with modReLU and an orthogonal V its states "
                "grow at every step. With the sum halved, as in the code, it can."
                if explodes
                else ""
            ),
            data=(data,) if data else (),
        )
    )


for name in TABLES:
    register(name)
