"""Measure a trained model and print the table."""

from dataclasses import dataclass

import torch
from torch import nn
from tqdm import tqdm

import localscale as ls
from demo.digits import Digits
from demo.training import predict


@dataclass(frozen=True)
class Row:
    """The measurements of one model: accuracies in %, InvE in 10⁻², trained parameters, and seconds of training."""

    name: str
    accuracy: float
    invariance_error: float
    parameters: int
    seconds: float
    accuracy_per_scale: dict[float, float]


def measure(name: str, model: nn.Module, digits: Digits, seconds: float) -> Row:
    """Measure ``model`` on the test scenes, on their variants, and at each scale."""
    sets = [digits.test, *digits.variants, *digits.by_scale.values()]
    answers = [predict(model, images) for images in tqdm(sets, desc=f"measuring {name}", unit="set", leave=False)]
    reference, variants = answers[0], torch.stack(answers[1 : 1 + len(digits.variants)], dim=1)
    at_scales = answers[1 + len(digits.variants) :]
    accuracies = [
        float((found.argmax(dim=1) == digits.test_labels).double().mean()) for found in [reference, *at_scales]
    ]
    return Row(
        name=name,
        accuracy=100 * accuracies[0],
        invariance_error=100 * float(ls.metrics.invariance_error(reference, variants)),
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        seconds=seconds,
        accuracy_per_scale={s: 100 * value for s, value in zip(digits.by_scale, accuracies[1:], strict=True)},
    )


def render_table(rows: list[Row]) -> str:
    """Return the rows as a table for the terminal."""
    lines = [
        f"{'':16} {'accuracy':>9} {'InvE':>7} {'trainable':>10} {'seconds':>8}",
        f"{'':16} {'%':>9} {'10⁻²':>7} {'parameters':>10} {'':>8}",
        "─" * 54,
    ]
    lines += [
        f"{row.name:16} {row.accuracy:9.2f} {row.invariance_error:7.2f} {row.parameters:10,} {row.seconds:8.1f}"
        for row in rows
    ]
    return "\n".join(lines)
