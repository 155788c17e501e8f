"""Findings -> one HTML page, figures as files, and an index over runs."""

from mnemoscope.report._chart import (
    Axis,
    Bars,
    Chart,
    HeatMap,
    Labels,
    Line,
    Mark,
    Marker,
    Panels,
    Picture,
    Plane,
    Points,
    Style,
)
from mnemoscope.report._chart_file import charts_from_json, charts_to_json
from mnemoscope.report._charts import charts_of
from mnemoscope.report._figures import draw_figure, figures_hash, write_figures, write_numbered_figures, write_panels
from mnemoscope.report._headline import Headline, HeadlineValue, headlines, mixed_layouts
from mnemoscope.report._index import Cell, write_index
from mnemoscope.report._notebook import InlinePage
from mnemoscope.report._page import all_charts, render, write_page
from mnemoscope.report._runs import RunRow, learning_charts, learning_finding
from mnemoscope.report._seed_line import Curve, SeedLine, with_seed_counts
from mnemoscope.report._studies import (
    Agreement,
    ClaimLine,
    IndexRow,
    StudyPage,
    StudyResult,
    TwoValues,
    VerdictWords,
    write_studies_index,
    write_study_page,
)
from mnemoscope.report._sweep import SweepGroup, short_name, sweep_charts, write_sweep

__all__ = [
    "Agreement",
    "Axis",
    "Bars",
    "Cell",
    "Chart",
    "ClaimLine",
    "Curve",
    "Headline",
    "HeadlineValue",
    "HeatMap",
    "IndexRow",
    "InlinePage",
    "Labels",
    "Line",
    "Mark",
    "Marker",
    "Panels",
    "Picture",
    "Plane",
    "Points",
    "RunRow",
    "SeedLine",
    "StudyPage",
    "StudyResult",
    "Style",
    "SweepGroup",
    "TwoValues",
    "VerdictWords",
    "all_charts",
    "charts_from_json",
    "charts_of",
    "charts_to_json",
    "draw_figure",
    "figures_hash",
    "headlines",
    "learning_charts",
    "learning_finding",
    "mixed_layouts",
    "render",
    "short_name",
    "sweep_charts",
    "with_seed_counts",
    "write_figures",
    "write_index",
    "write_numbered_figures",
    "write_page",
    "write_panels",
    "write_studies_index",
    "write_study_page",
    "write_sweep",
]
