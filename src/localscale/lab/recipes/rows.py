"""What the rows of every task share: DEC's three forms, and how a row becomes a backbone's recipe."""

from __future__ import annotations

import dataclasses
from typing import Any

from localscale.canonicalizer.site import INPUT
from localscale.lab.backbones.catalogue import Backbone
from localscale.lab.methods import DEC, RandomScaling
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.recipes.recipe import Recipe

__all__ = ["direct", "make", "optim", "supervised"]

FIRST_SITE = "…"  # stands for the backbone's first place for a canonicalizer


def direct() -> DEC:
    """The paper's: the direct update at the image and in the backbone, learned by the task's loss alone."""
    return DEC(sites=(INPUT, FIRST_SITE), knots=(6, 4), solver="picard", solver_steps=4)


def optim() -> DEC:
    """The same sites and steps, but each a step of an inner optimisation of an energy, differentiated through."""
    return dataclasses.replace(direct(), update="gradient", gradient="unrolled")


def supervised(strength: float) -> DEC:
    """Compose and equivariance supervision: ours. ``strength`` is that of the scalings it learns to undo.

    Four layers, so that a canonicalizer sees a whole digit, and ten knots, so that a map can make one part larger and
    leave its neighbours alone.
    """
    return DEC(
        sites=(INPUT,),
        knots=(10,),
        update="compose",
        channels=(32, 64, 128, 128),
        solver="picard",
        solver_steps=4,
        gradient="unrolled",
        supervision=1.0,
        detached=True,
        prior=0.01,
        supervised_scaling=RandomScaling(strength=strength, knots=10),
    )


def make(kind: Any, prefix: str, row: str, backbone: Backbone, optimization: Optimization) -> Recipe:
    """The recipe of a row's class for one backbone."""
    recipe: Recipe = kind(
        name=f"{prefix}-{row}",
        backbone=backbone.timm_name,
        pretrained=backbone.pretrained,
        needs_start=f"{prefix}-{kind.starts_from}" if kind.starts_from else "",
        optimization=optimization,
    )
    if not isinstance(recipe.method, DEC):
        return recipe
    sites = tuple(backbone.sites[0] if site == FIRST_SITE else site for site in recipe.method.sites)
    return dataclasses.replace(recipe, method=dataclasses.replace(recipe.method, sites=sites))
