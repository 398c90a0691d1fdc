"""Settings that the tables of small backbones on MNIST share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from localscale.lab.recipes.changes import Changes
from localscale.lab.recipes.rows import Budget, BudgetName

__all__ = [
    "SHORT",
    "SHORT_BUDGETS",
    "SMALL",
    "SMALL_BUDGETS",
    "SMALL_DATA",
    "at_the_first_rate",
    "four_blocks",
    "solved_in",
]

# Small backbones on one GPU: a large batch, and ten thousand test images with four other sizes of each.
SMALL_DATA = {"test_count": 10_000, "variants": 4, "bracket_count": 5_000}
SMALL: Changes = {"optimization": {"batch_size": 128, "warmup_epochs": 5.0}, "data": SMALL_DATA}
# Rows that continue Aug take a tenth of its rate. At the same rate DeiT-Tiny's control fell from 86.3 to 84.0 %.
SMALL_BUDGETS: dict[BudgetName, Budget] = {
    "first": Budget(40, 5e-4),
    "more": Budget(20, 5e-5),
    "both": Budget(60, 5e-4),
}

# Tables of two dozen variants of one method, which are compared with each other alone.
SHORT: Changes = {
    "optimization": {"batch_size": 128, "warmup_epochs": 2.0},
    "data": {"test_count": 4_000, "variants": 4, "bracket_count": 2_000},
}
SHORT_BUDGETS: dict[BudgetName, Budget] = {
    "first": Budget(40, 5e-4),
    "more": Budget(10, 5e-5),
    "both": Budget(20, 5e-4),
}


def at_the_first_rate(budgets: Mapping[BudgetName, Budget]) -> dict[BudgetName, Budget]:
    """Return ``budgets`` in which continued rows take the rate of the first; older tables were recorded so.

    >>> at_the_first_rate(SMALL_BUDGETS)["more"]
    Budget(epochs=20, learning_rate=0.0005)
    """
    return {**budgets, "more": replace(budgets["more"], learning_rate=budgets["first"].learning_rate)}


def solved_in(looks: int, settling: int, *, blocks: int = 2, learning_steps: int | None = None) -> Changes:
    """Return the changes to a size equilibrium that looks ``looks`` times, with ``settling`` maps for each look."""
    network = {"settling": settling, "blocks": blocks}
    steps = {} if learning_steps is None else {"learning_steps": learning_steps}
    return {"method": {"config": {"network": network, "solver": {"max_steps": looks}}, **steps}}


def four_blocks(looks: int = 6, settling: int = 1) -> Changes:
    """Return the changes to a size equilibrium of twice as many residual blocks, learned in half as many steps."""
    return solved_in(looks, settling, blocks=4, learning_steps=1000)
