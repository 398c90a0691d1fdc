"""Pictures of what local scaling does to answers (extra: figures)."""

from localscale.figures.curves import draw_per_scale, draw_residuals
from localscale.figures.files import save_figure
from localscale.figures.functions import draw_functions
from localscale.figures.growth import draw_growth
from localscale.figures.masks import draw_masks
from localscale.figures.pipeline import draw_pipeline
from localscale.figures.residuals import residuals_of
from localscale.figures.samples import draw_samples
from localscale.figures.warp import draw_warp

__all__ = [
    "draw_functions",
    "draw_growth",
    "draw_masks",
    "draw_per_scale",
    "draw_pipeline",
    "draw_residuals",
    "draw_samples",
    "draw_warp",
    "residuals_of",
    "save_figure",
]
