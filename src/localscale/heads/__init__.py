"""Heads that answer for every pixel, over any timm backbone."""

from localscale.heads.dpt import DPTHead
from localscale.heads.segmentation import Segmenter, segmenter

__all__ = ["DPTHead", "Segmenter", "segmenter"]
