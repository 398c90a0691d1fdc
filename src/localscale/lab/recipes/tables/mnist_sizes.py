"""Tables of the size equilibrium on locally scaled MNIST."""

from __future__ import annotations

from localscale.lab.recipes.changes import Changes
from localscale.lab.recipes.rows import SIZES, Budget
from localscale.lab.recipes.tables.small import SMALL, SMALL_BUDGETS, SMALL_DATA, four_blocks, solved_in
from localscale.lab.recipes.tables.table import PEERS, Line, Table, lines_of

__all__ = ["EQUAL_COMPUTE", "SIZES_TABLES"]

EQUAL_COMPUTE = 304  # px: DeiT-Tiny on larger images takes as long as with a size equilibrium at 224 px
SIZES_LABEL = "Size equilibrium"
FOUR_BLOCKS = Line("sizes", "sizes_blocks4", f"{SIZES.label}, 4 blocks", changes=four_blocks())
# Regularization against overfitting. Scaling an image hardly changes its canonical form, so the form is scaled instead.
REGULARISED: Changes = {"regularization": {"drop_path": 0.2, "label_smoothing": 0.1}}


def _looks(looks: int, settling: int) -> Line:
    label = f"{SIZES.label}, {looks} looks" + (f", {settling} maps a look" if settling > 1 else "") + ", 4 blocks"
    return Line("sizes", f"sizes_looks{looks}", label, changes=four_blocks(looks, settling))


def _canonical_scaling(strength: float) -> Changes:
    scaling = {"probability": 1.0, "strength": strength, "knots": 4, "family": "separable"}
    return {"method": {"canonical_scaling": scaling}}


SIZES_TABLES: dict[str, Table] = {
    "mnist-sizes": Table(
        "The size equilibrium on MNIST, DeiT-Tiny",
        "mnist",
        ("deit_tiny",),
        (
            Line("aug_long"),
            Line(
                "aug_long",
                "aug_long_larger",
                f"Aug, long, at {EQUAL_COMPUTE} px (equal compute)",
                changes={"data": {"image_size": EQUAL_COMPUTE}},
            ),
            *lines_of("dec_joint", "dec_compose_joint", "sizes"),
            FOUR_BLOCKS,
            Line("sizes_along", label=f"{SIZES_LABEL}, learned along, 4 blocks", changes=solved_in(6, 1, blocks=4)),
            _looks(8, 1),
            _looks(4, 2),
            Line("sizes_tuned"),
            *PEERS,
        ),
        runs="mnist-small",
        budgets=SMALL_BUDGETS,
        changes=SMALL,
        paper="mnist",
        controls=("aug_long",),
    ),
    "mnist-sizes-long": Table(
        "The size equilibrium on MNIST at the paper's budget, DeiT-Tiny, 50,000 test images",
        "mnist",
        ("deit_tiny",),
        (
            Line("aug_long"),
            Line("aug_long", "aug_long_regularised", "Aug, long, regularised (control)", changes=REGULARISED),
            FOUR_BLOCKS,
            Line(
                "sizes",
                "sizes_scaled",
                f"{SIZES_LABEL}, canonical forms scaled",
                changes={"regularization": {"drop_path": 0.1}, **_canonical_scaling(2.0)},
            ),
            Line(
                "sizes",
                "sizes_regularised",
                f"{SIZES_LABEL}, regularised",
                changes={**REGULARISED, **_canonical_scaling(1.0)},
            ),
        ),
        runs="mnist-sizes-long",
        budgets={"both": Budget(90, 5e-4)},
        changes={**SMALL, "data": {**SMALL_DATA, "test_count": 50_000}},
        paper="mnist",
        controls=("aug_long",),
    ),
}
