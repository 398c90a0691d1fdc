"""The results page: every measurement with its command, beside the figures of the paper."""

from localscale.lab.pages.results.markdown import render_table
from localscale.lab.pages.results.page import read_results, render_page

__all__ = ["read_results", "render_page", "render_table"]
