"""``learn_sizes``: teach an adapted model the sizes of things, on unlabelled images or from masks or boxes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from tqdm import tqdm

from localscale.adaptation.model import AdaptedModel
from localscale.adaptation.size_sites import features_at, size_canonicalizers, size_losses
from localscale.adaptation.source import size_of_images
from localscale.adaptation.teaching import Examples, known_things, split
from localscale.canonicalizer.thing_loss import check_teachable
from localscale.canonicalizer.things import IGNORED, Things
from localscale.canonicalizer.trunks import EfficientNetLite0
from localscale.checkpoints import read_checkpoint, write_checkpoint
from localscale.conventions import compute_dtype
from localscale.errors import CheckpointError, ConfigError, OutputError
from localscale.files import reason_of
from localscale.stopping import StopRequest

__all__ = ["LearnedSizes", "learn_sizes"]

LEARNING_RATE, WEIGHT_DECAY, WARM_UP, CLIP = 2e-3, 1e-4, 100, 1.0
PRETRAINED_SHARE = 0.1  # of the learning rate
SAVE_EVERY = 200  # steps between two checkpoints
NETWORK = "network."  # prefix of its tensors' names in a checkpoint
SCORES = ("error", "overlap", "spread")  # of known things


@dataclass(frozen=True)
class LearnedSizes:
    """The result of ``learn_sizes``, measured on held-out images.

    ``error`` is the mean absolute error in log size on known changes of size, ``spread`` the standard deviation of the
    estimated log sizes in canonical forms over that in the images, and ``converged`` the share of images whose
    equilibrium was reached. With several sites, each is the mean over the sites.

    The others compare with masks or boxes, and are ``None`` if sizes were learned without. ``thing_error`` is the mean
    absolute error in log size of the things, ``thing_overlap`` the intersection over union of the places that have a
    weight above ½ and those that things cover, and ``thing_spread`` the standard deviation of the things' true log
    sizes in canonical forms over that in the images.
    """

    steps: int
    error: float
    spread: float
    converged: float
    thing_error: float | None = None
    thing_overlap: float | None = None
    thing_spread: float | None = None


def learn_sizes(
    model: AdaptedModel,
    images: Tensor | Sequence[Tensor] | Iterable[Any],
    *,
    things: Literal["masks", "boxes"] | None = None,
    ignore_index: int = IGNORED,
    steps: int = 1000,
    batch_size: int = 64,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> LearnedSizes:
    """Teach the size networks of ``model`` how large things are, without labels or from masks or boxes.

    Nothing else in the model changes. With ``things`` the networks also learn where things are, so they need
    ``SizeNetwork(weight="learned")``. Sizes are then relative to the mean log size of the things learned from.

    Args:
        model: adapted with a ``SizeNetwork``, as ``ls.adapt(base)`` does, at any sites.
        images: a tensor ``(N, C, H, W)``; a sequence of ``(C, H, W)`` tensors of any sizes, which are resized to the
            size that the model was adapted for; or a loader of batches, of which the first tensor or list of images (or
            ``pixel_values``) is used. They must be normalised as the base model expects. A tenth of the images, or a
            loader's first batch, is held out for the measurement; a loader that shuffles holds out another batch in
            each pass. Images that hold NaN do not count. With ``things``, a pair (images, masks or boxes) or a loader
            of such pairs, or of dictionaries with ``pixel_values`` and ``masks``, ``labels`` or ``boxes``.
        things: what the things are known by. ``"masks"`` are integers ``(B, H, W)``: each value is one thing, 0 is
            background, and ``ignore_index`` and negative values do not count. ``"boxes"`` are a tensor ``(N, 4)`` for
            each image, (left, top, right, bottom) as fractions of the image; where boxes overlap, the smallest counts.
        ignore_index: value in masks that does not count.
        steps: optimizer steps.
        batch_size: images per step; a loader's batches stay as they are.
        checkpoint: a safetensors file to resume from; it is written every 200 steps, at the end and after Ctrl-C,
            which stops between two steps.
        progress: show a progress bar.

    >>> import timm, localscale as ls
    >>> model = ls.adapt(timm.create_model("resnet18"), input_size=(3, 64, 64))
    >>> found = ls.learn_sizes(model, torch.rand(8, 3, 64, 64), steps=2, progress=False)
    >>> found.steps
    2
    >>> config = ls.DECConfig(network=ls.SizeNetwork(weight="learned"))
    >>> model = ls.adapt(timm.create_model("resnet18"), config, input_size=(3, 64, 64))
    >>> masks = torch.zeros(8, 64, 64, dtype=torch.long)
    >>> masks[:, 20:40, 30:50] = 1
    >>> pair = torch.rand(8, 3, 64, 64), masks
    >>> 0 <= ls.learn_sizes(model, pair, things="masks", steps=2, progress=False).thing_overlap <= 1
    True
    """
    if steps < 1 or batch_size < 1:
        raise ConfigError(f"steps is {steps} and batch_size {batch_size}; expected at least 1 of each")
    network = nn.ModuleList(canonicalizer.network for canonicalizer in size_canonicalizers(model).values())
    for canonicalizer in size_canonicalizers(model).values():
        if things is not None:
            check_teachable(canonicalizer.network)
        elif canonicalizer.network.settings.absolute:
            raise ConfigError(
                "absolute sizes cannot be learned without labels, which show sizes only up to a common factor; pass "
                'things="masks" or things="boxes", or use SizeNetwork(absolute=False)'
            )
    weight = next(network.parameters())
    held_out, batches = split(images, batch_size, size_of_images(model), things)
    held_out = held_out.finite()

    def prepared(examples: Examples) -> tuple[Tensor, Things | None]:
        known: dict[str, Any] = {"masks": None, "boxes": None} | ({} if things is None else {things: examples.known})
        found = known_things(**known, ignore_index=ignore_index, device=weight.device)
        return examples.images.detach().to(weight.device), found

    path = None if checkpoint is None else Path(checkpoint)
    with _learning(network):
        optimizer = torch.optim.AdamW(_groups(network), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        done = _read(path, network, optimizer) if path is not None and path.exists() else 0
        bar = tqdm(total=steps, initial=min(done, steps), desc="sizes", unit="step", disable=not progress)
        updating = False  # whether a step has begun and not ended
        try:
            with bar, StopRequest() as stop:
                for step in range(done, steps):
                    for group in optimizer.param_groups:
                        group["lr"] = group["share"] * _rate(step, steps)
                    batch = prepared(next(batches))
                    stop.check()
                    updating = True
                    found = size_losses(model, *batch).values()
                    optimizer.zero_grad(set_to_none=True)
                    torch.stack([site.loss for site in found]).sum().backward()
                    nn.utils.clip_grad_norm_(network.parameters(), CLIP)
                    optimizer.step()
                    done, updating = step + 1, False
                    if step % 20 == 0:
                        bar.set_postfix(error=f"{_mean([site.error for site in found]):.3f}", refresh=False)
                    bar.update()
                    if path is not None and done % SAVE_EVERY == 0:
                        _write(path, network, optimizer, done)
                stop.check()
        finally:
            if path is not None and done and not updating:
                _write(path, network, optimizer, done)
    return _measure(model, *prepared(held_out), done)


@contextlib.contextmanager
def _learning(network: nn.Module) -> Iterator[None]:
    """Return a context in which all parameters have gradients and full precision, which small steps need."""
    needed, dtype = [parameter.requires_grad for parameter in network.parameters()], next(network.parameters()).dtype
    network.to(compute_dtype(dtype)).requires_grad_(True)
    try:
        with torch.enable_grad():
            yield
    finally:
        network.to(dtype)
        for parameter, asks in zip(network.parameters(), needed, strict=True):
            parameter.requires_grad_(asks)
            parameter.grad = None


def _groups(network: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters in groups, each with its share of the learning rate: pretrained ones learn slowly."""
    trunks = [module for module in network.modules() if isinstance(module, EfficientNetLite0)]
    slow = {id(parameter): parameter for trunk in trunks for parameter in trunk.pretrained()}
    rest = [parameter for parameter in network.parameters() if id(parameter) not in slow]
    groups = [{"params": rest, "share": 1.0}, {"params": list(slow.values()), "share": PRETRAINED_SHARE}]
    return [group for group in groups if group["params"]]


def _rate(step: int, steps: int) -> float:
    """Return the learning rate: a linear warm-up, then half a cosine."""
    return LEARNING_RATE * min(1.0, (step + 1) / min(WARM_UP, steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))


@torch.no_grad()
def _measure(model: AdaptedModel, images: Tensor, things: Things | None, steps: int) -> LearnedSizes:
    canonicalizers = size_canonicalizers(model)
    seen = features_at(model, images, list(canonicalizers))
    errors, spreads, converged, scores = [], [], [], []
    for path, canonicalizer in canonicalizers.items():
        with torch.random.fork_rng([images.device] if images.device.type == "cuda" else []):
            torch.manual_seed(0)  # the same scalings if all steps were taken before an interruption
            errors.append(canonicalizer.size_loss(seen[path], update_trust=False).error)
        report = canonicalizer(seen[path])
        (before, weight_before), (after, weight_after) = report.sizes_before, report.sizes_after
        spreads.append(_deviation(after, weight_after) / _deviation(before, weight_before).clamp_min(1e-6))
        converged.append(report.converged.float().mean())
        if things is not None:
            scores.append(canonicalizer.thing_scores(seen[path], things, report.map))
    known = {f"thing_{name}": _mean([getattr(each, name) for each in scores]) for name in SCORES if scores}
    return LearnedSizes(steps, _mean(errors), _mean(spreads), _mean(converged), **known)


def _mean(values: Sequence[Tensor]) -> float:
    return float(torch.stack(tuple(values)).mean())


def _deviation(size: Tensor, weight: Tensor) -> Tensor:
    share = weight / weight.sum().clamp_min(1e-6)
    mean = (share * size).sum()
    return (share * (size - mean).square()).sum().sqrt()


def _write(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise OutputError(f"{path} cannot be written: {reason_of(error)}") from error
    write_checkpoint(path, network, optimizer, {"step": step}, prefix=NETWORK)


def _read(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    try:
        step = read_checkpoint(path, network, optimizer, prefix=NETWORK).get("step")
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise CheckpointError(f"its step is {step!r}")
    except CheckpointError as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of this size network ({error}); remove it or name another file"
        ) from error
    return step
