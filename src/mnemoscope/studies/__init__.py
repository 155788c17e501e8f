'''The papers' tables, figures and claims, reproduced by one command and judged.

A *study* is one of them: data (what was published, with which settings, what is claimed) and three small functions. It
lives in a private file of its paper's package, `studies/miller/_fig1a.py`, and is registered at the end of it. All that
an author needs is here::

    """Figure 3: how far training on truncated gradients leads away (Miller & Hardt 2018)."""

    from mnemoscope.studies import Claim, Done, Study, band, measure, settings, study, table, train

    def jobs(scale, seed):
        """By keys of your choice: a training run, and something measured of it."""
        fits = {k: FitConfig(bptt=k, seed=seed) for k in (5, 65)}
        runs = {k: train(RunConfig(Words(bptt=65), NetworkConfig("RNN", ...), fit)) for k, fit in fits.items()}
        return {**runs, "gap": measure(distance, needs=(runs[5], runs[65]), seconds=2, ord=2)}

    def distance(short: Result, long: Result, *, ord: int) -> dict:
        """A measurement: needed results first, then plain arguments. Returns numbers, lists, arrays or tensors."""
        a, b = (result.run.model("best").layer.weight_hh_l0 for result in (short, long))
        return {"gap": float((a - b).norm(ord)), "weights": a}

    def cells(scale, done: Done):
        """Our numbers by (row, column), of one seed; names are made strings. None or NaN is not known: it was not run.

        A run that diverged is known, as a `Note` with what it counts as.
        """
        return {("5", "RNN"): done["gap"].figure("gap"), ("65", "RNN"): done[65].reached("infinity")}

    def charts(scale, done: list[Done]):
        """Our figures over all seeds; Chart, Line, HeatMap, Panels, ... are in mnemoscope.report."""
        return [Chart("loss", "Loss while learning", Axis("updates"), Axis("loss", log=True, switch=True),
                      (band("k = 5", {one.seed: one[5].curve("loss") for one in done}),))]

    study(Study("miller/fig3", "Figure 3", "distance between weights, by length of truncation", jobs, cells, charts,
        claims=(
            Claim("longer windows come nearer", check=lambda c: c["5", "RNN"] > c["15", "RNN"]),
            Claim("the RNN at 146.7 within 5 %", row="65", column="RNN", at_least=139.4, at_most=154, scale="full"),
        ),
        published=table((5, 65), ("RNN",), [[None], [146.7]], row_title="k", within=0.05),
        settings=settings(batch_size=(20, "paper"), clip=(0.25, "code"), init=("xavier", "ours", "not said")),
        quick=settings(words=(2000, "ours")),          # what the quick version changes
        words="rapid increase, then slow growth",      # of the paper on its figure
        errata=("...",), would_change="...", surprise="At most two sentences for docs/studies.md.",
        data=("wikitext-2",)))

- `jobs(scale, seed)`: `train(RunConfig(...))` is a training run, `measure(function, ...)` a call of a function of the
  same file. A job's folder, OUT/runs/LABEL-HASH, is named by what the job is, so equal jobs are shared by all studies
  and sizes, and a folder with a summary.json is taken as done wherever it was made. Leave the device "auto". Put the
  seed into `FitConfig(seed=)` and the task's `seed=`, or into the measurement's arguments. Jobs that are needed must
  be in the mapping too, before those that need them. `seconds=` (one CPU) is told before anything runs; training is
  estimated from its sizes. Quick studies: at most two minutes in all.
- `Result`: of a measurement, ``result["name"]`` is what the function returned; of a run, ``result.best``,
  ``result.curve("accuracy")``, ``result.run.model("best")``. Use the best weights: results from elsewhere come with
  config.json, metrics.jsonl, summary.json and the best weights only.
- A run that diverged is a result too: ``result.diverged`` says why, `best` and `curve` show what it reached. One that
  diverged before its first evaluation (``result.diverged_at_once``) reached nothing, and nothing can be measured of it:
  ``result.reached(1 / 8)`` and ``result.figure("gap")`` are then ``Note("diverged", 1 / 8)`` and ``Note("diverged")``,
  which count as a guess and as a broken claim, in medians too. Failures must not vanish: never leave such a cell out.
- `cells` is called with one seed's results, perhaps not all: a missing key makes the seed's cells empty, so that
  ``for key, result in done.items()`` shows more of an unfinished study. What follows from cells alone, as a mean over
  rows or its chart (`cell_line`), is made by `derived_cells` and `derived_charts` from all that are recorded: the runs
  of some may be gone. A `band` knows its seeds, says how many they are, and is joined with what is recorded of others.
- `Claim`: bounds on cells (``row="*"`` are all rows that were published or that we have), or ``check=`` a function of
  the `Cells`; one that asks for an unknown cell is open, never broken. `scale`: which size it speaks of. `over`: "each"
  seed (partly: 2 of 3), the "median" over seeds, or "all" seeds' cells as a list. ``form="printed"`` and
  ``form="corrected"`` stand side by side where the paper is wrong; where nothing printed can be checked, a corrected
  claim that holds says that the printed one does not. ``form="ours"``: nobody printed it. ``headline=False`` does not
  count for the verdict.
- `surprise` that speaks of a run is a function of the medians of both sizes, ``lambda quick, full: ...``: it is said
  only if the cells are known that it asks for, and has its numbers from them.
- `statement_study` makes a study of statements of `mnemoscope.theory`, `graph_chart` draws a graph.
- A study without chance has ``has_seeds=False``; one that is not in the paper ``ours=True``.

``python -c "from mnemoscope.studies import reproduce; reproduce(['miller/fig1a'], 'full', seeds=3, out='studies')"``
runs them without the command line; `mnemoscope report studies` draws the pages afterwards.
'''

from mnemoscope.studies._cells import Cells, CellValue, Names, Note
from mnemoscope.studies._charts import band, cell_line, graph_chart
from mnemoscope.studies._cost import machine_factor, training_seconds, words_for
from mnemoscope.studies._jobs import Done, Result, measure, run_measurement, train
from mnemoscope.studies._pages import cell_words, write_pages
from mnemoscope.studies._plan import Plan, estimated_seconds, make_plan
from mnemoscope.studies._record import Cost, ScaleResult, SeedResult, StudyRecord, read_charts, read_costs, read_record
from mnemoscope.studies._reproduce import Outcome, is_studies, known_verdict, reproduce
from mnemoscope.studies._statements import (
    check_statements,
    statement_cells,
    statement_claims,
    statement_job,
    statement_study,
    tightness,
)
from mnemoscope.studies._study import (
    PAPERS,
    SCALES,
    Claim,
    Published,
    Scale,
    Setting,
    Source,
    Study,
    choose,
    load,
    settings,
    study,
    table,
)
from mnemoscope.studies._verdict import ClaimVerdict, StudyVerdict, Verdict

__all__ = [
    "PAPERS",
    "SCALES",
    "CellValue",
    "Cells",
    "Claim",
    "ClaimVerdict",
    "Cost",
    "Done",
    "Names",
    "Note",
    "Outcome",
    "Plan",
    "Published",
    "Result",
    "Scale",
    "ScaleResult",
    "SeedResult",
    "Setting",
    "Source",
    "Study",
    "StudyRecord",
    "StudyVerdict",
    "Verdict",
    "band",
    "cell_line",
    "cell_words",
    "check_statements",
    "choose",
    "estimated_seconds",
    "graph_chart",
    "is_studies",
    "known_verdict",
    "load",
    "machine_factor",
    "make_plan",
    "measure",
    "read_charts",
    "read_costs",
    "read_record",
    "reproduce",
    "run_measurement",
    "settings",
    "statement_cells",
    "statement_claims",
    "statement_job",
    "statement_study",
    "study",
    "table",
    "tightness",
    "train",
    "training_seconds",
    "words_for",
    "write_pages",
]
