"""``learn_sizes``: teach an adapted model the sizes of things on unlabelled images."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

from localscale.adaptation.model import AdaptedModel
from localscale.adaptation.size_sites import features_at, size_canonicalizers, size_losses
from localscale.adaptation.source import size_of_images
from localscale.conventions import resize
from localscale.errors import CheckpointError, ConfigError, DataError
from localscale.files import write_all
from localscale.stopping import StopRequest

__all__ = ["LearnedSizes", "learn_sizes"]

LEARNING_RATE, WEIGHT_DECAY, WARM_UP, CLIP = 2e-3, 1e-4, 100, 1.0
HELD_OUT = 256  # largest number of images kept for the measurement
SAVE_EVERY = 200  # steps between two checkpoints


@dataclass(frozen=True)
class LearnedSizes:
    """The result of ``learn_sizes``, measured on held-out images.

    ``error`` is the mean absolute error in log size on known changes of size, ``spread`` the standard deviation of the
    estimated log sizes in canonical forms over that in the images, and ``converged`` the share of images whose
    equilibrium was reached. With several sites, each is the mean over the sites.
    """

    steps: int
    error: float
    spread: float
    converged: float


def learn_sizes(
    model: AdaptedModel,
    images: Tensor | Sequence[Tensor] | Iterable[Any],
    *,
    steps: int = 1000,
    batch_size: int = 64,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> LearnedSizes:
    """Teach the size networks of ``model`` how large things are, without labels; nothing else changes.

    Args:
        model: adapted with a ``SizeNetwork``, as ``ls.adapt(base)`` does, at any sites.
        images: a tensor ``(N, C, H, W)``; a sequence of ``(C, H, W)`` tensors of any sizes, which are resized to the
            size that the model was adapted for; or a loader of batches, of which the first tensor (or
            ``pixel_values``) is used. They must be normalised as the base model expects. A tenth of the images, or a
            loader's first batch, is held out for the measurement; a loader that shuffles holds out another batch in
            each pass. Images that hold NaN do not count.
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
    """
    if steps < 1 or batch_size < 1:
        raise ConfigError(f"steps is {steps} and batch_size {batch_size}; expected at least 1 of each")
    network = nn.ModuleList(canonicalizer.network for canonicalizer in size_canonicalizers(model).values())
    weight = next(network.parameters())
    held_out, batches = _split(images, batch_size, size_of_images(model))
    held_out = _finite(held_out)
    path = None if checkpoint is None else Path(checkpoint)
    needed = [parameter.requires_grad for parameter in network.parameters()]
    network.requires_grad_(True)
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    done = _read(path, network, optimizer) if path is not None and path.exists() else 0
    bar = tqdm(total=steps, initial=min(done, steps), desc="sizes", unit="step", disable=not progress)
    updating = False  # whether a step has begun and not ended
    try:
        with bar, StopRequest() as stop:
            for step in range(done, steps):
                for group in optimizer.param_groups:
                    group["lr"] = _rate(step, steps)
                batch = next(batches).to(weight.device)
                stop.check()
                updating = True
                found = size_losses(model, batch).values()
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
        for parameter, asks in zip(network.parameters(), needed, strict=True):
            parameter.requires_grad_(asks)
            parameter.grad = None
        if path is not None and done and not updating:
            _write(path, network, optimizer, done)
    return _measure(model, held_out.to(weight.device), done)


def _finite(images: Tensor) -> Tensor:
    """Return the images without those that hold NaN or infinity, which would spoil the measurement of all others."""
    finite = images[torch.isfinite(images).flatten(1).all(dim=1)]
    if not len(finite):
        raise DataError(
            f"none of the {len(images)} images to measure on is finite; check the images and their normalisation"
        )
    return finite


def _rate(step: int, steps: int) -> float:
    """Return the learning rate: a linear warm-up, then half a cosine."""
    return LEARNING_RATE * min(1.0, (step + 1) / min(WARM_UP, steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))


@torch.no_grad()
def _measure(model: AdaptedModel, images: Tensor, steps: int) -> LearnedSizes:
    canonicalizers = size_canonicalizers(model)
    seen = features_at(model, images, list(canonicalizers))
    errors, spreads, converged = [], [], []
    for path, canonicalizer in canonicalizers.items():
        errors.append(canonicalizer.size_loss(seen[path], update_trust=False).error)
        report = canonicalizer(seen[path])
        (before, weight_before), (after, weight_after) = report.sizes_before, report.sizes_after
        spreads.append(_deviation(after, weight_after) / _deviation(before, weight_before).clamp_min(1e-6))
        converged.append(report.converged.float().mean())
    return LearnedSizes(steps, _mean(errors), _mean(spreads), _mean(converged))


def _mean(values: Sequence[Tensor]) -> float:
    return float(torch.stack(tuple(values)).mean())


def _deviation(size: Tensor, weight: Tensor) -> Tensor:
    share = weight / weight.sum().clamp_min(1e-6)
    mean = (share * size).sum()
    return (share * (size - mean).square()).sum().sqrt()


def _split(images: Any, batch_size: int, input_size: tuple[int, int, int]) -> tuple[Tensor, Iterator[Tensor]]:
    """Return images to measure on, and an endless iterator of batches to learn from."""
    first = images[0] if isinstance(images, Sequence) and len(images) else None
    if isinstance(images, Tensor) or (isinstance(first, Tensor) and first.dim() != 4):
        stacked = _stack(images, input_size)
        kept = min(HELD_OUT, len(stacked) // 10)
        learned = stacked[: len(stacked) - kept]
        return (stacked[-kept:] if kept else stacked[:HELD_OUT]), _drawn(learned, batch_size)
    held_out = next((_stack(_images_of(batch), input_size) for batch in images), None)
    if held_out is None:
        raise DataError(
            "the loader gave no batch; expected a loader of images that can be iterated over again and again"
        )
    return held_out[:HELD_OUT], _repeated(images, input_size)


def _stack(images: Tensor | Sequence[Tensor], input_size: tuple[int, int, int]) -> Tensor:
    channels, height, width = input_size
    for image in images if not isinstance(images, Tensor) else [images]:
        fits = image.dim() == (4 if isinstance(images, Tensor) else 3) and image.shape[-3] == channels
        if not fits or not image.is_floating_point() or 0 in image.shape:
            raise DataError(
                f"images have shape {tuple(image.shape)} and dtype {image.dtype}; expected floating point with "
                f"{channels} channels: a tensor (N, {channels}, H, W) or a sequence of ({channels}, H, W) tensors"
            )
    if isinstance(images, Tensor):
        return images
    return torch.stack([resize(image[None], height, width)[0] for image in images])


def _drawn(images: Tensor, batch_size: int) -> Iterator[Tensor]:
    while True:  # with replacement: fewer images than a batch are enough
        yield images[torch.randint(len(images), (batch_size,))]


def _repeated(loader: Iterable[Any], input_size: tuple[int, int, int]) -> Iterator[Tensor]:
    """Yield the batches of pass after pass; the first of a pass is held out, unless it is the only one."""
    while True:
        only = True
        for number, batch in enumerate(loader):
            images = _stack(_images_of(batch), input_size)
            if number == 0:
                first = images
            else:
                only = False
                yield images
        if only:
            yield first


def _images_of(batch: Any) -> Tensor:
    if isinstance(batch, Mapping):
        batch = batch.get("pixel_values", next(iter(batch.values()), None))
    elif isinstance(batch, Sequence):
        batch = batch[0] if len(batch) else None
    if not isinstance(batch, Tensor):
        raise DataError(
            f"a batch holds {type(batch).__name__}; expected a tensor of images, a tuple that begins with one, or a "
            'dictionary with "pixel_values"'
        )
    return batch


def _write(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    tensors = {f"network.{name}": tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value).cpu() for name, value in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_all({path: lambda draft: save_file(tensors, draft, metadata={"localscale": json.dumps({"step": step})})})


def _read(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    try:
        with safe_open(path, framework="pt") as file:
            step = int(json.loads((file.metadata() or {})["localscale"])["step"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
        network.load_state_dict(_part(tensors, "network."))
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _part(tensors, "optimizer.").items():
            number, _, key = name.partition(".")
            state.setdefault(int(number), {})[key] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of this size network ({error}); remove it or name another file"
        ) from error
    return step


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
