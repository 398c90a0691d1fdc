"""Locate a classifier's evidence for a class: a map over the image, and the box around most of it.

The evidence at a position is the norm of the class score's gradient with respect to the features there. The features
come from about 60 % of the network's depth: late enough to represent the object, early enough to cover all of it and
not only its most discriminative part (measured in ``benchmarks/segmenters.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from localscale.errors import ConfigError, DataError, near_misses
from localscale.extras import require
from localscale.lab.data.boxes import Box, bounding_box
from localscale.lab.data.imagenet.weights import loading

__all__ = ["box_from_evidence", "evidence_box", "evidence_map", "evidence_of", "load_classifier"]

DEPTH = 7 / 12  # fraction of a transformer's blocks before the features
STRIDE = 16  # largest stride of a convolutional network's feature map
FLOOR = 0.25  # this quantile of the evidence is subtracted as background
MASS = 0.88  # fraction of the remaining evidence that the box encloses
SIDE = 64  # side of the upsampled map that is thresholded


def load_classifier(name: str, weights: Path | None = None) -> nn.Module:
    """Build a timm classifier with the weights of a safetensors file, or with timm's pretrained weights."""
    import timm
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not timm.is_model(name):
        raise ConfigError(f"timm has no classifier {name!r}: {near_misses(name, timm.list_models())}")
    if weights is None:
        with loading(f"the weights of {name}", "pass a safetensors file with --classifier-weights"):
            return timm.create_model(name, pretrained=True).eval().requires_grad_(False)
    try:
        state = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{weights} cannot be read as safetensors: {error}") from error
    model = timm.create_model(name, num_classes=_class_count(state, weights))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise DataError(f"{weights} does not fit {name}: {str(error)[:300]}") from error
    return model.eval().requires_grad_(False)


def evidence_box(model: nn.Module, pixels: np.ndarray, class_index: int | None = None) -> Box | None:
    """Return the box around a class's evidence, or None if the class score does not depend on the image."""
    evidence = evidence_map(model, pixels, class_index)
    return box_from_evidence(evidence, pixels.shape[1], pixels.shape[0])


def evidence_map(model: nn.Module, pixels: np.ndarray, class_index: int | None = None) -> np.ndarray:
    """Return how much each position of ``(H, W, 3)`` pixels counts for a class, ``(h, w)`` with sum 1.

    The class is by default the most likely one. The whole image is resized to the classifier's input size. The map is
    all zeros if the class score does not depend on the image.
    """
    strength = evidence_of(model, _prepare(model, pixels), class_index)[0].double()
    total = strength.sum()
    return (strength / total if total > 0 else torch.zeros_like(strength)).cpu().numpy()


def evidence_of(model: nn.Module, images: Tensor, class_index: int | None = None) -> Tensor:
    """Return how much each position of normalised images ``(B, C, H, W)`` counts for a class, ``(B, h, w)``.

    The class is by default the most likely one of each image.
    """
    features: list[Tensor] = []
    source = _find_features(model)

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        features.append(output.requires_grad_(True))
        return features[-1]

    handle = source.module.register_forward_hook(keep)
    try:
        with torch.enable_grad():
            scores = model(images)
            if class_index is None or not 0 <= class_index < scores.shape[-1]:
                chosen = scores.amax(dim=1)
            else:
                chosen = scores[:, class_index]
            (gradient,) = torch.autograd.grad(chosen.sum(), features[0])
    finally:
        handle.remove()
    return torch.stack([_as_map(each, source) for each in gradient])


def box_from_evidence(evidence: np.ndarray, width: int, height: int, *, mass: float = MASS) -> Box | None:
    """Return the box, in pixels, around a class's evidence, or None if the evidence is the same everywhere.

    The lower quartile is subtracted first, because it is spread over the whole image. The strongest positions that
    together hold the fraction ``mass`` of the rest are kept; the box encloses their strongest connected part. Its score
    is the fraction of the remaining evidence inside it.

    >>> evidence = np.zeros((8, 8))
    >>> evidence[2:4, 4:6] = 1 / 4
    >>> box_from_evidence(evidence, 160, 80).overlap(Box(80, 20, 120, 40)) > 0.6
    True
    """
    cv2 = require("cv2", "imagenet")
    above_floor = np.maximum(evidence - np.quantile(evidence, FLOOR), 0)
    if not above_floor.any():
        return None
    fine = F.interpolate(
        torch.from_numpy(above_floor)[None, None], size=(SIDE, SIDE), mode="bicubic", align_corners=False
    )[0, 0].clamp(min=0)
    falling = fine.flatten().sort(descending=True).values
    level = falling[min(int(torch.searchsorted(falling.cumsum(0), mass * falling.sum())), SIDE * SIDE - 1)]
    above = (fine >= level).numpy()
    _, parts = cv2.connectedComponents(above.astype(np.uint8), connectivity=4)
    held = np.bincount(parts.ravel(), weights=np.where(above, fine.numpy(), 0).ravel())
    box = bounding_box(parts == int(np.argmax(held)))
    rows, columns = slice(int(box.top), int(box.bottom)), slice(int(box.left), int(box.right))
    score = float(fine[rows, columns].sum() / fine.sum())
    return Box(*box.edges, round(score, 6)).resized(width / SIDE, height / SIDE)


def _prepare(model: nn.Module, pixels: np.ndarray) -> Tensor:
    import timm

    config = timm.data.resolve_model_data_config(model)
    _, height, width = config["input_size"]
    resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
    mean, std = torch.tensor(config["mean"]), torch.tensor(config["std"])
    images = ((torch.from_numpy(np.array(resized)) / 255 - mean) / std).permute(2, 0, 1)[None]
    return images.to(next(model.parameters()).device)


@dataclass(frozen=True)
class _Features:
    """A module that returns a feature map with ``channels``, or one token for each cell of a ``grid``."""

    module: nn.Module
    channels: int
    grid: tuple[int, int] | None = None


def _find_features(model: nn.Module) -> _Features:
    blocks, grid = getattr(model, "blocks", None), getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if isinstance(blocks, nn.Sequential | nn.ModuleList) and grid is not None:
        return _Features(blocks[max(round(DEPTH * len(blocks)) - 1, 0)], getattr(model, "embed_dim", 0), grid)
    stages = list(getattr(model, "feature_info", None) or [])
    stages = [stage for stage in stages if stage["reduction"] <= STRIDE] or stages[-1:]
    if not stages:
        raise ConfigError(
            f"{type(model).__name__} has no feature map; choose a vision transformer with --classifier, or a timm "
            "classifier that describes its features (feature_info)"
        )
    return _Features(model.get_submodule(stages[-1]["module"]), stages[-1]["num_chs"])


def _as_map(gradient: Tensor, source: _Features) -> Tensor:
    """Return the gradient's norm at every position: from ``(C, H, W)``, ``(H, W, C)`` or ``(L, C)`` to ``(H, W)``."""
    if gradient.dim() == 2 and source.grid is not None:
        height, width = source.grid
        return gradient[-height * width :].norm(dim=-1).reshape(height, width)
    return gradient.norm(dim=0 if gradient.shape[0] == source.channels else -1)


def _class_count(state: dict[str, Tensor], weights: Path) -> int:
    for name in ("head.weight", "head.fc.weight", "classifier.weight", "fc.weight"):
        if name in state:
            return int(state[name].shape[0])
    raise DataError(f"{weights} has no classifier head; expected head.weight, classifier.weight or fc.weight")
