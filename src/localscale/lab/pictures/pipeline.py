"""A drawing of the whole method: canonicalizer at the image, backbone, canonicalizer at a feature, head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from localscale.lab.data.mnist import LocallyScaledMNIST
from localscale.lab.data.mnist.digits import embedded_digits
from localscale.lab.pictures.files import blank_figure
from localscale.lab.pictures.grids import draw_grid, warp_grid
from localscale.lab.pictures.palette import BLUE, GREY, INK, ORANGE
from localscale.maps import map_from_logits
from localscale.maps.base import Map
from localscale.warp import scale, unscale

__all__ = ["draw_pipeline"]

WIDTH, HEIGHT, MIDDLE = 11.6, 4.1, 2.0  # inches
NUMBER, FACTOR = 4, 2.9  # an image of the dataset, and the size of all its digits in the canonical form
SIZES, OTHER_SIZES = (1.4, 1.0, 0.6), (0.5, 0.85, 1.65)  # of the three digits in I and in S(I; g)
BROWN, PALE = "#8A5A00", "#FFF8E8"  # words and background of a canonicalizer's panel
SMALL, LARGE, ANSWER = 13, 16, 22  # points
MATH = "dejavuserif"  # a serif font, so that a capital I is not a mere stroke


@dataclass(frozen=True)
class Pieces:
    """The parts of the drawing: I and S(I; g), a map halfway to the equilibrium, and both canonical forms.

    Images are ``(1, 1, H, W)``.
    """

    images: tuple[Tensor, Tensor]
    halfway: Map
    canonical: tuple[Tensor, Tensor]
    label: str


def make_pieces() -> Pieces:
    """Compute the parts from three digits of equal size in C, of different sizes in I = S(C; l) and in S(I; g).

    The canonical forms are S⁻¹(I; l) and S⁻¹(S(I; g); g∘l). The maps are known, not learned.
    """
    dataset = LocallyScaledMNIST(train=False, digits=embedded_digits(train=False), factors=(FACTOR, FACTOR))
    drawn, labels = dataset.renderer()(torch.tensor([NUMBER]))
    m = _by_thirds(SIZES)
    g = _by_thirds(OTHER_SIZES) @ m.inverse()
    image = scale(drawn, m)
    other = scale(image, g)
    return Pieces(
        (image, other), _by_thirds(SIZES, 0.5), (unscale(image, m), unscale(other, g @ m)), f"{int(labels):03d}"
    )


def _by_thirds(sizes: tuple[float, ...], power: float = 1.0) -> Map:
    """Return a map that scales each third of both axes by its own factor."""
    logits = power * torch.tensor([sizes]).log()
    return map_from_logits(logits, logits, family="separable")


def draw_pipeline() -> Any:
    """Return a figure: image, equilibrium at the input, backbone, equilibrium at a feature, head, answer.

    >>> len(draw_pipeline().axes[0].images)
    9
    """
    pieces = make_pieces()
    figure, axis = blank_figure(width=WIDTH, height=HEIGHT)
    _draw_images(axis, pieces)
    _draw_equilibrium(axis, pieces)
    _draw_backbone(axis, pieces)
    return figure


def _draw_images(axis: Any, pieces: Pieces) -> None:
    """Draw one scene at two sets of sizes; both go to the canonicalizer."""
    for image, y in zip(pieces.images, (2.93, 1.07), strict=True):
        _picture(axis, image, (0.88, y), 1.45)
        _arrow(axis, (1.66, y), (2.06, y))
    _words(axis, (0.88, 3.73), "image $I$", va="bottom")
    _words(axis, (0.88, 0.27), "$S(I; g)$", va="top")
    _arrow(axis, (0.3, 2.15), (0.3, 1.85))
    _words(axis, (0.42, MIDDLE), "$g$ resizes parts", ha="left")


def _draw_equilibrium(axis: Any, pieces: Pieces) -> None:
    """Draw the fixed-point loop: Φ gives the canonical form, and H_ψ computes the next Φ from it."""
    _panel(axis, (3.78, MIDDLE), (3.36, 3.5))
    _words(axis, (3.78, 3.63), "canonicalizer at the image", va="top", colour=BROWN)
    _picture(axis, unscale(pieces.images[0], pieces.halfway), (2.95, 2.5), 1.0)
    _words(axis, (2.95, 3.04), r"$S^{-1}(I; \Phi)$", va="bottom")
    _picture(axis, pieces.images[0], (2.95, 1.0), 1.0)
    grid = warp_grid(pieces.halfway, lines=10, points=2)[0]  # a separable map keeps lines straight
    draw_grid(axis, grid, (2.45, 3.45, 0.5, 1.5), width=0.7)
    _words(axis, (2.95, 0.46), r"$\Phi$", va="top")
    _box(axis, (4.85, 1.75), (0.72, 0.72), r"$H_\psi$", ORANGE)
    _arrow(axis, (2.95, 1.53), (2.95, 1.96))
    _arrow(axis, (3.49, 2.5), (4.85, 2.15), bend=-0.35)
    _arrow(axis, (4.85, 1.35), (3.49, 1.0), bend=-0.35)
    _words(axis, (4.5, 2.68), "read")
    _words(axis, (4.58, 0.8), "update")
    _words(axis, (3.88, 1.75), "until $\\Phi$\nis fixed", colour=BROWN)


def _draw_backbone(axis: Any, pieces: Pieces) -> None:
    """Draw the way from the canonical form to the answer, through a second canonicalizer."""
    _arrow(axis, (5.5, MIDDLE), (5.84, MIDDLE))
    for image, shift in zip(reversed(pieces.canonical), (0.1, 0.0), strict=True):
        _picture(axis, image, (6.52 + shift, MIDDLE + shift), 1.25)
    _words(axis, (6.57, 2.78), "canonical form", va="bottom")
    _words(axis, (6.57, 1.32), "one for both", va="top")
    _arrow(axis, (7.3, MIDDLE), (7.6, MIDDLE))
    _box(axis, (7.86, MIDDLE), (0.46, 1.3), "$M_1$")
    _arrow(axis, (8.12, MIDDLE), (8.4, MIDDLE))
    _words(axis, (8.26, 2.17), "$F_2$")
    _panel(axis, (8.98, MIDDLE), (1.1, 1.6))
    _words(axis, (8.98, 2.86), "and at a feature", va="bottom", colour=BROWN)
    for k, image in enumerate(_features(pieces.canonical[0])):
        _picture(axis, image, (9.08 - 0.1 * k, 2.3 - 0.1 * k), 0.62)
    _loop(axis, (8.78, 1.45))
    _words(axis, (9.16, 1.45), r"$\Phi_2$")
    _arrow(axis, (9.56, MIDDLE), (9.84, MIDDLE))
    _box(axis, (10.1, MIDDLE), (0.46, 1.3), "$M_2$")
    _words(axis, (10.5, MIDDLE), "…")
    _box(axis, (11.0, MIDDLE), (0.72, 0.6), "head")
    _arrow(axis, (11.0, 2.33), (11.0, 2.75))
    axis.text(11.0, 2.8, pieces.label, ha="center", va="bottom", fontsize=ANSWER, color=INK)
    _words(axis, (11.0, 3.2), "one answer", va="bottom")
    axis.plot((7.63, 7.63, 11.36, 11.36), (1.0, 0.9, 0.9, 1.0), color=BLUE, linewidth=1.2)
    _words(axis, (9.5, 0.82), "backbone", va="top", colour=BLUE)


def _features(image: Tensor) -> list[Tensor]:
    """Return three channels that stand for features: edges along x, edges along y, and ink, at low resolution."""
    x, y = (image.diff(dim=dim).abs() for dim in (3, 2))
    coarse = [F.adaptive_avg_pool2d(channel, 14) for channel in (x, y, image)]
    return [channel / channel.amax() for channel in coarse]


def _picture(axis: Any, image: Tensor, centre: tuple[float, float], side: float) -> None:
    """Draw an image ``(1, 1, H, W)`` in [0,1], ink on white, in a thin frame."""
    left, low = centre[0] - side / 2, centre[1] - side / 2
    extent = (left, left + side, low, low + side)
    axis.imshow(image[0, 0].clamp(0, 1).numpy(), cmap="gray_r", vmin=0, vmax=1, extent=extent, aspect="auto", zorder=2)
    right, high = left + side, low + side
    axis.plot((left, right, right, left, left), (low, low, high, high, low), color=GREY, linewidth=0.8)


def _panel(axis: Any, centre: tuple[float, float], size: tuple[float, float]) -> None:
    _rounded(axis, centre, size, radius=0.15, facecolor=PALE, edgecolor=ORANGE)


def _box(axis: Any, centre: tuple[float, float], size: tuple[float, float], name: str, colour: str = BLUE) -> None:
    _rounded(axis, centre, size, radius=0.08, facecolor="white", edgecolor=colour)
    axis.text(*centre, name, ha="center", va="center", fontsize=LARGE, color=INK, math_fontfamily=MATH)


def _rounded(axis: Any, centre: tuple[float, float], size: tuple[float, float], *, radius: float, **style: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner = (centre[0] - size[0] / 2, centre[1] - size[1] / 2)
    shape = FancyBboxPatch(
        corner, *size, boxstyle=f"round,pad=0,rounding_size={radius}", linewidth=1.6, zorder=2, **style
    )
    axis.add_patch(shape)


def _arrow(axis: Any, start: tuple[float, float], end: tuple[float, float], *, bend: float = 0.0) -> None:
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", end, start, arrowprops={**style, "connectionstyle": f"arc3,rad={bend}"})


def _loop(axis: Any, centre: tuple[float, float], radius: float = 0.15) -> None:
    """Draw two arrows in a circle, the symbol of an equilibrium."""
    x, y = centre
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    for side in (1, -1):
        places = (x + side * radius, y), (x - side * radius, y)
        axis.annotate("", places[1], places[0], arrowprops={**style, "connectionstyle": "arc3,rad=0.9"})


def _words(
    axis: Any, place: tuple[float, float], words: str, *, ha: str = "center", va: str = "center", colour: str = INK
) -> None:
    axis.text(*place, words, ha=ha, va=va, fontsize=SMALL, color=colour, math_fontfamily=MATH)
