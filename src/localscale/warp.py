"""Apply a local scaling, S(x; l) or S⁻¹(x; l), to images, features, tokens and label maps.

Convention: ``scale`` is S(x; l)(p) = x(l⁻¹(p)), ``unscale`` is S⁻¹(x; l)(p) = x(l(p)); canonicalizing is ``unscale``.
"""

import torch
from torch import Tensor

from localscale import kernels
from localscale.conventions import pixel_positions
from localscale.errors import MapError, ShapeError, near_misses
from localscale.layouts import Layout, as_nchw, pixels_of
from localscale.maps.base import InverseMethod, Map
from localscale.maps.grid import GridMap
from localscale.sampling import SAMPLERS, sample_displaced, sample_nearest

__all__ = ["scale", "unscale"]

MODES = ("bilinear", "nearest")
LARGE = 2**31  # elements of one image at which a kernel's int32 offsets overflow


def scale(
    x: Tensor,
    m: Map,
    *,
    mode: str = "bilinear",
    layout: Layout | None = None,
    sampler: str = "native",
    inverse: InverseMethod = "exact",
) -> Tensor:
    """Make the parts of ``x`` larger or smaller as ``m`` says: S(x; l)(p) = x(l⁻¹(p)) (paper, Eq. local_scaling).

    Args:
        x: ``(B, C, H, W)`` images or features; ``(B, H, W)`` label maps; with ``layout``, ``(B, H, W, C)`` features or
            ``(B, L, C)`` tokens. The output keeps the dtype; coordinates are float32 or float64.
        m: one map per image, or a single one for all.
        mode: ``"bilinear"``, or ``"nearest"`` for label maps, which keeps their values and dtype.
        layout: ``"NCHW"``, ``"NHWC"``, ``"NHW"`` or ``Tokens``; by default NCHW for four dimensions and NHW for
            three.
        sampler: ``"native"``, or ``"gather"`` where second derivatives are needed.
        inverse: how to invert ``m``; ``"rowwise"`` is the paper's approximation.

    >>> m = localscale.random_map(2, generator=torch.Generator().manual_seed(0))
    >>> image, labels = torch.rand(2, 3, 32, 48), torch.randint(0, 9, (2, 32, 48))
    >>> scale(image, m).shape, scale(labels, m, mode="nearest").dtype
    (torch.Size([2, 3, 32, 48]), torch.int64)
    """
    return _warp(x, m.inverse(inverse), mode=mode, layout=layout, sampler=sampler)


def unscale(
    x: Tensor, m: Map, *, mode: str = "bilinear", layout: Layout | None = None, sampler: str = "native"
) -> Tensor:
    """Undo a local scaling: S⁻¹(x; l)(p) = x(l(p)). Arguments as in ``scale``.

    >>> m = localscale.identity_map()
    >>> image = torch.rand(2, 3, 7, 1)
    >>> torch.equal(unscale(image, m), image)
    True
    """
    return _warp(x, m, mode=mode, layout=layout, sampler=sampler)


def _warp(x: Tensor, m: Map, *, mode: str, layout: Layout | None, sampler: str) -> Tensor:
    if mode not in MODES:
        raise ShapeError(f"no mode {mode!r}: {near_misses(str(mode), MODES)}")
    if sampler not in SAMPLERS:
        raise ShapeError(f"no sampler {sampler!r}: {near_misses(str(sampler), SAMPLERS)}")
    if layout is None:
        if x.dim() not in (3, 4):
            raise ShapeError(
                f"x has shape {tuple(x.shape)}; expected (B, C, H, W), or (B, H, W) for label maps; "
                "name a layout for anything else"
            )
        layout = "NCHW" if x.dim() == 4 else "NHW"
    if mode == "bilinear" and not x.is_floating_point():
        raise ShapeError(f'x has dtype {x.dtype}, which cannot be interpolated; use mode="nearest" for labels')
    if m.device != x.device:
        raise MapError(f"the map is on {m.device} and x on {x.device}; move one with .to(device)")
    height, width = pixels_of(x, layout)
    if m.batch not in (1, x.shape[0]):
        raise MapError(f"{m.batch} maps were given for a batch of {x.shape[0]}; expected 1 or {x.shape[0]}")
    native = mode == "bilinear" and sampler == "native"
    if native and layout != "NHW" and kernels.available(x) and x.numel() < LARGE * x.shape[0]:
        from localscale.kernels.warp import fused_unscale

        return fused_unscale(x, m.displacement_lattices(height, width), layout)
    (view, restore), displacement = as_nchw(x, layout), m.displacement_field(height, width)
    if native and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        moves = m.moves if isinstance(m, GridMap) else displacement.flatten(1).any(dim=1)
        return restore(sample_displaced(view, displacement, moves))
    pixels = pixel_positions(displacement).expand(x.shape[0], -1, -1, -1)
    sample = sample_nearest if mode == "nearest" else SAMPLERS[sampler]
    return restore(sample(view, pixels))
