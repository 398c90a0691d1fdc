"""The tables that can be reproduced: which rows, for which backbones, with which settings."""

from __future__ import annotations

from dataclasses import dataclass

from localscale.errors import ConfigError, near_misses

__all__ = ["TABLES", "Row", "Table", "find_table"]


@dataclass(frozen=True)
class Row:
    """A row: what it is called, the recipe's last word, and what differs from the recipe."""

    label: str
    recipe: str
    arguments: tuple[str, ...] = ()
    key: str = ""

    @property
    def name(self) -> str:
        """Its name among the table's runs."""
        return self.key or self.recipe


@dataclass(frozen=True)
class Table:
    """Rows for backbones of one task.

    ``settings`` go to every row, ``first`` to those trained from pretrained weights, ``more`` to those that go on from
    another's, ``both`` to those trained from the start for as long as the two together. ``runs`` names the folder, so
    that a table can go on from another's runs. ``before`` is the row that all others start from, in place of the one
    their recipes name. ``paper`` is the paper's table to compare with.
    """

    title: str
    task: str
    backbones: tuple[str, ...]
    rows: tuple[Row, ...]
    runs: str
    settings: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    both: tuple[str, ...] = ()
    before: str = ""
    paper: str = ""

    @property
    def kind(self) -> str:
        """What is measured."""
        return "segmentation" if self.task == "objects" else "classification"


MNIST_ROWS = (
    Row("Aug", "aug"),
    Row("Aug+ (control)", "aug_plus"),
    Row("Canon", "canon"),
    Row("InvL", "invl"),
    Row("DEC direct", "dec"),
    Row("DEC compose + supervision", "dec_compose"),
    Row("Aug, long (control)", "aug_long"),
    Row("DEC direct, joint", "dec_joint"),
    Row("DEC compose + supervision, joint", "dec_compose_joint"),
)
IMAGENET_ROWS = (
    Row("Base", "base"),
    Row("Base+ (control)", "base_plus"),
    Row("Aug", "aug"),
    Row("Canon", "canon"),
    Row("InvL", "invl"),
    Row("DEC direct", "dec"),
    Row("DEC compose + supervision", "dec_compose"),
)
OBJECTS_ROWS = (
    Row("Aug", "aug"),
    Row("Aug+ (control)", "aug_plus"),
    Row("Canon", "canon"),
    Row("AugL", "augl"),
    Row("DEC direct", "dec"),
    Row("DEC compose + supervision", "dec_compose"),
    Row("Aug, long (control)", "aug_long"),
    Row("DEC compose + supervision, joint", "dec_compose_joint"),
)
# Small backbones on one GPU: a rate to match the batch, ten thousand test images with four other sizes of each.
SMALL = (
    *("--batch-size", "128", "--warmup-epochs", "5"),
    *("--data.test-count", "10000", "--data.variants", "4", "--data.bracket-count", "5000"),
)
FIRST = ("--epochs", "40", "--learning-rate", "5e-4")
MORE = ("--epochs", "20", "--learning-rate", "5e-4")
BOTH = ("--epochs", "60", "--learning-rate", "5e-4")
SITES = ("input", "blocks.0", "blocks.4", "blocks.8")
CHANNELS = ("32", "64", "128", "128")


def _ablation_rows() -> tuple[Row, ...]:
    rows = [Row("Aug", "aug"), Row("1 site, 4 layers, 10 knots", "dec_compose")]
    for count in (2, 3, 4):
        sites = ("--method.sites", *SITES[:count])
        rows.append(Row(f"{count} sites", "dec_compose", sites, f"sites{count}"))
    for count in (1, 2, 3):
        layers = ("--method.channels", *CHANNELS[: count - 1], "128")
        rows.append(Row(f"{count} layer{'s' * (count > 1)}", "dec_compose", layers, f"layers{count}"))
    for count in (4, 6, 8):
        rows.append(Row(f"{count} knots", "dec_compose", ("--method.knots", str(count)), f"knots{count}"))
    return tuple(rows)


TABLES: dict[str, Table] = {
    "mnist": Table(
        "Local scale invariance on MNIST, six backbones (paper, Tab. mnist_results and per_scale_mnist)",
        "mnist",
        ("resnet50", "vit_base", "deit_base", "swin_tiny", "beit_base", "dinov2_base"),
        MNIST_ROWS,
        runs="mnist",
        paper="mnist",
    ),
    "mnist-tiny": Table(
        "Local scale invariance on MNIST, DeiT-Tiny",
        "mnist",
        ("deit_tiny",),
        MNIST_ROWS,
        runs="mnist-small",
        settings=SMALL,
        first=FIRST,
        more=MORE,
        both=BOTH,
        paper="mnist",
    ),
    "mnist-cnn": Table(
        "Local scale invariance on MNIST, EfficientNet-Lite0",
        "mnist",
        ("efficientnet_lite0",),
        tuple(row for row in MNIST_ROWS if row.recipe not in ("canon", "invl", "dec_joint")),
        runs="mnist-small",
        settings=SMALL,
        first=FIRST,
        more=MORE,
        both=BOTH,
        paper="mnist",
    ),
    "mnist-ablation": Table(
        "Ablations on MNIST, DeiT-Tiny: DEC compose + supervision added to Aug (paper, App. A4)",
        "mnist",
        ("deit_tiny",),
        _ablation_rows(),
        runs="mnist-small",
        settings=SMALL,
        first=FIRST,
        more=MORE,
        both=BOTH,
        paper="ablation",
    ),
    "mnist-resolution": Table(
        "How much of a feature a canonicalizer looks at: EfficientNet-Lite0, whose second site is 56 × 56",
        "mnist",
        ("efficientnet_lite0",),
        (
            Row("DEC direct, joint, a copy of 56 × 56", "dec_joint"),
            Row("DEC direct, joint, a copy of 28 × 28", "dec_joint", ("--method.resolution", "None"), "at28"),
        ),
        runs="mnist-resolution",
        settings=SMALL,
        both=("--epochs", "30", "--learning-rate", "5e-4"),
    ),
    "mnist-hierarchical": Table(
        "Local scale invariance on MNIST, hierarchical backbones from scratch, 112 px (paper, Tab. pyramid)",
        "mnist",
        ("hrvit_b1", "resformer_tiny"),
        (
            Row("Base, from scratch", "base"),
            Row("Aug (control)", "aug"),
            Row("DEC direct", "dec", ("--canonicalizer-rate", "1e-4")),
            Row("DEC compose + supervision", "dec_compose"),
        ),
        runs="mnist-hierarchical",
        settings=(
            *("--batch-size", "128", "--warmup-epochs", "0.5", "--data.image-size", "112"),
            *("--data.train-count", "48000", "--data.test-count", "5000", "--data.variants", "4"),
            *("--data.bracket-count", "2000"),
        ),
        first=("--epochs", "8"),
        more=("--epochs", "6", "--learning-rate", "5e-4", "--augmentation.probability", "0.5"),
        before="base",
        paper="mnist",
    ),
    "mnist-shipped": Table(
        "The small model of the app: StarNet-S100 from scratch, four times the images",
        "mnist",
        ("starnet_s100",),
        tuple(row for row in MNIST_ROWS if row.recipe in ("aug_long", "dec_compose_joint")),
        runs="mnist-shipped",
        settings=(*SMALL, "--data.train-count", "24000"),
        both=("--epochs", "14", "--learning-rate", "2e-3"),
    ),
    "imagenet": Table(
        "Local scale invariance on ImageNet, four backbones (paper, Tab. imagenet_results and per_scale_imnet)",
        "imagenet",
        ("vit_base", "deit_tiny", "swin_tiny", "beit_base"),
        IMAGENET_ROWS,
        runs="imagenet",
        paper="imagenet",
    ),
    "imagenet-tiny": Table(
        "Local scale invariance on ImageNet, DeiT-Tiny",
        "imagenet",
        ("deit_tiny",),
        tuple(row for row in IMAGENET_ROWS if row.recipe not in ("canon", "invl")),
        runs="imagenet",
        paper="imagenet",
    ),
    "objects": Table(
        "Local scale equivariance on rendered objects (paper, Tab. lsos_results)",
        "objects",
        ("vit_base", "swin_tiny", "dinov2_base"),
        OBJECTS_ROWS,
        runs="objects",
        paper="objects",
    ),
    "objects-tiny": Table(
        "Local scale equivariance on rendered objects, DeiT-Tiny",
        "objects",
        ("deit_tiny",),
        OBJECTS_ROWS,
        runs="objects-small",
        settings=("--head-width", "64", "--schedule", "cosine", "--warmup-epochs", "1"),
        first=("--epochs", "12", "--learning-rate", "3e-4"),
        more=("--epochs", "5", "--learning-rate", "1e-4"),
        both=("--epochs", "17", "--learning-rate", "3e-4"),
        paper="objects",
    ),
}


def find_table(name: str) -> Table:
    """The table called ``name``."""
    if name not in TABLES:
        raise ConfigError(f"no table {name!r}: {near_misses(name, TABLES)}")
    return TABLES[name]
