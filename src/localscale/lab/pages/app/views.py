"""The image that a visitor sees, the same image with one part scaled, and both models' predictions for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from localscale.canonicalizer import SiteReport
from localscale.lab.data.boxes import Box
from localscale.lab.pages.app.examples import Example
from localscale.lab.pages.app.models import Pair
from localscale.lab.pages.app.scaling import box_maps, factors_to_try, fit_factor
from localscale.warp import scale

__all__ = ["MIDDLE", "ScaledView", "View", "likeliest", "mark_part", "predict", "scale_part", "view_example"]

MIDDLE = Box(0.3, 0.3, 0.7, 0.7)  # the part that is marked until the visitor marks another
CURVE_POINTS = 15
CURVE_BATCH = 5  # images that are scaled and classified at once


@dataclass(frozen=True, eq=False)
class Predictions:
    """Class probabilities ``(B, K)`` without DEC (base) and with it, and the report of each site."""

    base: Tensor
    dec: Tensor
    sites: dict[str, SiteReport]


@dataclass(frozen=True)
class Curve:
    """The probability of one class at each factor, without DEC (base) and with it."""

    label: int
    factors: list[float]
    base: list[float]
    dec: list[float]


@dataclass(frozen=True, eq=False)
class View:
    """An image as the models receive it, ``(1, 3, size, size)`` in [0,1], with one part marked.

    ``label_known`` says whether ``curve.label`` is the image's true label; otherwise it is the class that DEC predicts.
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
class ScaledView:
    """The image after its marked part was scaled by ``factor``, the nearest to ``requested`` that fits the box."""

    image: Tensor
    box: Box
    requested: float
    factor: float
    predictions: Predictions


@torch.no_grad()
def predict(pair: Pair, images: Tensor) -> Predictions:
    """Run both models on ``images`` ``(B, 3, H, W)`` in [0,1]."""
    pixels = pair.normalise(images)
    logits, sites = pair.dec(pixels, return_report=True)
    if pair.base is not None:
        base = pair.base(pixels)
    else:
        with pair.dec.disabled():
            base = pair.dec(pixels)
    return Predictions(base.float().softmax(1), logits.float().softmax(1), sites)


def likeliest(probabilities: Tensor, count: int = 5) -> list[tuple[int, float]]:
    """Return the ``count`` likeliest classes of ``(K,)`` probabilities, each with its probability.

    >>> likeliest(torch.tensor([0.25, 0.5, 0.25]), count=1)
    [(1, 0.5)]
    """
    values, labels = probabilities.topk(min(count, len(probabilities)))
    return list(zip(labels.tolist(), values.tolist(), strict=True))


def view_example(pair: Pair, example: Example) -> View:
    """Return the view of an example, which may be an upload.

    The curve follows the image's label if it is known and the models can name it, else the class that DEC predicts.
    """
    image = pair.prepare(example.image)
    known = example.label if pair.reads_digits else None
    label = int(predict(pair, image).dec[0].argmax()) if known is None else known
    return View(example, pair.name, image, _trace_curve(pair, image, example.box, label), known is not None)


def mark_part(pair: Pair, view: View, box: Box) -> View:
    """Return the view of the same image with another part marked."""
    curve = _trace_curve(pair, view.input, box, view.curve.label)
    return replace(view, example=replace(view.example, box=box), curve=curve)


def scale_part(pair: Pair, view: View, factor: float) -> ScaledView:
    """Scale the marked part and run both models on the result."""
    fits = fit_factor(view.box, factor)
    m = box_maps(view.box, [fits])
    image = scale(view.input, m)
    corners = torch.tensor([[[view.box.left, view.box.top], [view.box.right, view.box.bottom]]])
    (left, top), (right, bottom) = m(corners)[0].tolist()
    return ScaledView(image, Box(left, top, right, bottom), factor, fits, predict(pair, image))


def _trace_curve(pair: Pair, image: Tensor, box: Box, label: int) -> Curve:
    """Scale the box of ``image`` ``(1, 3, H, W)`` by each factor in turn and record the probability of ``label``."""
    factors = factors_to_try(box, CURVE_POINTS)
    base, dec = [], []
    for first in range(0, len(factors), CURVE_BATCH):
        m = box_maps(box, factors[first : first + CURVE_BATCH])
        predictions = predict(pair, scale(image.expand(m.batch, -1, -1, -1), m))
        base += predictions.base[:, label].tolist()
        dec += predictions.dec[:, label].tolist()
    return Curve(label, factors, base, dec)
