"""Figures of maps, answers and measurements (extra: figures)."""

from localscale.lab.pictures.curves import draw_per_scale, draw_residuals
from localscale.lab.pictures.files import save_figure
from localscale.lab.pictures.functions import draw_functions
from localscale.lab.pictures.growth import draw_growth
from localscale.lab.pictures.masks import draw_masks
from localscale.lab.pictures.pipeline import draw_pipeline
from localscale.lab.pictures.residuals import residuals_of
from localscale.lab.pictures.samples import draw_samples
from localscale.lab.pictures.warp import draw_warp

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
