"""The image that a visitor sees, the same image with one part scaled, its canonical form, and the models' answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from localscale.adaptation import AdaptedModel
from localscale.adaptation.source import canonical_size
from localscale.canonicalizer import INPUT, SiteReport
from localscale.lab.data.boxes import Box
from localscale.lab.pages.app.examples import Example
from localscale.lab.pages.app.models import Pair
from localscale.lab.pages.app.scaling import box_maps, factors_to_try, fit_factor
from localscale.maps.base import Map
from localscale.warp import scale, unscale

__all__ = [
    "MIDDLE",
    "Canonical",
    "Predictions",
    "ScaledView",
    "View",
    "likeliest",
    "mark_part",
    "predict",
    "scale_part",
    "trace_curve",
    "view_example",
]

MIDDLE = Box(0.3, 0.3, 0.7, 0.7)  # the part that is marked until the visitor marks another
CURVE_POINTS = 15
CURVE_BATCH = 5  # images that are scaled and classified at once
BORDER = 12  # points on each side of a marked part, whose border is bent in the canonical form


@dataclass(frozen=True, eq=False)
class Predictions:
    """Class probabilities ``(B, K)`` of the model and of its control, if it has one, and the report of each site."""

    model: Tensor
    control: Tensor | None
    sites: dict[str, SiteReport]


@dataclass(frozen=True)
class Curve:
    """The probability of one class at each factor, and the size of the marked part in the canonical forms."""

    label: int
    factors: list[float]
    model: list[float]
    control: list[float] | None
    sizes: list[float] | None

    @property
    def size(self) -> float | None:
        """The size of the marked part in the canonical form of the image as it is, at factor 1."""
        return None if self.sizes is None else self.sizes[self.factors.index(1.0)]


@dataclass(frozen=True, eq=False)
class View:
    """An image as the models receive it, ``(1, 3, size, size)`` in [0,1], with one part marked.

    ``label_known`` says whether ``curve.label`` is the image's true label; otherwise it is the class that the model
    predicts.
    """

    example: Example
    model: str
    input: Tensor
    curve: Curve
    label_known: bool

    @property
    def box(self) -> Box:
        """The marked part, as fractions of the image that the models receive."""
        return self.example.box


@dataclass(frozen=True, eq=False)
class Canonical:
    """The canonical form ``(1, 3, H, W)`` that the backbone receives, and the border ``(P, 2)`` of the marked part.

    ``factor`` is the size of the marked part, relative to its size in the canonical form of the image as it is.
    """

    image: Tensor
    border: Tensor
    factor: float


@dataclass(frozen=True, eq=False)
class ScaledView:
    """The image after its marked part was scaled by ``factor``, the nearest to ``requested`` that fits the box.

    ``canonical`` is ``None`` if the model has no canonicalizer at the image.
    """

    image: Tensor
    box: Box
    requested: float
    factor: float
    predictions: Predictions
    canonical: Canonical | None


@torch.no_grad()
def predict(pair: Pair, images: Tensor) -> Predictions:
    """Run the model and its control on ``images`` ``(B, 3, H, W)`` in [0,1]."""
    pixels = pair.normalise(images)
    sites: dict[str, SiteReport] = {}
    control = None
    if isinstance(pair.model, AdaptedModel):
        logits, sites = pair.model(pixels, return_report=True)
        if pair.control is None:
            with pair.model.disabled():
                control = pair.model(pixels)
    else:
        logits = pair.model(pixels)
    if pair.control is not None:
        control = pair.control(pixels)
    return Predictions(logits.float().softmax(1), None if control is None else control.float().softmax(1), sites)


def likeliest(probabilities: Tensor, count: int = 5) -> list[tuple[int, float]]:
    """Return the ``count`` likeliest classes of ``(K,)`` probabilities, each with its probability.

    >>> likeliest(torch.tensor([0.25, 0.5, 0.25]), count=1)
    [(1, 0.5)]
    """
    values, labels = probabilities.topk(min(count, len(probabilities)))
    return list(zip(labels.tolist(), values.tolist(), strict=True))


def view_example(pair: Pair, example: Example) -> View:
    """Return the view of an example, which may be an upload.

    The curve follows the image's label if it is known and the model can name it, else the class that it predicts.
    """
    image = pair.prepare(example.image)
    known = example.label if pair.reads_digits else None
    label = int(predict(pair, image).model[0].argmax()) if known is None else known
    return View(example, pair.name, image, trace_curve(pair, image, example.box, label), known is not None)


def mark_part(pair: Pair, view: View, box: Box) -> View:
    """Return the view of the same image with another part marked."""
    curve = trace_curve(pair, view.input, box, view.curve.label)
    return replace(view, example=replace(view.example, box=box), curve=curve)


def scale_part(pair: Pair, view: View, factor: float) -> ScaledView:
    """Scale the marked part and run both models on the result."""
    fits = fit_factor(view.box, factor)
    m = box_maps(view.box, [fits])
    image = scale(view.input, m)
    edges = (view.box.left, view.box.top), (view.box.right, view.box.bottom)
    corners = torch.tensor([edges], dtype=torch.float32)  # whole numbers, too, if the box is the whole image
    (left, top), (right, bottom) = m(corners)[0].tolist()
    predictions = predict(pair, image)
    canonical = None
    if INPUT in predictions.sites:
        found = predictions.sites[INPUT].map
        border = _canonical_borders(found, m, view.box)
        assert view.curve.size is not None
        shown = unscale(image, found, size=canonical_size(pair.model))
        canonical = Canonical(shown, border[0], _sizes_of(border)[0] / view.curve.size)
    return ScaledView(image, Box(left, top, right, bottom), factor, fits, predictions, canonical)


def trace_curve(pair: Pair, image: Tensor, box: Box, label: int) -> Curve:
    """Scale the box of ``image`` ``(1, 3, H, W)`` by each factor in turn and record the probability of ``label``."""
    factors = factors_to_try(box, CURVE_POINTS)
    model: list[float] = []
    control: list[float] = []
    sizes: list[float] = []
    for first in range(0, len(factors), CURVE_BATCH):
        m = box_maps(box, factors[first : first + CURVE_BATCH])
        predictions = predict(pair, scale(image.expand(m.batch, -1, -1, -1), m))
        model += predictions.model[:, label].tolist()
        if predictions.control is not None:
            control += predictions.control[:, label].tolist()
        if INPUT in predictions.sites:
            sizes += _sizes_of(_canonical_borders(predictions.sites[INPUT].map, m, box))
    return Curve(label, factors, model, control or None, sizes or None)


def _canonical_borders(found: Map, scaling: Map, box: Box) -> Tensor:
    """Return the border of ``box`` in the canonical forms by the maps ``found``, after ``scaling``, ``(B, P, 2)``."""
    along = torch.linspace(0, 1, BORDER + 1)[:-1]
    x, y = box.left + (box.right - box.left) * along, box.top + (box.bottom - box.top) * along
    back_x, back_y = box.right + box.left - x, box.bottom + box.top - y
    sides = ((x, box.top), (box.right, y), (back_x, box.bottom), (box.left, back_y))  # clockwise, as y points down
    border = torch.cat([torch.stack(torch.broadcast_tensors(*map(torch.as_tensor, side)), -1) for side in sides])
    return found.inverse()(scaling(border.expand(scaling.batch, -1, -1)))


def _sizes_of(borders: Tensor) -> list[float]:
    """Return the square root of the area inside each closed border of ``(B, P, 2)``."""
    x, y = borders.unbind(-1)
    area = (x * y.roll(-1, 1) - x.roll(-1, 1) * y).sum(1).abs() / 2
    return [math.sqrt(value) for value in area.tolist()]
