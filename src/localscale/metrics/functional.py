"""Measure how much predictions change under local scaling (paper, Eqs. inv_err and eq:eque).

The default is the paper's definition, the squared ℓ2 distance of softmax outputs. The published code computes other
distances under the same names. They are available as named variants, so that a table can say which one it shows.
"""

import torch
from torch import Tensor

from localscale.errors import ConfigError, ShapeError, near_misses
from localscale.maps.base import Map
from localscale.warp import scale

__all__ = ["VARIANTS", "equivariance_error", "invariance_error", "per_scale_accuracy"]

VARIANTS = ("squared", "l2", "relative")


def invariance_error(reference: Tensor, variants: Tensor, *, variant: str = "squared") -> Tensor:
    """Return InvE, the mean over images and their locally scaled variants of ‖M(I) − M(I_s)‖².

    Args:
        reference: probabilities for the images, ``(B, K)``.
        variants: probabilities for V scaled variants of each image, without the image itself, ``(B, V, K)``.
        variant: ``"squared"`` (the paper), ``"l2"`` (not squared), ``"relative"`` (not squared, over ‖M(I)‖).

    >>> invariance_error(torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))
    tensor(1.)
    """
    if reference.dim() != 2 or variants.dim() != 3 or reference.shape != variants.shape[::2] or not variants.shape[1]:
        raise ShapeError(
            f"reference has shape {tuple(reference.shape)} and variants {tuple(variants.shape)}; "
            "expected (images, classes) and (images, variants, classes)"
        )
    check_errors(reference, variants)
    return distance(reference.unsqueeze(1), variants, variant, dim=-1).mean()


def equivariance_error(answer: Tensor, answer_to_scaled: Tensor, m: Map, *, variant: str = "squared") -> Tensor:
    """Return EquE, the mean over images and pixels of ‖S(M(I); Φ) − M(S(I; Φ))‖² on softmax masks.

    Args:
        answer: class probabilities M(I), ``(B, K, H, W)``.
        answer_to_scaled: M(S(I; Φ)), the same shape.
        m: the maps Φ that scaled the images.
        variant: as in ``invariance_error``.

    >>> mask = torch.rand(2, 5, 16, 16).softmax(1)
    >>> equivariance_error(mask, mask, localscale.identity_map())
    tensor(0.)
    """
    errors = equivariance_errors(answer, answer_to_scaled, m, variant)
    check_errors(answer, answer_to_scaled)
    return errors.mean()


def equivariance_errors(answer: Tensor, answer_to_scaled: Tensor, m: Map, variant: str) -> Tensor:
    """Return the terms of ``equivariance_error``, one per pixel, ``(B, H, W)``."""
    if answer.dim() != 4 or answer.shape != answer_to_scaled.shape:
        raise ShapeError(
            f"masks have shapes {tuple(answer.shape)} and {tuple(answer_to_scaled.shape)}; "
            "expected (images, classes, height, width) for both"
        )
    if answer.device != answer_to_scaled.device:
        raise ShapeError(f"masks are on {answer.device} and on {answer_to_scaled.device}; move one with .to(device)")
    if not (answer.is_floating_point() and answer_to_scaled.is_floating_point()):
        raise ShapeError(f"masks are {answer.dtype} and {answer_to_scaled.dtype}; expected floating point")
    return distance(scale(answer, m), answer_to_scaled, variant, dim=1)


def per_scale_accuracy(logits: Tensor, labels: Tensor, scales: Tensor) -> dict[float, float]:
    """Return the top-1 accuracy for each distinct local scale.

    Args:
        logits: ``(N, K)``.
        labels: ``(N,)``.
        scales: the scale, or the bracket of scales, of each image, ``(N,)``.

    >>> per_scale_accuracy(torch.eye(2), torch.tensor([0, 0]), torch.tensor([0.5, 2.0]))
    {0.5: 1.0, 2.0: 0.0}
    """
    if logits.dim() != 2 or not (logits.shape[0],) == labels.shape == scales.shape:
        raise ShapeError(
            f"logits have shape {tuple(logits.shape)}, labels {tuple(labels.shape)}, scales {tuple(scales.shape)}; "
            "expected (n, classes), (n,) and (n,)"
        )
    if not logits.numel():
        raise ShapeError(f"logits have shape {tuple(logits.shape)}; expected at least one image and one class")
    check_kinds(logits=logits, labels=labels, scales=scales)
    check_labels(labels, logits.shape[1])
    right = (logits.argmax(dim=1) == labels).double()
    # Rounded, so that 0.7 in float32 is found under 0.7.
    return {round(float(s), 6): float(right[scales == s].mean()) for s in scales.unique()}


def check_errors(*probabilities: Tensor) -> None:
    """Raise ``ShapeError`` unless the mean error of these tensors exists: floating point, one device, not empty."""
    for values in probabilities:
        if not values.numel() or not values.is_floating_point() or values.device != probabilities[0].device:
            given = ", ".join(f"{tuple(x.shape)} {x.dtype} on {x.device}" for x in probabilities)
            raise ShapeError(
                f"probabilities are {given}; expected floating point on one device, and at least one image"
            )


def check_kinds(**tensors: Tensor) -> None:
    """Raise ``ShapeError`` unless the tensors are real, those named labels whole numbers, and all on one device."""
    devices = {x.device for x in tensors.values()}
    wrong = [
        name
        for name, x in tensors.items()
        if x.is_complex() or x.dtype == torch.bool or (name == "labels" and x.is_floating_point())
    ]
    if len(devices) > 1 or wrong:
        given = ", ".join(f"{name} are {x.dtype} on {x.device}" for name, x in tensors.items())
        raise ShapeError(f"{given}; expected real numbers, integers for labels, and one device")


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise ``ConfigError`` unless labels lie in 0 … classes − 1; it reads them on the host."""
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ConfigError(f"labels {int(labels.min())} … {int(labels.max())} came; expected 0 … {classes - 1}")


def distance(a: Tensor, b: Tensor, variant: str, dim: int) -> Tensor:
    """Return the distance of ``a`` and ``b`` along ``dim``, as defined by ``variant``."""
    if variant not in VARIANTS:
        raise ConfigError(f"no variant {variant!r}: {near_misses(str(variant), VARIANTS)}")
    if variant == "squared":
        return (a - b).square().sum(dim=dim)
    length = torch.linalg.vector_norm(a - b, dim=dim)
    return length if variant == "l2" else length / torch.linalg.vector_norm(a, dim=dim)
