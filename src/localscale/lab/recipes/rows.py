"""Rows of the tables as values: the fields of a row, the budgets it is trained with, and the methods rows share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from localscale.canonicalizer import INPUT, Compose, DECConfig, Descent, SizeNetwork
from localscale.equilibrium import Anderson, Implicit, Picard, Unrolled
from localscale.lab.methods import (
    DEC,
    Canon,
    CentreZoom,
    FineTune,
    InvL,
    Method,
    RandomScaling,
    RandomWarp,
    SizeEquilibrium,
    Zoom,
)
from localscale.lab.methods.dec import NETWORK, TRAINING
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.recipes.regularization import Regularization
from localscale.lab.tasks import TaskData

__all__ = ["Budget", "BudgetName", "Protocol", "Row", "paper_dec", "supervised_dec", "taught_sizes"]

BudgetName = Literal["first", "more", "both"]
SOLVER = Picard(max_steps=4, **TRAINING)
ANDERSON = Anderson(max_steps=6, **TRAINING)


@dataclass(frozen=True)
class Budget:
    """Epochs of a run and its highest learning rate; ``None`` takes the backbone's ``mnist_rate``."""

    epochs: int
    learning_rate: float | None = None


@dataclass(frozen=True)
class Row:
    """One row of a table, for any backbone.

    Args:
        label: the row's name in rendered tables.
        about: one sentence that says what the row is.
        method: the method, or a function that returns it for the backbone's sites.
        budget: ``"first"`` for rows that start from pretrained weights, ``"more"`` for rows that continue from another
            row's weights, ``"both"`` for rows that start from pretrained weights and take the epochs of the two.
        start: the row whose finished run provides the first weights; empty for pretrained weights.
        augmented: whether the training images are scaled with the protocol's augmentation.
        canonicalizer_rate: highest learning rate of the canonicalizers; ``None`` takes the protocol's.
        canonicalizer_start: share of the training after which the canonicalizers are trained.
    """

    label: str
    about: str
    method: Method | Callable[[tuple[str, ...]], Method] = field(default_factory=FineTune)
    budget: BudgetName = "first"
    start: str = ""
    augmented: bool = True
    canonicalizer_rate: float | None = None
    canonicalizer_start: float = 0.0


@dataclass(frozen=True)
class Protocol:
    """The training settings that all rows of a task share, and the rows by name.

    Args:
        data: the images and how they are measured.
        augmentation: random scaling of the training images, for rows that are ``augmented``.
        optimization: everything but the epochs and the learning rates.
        budgets: epochs and learning rate of each budget that the rows name.
        rows: the rows by name.
        canonicalizer_rate: highest learning rate of the canonicalizers; ``None`` takes the backbone's ``mnist_rate``.
        regularization: mixup, label smoothing and so on.
        site_prefix: the path of the backbone inside the trained model, put before the backbone's sites.
        standardise_from_scratch: whether backbones that come without weights get a norm before their classifier.
    """

    data: TaskData
    augmentation: RandomScaling
    optimization: Optimization
    budgets: Mapping[BudgetName, Budget]
    rows: dict[str, Row]
    canonicalizer_rate: float | None = None
    regularization: Regularization = field(default_factory=Regularization)
    site_prefix: str = ""
    standardise_from_scratch: bool = False


def paper_dec(sites: tuple[str, ...], modules: int = 4) -> DEC:
    """Return the paper's DEC: ``modules`` of it, at the image and at latent sites through the network.

    The update is direct, the solver is Anderson, the network has two layers of 64 and 128 channels, and the task's loss
    trains it. The paper's ablation has one to four modules, and four are best there with two layers.
    """
    places = (INPUT, *sites)[:modules]
    return DEC(DECConfig.paper(sites=places, knots=(6, 4, 4, 4)[:modules], network=NETWORK, solver=ANDERSON))


def paper_optim(sites: tuple[str, ...]) -> DEC:
    """Return Optim: gradient steps on a learned energy, at two sites, and backpropagation through all steps."""
    config = paper_dec(sites, modules=2).config
    return DEC(dataclasses.replace(config, update=Descent(), gradient=Unrolled(), solver=SOLVER))


def supervised_dec(strength: float, mode: str = "invariant") -> DEC:
    """Return DEC with the compose update and equivariance supervision against scalings of ``strength``.

    Four layers let a canonicalizer see a whole digit. Ten knots let a map enlarge one part and leave its neighbours.
    """
    config = DECConfig.paper(
        sites=(INPUT,),
        knots=10,
        update=Compose(),
        mode=mode,
        network=dataclasses.replace(NETWORK, channels=(32, 64, 128, 128)),
        solver=SOLVER,
        gradient=Unrolled(),
        detached=(INPUT,),
    )
    return DEC(config, supervision=1.0, prior=0.01, supervised_scaling=RandomScaling(strength=strength, knots=10))


def taught_sizes(steps: int = 1000, target: float = 0.5) -> SizeEquilibrium:
    """Return the size equilibrium for segmentation, whose size network learns from the training masks.

    It magnifies the things that are smaller than ``target`` and makes none smaller, except to make room.
    """
    network = SizeNetwork(weight="learned", target=target, sure=0.1, shrink=False)
    return SizeEquilibrium(DECConfig(mode="equivariant", network=network), learning_steps=steps, masks=True)


SIZES = Row(
    "Size equilibrium, held still",
    "Learn sizes without labels, then train on canonical forms.",
    SizeEquilibrium(),
    budget="both",
)
SIZES_SHIPPED = Row(
    "Photograph canonicalizer, held still",
    "Train on the canonical forms of the shipped canonicalizer.",
    SizeEquilibrium(shipped="photographs", learning_steps=0),
    budget="both",
)
SIZES_ALONG = Row(
    "Size equilibrium, learned along",
    "Learn sizes without labels while the backbone is trained.",
    SizeEquilibrium(DECConfig(detached=(INPUT,)), learning_steps=0, along=1.0),
    budget="both",
    canonicalizer_rate=2e-3,
)
SIZES_TUNED = Row(
    "Size equilibrium, tuned by the task",
    "Learn sizes; in the second half the task tunes them, too.",
    # The size loss goes on, so that sizes stay sizes. The implicit gradient is closer to that of all six looks than
    # one phantom step is.
    SizeEquilibrium(DECConfig(gradient=Implicit()), along=1.0),
    budget="both",
    canonicalizer_rate=2e-4,  # 1e-4 at the start: the cosine has fallen to half
    canonicalizer_start=0.5,
)
ZOOM = Row(
    "Zoom (saliency sampler)",
    "Sample salient places more densely (Recasens et al. 2018).",
    Zoom(),
    budget="both",
    canonicalizer_rate=1e-3,  # not tuned
)
CENTRE_ZOOM = Row("Centre zoom (control)", "Enlarge the centre of every image.", CentreZoom(), budget="both")
# Separable maps of four knots and strength 1.5 move points by 9.4 % of the side, as the size equilibrium does on MNIST
# (9.4 %) and on objects (9.1 %). On ImageNet strength 0.45 gives 2.9 %, as much as the shipped canonicalizer.
WARPS = RandomScaling(strength=1.5, knots=4, family="separable")
RANDOM_WARP = Row(
    "Random warp (control)",
    "Warp training images at random as much as sizes does.",
    RandomWarp(WARPS),
    budget="both",
)
# Rows that several tasks have. A task replaces the fields in which its own rows differ.
BASE = Row("Base", "Fine-tune the backbone on the images as they are.", augmented=False)
AUG = Row("Aug", "Fine-tune with random monotone scaling of the training images.")
AUG_PLUS = Row(
    "Aug+ (control)", "Continue Aug: the control with the budget of every method.", budget="more", start="aug"
)
AUG_LONG = Row("Aug, long (control)", "Train Aug for the epochs of the joint rows: their control.", budget="both")
CANON = Row("Canon", "Try a finite set of maps and keep the one of least energy.", Canon(), budget="more", start="aug")
INVL = Row("InvL", "Add a loss on how much the answers to scaled images differ.", InvL(), budget="more", start="aug")
OPTIM = Row("Optim", "Canonicalize by unrolled gradient steps on an energy.", paper_optim, budget="more", start="aug")
DEC_DIRECT = Row(
    "DEC direct",
    "Add the paper's DEC, trained by the task loss alone.",
    paper_dec,
    budget="more",
    start="aug",
    canonicalizer_rate=1e-3,  # the published scripts have 3e-4 to 2e-2 on MNIST, by backbone
)
DEC_COMPOSE = Row(
    "DEC compose + supervision",
    "Add DEC with the compose update and equivariance supervision.",
    supervised_dec(1.0),
    budget="more",
    start="aug",
)


def joint(row: Row) -> Row:
    """Return the row that trains canonicalizers and backbone together from pretrained weights."""
    about = f"Train {row.label} and the backbone together."
    return dataclasses.replace(row, label=f"{row.label}, joint", about=about, budget="both", start="")
