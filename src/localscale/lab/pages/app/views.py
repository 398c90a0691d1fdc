"""The image that a visitor sees, with its marked part, and the same image with that part scaled."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch import Tensor

from localscale.lab.data.boxes import Box
from localscale.lab.pages.app.examples import Example
from localscale.lab.pages.app.models import Pair
from localscale.lab.pages.app.predictions import Curve, Predictions, predict, trace_curve
from localscale.lab.pages.app.scaling import box_maps, fit_factor
from localscale.warp import scale

__all__ = ["MIDDLE", "ScaledView", "View", "mark_part", "scale_part", "view_example", "view_image"]

MIDDLE = Box(0.3, 0.3, 0.7, 0.7)  # marked in an image until the visitor marks something else


@dataclass(frozen=True, eq=False)
class View:
    """An image as the models receive it, ``(1, 3, size, size)`` in [0,1], with one part marked.

    ``label_known`` says whether ``curve.label`` is the image's true label; otherwise it is the class that DEC predicts.
    """

    example: Example
    model: str
    seen: Tensor
    curve: Curve
    label_known: bool

    @property
    def box(self) -> Box:
        """The marked part, as fractions of the image that the models receive."""
        return self.example.box


@dataclass(frozen=True, eq=False)
class ScaledView:
    """The image after its marked part was scaled by ``factor``, the nearest to ``requested`` that fits the box."""

    image: Tensor
    box: Box
    requested: float
    factor: float
    predictions: Predictions


def view_image(pair: Pair, image: Image.Image, name: str) -> View:
    """Return the view of an uploaded image, with its middle marked."""
    return view_example(pair, Example(name, image, MIDDLE))


def view_example(pair: Pair, example: Example) -> View:
    """Return the view of an example.

    The curve follows the image's label if it is known and the models can name it, else the class that DEC predicts.
    """
    seen = pair.see(example.image)
    known = example.label if pair.reads_digits else None
    label = int(predict(pair, seen).dec[0].argmax()) if known is None else known
    return View(example, pair.name, seen, trace_curve(pair, seen, example.box, label), known is not None)


def mark_part(pair: Pair, view: View, box: Box) -> View:
    """Return the view of the same image with another part marked."""
    curve = trace_curve(pair, view.seen, box, view.curve.label)
    return replace(view, example=replace(view.example, box=box), curve=curve)


def scale_part(pair: Pair, view: View, factor: float) -> ScaledView:
    """Scale the marked part and run both models on the result."""
    fits = fit_factor(view.box, factor)
    m = box_maps(view.box, [fits])
    image = scale(view.seen, m)
    corners = torch.tensor([[[view.box.left, view.box.top], [view.box.right, view.box.bottom]]])
    (left, top), (right, bottom) = m(corners)[0].tolist()
    return ScaledView(image, Box(left, top, right, bottom), factor, fits, predict(pair, image))
