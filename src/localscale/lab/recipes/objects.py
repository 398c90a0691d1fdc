"""Locally scaled objects (paper, Tab. lsos_results): a DPT head on the backbone, with the settings of App. A1.

Aug is trained for 120 epochs at 1e-4, multiplied by 0.7 every 30 epochs; every other row continues from its weights for
60 epochs at 2e-5. Joint rows train canonicalizer and model together from the start for the epochs of both; ``aug_long``
is their control. The paper gives neither batch size nor augmentation; ours are 32 images, every second one scaled.
"""

from dataclasses import replace

from localscale.lab.methods import DEC, AugL, Canon, CentreZoom, RandomScaling
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.recipes.rows import (
    AUG,
    AUG_LONG,
    AUG_PLUS,
    CANON,
    CENTRE_ZOOM,
    DEC_COMPOSE,
    DEC_DIRECT,
    RANDOM_WARP,
    Budget,
    Protocol,
    Row,
    joint,
    paper_dec,
    supervised_dec,
    taught_sizes,
)
from localscale.lab.tasks import ObjectsData

__all__ = ["OBJECTS"]

STRENGTH = 1.0  # of every scaling


def _scaled_back(sites: tuple[str, ...]) -> DEC:
    method = paper_dec(sites)
    return replace(method, config=replace(method.config, mode="equivariant"))


COMPOSE = replace(DEC_COMPOSE, method=supervised_dec(STRENGTH, mode="equivariant"), canonicalizer_rate=1e-3)

OBJECTS = Protocol(
    data=ObjectsData(),
    augmentation=RandomScaling(strength=STRENGTH, probability=0.5),
    optimization=Optimization(batch_size=32, schedule="step", decay_epochs=30, decay_rate=0.7),
    budgets={"first": Budget(120, 1e-4), "more": Budget(60, 2e-5), "both": Budget(180, 1e-4)},
    canonicalizer_rate=1e-4,
    site_prefix="backbone.",
    rows={
        "aug": AUG,
        "aug_plus": AUG_PLUS,
        "aug_long": AUG_LONG,
        "canon": replace(CANON, method=Canon(mode="equivariant", canon_strength=0.25)),  # as gentle as STRENGTH's maps
        "augl": Row(
            "AugL",
            "Add the equivariance error of the masks as a loss.",
            AugL(scaling=RandomScaling(strength=STRENGTH)),
            budget="more",
            start="aug",
        ),
        "dec": replace(DEC_DIRECT, method=_scaled_back),
        "dec_compose": COMPOSE,
        "dec_compose_joint": joint(COMPOSE),
        "sizes": Row(
            "Size equilibrium, from masks",
            "Learn sizes from the training masks, then train on canonical forms and scale the masks back.",
            taught_sizes(),
            budget="both",
        ),
        "centre_zoom": replace(CENTRE_ZOOM, method=CentreZoom(mode="equivariant")),
        "random_warp": RANDOM_WARP,
    },
)
