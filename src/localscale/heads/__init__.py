"""Heads for dense prediction on top of any timm backbone."""

from localscale.heads.dpt import DPTHead
from localscale.heads.segmentation import Segmenter, segmenter

__all__ = ["DPTHead", "Segmenter", "segmenter"]
