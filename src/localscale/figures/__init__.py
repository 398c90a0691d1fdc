"""Pictures of what local scaling does to answers (extra: figures)."""

from localscale.figures.curves import draw_per_scale, draw_residuals
from localscale.figures.files import save_figure
from localscale.figures.functions import draw_functions
from localscale.figures.masks import draw_masks
from localscale.figures.warp import draw_warp

__all__ = ["draw_functions", "draw_masks", "draw_per_scale", "draw_residuals", "draw_warp", "save_figure"]
