"""The page that follows the paper: each definition, table and figure, our figures beside it, and whether it holds."""

from localscale.lab.pages.paper.page import render_paper

__all__ = ["render_paper"]
