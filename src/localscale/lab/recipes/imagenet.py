"""Locally scaled ImageNet (paper, Tab. imagenet_results and per_scale_imnet), with the settings of App. A1.

Base trains for 20 epochs from timm's weights; every other row continues from Base for 20 more. ``base_plus`` is the
control with the same budget. Joint rows train canonicalizers and backbone together from timm's weights for 40 epochs.
"""

from dataclasses import replace

from localscale.lab.methods import Canon, InvL, RandomScaling, RandomWarp
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.recipes.regularization import Regularization
from localscale.lab.recipes.rows import (
    AUG,
    BASE,
    CANON,
    CENTRE_ZOOM,
    DEC_COMPOSE,
    DEC_DIRECT,
    INVL,
    OPTIM,
    RANDOM_WARP,
    SIZES,
    SIZES_SHIPPED,
    WARPS,
    ZOOM,
    Budget,
    BudgetName,
    Protocol,
    Row,
    joint,
    supervised_dec,
)
from localscale.lab.tasks import ImageNetData

__all__ = ["FINE_TUNING", "IMAGENET"]

# Canon: maps of strength 0.25 change sizes by factors of 0.8 to 1.3, as the dataset does; stronger ones undo nothing.
STRENGTH = 0.5  # of all random scalings; natural images tolerate less than digits
RATE = 1e-7  # the paper's; a step of AdamW moves a weight by about the rate, so 20 epochs of 125 steps by 1e-4 at most


def _from_base(row: Row) -> Row:
    return replace(row, start="base", budget="more")


COMPOSE = replace(_from_base(DEC_COMPOSE), method=supervised_dec(STRENGTH), canonicalizer_rate=1e-3)

# Fine-tuning on locally scaled photographs, for the control and every method alike. The rate was not tuned: it lies
# between those of DeiT (5e-6) and Swin (2e-5) for fine-tuning supervised weights on ImageNet.
FINE_TUNING_RATE = 1e-5
FINE_TUNING: dict[BudgetName, Budget] = {
    "first": Budget(10, FINE_TUNING_RATE),
    "more": Budget(10, FINE_TUNING_RATE),
    "both": Budget(20, FINE_TUNING_RATE),
}

IMAGENET = Protocol(
    data=ImageNetData(),
    augmentation=RandomScaling(strength=STRENGTH, probability=0.5),
    optimization=Optimization(batch_size=80, weight_decay=0.05, layer_decay=0.75, schedule="cosine", warmup_epochs=5),
    budgets={"first": Budget(20, RATE), "more": Budget(20, RATE), "both": Budget(40, RATE)},
    canonicalizer_rate=1e-4,  # canonicalizers hardly learn at the backbone's rate, 1e-7
    regularization=Regularization(label_smoothing=0.1, mixup=0.8, random_erasing=0.25),
    rows={
        "base": BASE,
        "base_plus": _from_base(
            replace(BASE, label="Base+ (control)", about="Continue Base: the control with the budget of every method.")
        ),
        "aug": _from_base(AUG),
        "canon": _from_base(replace(CANON, method=Canon(configurations=25, canon_strength=0.25))),
        "invl": _from_base(replace(INVL, method=InvL(scaling=RandomScaling(strength=STRENGTH)))),
        "optim": _from_base(OPTIM),
        "dec": _from_base(DEC_DIRECT),
        "dec_joint": joint(DEC_DIRECT),
        "dec_compose": COMPOSE,
        "dec_compose_joint": joint(COMPOSE),
        "sizes": _from_base(SIZES),
        "sizes_shipped": _from_base(SIZES_SHIPPED),
        "zoom": _from_base(ZOOM),
        "centre_zoom": _from_base(CENTRE_ZOOM),
        "random_warp": _from_base(replace(RANDOM_WARP, method=RandomWarp(replace(WARPS, strength=0.45)))),
    },
)
