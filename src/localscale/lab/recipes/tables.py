"""The tables that can be reproduced: their rows, backbones, budgets and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from localscale.errors import ConfigError, near_misses
from localscale.lab.recipes import PROTOCOLS, find_recipe
from localscale.lab.recipes.changes import Changes, with_changes
from localscale.lab.recipes.imagenet import FINE_TUNING
from localscale.lab.recipes.recipe import Recipe
from localscale.lab.recipes.rows import SIZES, Budget, BudgetName, Row

__all__ = ["TABLES", "Line", "Table", "find_table"]


@dataclass(frozen=True)
class Line:
    """A line of a table: a row of the task, and the fields in which this table changes it.

    Args:
        row: name of the row in the task's protocol.
        key: name of the line's runs; the row's name if empty.
        label: name in the rendered table; the row's own if empty.
        start: the line whose run provides the first weights, in place of the row's.
        budget: the budget, if it differs from the row's.
        changes: fields of the recipe to replace.
    """

    row: str
    key: str = ""
    label: str = ""
    start: str | None = None
    budget: BudgetName | None = None
    changes: Changes = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the line in the names of its runs."""
        return self.key or self.row


@dataclass(frozen=True)
class Table:
    """Lines for backbones of one task.

    Args:
        title: heading of the rendered table.
        task: name of the task in ``PROTOCOLS``.
        backbones: names in ``BACKBONES``.
        lines: the lines; each comes after the line that it starts from.
        runs: name of the folder of its runs; tables that share runs share the folder.
        budgets: budgets that replace those of the task.
        changes: fields of every recipe to replace.
        paper: the paper's table to compare with.
        controls: names of the lines that others are compared with, image by image.
    """

    title: str
    task: str
    backbones: tuple[str, ...]
    lines: tuple[Line, ...]
    runs: str
    budgets: Mapping[BudgetName, Budget] = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)
    paper: str = ""
    controls: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """``"segmentation"`` or ``"classification"``: the metrics that are rendered."""
        return "segmentation" if PROTOCOLS[self.task].data.dense else "classification"

    def label(self, line: Line) -> str:
        """Return the name of ``line`` in the rendered table."""
        return line.label or self._row(line).label

    def start(self, line: Line) -> str:
        """Return the name of the line that ``line`` starts from; empty for pretrained weights."""
        return self._row(line).start if line.start is None else line.start

    def controls_of(self, line: Line) -> tuple[str, ...]:
        """Return the names of the lines that ``line`` is compared with, none for a control.

        They are the controls that start from the same weights, or all if none does.
        """
        if line.name in self.controls:
            return ()
        lines = {each.name: each for each in self.lines}
        return tuple(name for name in self.controls if self.start(lines[name]) == self.start(line)) or self.controls

    def recipe(self, line: Line, backbone: str) -> Recipe:
        """Return the recipe of ``line`` for ``backbone`` with this table's budget and changes."""
        recipe = find_recipe(f"{self.task}-{backbone}-{line.row}")
        budget = self.budgets.get(line.budget or self._row(line).budget)
        length: dict[str, float] = {}
        if budget is not None:
            rate = {} if budget.learning_rate is None else {"learning_rate": budget.learning_rate}
            length = {"epochs": budget.epochs, **rate}
        for changes in (self.changes, {"optimization": length}, line.changes):
            recipe = with_changes(recipe, changes)
        return recipe

    def _row(self, line: Line) -> Row:
        return PROTOCOLS[self.task].rows[line.row]


def _lines(*rows: str) -> tuple[Line, ...]:
    return tuple(map(Line, rows))


MNIST_LINES = _lines(
    *("aug", "aug_plus", "canon", "invl", "dec", "dec_compose", "aug_long", "dec_joint", "dec_compose_joint")
)
OBJECTS_LINES = _lines(*("aug", "aug_plus", "canon", "augl", "dec", "dec_compose", "aug_long", "dec_compose_joint"))
# Small backbones on one GPU: a large batch, and ten thousand test images with four other sizes of each.
SMALL_DATA = {"test_count": 10_000, "variants": 4, "bracket_count": 5_000}
SMALL = {"optimization": {"batch_size": 128, "warmup_epochs": 5.0}, "data": SMALL_DATA}
SMALL_BUDGETS: dict[BudgetName, Budget] = {
    "first": Budget(40, 5e-4),
    "more": Budget(20, 5e-4),
    "both": Budget(60, 5e-4),
}
SMALL_HEAD: Changes = {"head_width": 64, "optimization": {"schedule": "cosine", "warmup_epochs": 1.0}}
HALF_AUGMENTED = {"augmentation": {"probability": 0.5}}
NOT_AUGMENTED = {"augmentation": {"probability": 0.0}}
EQUAL_COMPUTE = 304  # px: DeiT-Tiny on larger images takes as long as with a size equilibrium at 224 px
SITES = ("input", "blocks.0", "blocks.4", "blocks.8")


def _ablation(key: str, label: str, changes: Changes) -> Line:
    return Line("dec_compose", key, label, changes={"method": {"config": changes}})


def _solved_in(looks: int, settling: int, *, blocks: int = 2, learning_steps: int | None = None) -> Changes:
    """Return the changes to a size equilibrium that looks ``looks`` times, with ``settling`` maps for each look."""
    network = {"settling": settling, "blocks": blocks}
    steps = {} if learning_steps is None else {"learning_steps": learning_steps}
    return {"method": {"config": {"network": network, "solver": {"max_steps": looks}}, **steps}}


def _looks(looks: int, settling: int) -> Line:
    label = f"{SIZES.label}, {looks} looks" + (f", {settling} maps a look" if settling > 1 else "") + ", 4 blocks"
    return Line("sizes", f"sizes_looks{looks}", label, changes=_four_blocks(looks, settling))


def _four_blocks(looks: int = 6, settling: int = 1) -> Changes:
    """Return the changes to a size equilibrium of twice as many residual blocks, learned in half as many steps."""
    return _solved_in(looks, settling, blocks=4, learning_steps=1000)


SIZES_LABEL = "Size equilibrium"
FOUR_BLOCKS = Line("sizes", "sizes_blocks4", f"{SIZES.label}, 4 blocks", changes=_four_blocks())
# Regularization against overfitting. Scaling an image hardly changes its canonical form, so the form is scaled instead.
REGULARISED: Changes = {"regularization": {"drop_path": 0.2, "label_smoothing": 0.1}}


def _canonical_scaling(strength: float) -> Changes:
    scaling = {"probability": 1.0, "strength": strength, "knots": 4, "family": "separable"}
    return {"method": {"canonical_scaling": scaling}}


TABLES: dict[str, Table] = {
    "mnist": Table(
        "Local scale invariance on MNIST, six backbones (paper, Tab. mnist_results and per_scale_mnist)",
        "mnist",
        ("resnet50", "vit_base", "deit_base", "swin_tiny", "beit_base", "dinov2_base"),
        MNIST_LINES,
        runs="mnist",
        paper="mnist",
        controls=("aug_plus", "aug_long"),
    ),
    "mnist-tiny": Table(
        "Local scale invariance on MNIST, DeiT-Tiny",
        "mnist",
        ("deit_tiny",),
        MNIST_LINES,
        runs="mnist-small",
        budgets=SMALL_BUDGETS,
        changes=SMALL,
        paper="mnist",
        controls=("aug_plus", "aug_long"),
    ),
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
            *_lines("dec_joint", "dec_compose_joint", "sizes"),
            FOUR_BLOCKS,
            Line("sizes_along", label=f"{SIZES_LABEL}, learned along, 4 blocks", changes=_solved_in(6, 1, blocks=4)),
            _looks(8, 1),
            _looks(4, 2),
            Line("sizes_tuned"),
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
    "mnist-cnn": Table(
        "Local scale invariance on MNIST, EfficientNet-Lite0",
        "mnist",
        ("efficientnet_lite0",),
        _lines("aug", "aug_plus", "dec", "dec_compose", "aug_long", "dec_compose_joint", "sizes"),
        runs="mnist-small",
        budgets=SMALL_BUDGETS,
        changes=SMALL,
        paper="mnist",
        controls=("aug_plus", "aug_long"),
    ),
    "mnist-ablation": Table(
        "Ablations on MNIST, DeiT-Tiny: DEC compose + supervision added to Aug (paper, App. A4)",
        "mnist",
        ("deit_tiny",),
        (
            Line("aug"),
            Line("dec_compose", label="1 site, 4 layers, 10 knots"),
            *(_ablation(f"sites{n}", f"{n} sites", {"sites": SITES[:n]}) for n in (2, 3, 4)),
            _ablation("layers1", "1 layer", {"network": {"channels": (128,)}}),
            _ablation("layers2", "2 layers", {"network": {"channels": (32, 128)}}),
            _ablation("layers3", "3 layers", {"network": {"channels": (32, 64, 128)}}),
            *(_ablation(f"knots{n}", f"{n} knots", {"knots": n}) for n in (4, 6, 8)),
        ),
        runs="mnist-small",
        budgets=SMALL_BUDGETS,
        changes=SMALL,
        paper="ablation",
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
            Line("dec", start="base", changes={**HALF_AUGMENTED, "optimization": {"canonicalizer_rate": 1e-4}}),
            Line("dec_compose", start="base", changes=HALF_AUGMENTED),
            Line(
                "sizes",
                "sizes_blocks4",
                f"{SIZES.label}, 4 blocks",
                start="base",
                budget="more",
                changes={**HALF_AUGMENTED, **_four_blocks()},
            ),
            Line("sizes", "sizes_base", "Size equilibrium, from scratch", budget="first", changes=NOT_AUGMENTED),
            Line("sizes", "sizes_more", f"{SIZES.label}, both stages", "sizes_base", "more", HALF_AUGMENTED),
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
    "mnist-shipped": Table(
        "The small model of the app: StarNet-S100 from scratch, four times the images",
        "mnist",
        ("starnet_s100",),
        (Line("aug_long"), Line("sizes", changes=_four_blocks(4, 2))),  # few looks, because the app runs on a CPU
        runs="mnist-shipped",
        budgets={"both": Budget(14, 2e-3)},
        changes={**SMALL, "data": {**SMALL_DATA, "train_count": 24_000}},
        controls=("aug_long",),
    ),
    "imagenet": Table(
        "Local scale invariance on ImageNet, four backbones (paper, Tab. imagenet_results and per_scale_imnet)",
        "imagenet",
        ("vit_base", "deit_tiny", "swin_tiny", "beit_base"),
        _lines("base", "base_plus", "aug", "canon", "invl", "dec", "dec_compose"),
        runs="imagenet",
        paper="imagenet",
        controls=("base_plus",),
    ),
    "imagenet-tiny": Table(
        "Local scale invariance on ImageNet, DeiT-Tiny",
        "imagenet",
        ("deit_tiny",),
        _lines("base", "base_plus", "aug", "dec", "dec_compose"),
        runs="imagenet",
        paper="imagenet",
        controls=("base_plus",),
    ),
    "imagenet-sizes": Table(
        "The size equilibrium on locally scaled ImageNet, trained on locally scaled images",
        "imagenet",
        ("deit_tiny", "vit_tiny"),
        _lines("base", "base_plus", "aug", "sizes", "sizes_shipped"),
        runs="imagenet-sizes",
        budgets=FINE_TUNING,
        changes={
            "source_size": 448,
            "optimization": {"warmup_epochs": 1.0},
            "regularization": {"cutmix": 1.0},
            "data": {"rand_augment": 9},
        },
        controls=("base_plus", "aug"),
    ),
    "objects": Table(
        "Local scale equivariance on rendered objects (paper, Tab. lsos_results)",
        "objects",
        ("vit_base", "swin_tiny", "dinov2_base"),
        OBJECTS_LINES,
        runs="objects",
        paper="objects",
    ),
    "objects-tiny": Table(
        "Local scale equivariance on rendered objects, DeiT-Tiny",
        "objects",
        ("deit_tiny",),
        (*OBJECTS_LINES, Line("sizes")),
        runs="objects-small",
        budgets={"first": Budget(12, 3e-4), "more": Budget(5, 1e-4), "both": Budget(17, 3e-4)},
        changes=SMALL_HEAD,
        paper="objects",
    ),
    "objects-sizes": Table(
        "The size equilibrium on rendered objects, DeiT-Tiny",
        "objects",
        ("deit_tiny",),
        _lines("aug", "aug_plus", "aug_long", "augl", "dec_compose", "sizes"),
        runs="objects-sizes",
        budgets={"first": Budget(30, 3e-4), "more": Budget(15, 1e-4), "both": Budget(45, 3e-4)},
        changes=SMALL_HEAD,
        paper="objects",
    ),
}


def find_table(name: str) -> Table:
    """Return the table called ``name``."""
    if name not in TABLES:
        raise ConfigError(f"no table {name!r}: {near_misses(name, TABLES)}; localscale reproduce lists all tables")
    return TABLES[name]
