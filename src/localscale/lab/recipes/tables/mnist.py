"""Tables of the methods on locally scaled MNIST."""

from __future__ import annotations

from localscale.lab.recipes.rows import SIZES, Budget
from localscale.lab.recipes.tables.small import SMALL, SMALL_BUDGETS, SMALL_DATA, at_the_first_rate, four_blocks
from localscale.lab.recipes.tables.table import PEERS, Line, Table, lines_of

__all__ = ["MNIST_TABLES"]

MNIST_LINES = lines_of(
    *("aug", "aug_plus", "canon", "invl", "dec", "dec_compose", "aug_long", "dec_joint", "dec_compose_joint")
)
HALF_AUGMENTED = {"augmentation": {"probability": 0.5}}
NOT_AUGMENTED = {"augmentation": {"probability": 0.0}}

MNIST_TABLES: dict[str, Table] = {
    "mnist": Table(
        "Local scale invariance on MNIST, six backbones (paper, Tab. mnist_results and per_scale_mnist)",
        "mnist",
        ("resnet50", "vit_base", "deit_base", "swin_tiny", "beit_base", "dinov2_base"),
        (*MNIST_LINES, *PEERS),
        runs="mnist",
        paper="mnist",
        controls=("aug_plus", "aug_long"),
    ),
    "mnist-tiny": Table(
        "Local scale invariance on MNIST, DeiT-Tiny, continued at the first rate",
        "mnist",
        ("deit_tiny",),
        (*MNIST_LINES, *PEERS),
        runs="mnist-tiny",
        budgets=at_the_first_rate(SMALL_BUDGETS),
        changes=SMALL,
        paper="mnist",
        controls=("aug_plus", "aug_long"),
    ),
    "mnist-small": Table(
        "Local scale invariance on MNIST, DeiT-Tiny and ViT-Tiny",
        "mnist",
        ("deit_tiny", "vit_tiny"),
        (*MNIST_LINES, Line("sizes"), *PEERS),
        runs="mnist-small",
        budgets=SMALL_BUDGETS,
        changes=SMALL,
        paper="mnist",
        controls=("aug_plus", "aug_long"),
    ),
    "mnist-resnet": Table(
        "Local scale invariance on MNIST, ResNet-50, half the epochs",
        "mnist",
        ("resnet50",),
        (*MNIST_LINES, Line("sizes"), *PEERS),
        runs="mnist-resnet",
        budgets={"first": Budget(20, 5e-4), "more": Budget(10, 5e-5), "both": Budget(30, 5e-4)},
        changes={**SMALL, "optimization": {"batch_size": 128, "warmup_epochs": 2.0}},
        paper="mnist",
        controls=("aug_plus", "aug_long"),
    ),
    "mnist-cnn": Table(
        "Local scale invariance on MNIST, EfficientNet-Lite0",
        "mnist",
        ("efficientnet_lite0",),
        (
            *lines_of("aug", "aug_plus", "canon", "invl", "dec", "dec_compose", "aug_long", "dec_compose_joint"),
            Line("sizes"),
            *PEERS,
        ),
        runs="mnist-small",
        budgets=at_the_first_rate(SMALL_BUDGETS),
        changes=SMALL,
        paper="mnist",
        controls=("aug_plus", "aug_long"),
    ),
    "mnist-resolution": Table(
        "How much of a feature a canonicalizer looks at: EfficientNet-Lite0, whose second site is 56 × 56",
        "mnist",
        ("efficientnet_lite0",),
        (
            Line("dec_joint", label="DEC direct, joint, a copy of 56 × 56"),
            Line(
                "dec_joint",
                "at28",
                "DEC direct, joint, a copy of 28 × 28",
                changes={"method": {"config": {"network": {"resolution": None}}}},
            ),
        ),
        runs="mnist-resolution",
        budgets={"both": Budget(30, 5e-4)},
        changes=SMALL,
    ),
    "mnist-hierarchical": Table(
        "Local scale invariance on MNIST, hierarchical backbones from scratch, 112 px (paper, Tab. pyramid)",
        "mnist",
        ("hrvit_b1", "resformer_tiny"),
        (
            Line("base", label="Base, from scratch"),
            Line("aug", label="Aug (control)", start="base", budget="more", changes=HALF_AUGMENTED),
            Line("canon", start="base", changes=HALF_AUGMENTED),
            Line("invl", start="base", changes=HALF_AUGMENTED),
            Line("dec", start="base", changes={**HALF_AUGMENTED, "optimization": {"canonicalizer_rate": 1e-4}}),
            Line("dec_compose", start="base", changes=HALF_AUGMENTED),
            Line(
                "sizes",
                "sizes_blocks4",
                f"{SIZES.label}, 4 blocks",
                start="base",
                budget="more",
                changes={**HALF_AUGMENTED, **four_blocks()},
            ),
            Line("sizes", "sizes_base", "Size equilibrium, from scratch", budget="first", changes=NOT_AUGMENTED),
            Line("sizes", "sizes_more", f"{SIZES.label}, both stages", "sizes_base", "more", HALF_AUGMENTED),
            *(Line(peer.row, start="base", budget="more", changes=HALF_AUGMENTED) for peer in PEERS),
        ),
        runs="mnist-hierarchical",
        budgets={"first": Budget(8), "more": Budget(6, 5e-4)},
        changes={
            "optimization": {"batch_size": 128, "warmup_epochs": 0.5},
            "data": {
                "image_size": 112,
                "train_count": 48_000,
                "test_count": 5_000,
                "variants": 4,
                "bracket_count": 2_000,
            },
        },
        paper="mnist",
        controls=("aug",),
    ),
    "mnist-hierarchical-paper": Table(
        "Local scale invariance on MNIST, hierarchical backbones, 224 px and 6,000 images (paper, Tab. A2)",
        "mnist",
        ("hrvit_b1", "resformer_tiny"),
        (*MNIST_LINES, Line("sizes"), *PEERS),
        runs="mnist-hierarchical-paper",
        paper="mnist",
        controls=("aug_plus", "aug_long"),
    ),
    "mnist-shipped": Table(
        "The small model of the app: StarNet-S100 from scratch, four times the images",
        "mnist",
        ("starnet_s100",),
        (Line("aug_long"), Line("sizes", changes=four_blocks(4, 2))),  # few looks, because the app runs on a CPU
        runs="mnist-shipped",
        budgets={"both": Budget(14, 2e-3)},
        changes={**SMALL, "data": {**SMALL_DATA, "train_count": 24_000}},
        controls=("aug_long",),
    ),
}
