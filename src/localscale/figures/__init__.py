"""Pictures of what local scaling does to answers (extra: figures)."""

from localscale.figures.files import save_figure
from localscale.figures.masks import draw_masks
from localscale.figures.warp import draw_warp

__all__ = ["draw_masks", "draw_warp", "save_figure"]
