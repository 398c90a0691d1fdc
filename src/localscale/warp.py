"""Apply a local scaling, S(x; l) or S⁻¹(x; l), to images, features, tokens, label maps, points and boxes.

Convention: ``scale`` is S(x; l)(p) = x(l⁻¹(p)), ``unscale`` is S⁻¹(x; l)(p) = x(l(p)); canonicalizing is ``unscale``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from localscale import kernels
from localscale.conventions import compute_dtype, coordinates, pixel_positions, resize_cubic, resized_positions, xy_pair
from localscale.errors import MapError, ShapeError, near_misses
from localscale.layouts import Layout, as_nchw, pixels_of
from localscale.maps.base import InverseMethod, Map
from localscale.maps.grid import GridMap
from localscale.maps.separable import SeparableMap
from localscale.sampling import SAMPLERS, sample_displaced, sample_nearest

__all__ = ["scale", "scale_boxes", "scale_points", "unscale"]

MODES = ("bilinear", "nearest")
EDGE_POINTS = 129  # at which the edges of a box are sampled where their images are curves
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
    x: Tensor,
    m: Map,
    *,
    size: tuple[int, int] | None = None,
    mode: str = "bilinear",
    layout: Layout | None = None,
    sampler: str = "native",
) -> Tensor:
    """Undo a local scaling: S⁻¹(x; l)(p) = x(l(p)). The other arguments are those of ``scale``.

    With ``size``, the canonical form of a large image is small: parts that ``m`` enlarges show the detail of the large
    image. The identity gives exactly ``localscale.conventions.resize_cubic(x, *size)``; on a GPU, up to rounding.

    Convention: corners lie on corners, at every size. The warp keeps the size of ``x`` and is bicubic, and an
    anti-aliased cubic filter then resizes the result; with ``mode="nearest"`` each new pixel is the nearest one of
    ``x``. Values may overshoot those of ``x`` a little.

    Args:
        size: (height, width) of the result in pixels; by default that of ``x``.

    >>> m = localscale.identity_map()
    >>> image = torch.rand(2, 3, 7, 1)
    >>> torch.equal(unscale(image, m), image)
    True
    >>> unscale(torch.rand(2, 3, 448, 448), m, size=(224, 224)).shape
    torch.Size([2, 3, 224, 224])
    """
    _check_size(size)
    return _warp(x, m, mode=mode, layout=layout, sampler=sampler, size=size)


def scale_points(points: Tensor, m: Map, *, size: tuple[int, int] | None = None) -> Tensor:
    """Move points as ``scale`` moves what an image shows: a point at p goes to l(p).

    Convention: (x, y) order. Without ``size`` points are in [0,1]², as those of maps. With ``size`` = (height, width)
    they are in pixels: column j of the image spans [j, j + 1] and the image [0, width], as in torchvision and COCO. A
    point beyond the centres of the outer pixels moves as the nearest point between them.

    Args:
        points: ``(B, P, 2)``, or ``(P, 2)`` for one map.
        m: one map per image, or a single one for all.
        size: (height, width) of the image in pixels.

    >>> m = localscale.random_map(1, generator=torch.Generator().manual_seed(0))
    >>> points = torch.rand(5, 2)
    >>> torch.allclose(scale_points(points, m), m(points[None])[0])
    True
    """
    return _by_map(_move, points, m, size, "points", 2)


def scale_boxes(boxes: Tensor, m: Map, *, size: tuple[int, int] | None = None) -> Tensor:
    """Move boxes as ``scale`` moves what an image shows: return the smallest boxes around the images of the boxes.

    ``scale_boxes(boxes, m.inverse())`` belongs to ``unscale``. The result is exact for separable and for grid maps. For
    compositions and for inverses of grid maps each edge is sampled at 129 points.

    Convention: a box is (left, top, right, bottom), in the units of ``scale_points``.

    Args:
        boxes: ``(B, N, 4)``, or ``(N, 4)`` for one map.
        m: one map per image, or a single one for all.
        size: (height, width) of the image in pixels; without it boxes are in [0,1].

    >>> m = localscale.random_map(1, generator=torch.Generator().manual_seed(0))
    >>> scale_boxes(torch.tensor([[0.0, 0.0, 224.0, 160.0]]), m, size=(160, 224))  # the sides stay in place
    tensor([[  0.,   0., 224., 160.]])
    """
    return _by_map(_move_boxes, boxes, m, size, "boxes", 4)


def _warp(
    x: Tensor, m: Map, *, mode: str, layout: Layout | None, sampler: str, size: tuple[int, int] | None = None
) -> Tensor:
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
    if size is not None and tuple(size) != (height, width):
        return _warp_to_size(x, m, size, mode=mode, layout=layout, sampler=sampler)
    native = mode == "bilinear" and sampler == "native"
    if native and layout != "NHW" and kernels.available(x) and x.numel() < LARGE * x.shape[0]:
        from localscale.kernels.warp import fused_unscale

        return fused_unscale(x, m.displacement_lattices(height, width), layout)
    view, restore = as_nchw(x, layout)
    return restore(_sampled(view, m, mode, sampler))


def _check_size(size: Any) -> None:
    """Raise ``ShapeError`` unless ``size`` is None or (height, width)."""
    sides = tuple(size) if isinstance(size, tuple | list) else ()
    if size is not None and (len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides)):
        raise ShapeError(f"size is {size!r}; expected (height, width) in pixels, two positive integers")


def _sampled(x: Tensor, m: Map, mode: str, sampler: str) -> Tensor:
    """Return x(l(p)) for ``x`` ``(B, C, H, W)``; ``mode`` may be ``"bicubic"``, too."""
    displacement = m.displacement_field(x.shape[-2], x.shape[-1])
    if mode != "nearest" and sampler == "native" and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        moves = m.moves if isinstance(m, GridMap) else displacement.flatten(1).any(dim=1)
        return sample_displaced(x, displacement, moves, mode)
    pixels = pixel_positions(displacement).expand(x.shape[0], -1, -1, -1)
    return sample_nearest(x, pixels) if mode == "nearest" else SAMPLERS[sampler](x, pixels, mode)


def _warp_to_size(x: Tensor, m: Map, size: tuple[int, int], *, mode: str, layout: Layout, sampler: str) -> Tensor:
    """Return x(l(p)) at the pixels of another ``size``."""
    view, restore = as_nchw(x, layout)
    if mode == "nearest":
        pixels = resized_positions(m.displacement_field(*size), view.shape[-2], view.shape[-1])
        return restore(sample_nearest(view, pixels.expand(x.shape[0], -1, -1, -1)))
    if sampler == "native" and kernels.available(x) and x.numel() < LARGE * x.shape[0]:
        from localscale.kernels.warp_to_size import can_unscale_to, fused_unscale_to

        lattices = m.displacement_lattices(view.shape[-2], view.shape[-1])
        wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *lattices))
        if not wanted and can_unscale_to(view, size):
            return restore(fused_unscale_to(view, lattices, size))
    exact = view.to(compute_dtype(x.dtype))  # so that only the answer is rounded to half precision
    return restore(resize_cubic(_sampled(exact, m, "bicubic", sampler), *size).to(x.dtype))


def _by_map(
    move: Callable[[Tensor, Map, Tensor | None], Tensor],
    x: Tensor,
    m: Map,
    size: tuple[int, int] | None,
    name: str,
    width: int,
) -> Tensor:
    """Check ``x``, give it the maps' batch and dtype, and return ``move`` of it in the shape and dtype it had."""
    if x.dim() not in (2, 3) or x.shape[-1] != width or not x.is_floating_point():
        raise ShapeError(
            f"{name} have shape {tuple(x.shape)} and dtype {x.dtype}; expected floating point, "
            f"(batch, {name}, {width}) or ({name}, {width})"
        )
    if m.device != x.device:
        raise MapError(f"the map is on {m.device} and the {name} on {x.device}; move one with .to(device)")
    batch = x.shape[0] if x.dim() == 3 else 1
    if m.batch not in (1, batch):
        raise MapError(f"{m.batch} maps were given for {batch} images with {name}; expected 1 or {batch}")
    _check_size(size)
    pixels = None if size is None else xy_pair(size[1] - 1, size[0] - 1, x.to(m.dtype))
    moved = move(x.to(m.dtype).reshape(m.batch, x.shape[:-1].numel() // m.batch, width), m, pixels)
    return moved.reshape(x.shape).to(x.dtype)


def _move(points: Tensor, m: Map, pixels: Tensor | None) -> Tensor:
    """Return l of points ``(B, P, 2)``; ``pixels`` is (W − 1, H − 1) for points in pixels."""
    if pixels is None:
        return points + m.displacement(points.clamp(0, 1))
    inside = torch.minimum(((points - 0.5) / pixels.clamp_min(1)).clamp_min(0), pixels.clamp_max(1))
    return points + pixels * m.displacement(inside)


def _move_boxes(boxes: Tensor, m: Map, pixels: Tensor | None) -> Tensor:
    left, top, right, bottom = boxes.unsqueeze(-1).unbind(-2)
    knots, samples = (m.knots, 2) if isinstance(m, SeparableMap | GridMap) else ((2, 2), EDGE_POINTS)
    x, y = (
        _edge_points(near, far, samples, knots[axis], None if pixels is None else pixels[axis])
        for axis, (near, far) in enumerate(((left, right), (top, bottom)))
    )
    sides = [(x, top), (x, bottom), (left, y), (right, y)]
    points = torch.cat([torch.stack(torch.broadcast_tensors(*side), dim=-1) for side in sides], dim=-2)
    moved = _move(points.flatten(1, 2), m, pixels).view_as(points)
    return torch.cat((moved.amin(dim=-2), moved.amax(dim=-2)), dim=-1)


def _edge_points(near: Tensor, far: Tensor, samples: int, knots: int, pixels: Tensor | None) -> Tensor:
    """Return points from ``near`` to ``far`` ``(B, N, 1)`` along an axis: even ones with both ends, and the knots.

    Between two knots a grid map is linear along an edge of a box, so the ends and the knots give the exact extremes.
    """
    even = torch.lerp(near, far, coordinates(samples, dtype=near.dtype, device=near.device))
    lines = coordinates(knots, dtype=near.dtype, device=near.device)
    if pixels is not None:
        lines = lines * pixels + 0.5
    return torch.cat((even, torch.maximum(torch.minimum(lines, far), near)), dim=-1)
