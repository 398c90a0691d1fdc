"""Register a model with timm as one of its own: a pretrained configuration, a replaceable classifier, checks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import timm
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from localscale.errors import ConfigError, DataError, ShapeError

__all__ = ["build", "check_images", "classifier", "default_configs", "drop_path_rates", "register", "resolve_indices"]

Entrypoint = TypeVar("Entrypoint", bound=Callable[..., nn.Module])


def register(entrypoint: Entrypoint) -> Entrypoint:
    """Register ``entrypoint`` with timm under its name; reloading a module replaces its own entry without a warning."""
    name = entrypoint.__name__
    ours = timm.is_model(name) and timm.model_entrypoint(name).__module__ == entrypoint.__module__
    with warnings.catch_warnings():
        if ours:
            warnings.filterwarnings("ignore", f"Overwriting {name} in registry")
        return register_model(entrypoint)


def default_configs(name: str, *, first_conv: str, classifier: str, paper: str) -> Any:
    """Return the pretrained configuration of a model without weights: ImageNet images, 224 px, bicubic.

    >>> default_configs("tiny", first_conv="stem.0", classifier="fc", paper="arXiv:0000.00000")["tiny"].default.std
    (0.229, 0.224, 0.225)
    """
    config = {"input_size": (3, 224, 224), "first_conv": first_conv, "classifier": classifier, "paper_ids": paper}
    return generate_default_cfgs({name: config})


def build(model: type[nn.Module], name: str, *, pretrained: bool, features: int, settings: dict[str, Any]) -> Any:
    """Build ``model`` as timm builds its own; raise ``DataError`` if pretrained weights are requested but not given."""
    if pretrained and not (settings.get("pretrained_cfg") or settings.get("pretrained_cfg_overlay")):
        raise DataError(
            f"there are no pretrained weights of {name}; create it with pretrained=False and load your own checkpoint, "
            'or name one with pretrained_cfg_overlay={"file": …}'
        )
    feature_cfg = {"out_indices": tuple(range(-features, 0)), "feature_cls": "getter"}
    return build_model_with_cfg(model, name, pretrained, feature_cfg=feature_cfg, **settings)


def classifier(features: int, num_classes: int, global_pool: str | None, pool: str) -> nn.Module:
    """Return the last layer, ``(B, features)`` to ``(B, num_classes)``, or the identity for 0 classes.

    >>> classifier(8, 3, None, "avg"), classifier(8, 0, "", "avg")
    (Linear(in_features=8, out_features=3, bias=True), Identity())
    """
    if num_classes < 0:
        raise ConfigError(f"num_classes is {num_classes}; expected at least 0, where 0 returns the features")
    if global_pool and global_pool != pool:
        raise ConfigError(f"global_pool is {global_pool!r}; this model supports only {pool!r}: leave the argument out")
    return nn.Linear(features, num_classes) if num_classes else nn.Identity()


def drop_path_rates(rate: float, depth: int) -> list[float]:
    """Return the drop probability of each of ``depth`` blocks, rising linearly from 0 to ``rate``.

    >>> drop_path_rates(0.2, 3)
    [0.0, 0.1, 0.2]
    """
    if not 0 <= rate < 1:
        raise ConfigError(f"drop_path_rate is {rate}; expected 0 or more, and less than 1")
    return [rate * block / max(1, depth - 1) for block in range(depth)]


def check_images(images: Tensor, channels: int, *, multiple: int = 1) -> None:
    """Raise ``ShapeError`` unless ``images`` are ``(B, channels, H, W)`` with sides divisible by ``multiple``."""
    if images.dim() != 4 or images.shape[1] != channels:
        raise ShapeError(
            f"images have shape {tuple(images.shape)}; expected (batch, {channels}, height, width); "
            "for other channels create the model with in_chans=…"
        )
    height, width = images.shape[2:]
    if height % multiple or width % multiple or not (height and width):
        raise ShapeError(
            f"images are {height}×{width}; expected sides that are multiples of {multiple}: resize or pad them"
        )


def resolve_indices(indices: int | Sequence[int] | None, count: int) -> list[int]:
    """Return indices among ``count`` features: the last ``indices`` if an integer, those listed, or all if None.

    >>> resolve_indices(2, 4), resolve_indices((0, -1), 4), resolve_indices(None, 2)
    ([2, 3], [0, 3], [0, 1])
    """
    if indices is None:
        indices = count
    named = range(-indices, 0) if isinstance(indices, int) else indices
    if not len(named) or any(not -count <= index < count for index in named):
        raise ConfigError(
            f"indices is {indices}; expected indices among {count} features, or the number of last features"
        )
    return [index % count for index in named]
