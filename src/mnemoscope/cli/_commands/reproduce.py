"""mnemoscope reproduce ID...: the papers' tables, figures and claims, reproduced and judged; without ids, the list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from mnemoscope.cli._commands.sweep import EngineOptions
from mnemoscope.cli._console import OutputOptions, parse, say, show, show_json, terminal
from mnemoscope.cli._sweep_progress import SweepView
from mnemoscope.errors import MnemoscopeError
from mnemoscope.studies import (
    SCALES,
    Outcome,
    Plan,
    Scale,
    Study,
    choose,
    estimated_seconds,
    is_studies,
    known_verdict,
    load,
    reproduce,
    words_for,
    write_pages,
)
from mnemoscope.wording import counted

TIME_UP = 75  # the exit code of sysexits.h for "try again later"
LISTED_REASONS = 8  # studies that were not run, of which each has a line


@dataclass(frozen=True)
class Reproduce:
    """Reproduce the papers' tables, figures and claims, with a verdict on each; without ids, list them with costs."""

    ids: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[STUDY...]")] = ()
    """Studies, as kerg/table5; the beginning of an id stands for all that begin with it."""
    all: tyro.conf.FlagCreatePairsOff[bool] = False
    """Take every study."""
    full: tyro.conf.FlagCreatePairsOff[bool] = False
    """The paper's size, which takes hours; by default the quick version, at most two minutes each."""
    seeds: str | None = None
    """How many seeds, from 0, or which: 3, or 1,2, or 3:6 (3, 4 and 5). Seeds already run are kept. By default 1;
    with --missing the seeds on record."""
    missing: tyro.conf.FlagCreatePairsOff[bool] = False
    """Run only what has no recorded result in the folder, as in a clone, which has the records but not the runs."""
    budget: float | None = None
    """Minutes: only the cheapest studies that fit are run."""
    stop_after: float | None = None
    """Minutes after which running jobs save their work and the command ends, with exit code 75 if anything is left. The
    same command continues, on any machine that has the folder."""
    out: Path = Path("studies")
    """Where pages, results and runs go; what has ended there is not run again."""
    where: tyro.conf.OmitArgPrefixes[EngineOptions] = field(default_factory=EngineOptions)
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = field(default_factory=OutputOptions)


def main(arguments: list[str]) -> int:
    options = parse(Reproduce, arguments, "reproduce")
    scale: Scale = "full" if options.full else "quick"
    if not options.ids and not options.all:
        _list(options)
        return 0
    ids = [""] if options.all else list(options.ids)
    view = _View(options.output.quiet)
    try:
        with options.where.open(1, preload=("mnemoscope.studies", "mnemoscope.scopes")) as engine, view.shown():
            outcomes = reproduce(
                ids,
                scale,
                seeds=None if options.seeds is None else _seeds(options.seeds),
                missing=options.missing,
                engine=engine,
                out=options.out,
                budget=options.budget,
                stop_after=options.stop_after,
                callback=view,
                on_plan=lambda plan: view.begin(plan, engine.slots),
            )
    except KeyboardInterrupt:
        chosen = [study.id for study in choose(ids)]
        seen = f"{write_pages(options.out, chosen)} shows what there is; " if is_studies(options.out) else ""
        terminal().print(f"stopped; {seen}the same command goes on", highlight=False, soft_wrap=True)
        return 128 + (view.signal_number or 2)
    if options.ids and all(outcome.skipped for outcome in outcomes):
        first, *others = outcomes
        more = f" ({len(others)} more not run either)" if others else ""
        raise MnemoscopeError(f"{first.id} {first.skipped}{more}")
    page = write_pages(options.out, [outcome.id for outcome in outcomes])
    _tell(outcomes, page, options.output)
    failed = [message for outcome in outcomes for message in outcome.failed]
    if failed:
        raise MnemoscopeError(f"{counted(len(failed), 'job')} failed ({options.out}/runs/failures.jsonl): {failed[0]}")
    if options.stop_after is not None and any(outcome.missing for outcome in outcomes):
        return TIME_UP
    return 1 if any(outcome.worse for outcome in outcomes) else 0


def _seeds(text: str) -> int | list[int]:
    """How many seeds, or which."""
    try:
        if ":" in text:
            first, end = map(int, text.split(":"))
            return list(range(first, end))
        return [int(word) for word in text.split(",")] if "," in text else int(text)
    except ValueError:
        raise MnemoscopeError(f"seeds = {text!r} is not allowed; say how many, as 3, or which, as 1,2 or 3:6") from None


class _View(SweepView):
    """A line for each job that has ended, and one bar."""

    title = "reproduce"

    def __init__(self, quiet: bool) -> None:
        super().__init__((), 0, quiet)

    def begin(self, plan: Plan, slots: int) -> None:
        """Say what is to be done, and about how long it takes."""
        self.total = len(plan.all_jobs)
        if plan.jobs and not self.quiet:
            self.console.print(plan.words(slots), highlight=False, soft_wrap=True)


def _tell(outcomes: Sequence[Outcome], page: Path, output: OutputOptions) -> None:
    if output.json:
        show_json({"page": str(page), "studies": [_plain(outcome) for outcome in outcomes]})
        return
    if output.quiet:
        return
    run = [outcome for outcome in outcomes if not outcome.skipped]
    if run:
        table = Table("study", "verdict", "as corrected", "recorded before", "remark")
        for outcome in run:
            corrected = "" if outcome.corrected is None else str(outcome.corrected)
            recorded = "" if outcome.recorded is None else str(outcome.recorded)
            table.add_row(outcome.id, str(outcome.verdict), corrected, recorded, _remark(outcome))
        show(table)
    skipped = [outcome for outcome in outcomes if outcome.skipped]
    for outcome in skipped[:LISTED_REASONS]:
        say(f"not run: {outcome.id} {outcome.skipped}")
    if len(skipped) > LISTED_REASONS:
        say(f"not run: {len(skipped) - LISTED_REASONS} more")
    counts = Counter(outcome.verdict.word for outcome in run)
    say(", ".join([*(f"{count} {word}" for word, count in counts.items()), str(page)]))


def _remark(outcome: Outcome) -> str:
    remarks = []
    if outcome.worse:
        remarks.append(f"worse: {', '.join(outcome.worse)}")
    if outcome.missing:
        remarks.append(f"{counted(outcome.missing, 'job')} missing")
    if outcome.failed:
        remarks.append(f"{counted(len(outcome.failed), 'job')} failed")
    if outcome.kept:
        remarks.append("the recorded result is kept")
    return "; ".join(remarks)


def _plain(outcome: Outcome) -> dict[str, Any]:
    plain = asdict(outcome)
    for name in ("verdict", "corrected", "recorded"):
        value = getattr(outcome, name)
        plain[name] = None if value is None else str(value)
    return plain


def _list(options: Reproduce) -> None:
    """Every study, with its cost on this machine and its last verdict."""
    studies = load()
    rows = [_row(study, options.out) for study in studies.values()]
    if options.output.json:
        show_json(rows)
    elif not options.output.quiet:
        table = Table("study", "what it shows", "quick", "full", "last verdict", title=f"{len(rows)} studies")
        for row in rows:
            costs = [words_for(row["seconds"][scale]) for scale in SCALES]
            verdicts = "\n".join(f"{scale}: {words}" for scale, words in row["verdicts"].items() if words)
            table.add_row(row["id"], row["shows"], *costs, verdicts)
        show(table)
        say("mnemoscope reproduce ID... runs them; --full at the paper's size")


def _row(study: Study, out: Path) -> dict[str, Any]:
    verdicts = {scale: known_verdict(study, scale, out) for scale in SCALES}
    return {
        "id": study.id,
        "paper": study.paper,
        "where": study.where,
        "shows": study.shows,
        "seconds": {scale: round(estimated_seconds(study, scale), 1) for scale in SCALES},
        "verdicts": {scale: None if verdict is None else str(verdict) for scale, verdict in verdicts.items()},
    }
