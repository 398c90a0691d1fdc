"""Teach the size network of ``ls.adapt(base, "photographs")`` where things are and how large, from boxes."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from benchmarks.photograph_data import Cutouts, Photographs
from benchmarks.photograph_scenes import compose, crop, without_things
from benchmarks.photograph_trunk import convolutions, gain_of, load_trunk
from localscale.canonicalizer.shipped import NORMALISATION, shipped_config
from localscale.canonicalizer.sizes import SizeEstimator, SizeNetwork
from localscale.canonicalizer.trunks import EfficientNetLite0, shrink_look
from localscale.conventions import coordinates, resize_matrix
from localscale.files import write_all
from localscale.tensor_files import write_tensors

__all__ = ["Scores", "Settings", "build", "score", "targets", "train", "write"]

NAME = "photographs"
FINE = 112  # places along a side at which boxes are painted
SEEN = 0.3  # share of a place that a box must cover to set its size
SHARP, SIZES = 0.1, 0.5  # of the loss on sizes: where it becomes linear, and its weight
SMALL = 0.3  # share of the frame below which the largest thing of a photograph is small
WARM_UP, CLIP = 50, 1.0


@dataclass(frozen=True)
class Settings:
    """The settings of the training; ``real``, ``pasted`` and ``empty`` images make a batch."""

    steps: int = 1600
    real: int = 96
    pasted: int = 60
    empty: int = 4
    rate: float = 2e-3
    trunk_rate: float = 2e-4
    decay: float = 0.05
    drop: float = 0.1


@dataclass(frozen=True)
class Scores:
    """Means over photographs: the overlap of weights and boxes, and the error in log size inside boxes."""

    overlap: float
    error: float
    count: int

    def __str__(self) -> str:
        return f"IoU {self.overlap:.3f}, size error {self.error:.3f} ({self.count} photographs)"


def build(device: str) -> SizeEstimator:
    """Return the untrained size network of the shipped configuration."""
    config = shipped_config(NAME)
    assert isinstance(config.network, SizeNetwork)
    knots = config.knots_at(0)
    made = config.network.map_network(3, knots, family="grid", temperature=1.0, guard=config.guard)
    assert isinstance(made, SizeEstimator)
    return made.to(device)


def targets(boxes: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return log sizes and shares covered ``(B, rows, columns)`` of boxes ``(B, N, 4)`` that may be NaN.

    Convention: the corners of the fields lie on the corners of the image, as those of the estimates.
    """
    boxes = boxes.clamp(0, 1)
    side = boxes[..., 2:] - boxes[..., :2]
    known = (side > 0.02).all(dim=-1)  # false for NaN
    size = 0.5 * side.prod(dim=-1).clamp_min(1e-3).log()
    place = coordinates(FINE, dtype=boxes.dtype, device=boxes.device)

    def share(axis: int, count: int) -> Tensor:
        inside = (boxes[..., axis, None] <= place) & (place <= boxes[..., axis + 2, None])
        tents = resize_matrix(FINE, count, boxes.dtype, boxes.device)
        return (inside.to(boxes) @ tents.T).clamp(0, 1)

    across, down = share(0, columns), share(1, rows)
    covered = torch.where(known[..., None, None], down[..., :, None] * across[..., None, :], 0)
    sizes = torch.zeros_like(covered[:, 0])
    for index in range(boxes.shape[1]):
        sizes = torch.where(covered[:, index] > SEEN, size[:, index, None, None], sizes)
    return sizes, covered.amax(dim=1)


def train(
    estimator: SizeEstimator,
    state: dict[str, Tensor],
    photographs: Photographs,
    scenes: tuple[Photographs, Cutouts] | None,
    settings: Settings,
    report: Callable[[str], None] = print,
) -> None:
    """Teach ``estimator``, whose trunk starts from timm's ``state``; without ``scenes`` nothing is pasted."""
    trunk, side = estimator.trunk, estimator.settings.resolution_for(3)
    assert trunk is not None
    load_trunk(trunk, state)
    device = photographs.images.device
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    real = settings.real if scenes else settings.real + settings.pasted
    with _unfolded(trunk, state), _dropping(trunk, settings.drop):
        slow = {id(parameter) for parameter in trunk.pretrained()}
        groups: list[dict[str, Any]] = [
            {"params": [p for p in trunk.parameters() if (id(p) in slow) == pretrained], "rate": rate}
            for pretrained, rate in ((True, settings.trunk_rate), (False, settings.rate))
        ]
        optimizer = torch.optim.AdamW(groups, weight_decay=settings.decay, fused=device.type == "cuda")
        begun = time.perf_counter()
        for step in range(settings.steps):
            pace = min(1, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / settings.steps))
            for group in optimizer.param_groups:
                group["lr"] = group["rate"] * pace
            drawn = [crop(photographs.at(torch.randint(len(photographs), (real,), device=device)), side)]
            if scenes:
                drawn.append(compose(*scenes, settings.pasted, side))
            drawn.append(without_things(settings.empty, side, device))
            images, boxes = (torch.cat(parts) for parts in zip(*drawn, strict=True))
            size, logits = estimator.estimates(images.to(dtype))
            wanted, covered = targets(boxes, *size.shape[1:])
            unsure = F.binary_cross_entropy_with_logits(logits, covered)
            wrong = (covered * F.smooth_l1_loss(size, wanted, beta=SHARP, reduction="none")).sum()
            wrong = wrong / covered.sum().clamp_min(1)
            optimizer.zero_grad(set_to_none=True)
            (unsure + SIZES * wrong).backward()
            nn.utils.clip_grad_norm_(trunk.parameters(), CLIP)
            optimizer.step()
            if step % 200 == 0 or step == settings.steps - 1:
                passed = time.perf_counter() - begun
                report(f"step {step}: weights {unsure.item():.3f}, sizes {wrong.item():.3f}, {passed:.0f} s")
    estimator.trust.fill_(1)
    estimator.requires_grad_(False)


@torch.no_grad()
def score(estimator: SizeEstimator, photographs: Photographs, *, batch: int = 100) -> dict[str, Scores]:
    """Return the scores on all photographs, and on those whose largest thing is small."""
    side = estimator.settings.resolution_for(3)
    overlaps, errors = [], []
    for index in torch.arange(len(photographs), device=photographs.images.device).split(batch):
        some = photographs.at(index)
        looks = shrink_look(some.images.float() / 255, (side, side), torch.float32)
        size, logits = estimator.estimates(looks)
        wanted, covered = targets(some.boxes, *size.shape[1:])
        weight, inside = torch.sigmoid(logits), covered.sum(dim=(1, 2)).clamp_min(1e-6)
        both = torch.maximum(weight, covered).sum(dim=(1, 2)).clamp_min(1e-6)
        overlaps.append((weight * covered).sum(dim=(1, 2)) / both)
        errors.append((covered * (size - wanted).abs()).sum(dim=(1, 2)) / inside)
    overlap, error = torch.cat(overlaps), torch.cat(errors)
    seen = photographs.boxes.clamp(0, 1)
    area = (seen[..., 2:] - seen[..., :2]).prod(dim=-1).nan_to_num(0).amax(dim=1)
    groups = {"all": area >= 0, "small": (area < SMALL) & (area > 0)}
    return {
        name: Scores(float(overlap[mask].mean()), float(error[mask].mean()), int(mask.sum()))
        for name, mask in groups.items()
    }


def write(estimator: SizeEstimator, folder: Path) -> list[Path]:
    """Write the configuration and the weights in the format of the package, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().half().cpu().contiguous()
        for name, tensor in estimator.state_dict().items()
        if name not in NORMALISATION
    }
    config = dataclasses.replace(shipped_config(NAME), network=estimator.settings).to_json() + "\n"
    paths = [folder / f"{NAME}.json", folder / f"{NAME}.safetensors"]
    write_all(
        {
            paths[0]: lambda path: path.write_text(config, encoding="utf-8"),
            paths[1]: lambda path: write_tensors(path, tensors),
        }
    )
    return paths


class _Gain(nn.Module):
    """Multiply each output channel of a weight by a trainable gain, as the batch norm does that was folded into it."""

    def __init__(self, gain: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.gain = nn.Parameter(gain)
        self.scale = nn.Buffer(scale)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (self.gain * self.scale)[:, None, None, None]


@contextmanager
def _unfolded(trunk: EfficientNetLite0, state: dict[str, Tensor]) -> Iterator[None]:
    """Return a context in which the batch norms' gains are parameters of their own, and not folded into the weights.

    Their gains differ by a factor of a thousand, so that one learning rate would not suit all folded weights.
    """
    layers = list(convolutions(trunk))
    for layer, convolution, norm in layers:
        gain = state[f"{norm}.weight"].to(layer.weight)
        scale = gain_of({**state, f"{norm}.weight": torch.ones_like(gain)}, norm).to(layer.weight)
        with torch.no_grad():
            layer.weight.copy_(state[f"{convolution}.weight"])
        parametrize.register_parametrization(layer, "weight", _Gain(gain, scale), unsafe=True)
    try:
        yield
    finally:
        for layer, _, _ in layers:
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


@contextmanager
def _dropping(trunk: EfficientNetLite0, share: float) -> Iterator[None]:
    """Return a context in which whole channels of the features that the head reads are dropped at random."""
    handles = [join.register_forward_pre_hook(lambda _, inputs: F.dropout2d(inputs[0], share)) for join in trunk.joins]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
