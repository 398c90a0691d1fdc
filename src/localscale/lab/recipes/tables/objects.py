"""Tables of the methods on rendered objects."""

from __future__ import annotations

from localscale.lab.recipes.changes import Changes
from localscale.lab.recipes.rows import Budget
from localscale.lab.recipes.tables.table import CONTROLS, Line, Table, lines_of

__all__ = ["OBJECTS_TABLES"]

OBJECTS_LINES = lines_of(*("aug", "aug_plus", "canon", "augl", "dec", "dec_compose", "aug_long", "dec_compose_joint"))
SMALL_HEAD: Changes = {"head_width": 64, "optimization": {"schedule": "cosine", "warmup_epochs": 1.0}}

OBJECTS_TABLES: dict[str, Table] = {
    "objects": Table(
        "Local scale equivariance on rendered objects (paper, Tab. lsos_results)",
        "objects",
        ("vit_base", "swin_tiny", "dinov2_base"),
        (*OBJECTS_LINES, *CONTROLS),
        runs="objects",
        paper="objects",
    ),
    "objects-tiny": Table(
        "Local scale equivariance on rendered objects, DeiT-Tiny",
        "objects",
        ("deit_tiny",),
        (*OBJECTS_LINES, Line("sizes"), *CONTROLS),
        runs="objects-small",
        budgets={"first": Budget(12, 3e-4), "more": Budget(5, 1e-4), "both": Budget(17, 3e-4)},
        changes=SMALL_HEAD,
        paper="objects",
    ),
    "objects-sizes": Table(
        "The size equilibrium on rendered objects, DeiT-Tiny",
        "objects",
        ("deit_tiny",),
        (*lines_of("aug", "aug_plus", "aug_long", "augl", "dec_compose", "sizes"), *CONTROLS),
        runs="objects-sizes",
        budgets={"first": Budget(30, 3e-4), "more": Budget(15, 1e-4), "both": Budget(45, 3e-4)},
        changes=SMALL_HEAD,
        paper="objects",
    ),
}
