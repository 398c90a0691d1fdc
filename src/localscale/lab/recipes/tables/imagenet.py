"""Tables of the methods on locally scaled ImageNet."""

from __future__ import annotations

from localscale.lab.recipes.changes import Changes
from localscale.lab.recipes.imagenet import FINE_TUNING
from localscale.lab.recipes.tables.table import PEERS, Table, lines_of

__all__ = ["IMAGENET_TABLES"]

# Fine-tuning on the photographs of ``localscale data imagenet --frame clip``, at their own resolution.
SCALED: Changes = {
    "source_size": 448,
    "optimization": {"warmup_epochs": 1.0},
    "regularization": {"cutmix": 1.0},
    "data": {"rand_augment": 9},
}
IMAGENET_LINES = lines_of("base", "base_plus", "aug", "canon", "invl", "dec", "dec_compose")

IMAGENET_TABLES: dict[str, Table] = {
    "imagenet": Table(
        "Local scale invariance on ImageNet, four backbones (paper, Tab. imagenet_results and per_scale_imnet)",
        "imagenet",
        ("vit_base", "deit_tiny", "swin_tiny", "beit_base"),
        (*IMAGENET_LINES, *PEERS),
        runs="imagenet",
        paper="imagenet",
        controls=("base_plus",),
    ),
    "imagenet-tiny": Table(
        "Local scale invariance on ImageNet, two small backbones, trained on locally scaled images",
        "imagenet",
        ("deit_tiny", "vit_tiny"),
        (*IMAGENET_LINES, *PEERS),
        runs="imagenet-scaled",
        budgets=FINE_TUNING,
        changes=SCALED,
        paper="imagenet",
        controls=("base_plus",),
    ),
    "imagenet-sizes": Table(
        "The size equilibrium on locally scaled ImageNet, trained on locally scaled images",
        "imagenet",
        ("deit_tiny", "vit_tiny"),
        lines_of("base", "base_plus", "aug", "sizes", "sizes_shipped"),
        runs="imagenet-scaled",
        budgets=FINE_TUNING,
        changes=SCALED,
        controls=("base_plus", "aug"),
    ),
    "imagenet-published": Table(
        "Local scale invariance on ImageNet with the regularisation and the backbones of the published scripts",
        "imagenet",
        ("vit_little", "deit_tiny", "swin_tiny", "beitv2_base"),
        (*lines_of("base", "base_plus", "aug", "canon", "invl", "dec", "sizes"), *PEERS),
        runs="imagenet-published",
        # The paper names cutmix in Sec. 5.3 and no strength. The published scripts have cutmix 1.0, drop path 0.1 and
        # AutoAugment, for which RandAugment stands here, and train on locally scaled photographs: --set
        # data.train_root=FOLDER takes a folder of ``localscale data imagenet``.
        changes={"regularization": {"cutmix": 1.0, "drop_path": 0.1}, "data": {"rand_augment": 9}},
        paper="imagenet",
        controls=("base_plus",),
    ),
}
