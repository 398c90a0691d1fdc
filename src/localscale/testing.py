"""Assertions for test suites."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from localscale.adaptation.model import AdaptedModel, adapt
from localscale.canonicalizer import DECConfig
from localscale.maps.base import Map
from localscale.warp import scale

__all__ = ["assert_equivariant", "assert_identity_at_init"]


def assert_equivariant(f: Callable[[Tensor], Tensor], x: Tensor, m: Map, *, tolerance: float = 1e-2) -> None:
    """Assert f(S(x; l)) = S(f(x); l), to ``tolerance`` in root mean square relative to f(x)'s own spread.

    Interpolation between pixels alone causes an error for a coarse or noisy ``x``: use a smooth one.

    >>> x = torch.rand(1, 3, 4, 4).repeat_interleave(16, 2).repeat_interleave(16, 3)
    >>> assert_equivariant(torch.sigmoid, x, localscale.random_map(1), tolerance=0.2)  # pointwise: equivariant
    """
    with torch.no_grad():
        found, expected = f(scale(x, m)), scale(f(x), m)
    if found.shape != expected.shape:
        raise AssertionError(f"f(S(x)) has shape {tuple(found.shape)} and S(f(x)) {tuple(expected.shape)}")
    error = float((found - expected).square().mean().sqrt() / expected.std().clamp_min(1e-12))
    if not error <= tolerance:
        raise AssertionError(f"not equivariant: relative error {error:.2e}, tolerance {tolerance:.2e}")


def assert_identity_at_init(
    base: nn.Module,
    config: DECConfig | None = None,
    images: Tensor | None = None,
    *,
    input_size: tuple[int, int, int] | None = None,
    tolerance: float = 1e-5,
) -> AdaptedModel:
    """Assert that adapting a copy of ``base`` does not change its output, and return the adapted copy.

    >>> import timm
    >>> model = assert_identity_at_init(timm.create_model("resnet18"), images=torch.rand(1, 3, 64, 64))
    """
    model = adapt(copy.deepcopy(base), config, input_size=input_size).eval()
    if images is None:
        weight = next(base.parameters())
        images = torch.rand(2, *model.input_size, dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        adapted = _tensor(model(images))
        with model.disabled():
            plain = _tensor(model(images))
    difference = float((adapted - plain).abs().max())
    if not difference <= tolerance:
        raise AssertionError(f"the adapted model differs from its base by {difference:.2e}, tolerance {tolerance:.2e}")
    return model


def _tensor(answer: object) -> Tensor:
    """Return a model's output as a tensor; transformers wraps it in an object."""
    if isinstance(answer, Tensor):
        return answer
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(answer, name, None), Tensor):
            return getattr(answer, name)
    raise AssertionError(f"cannot compare outputs of type {type(answer).__name__}")
