"""HRViT and ResFormer, which timm lacks; importing this package registers them with timm.

>>> import timm, localscale.lab.backbones
>>> timm.create_model("resformer_tiny_patch16_224", num_classes=10).num_classes
10
"""

from localscale.lab.backbones.hrvit import HRViT, HRViTConfig, hrvit_b1
from localscale.lab.backbones.resformer import ResFormer, resformer_tiny_patch16_224

__all__ = ["HRViT", "HRViTConfig", "ResFormer", "hrvit_b1", "resformer_tiny_patch16_224"]
