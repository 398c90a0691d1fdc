"""An image, the same image with two parts scaled differently, and what two models answer (paper, Fig. teaser)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from localscale.lab.pictures.curves import mark_box
from localscale.lab.pictures.files import new_figure
from localscale.lab.pictures.palette import BLUE, GREY

__all__ = ["Answers", "draw_teaser"]

TITLES = ("image", "locally scaled")


@dataclass(frozen=True, eq=False)
class Answers:
    """An image ``(3, H, W)``, its canonical form, and the likeliest classes of each model with their probabilities.

    ``canonical`` is ``None`` if the run has no canonicalizer at the image.
    """

    image: Tensor
    boxes: tuple[tuple[float, float, float, float], ...]
    canonical: Tensor | None
    likeliest: dict[str, list[tuple[str, float]]]


def draw_teaser(before: Answers, after: Answers) -> Any:
    """Return a figure with a row for each image: itself, its canonical form, and each model's likeliest classes."""
    columns = 1 + (before.canonical is not None) + len(before.likeliest)
    figure, axes = new_figure(2, columns, width=1.9 * columns, height=3.9)
    for row, answers, title in zip(axes, (before, after), TITLES, strict=True):
        pictures = {title: answers.image} | ({} if answers.canonical is None else {"canonical form": answers.canonical})
        for axis, (name, image) in zip(row, pictures.items(), strict=False):
            axis.imshow(image.movedim(0, 2).clamp(0, 1).numpy(), extent=(0, 1, 1, 0))
            axis.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(1, 0))
            axis.set_title(name, fontsize=8)
        for box in answers.boxes:
            mark_box(row[0], box)
        kept = [classes[0][0] for classes in before.likeliest.values()]
        for axis, (name, classes), first in zip(row[len(pictures) :], answers.likeliest.items(), kept, strict=True):
            _draw_classes(axis, name, classes, first)
    return figure


def _draw_classes(axis: Any, name: str, classes: list[tuple[str, float]], first: str) -> None:
    """Draw a bar for each class; the bar of ``first``, the answer to the unscaled image, has the stronger colour."""
    places = range(len(classes))
    axis.barh(
        places,
        [value for _, value in classes],
        height=0.35,
        color=[BLUE if label == first else GREY for label, _ in classes],
    )
    for place, (label, value) in zip(places, classes, strict=True):
        axis.text(0.0, place - 0.24, f"{label} {100 * value:.0f} %", fontsize=7, va="bottom")
    axis.set(xlim=(0, 1), ylim=(len(classes) - 0.4, -0.9), xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    axis.set_title(name, fontsize=8)
