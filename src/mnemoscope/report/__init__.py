"""Findings -> one HTML page, figures as files, and an index over runs."""

from .chart import Chart
from .charts import charts_of
from .index import write_index
from .page import all_charts, render, write_page
from .still import write_figures

__all__ = ["Chart", "all_charts", "charts_of", "render", "write_figures", "write_index", "write_page"]
