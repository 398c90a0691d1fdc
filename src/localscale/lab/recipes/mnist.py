"""Locally scaled MNIST (paper, Tab. mnist_results and per_scale_mnist): learn a thousand numbers from 6,000 images.

The paper trains Aug for 50 epochs and all other rows for 40 more from Aug's weights (App. A1). Joint rows train
canonicalizers and backbone together from the start for the 90 epochs of both; ``aug_long`` is their control. ``base``
replaces pretraining for backbones that come without weights. The paper does not give the augmentation; ours scales the
three rows and columns of digits by up to e² relative to each other.
"""

from dataclasses import replace

from localscale.lab.methods import InvL, RandomScaling
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.recipes.rows import (
    AUG,
    AUG_LONG,
    AUG_PLUS,
    BASE,
    CANON,
    CENTRE_ZOOM,
    DEC_COMPOSE,
    DEC_DIRECT,
    INVL,
    OPTIM,
    RANDOM_WARP,
    SIZES,
    SIZES_ALONG,
    SIZES_TUNED,
    ZOOM,
    Budget,
    Protocol,
    joint,
    supervised_dec,
)
from localscale.lab.tasks import MNISTData

__all__ = ["MNIST"]

AUGMENTATION = RandomScaling(strength=2.0, probability=1.0, knots=4, family="separable")
COMPOSE = replace(DEC_COMPOSE, method=supervised_dec(strength=2.0), canonicalizer_rate=2e-3)

MNIST = Protocol(
    data=MNISTData(),
    augmentation=AUGMENTATION,
    optimization=Optimization(),
    budgets={"first": Budget(50), "more": Budget(40), "both": Budget(90)},
    standardise_from_scratch=True,
    rows={
        "base": BASE,
        "aug": AUG,
        "aug_plus": AUG_PLUS,
        "aug_long": AUG_LONG,
        "canon": CANON,
        "invl": replace(INVL, method=InvL(scaling=AUGMENTATION)),
        "optim": OPTIM,
        "dec": DEC_DIRECT,
        "dec_joint": joint(DEC_DIRECT),
        "dec_compose": COMPOSE,
        "dec_compose_joint": joint(COMPOSE),
        "sizes": SIZES,
        "sizes_along": SIZES_ALONG,
        "sizes_tuned": SIZES_TUNED,
        "zoom": ZOOM,
        "centre_zoom": CENTRE_ZOOM,
        "random_warp": RANDOM_WARP,
    },
)
