"""Results on disk as pages: what was measured, by which command, with the paper's figures beside."""

from localscale.lab.pages.results.markdown import render_table
from localscale.lab.pages.results.page import render_page

__all__ = ["render_page", "render_table"]
