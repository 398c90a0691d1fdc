"""What one person is looking at: an image, a model, a marked part; and what both models say of it at some size."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch import Tensor

from localscale.lab.data.boxes import Box
from localscale.lab.pages.app.answers import Answers, Curve, ask, trace
from localscale.lab.pages.app.examples import Example
from localscale.lab.pages.app.models import Pair
from localscale.lab.pages.app.scaling import box_maps, fitting
from localscale.warp import scale

__all__ = ["MIDDLE", "Look", "View", "look", "mark", "open_view", "show_to"]

MIDDLE = Box(0.3, 0.3, 0.7, 0.7)  # what is marked of an image that nobody has marked yet


@dataclass(frozen=True, eq=False)
class View:
    """An image as a pair of models sees it, ``(1, 3, size, size)`` in [0,1], with one part marked.

    ``drawn`` says whether ``curve.label`` is what the image is known to show, and not only DEC's answer.
    """

    example: Example
    model: str
    seen: Tensor
    curve: Curve
    drawn: bool

    @property
    def box(self) -> Box:
        """The marked part, as fractions of what is seen."""
        return self.example.box


@dataclass(frozen=True, eq=False)
class Look:
    """The image with its marked part at ``factor``, which is what fits of ``asked``, and what is said of it."""

    image: Tensor
    box: Box
    asked: float
    factor: float
    answers: Answers


def open_view(pair: Pair, image: Image.Image, name: str) -> View:
    """An image nobody has marked yet, its middle marked."""
    return show_to(pair, Example(name, image, MIDDLE))


def show_to(pair: Pair, example: Example) -> View:
    """An example under the eyes of ``pair``.

    The curve follows what the image is known to show, where the models can name it, else DEC's first answer.
    """
    seen = pair.see(example.image)
    drawn = example.label is not None and pair.reads_digits
    label = example.label if drawn else int(ask(pair, seen).dec[0].argmax())
    assert label is not None
    return View(example, pair.name, seen, trace(pair, seen, example.box, label), drawn)


def mark(pair: Pair, view: View, box: Box) -> View:
    """The same image with another part marked."""
    curve = trace(pair, view.seen, box, view.curve.label)
    return replace(view, example=replace(view.example, box=box), curve=curve)


def look(pair: Pair, view: View, factor: float) -> Look:
    """Scale the marked part and ask both models."""
    fits = fitting(view.box, factor)
    m = box_maps(view.box, [fits])
    image = scale(view.seen, m)
    corners = torch.tensor([[[view.box.left, view.box.top], [view.box.right, view.box.bottom]]])
    (left, top), (right, bottom) = m(corners)[0].tolist()
    return Look(image, Box(left, top, right, bottom), factor, fits, ask(pair, image))
