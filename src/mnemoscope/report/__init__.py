"""Findings -> one HTML page, figures as files, and an index over runs."""

from mnemoscope.report._chart import Chart
from mnemoscope.report._charts import charts_of
from mnemoscope.report._figures import write_figures
from mnemoscope.report._index import write_index
from mnemoscope.report._page import all_charts, render, write_page

__all__ = ["Chart", "all_charts", "charts_of", "render", "write_figures", "write_index", "write_page"]
