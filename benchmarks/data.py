"""Measure the speed of drawing locally scaled MNIST, beside torchvision's resize and paste."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import resize

from benchmarks.measurement import ResultTable, median_milliseconds
from localscale.lab.data import LocallyScaledMNIST, embedded_digits
from localscale.lab.data.mnist.triples import LAYOUTS

TARGETS = {"cpu": 400, "cuda": 20_000}


def mnist(device: str, quick: bool) -> ResultTable:
    dataset = LocallyScaledMNIST(train=True, digits=embedded_digits(train=True))
    renderer = dataset.renderer(device)
    kind = device.partition(":")[0]
    batches = (16,) if quick else (64, 256) if kind == "cpu" else (256, 1024)
    repeats = 2 if quick else 11
    rows = []
    for batch in batches:
        index = torch.randint(len(dataset), (batch,), generator=torch.Generator().manual_seed(0)).to(device)
        milliseconds = median_milliseconds(lambda: renderer(index), device, repeats=repeats)  # noqa: B023
        rows.append(_row(f"renderer, batch {batch}", batch, milliseconds, TARGETS[kind]))
    few = range(4 if quick else 64)
    drawing = median_milliseconds(lambda: [dataset[n] for n in few], "cpu", repeats=3)
    rows.append(_row("dataset, one image at a time", len(few), drawing, None))
    tensors = dataset.digits.images[:, None].float() / 255
    usual = median_milliseconds(lambda: [_paste(dataset, tensors, n) for n in few], "cpu", repeats=3)
    rows.append(_row("peer: torchvision's resize and paste, one image at a time", len(few), usual, None))
    return ResultTable(
        title=f"Drawing locally scaled MNIST ({kind})",
        note=(
            "224×224, three digits at factors 0.4 to 2.0, anti-aliased; medians, random choice of scenes included. "
            "The last two rows run on the CPU on either machine."
        ),
        rows=rows,
    )


MEASUREMENTS = (mnist,)
PACKAGES = ("localscale", "torch", "torchvision")


def _row(name: str, images: int, milliseconds: float, target: int | None) -> dict[str, object]:
    speed = images / milliseconds * 1000
    verdict = "–" if target is None else f"≥ {target:,}: {'met' if speed >= target else 'missed'}"
    return {"what": name, "images/s": round(speed), "target": verdict}


def _paste(dataset: LocallyScaledMNIST, images: Tensor, index: int) -> Image.Image:
    """Draw a scene as is usual: resize each digit to whole pixels and paste it."""
    triple = dataset.triple(index)
    canvas = torch.zeros(224, 224)
    places = list(LAYOUTS.values())[int(triple.layouts)]
    for digit, factor, (x, y) in zip(triple.digits[0], triple.factors[0], places, strict=True):
        side = round(28 * float(factor))
        small = resize(images[digit], [side, side], antialias=True)[0]
        top, left = (min(max(round(c * 224 - side / 2), 0), 224 - side) for c in (y, x))
        canvas[top : top + side, left : left + side] += small
    return Image.fromarray((255 * canvas.clamp(0, 1)).numpy().astype(np.uint8))
