"""Learn the energies of Canon: after a known configuration has scaled an image, the least energy must undo it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from localscale.errors import DataError
from localscale.stopping import StopRequest
from localscale.warp import scale

if TYPE_CHECKING:
    from localscale.lab.methods.canon import DiscreteCanonicalizer

__all__ = ["LearnedEnergies", "known_scores", "learn_energies"]

LEARNING_RATE, CLIP = 2e-3, 1.0
BATCH = 64  # images of a step; each is tried under every configuration


@dataclass(frozen=True)
class LearnedEnergies:
    """The share of known configurations that least energy undid, over the last tenth of the ``steps``.

    ``chance`` is the share that a random choice undoes. Each image was measured before the step that it was used in.
    """

    steps: int
    undone: float
    chance: float


def known_scores(model: DiscreteCanonicalizer, images: Tensor, known: Tensor) -> Tensor:
    """Return −E / T of every configuration, ``(B, K)``, for images that the configurations ``known`` ``(B,)`` scaled.

    S⁻¹(S(I; Φ_k); Φ_k) = I, so a canonicalizer for which the images are canonical has its largest score at ``known``.
    """
    maps = model.configurations()
    applied = type(maps).from_state(maps.state()[known], maps.knots)
    return -model.energies(scale(model.small_copy(images), applied)) / model.temperature


def learn_energies(
    model: DiscreteCanonicalizer, batches: Iterable[Any], *, steps: int, seed: int = 0, progress: bool = False
) -> LearnedEnergies:
    """Train the energies of ``model`` alone, for ``steps`` steps on the images of ``batches``, without labels.

    The loss is the cross-entropy of the softmax of −E / T with the known configuration. ``batches`` are repeated.
    """
    optimizer = torch.optim.AdamW(model.energy.parameters(), LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    device, count = model.energy.to_energy.weight.device, len(model.configurations().state())
    right: list[Tensor] = []
    bar = tqdm(total=steps, desc="learning energies", unit="step", leave=False, disable=not progress)
    with bar, StopRequest() as stop, torch.enable_grad():
        for images in _repeated(batches, steps):
            stop.check()
            images = images[:BATCH].to(device)
            known = torch.randint(count, (len(images),), generator=generator).to(device)
            scores = known_scores(model, images, known)
            right.append((scores.argmax(1) == known).float().mean().detach())
            optimizer.zero_grad()
            F.cross_entropy(scores.float(), known).backward()
            torch.nn.utils.clip_grad_norm_(model.energy.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            bar.update()
    last = torch.stack(right[-max(1, steps // 10) :])
    return LearnedEnergies(steps, float(last.mean()), 1 / count)


def _repeated(batches: Iterable[Any], steps: int) -> Iterable[Tensor]:
    """Yield the images of ``steps`` batches, from the first again after the last."""
    done = 0
    while done < steps:
        before = done
        for batch in batches:
            if done == steps:
                return
            yield batch[0] if isinstance(batch, tuple | list) else batch
            done += 1
        if done == before:
            raise DataError("there is no batch to learn energies from; expected at least one batch of images")
