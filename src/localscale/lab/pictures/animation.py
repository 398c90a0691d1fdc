"""An animation: one digit of a number grows and shrinks, and beside it the canonical form stands still."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as T

from localscale.canonicalizer import INPUT
from localscale.errors import CheckpointError, ConfigError, OutputError
from localscale.files import write_whole
from localscale.lab.data.mnist import LocallyScaledMNIST
from localscale.lab.pictures.files import blank_figure
from localscale.lab.pictures.learned import open_canonicalizer
from localscale.lab.pictures.palette import BLUE, GREY, INK, VERMILION
from localscale.lab.runs.answers import method_of
from localscale.lab.runs.finished import check_control, read_run
from localscale.lab.tasks.mnist import MNISTData
from localscale.warp import unscale

__all__ = ["MOST_BYTES", "Answers", "GrowingDigit", "draw_frames", "grow_digit", "save_animation"]

FORMATS = ("webp", "gif")
MOST_BYTES = 2_000_000  # so that a page that opens with the animation still loads quickly
BATCH = 8  # images that a model answers at once
SIDE, GAP, LINE = 2.2, 0.16, 0.24  # inches: a picture, the space around it, and a line of text
DOTS = 160  # per inch


@dataclass(frozen=True)
class Answers:
    """A model's answer at each size of the digit, and the probability that it gives the right number."""

    numbers: list[int]
    shares: list[float]


@dataclass(frozen=True, eq=False)
class GrowingDigit:
    """A number at growing sizes of one digit.

    ``factors`` are the digit's sizes, in increasing order. ``images`` ``(F, 1, H, W)`` are in [0,1], and
    ``canonical_forms`` have their shape. ``answers`` are those of each model, by its name.
    """

    label: int
    factors: list[float]
    images: Tensor
    canonical_forms: Tensor
    answers: dict[str, Answers]


@torch.no_grad()
def grow_digit(
    folder: Path,
    *,
    control: Path | None = None,
    image: int = 0,
    digit: int = 1,
    factors: Sequence[float],
    data: Path | None = None,
) -> GrowingDigit:
    """Return a test image of an MNIST run at several sizes of one digit, its canonical forms, and the models' answers.

    Args:
        folder: a finished run with a canonicalizer at the input.
        control: a finished run of the same task, whose answers are compared.
        image: index of the test image.
        digit: which of its digits changes, 1 to 3 in reading order.
        factors: sizes of that digit, in increasing order; 1 is 20 pixels of ink in 224.
        data: folder with MNIST; ``None`` means the folder that the recipe names.
    """
    run, model = open_canonicalizer(folder, data)
    if not isinstance(run.recipe.data, MNISTData):
        raise CheckpointError(f"the run in {folder} is not on MNIST; localscale figure canonical draws other runs")
    other = None if control is None else read_run(control)
    if other is not None:
        check_control(run, other)
    images, label = _draw_sizes(run.make_task().test, image, digit, factors)
    batches, answers = images.split(BATCH), {}
    if other is not None:
        network = other.load_model()
        answers["control"] = _answers([network(other.normalise(batch)) for batch in batches], label)
    found = [model(run.normalise(batch), return_report=True) for batch in batches]
    answers[method_of(model) or ""] = _answers([logits for logits, _ in found], label)
    forms = [unscale(batch, report[INPUT].map) for batch, (_, report) in zip(batches, found, strict=True)]
    return GrowingDigit(label, list(factors), images, torch.cat(forms), answers)


def _draw_sizes(test: LocallyScaledMNIST, image: int, digit: int, factors: Sequence[float]) -> tuple[Tensor, int]:
    """Return a test image at each size of one digit, ``(F, 1, H, W)``, and its label."""
    if not (0 <= image < len(test) and 1 <= digit <= 3):
        raise ConfigError(f"--image is {image} and --digit {digit}; expected 0 to {len(test) - 1} and 1 to 3")
    triple, (low, high) = test.triple(image), test.factors
    dataset = LocallyScaledMNIST(
        factors=(min(low, *factors), max(high, *factors)), image_size=test.image_size, digits=test.digits
    )
    drawn = []
    for factor in factors:
        sizes = triple.factors.clone()
        sizes[0, digit - 1] = factor
        drawn.append(T.pil_to_tensor(dataset.render(replace(triple, factors=sizes))).float() / 255)
    return torch.stack(drawn), int(triple.labels)


def _answers(logits: list[Tensor], label: int) -> Answers:
    shares = torch.cat(logits).float().softmax(1)
    return Answers(shares.argmax(1).tolist(), shares[:, label].tolist())


def draw_frames(growing: GrowingDigit) -> list[Image.Image]:
    """Return one frame for each size: the image, its canonical form, and the answers below.

    >>> images = torch.rand(2, 1, 8, 8)
    >>> answers = {"size equilibrium": Answers([7, 7], [0.9, 0.8])}
    >>> [frame.size for frame in draw_frames(GrowingDigit(7, [0.5, 2.0], images, images, answers))]
    [(780, 505), (780, 505)]
    """
    rows = len(growing.answers)
    width, height = 2 * SIDE + 3 * GAP, SIDE + LINE * (rows + 2) + 1.5 * GAP
    figure, axis = blank_figure(width=width, height=height)
    figure.set_dpi(DOTS)
    lower = height - GAP / 2 - LINE - SIDE
    places, pictures = (GAP, 2 * GAP + SIDE), (growing.images[:, 0].numpy(), growing.canonical_forms[:, 0].numpy())
    shown = [
        axis.imshow(images[0], cmap="gray", vmin=0, vmax=1, extent=(left, left + SIDE, lower, lower + SIDE))
        for left, images in zip(places, pictures, strict=True)
    ]
    axis.set(xlim=(0, width), ylim=(0, height))
    heading = {"fontsize": 9, "color": INK, "va": "center"}
    size = axis.text(GAP, lower + SIDE + LINE / 2, "", **heading)
    axis.text(places[1], lower + SIDE + LINE / 2, "what the model sees", **heading)
    update = _lay_out_answers(axis, growing, lower - GAP / 2, width)
    frames = []
    for k, factor in enumerate(growing.factors):
        for place, images in zip(shown, pictures, strict=True):
            place.set_data(images[k])
        size.set_text(f"image, one digit at size ×{factor:.1f}")
        update(k)
        frames.append(_render(figure))
    return frames


def _lay_out_answers(axis: Any, growing: GrowingDigit, top: float, width: float) -> Any:
    """Draw a line for each model below ``top``; return the function that shows the answers of frame k."""
    answer, left, right = GAP + 1.3, GAP + 2.1, width - GAP - 0.45
    small = {"fontsize": 7, "color": GREY, "va": "center"}
    axis.text(answer, top - LINE / 2, "answer", **small)
    axis.text(left, top - LINE / 2, f"probability of the right number, {growing.label:03d}", **small)
    texts, bars = [], []
    for row, name in enumerate(growing.answers):
        y, colour = top - LINE * (row + 1.5), VERMILION if name == "control" else BLUE
        style = {"fontsize": 9, "color": colour, "va": "center"}
        axis.text(GAP, y, name, **style)
        texts.append((axis.text(answer, y, "", **style), axis.text(width - GAP, y, "", ha="right", **style)))
        axis.barh(y, right - left, 0.6 * LINE, left=left, color="#EEEEEE")
        bars.append(axis.barh(y, 0, 0.6 * LINE, left=left, color=colour)[0])

    def update(k: int) -> None:
        for given, (number, share), bar in zip(growing.answers.values(), texts, bars, strict=True):
            right_or_wrong = "✓" if given.numbers[k] == growing.label else "✗"
            number.set_text(f"{given.numbers[k]:03d} {right_or_wrong}")
            share.set_text(f"{100 * given.shares[k]:.0f} %")
            bar.set_width((right - left) * given.shares[k])

    return update


def _render(figure: Any) -> Image.Image:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def save_animation(frames: Sequence[Image.Image], path: Path, *, seconds: float) -> None:
    """Write an endless animation that runs through ``frames`` and back in ``seconds``: .webp or .gif.

    The file is written at once, so an interruption leaves none. One of more than 2 MB is refused.
    """
    form = path.suffix.removeprefix(".")
    if form not in FORMATS:
        raise ConfigError(f"{path} ends in {path.suffix or 'nothing'}; expected .{' or .'.join(FORMATS)}")
    there_and_back = [*frames, *frames[-2:0:-1]]
    content = io.BytesIO()
    there_and_back[0].save(
        content,
        form,
        save_all=True,
        append_images=there_and_back[1:],
        duration=round(1000 * seconds / len(there_and_back)),
        loop=0,
        **({"quality": 85, "method": 4} if form == "webp" else {}),
    )
    if content.tell() > MOST_BYTES:
        raise OutputError(
            f"the animation has {content.tell() / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}; "
            "give fewer --frames, or write .webp"
        )
    write_whole(path, content.getvalue())


def factors_between(low: float, high: float, count: int) -> list[float]:
    """Return ``count`` factors from ``low`` to ``high`` that change slowly at both ends, in equal ratios between.

    >>> factors_between(0.5, 2.0, 3)
    [0.5, 1.0, 2.0]
    """
    middle, reach = math.log(low * high) / 2, math.log(high / low) / 2
    return [math.exp(middle - reach * math.cos(math.pi * k / (count - 1))) for k in range(count)]
