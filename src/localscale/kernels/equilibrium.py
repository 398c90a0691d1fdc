"""The steps of a solve in a few launches each, for images that are not yet at rest.

Their twin is ``localscale.equilibrium.fixed_point`` on the updates ``direct`` and ``compose`` for grid maps, with a
trunk of two layers:

1. ``_look`` moves the features by the current map, S⁻¹(F; l); but for the first, the identity.
2. ``_first_layer`` convolves them. For a feature of many channels it does both: what the nine taps make of its
   channels depends on no neighbour and so commutes with moving pixels about. One product does it, before the first
   step; each step then reads the nine results where the map says, and adds them up.
3. ``_second_layer`` convolves again, and weighs its pixels by the heads.
4. ``_advance`` pools them to the next map, and mixes it with the ones before.

An image whose residual is under the tolerance costs nothing more, and nobody waits for the host to hear of it.
Products are of ``HALF``, which has as many digits as TF32, where cuDNN may use TF32 too, and of float32 elsewhere.
What has as many digits has not the range: an image of values beyond 65504 has no equilibrium to find then, and its
report says so.
Nothing here is differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.head import displacements_of, warps_for
from localscale.kernels.launch import Launch, cover, power_above
from localscale.kernels.mixing import Iteration, mix
from localscale.kernels.places import addresses, between, block_of, corners
from localscale.kernels.weights import lay_out

__all__ = ["begin", "fits", "gelu", "product_dtype", "solve_each"]

HALF = torch.float16
WIDEST = 128  # channels that one program can hold for its pixels
SMALLEST = 16  # channels that a matrix unit takes
DEPTHS = {HALF: (64, 32), torch.float32: (32,)}  # terms of a product at a time, if they are of one tap
FIRST, GATHERED, SECOND = (128, 4), (16, 4), (128, 8)  # pixels and warps of a program in either layer
SMALL = (64, 4)  # where more does not fit into every GPU


@triton.jit
def gelu(x, dtype: tl.constexpr):
    """GELU to the digits of ``dtype``: if they are fewer than float32's, without an erf, which takes twice as long.

    For |x| below an end it is then x(½ + xP(x²)) for the P with the least error, 1.2e-5; beyond, it is x or 0.
    """
    if dtype == tl.float32:
        return 0.5 * x * (1 + tl.erf(0.7071067811865476 * x))
    near = tl.minimum(tl.maximum(x, -4.625), 4.625)
    u = near * near * (2 / 4.625**2) - 1  # P by its powers, which are small
    p = -0.0019667808 * u + 0.0059041606
    p = p * u - 0.0080648867
    p = p * u + 0.011107929
    p = p * u - 0.019272615
    p = p * u + 0.029754276
    p = p * u - 0.040666328
    p = p * u + 0.053990369
    p = p * u - 0.075402102
    p = p * u + 0.15272409
    return x * (near * p + 0.5)


@triton.jit
def _around(point, row, column, height, width, rows, columns, x_row, x_column):
    """Where in memory the four pixels lie around what (row, column) looks at by a map, and the place between them."""
    left, right, top, bottom, s, t, _, _ = corners(
        point, point + rows * columns, row, column, height, width, rows, columns, rows, columns, columns, 1, columns, 1
    )
    at_a, at_b, at_c, at_d = addresses(left, right, top, bottom, 0, x_row, x_column)
    return at_a[:, None], at_b[:, None], at_c[:, None], at_d[:, None], s[:, None], t[:, None]


@triton.jit(do_not_specialize=["number"])
def _look(
    x, canonical, point, active, number, height, width, rows, columns,
    CHANNELS: tl.constexpr, PIXELS: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(1).to(tl.int64)
    if tl.load(active + sample, mask=number > 0, other=1) != 0:
        pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        there = pixel < height * width
        at_a, at_b, at_c, at_d, s, t = _around(
            point + sample * 2 * rows * columns, tl.where(there, pixel // width, 0), pixel % width, height, width,
            rows, columns, width * CHANNELS, CHANNELS,
        )  # fmt: skip
        first = sample * height * width * CHANNELS
        for start in tl.static_range(0, CHANNELS, ACROSS):
            channel = (start + tl.arange(0, ACROSS))[None, :]
            mask = there[:, None] & (channel < CHANNELS)
            value = between(x + first + channel, at_a, at_b, at_c, at_d, s, t, mask)
            target = canonical + first + pixel[:, None] * CHANNELS + channel
            tl.store(target, value.to(canonical.dtype.element_ty), mask=mask)


@triton.jit
def _gather_taps(
    taps, point, place, there, height, width, rows, columns, WIDE: tl.constexpr, BLOCK: tl.constexpr,
    STILL: tl.constexpr,
):  # fmt: skip
    """The sum, for pixels ``place``, of what the nine taps made of the pixels where the map says, or there if STILL."""
    channel = tl.arange(0, WIDE)[None, :]
    total = tl.zeros((BLOCK, WIDE), tl.float32)
    first_row, first_column = place // width - 1, place % width - 1
    for tap in range(9):
        row, column = first_row + tap // 3, first_column + tap % 3
        inside = there & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        seen = taps + tap * WIDE + channel
        if STILL:
            at = (row * width + column)[:, None] * (9 * WIDE)
            total += tl.load(seen + at, mask=inside[:, None], other=0).to(tl.float32)
        else:
            at_a, at_b, at_c, at_d, s, t = _around(
                point, tl.where(inside, row, 0), tl.where(inside, column, 0), height, width, rows, columns,
                width * 9 * WIDE, 9 * WIDE,
            )  # fmt: skip
            total += between(seen, at_a, at_b, at_c, at_d, s, t, inside[:, None])
    return total


@triton.jit
def _convolve(
    source, weight, place, there, height, width, out_width, STRIDE: tl.constexpr, CHANNELS: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A 3 × 3 convolution at output pixels ``place``; channels are last, in the weights ``(WIDE, 9, CHANNELS)`` too."""
    STAGES: tl.constexpr = 1 if weight.dtype.element_ty == tl.float32 else 3  # of float32 more would not fit
    total = tl.zeros((BLOCK, WIDE), tl.float32)
    term, wide = tl.arange(0, DEPTH), tl.arange(0, WIDE)[None, :] * (9 * CHANNELS)
    row, column = place // out_width * STRIDE - 1, place % out_width * STRIDE - 1
    if CHANNELS % DEPTH == 0:  # the terms of a product are all of one tap
        for tap in tl.range(0, 9, num_stages=STAGES):
            to_row, to_column = row + tap // 3, column + tap % 3
            inside = there & (to_row >= 0) & (to_row < height) & (to_column >= 0) & (to_column < width)
            at = (to_row * width + to_column) * CHANNELS
            for start in tl.static_range(0, CHANNELS, DEPTH):
                values = tl.load(source + at[:, None] + (start + term)[None, :], mask=inside[:, None], other=0)
                factors = tl.load(weight + wide + (tap * CHANNELS + start + term)[:, None])
                total = tl.dot(values.to(factors.dtype), factors, total, input_precision="ieee")
    else:
        for start in tl.range(0, 9 * CHANNELS, DEPTH, num_stages=STAGES):
            k = start + term
            tap, last = k // CHANNELS, k < 9 * CHANNELS
            to_row, to_column = row[:, None] + (tap // 3)[None, :], column[:, None] + (tap % 3)[None, :]
            inside = (there[:, None] & last[None, :]) & (to_row >= 0) & (to_row < height)
            inside = inside & (to_column >= 0) & (to_column < width)
            at = (to_row * width + to_column) * CHANNELS + (k % CHANNELS)[None, :]
            values = tl.load(source + at, mask=inside, other=0)
            factors = tl.load(weight + wide + k[:, None], mask=last[:, None], other=0)
            total = tl.dot(values.to(factors.dtype), factors, total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["number"])
def _first_layer(
    x, hidden, weight, bias, point, active, number, height, width, out_height, out_width, rows, columns,
    STRIDE: tl.constexpr, PROJECTED: tl.constexpr, STILL: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """``x`` is the canonical form or, with ``PROJECTED``, what the nine taps made of the features."""
    sample = tl.program_id(1).to(tl.int64)
    if tl.load(active + sample, mask=number > 0, other=1) != 0:
        place, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)[None, :]
        there = place < out_height * out_width
        if PROJECTED:
            total = _gather_taps(
                x + sample * height * width * 9 * WIDE, point + sample * 2 * rows * columns, place, there,
                height, width, rows, columns, WIDE, BLOCK, STILL,
            )  # fmt: skip
        else:
            total = _convolve(
                x + sample * height * width * CHANNELS, weight, place, there, height, width, out_width,
                STRIDE, CHANNELS, WIDE, BLOCK, DEPTH,
            )  # fmt: skip
        answer = gelu(total + tl.load(bias + channel), hidden.dtype.element_ty)
        target = hidden + (sample * out_height * out_width + place)[:, None] * WIDE + channel
        tl.store(target, answer.to(hidden.dtype.element_ty), mask=there[:, None])


@triton.jit(do_not_specialize=["number"])
def _second_layer(
    hidden, weighed, weight, bias, weight_x, weight_y, active, number, height, width, out_height, out_width,
    STRIDE: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(1).to(tl.int64)
    if tl.load(active + sample, mask=number > 0, other=1) != 0:
        place, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)[None, :]
        there = place < out_height * out_width
        total = _convolve(
            hidden + sample * height * width * CHANNELS, weight, place, there, height, width, out_width,
            STRIDE, CHANNELS, WIDE, BLOCK, DEPTH,
        )  # fmt: skip
        answer = gelu(total + tl.load(bias + channel), hidden.dtype.element_ty).to(hidden.dtype.element_ty)
        # Both heads as one product, of which a matrix unit makes no fewer columns than HEADS.
        head, wide = tl.arange(0, HEADS)[None, :], tl.arange(0, WIDE)[:, None]
        along_x, along_y = tl.load(weight_x + wide).to(tl.float32), tl.load(weight_y + wide).to(tl.float32)
        factors = tl.where(head == 0, along_x, tl.where(head == 1, along_y, 0.0)).to(answer.dtype)
        both = tl.dot(answer, factors, input_precision="ieee")
        target = weighed + (sample * 2 + head) * (out_height * out_width) + place[:, None]
        tl.store(target, both, mask=there[:, None] & (head < 2))


@triton.jit(do_not_specialize=["number", "last"])
def _advance(
    weighed, value, point, best_point, best_value, best, active, steps, points, errors, bias_x, bias_y, number, last,
    height, width, rows, columns, temperature, epsilon, tolerance, damping, ridge,
    GUARD: tl.constexpr, COMPOSE: tl.constexpr, KNOTS: tl.constexpr, SIZE: tl.constexpr, HISTORY: tl.constexpr,
    SLOTS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    if tl.load(active + sample, mask=number > 0, other=1) != 0:
        at = sample * 2 * rows * columns
        displacements_of(
            weighed + sample * 2 * height * width, height * width, width, 1, tl.load(bias_x), tl.load(bias_y),
            point + at, value + at, height, width, rows, columns, temperature, epsilon,
            HEIGHT, WIDTH, KNOTS, GUARD, COMPOSE,
        )  # fmt: skip
        tl.debug_barrier()
        mix(
            sample, point, value, best_point, best_value, best, active, steps, points, errors, number, last,
            2 * rows * columns, rows, columns, tolerance, damping, ridge, SIZE, HISTORY, SLOTS,
        )  # fmt: skip


def fits(trunk: Sequence[Tensor]) -> bool:
    """Whether there are kernels for a trunk of these weights and biases."""
    widths = [len(bias) for bias in trunk[1::2]]
    return len(widths) == 2 and all(SMALLEST <= n <= WIDEST and n & (n - 1) == 0 for n in widths)


def product_dtype() -> torch.dtype:
    """What is multiplied: as exact as the twin's convolutions. The heads are products like the others here."""
    try:
        halved = torch.backends.cudnn.allow_tf32
    except RuntimeError:  # whoever set it by PyTorch's newer names must be asked by them
        halved = torch.backends.cudnn.conv.fp32_precision != "ieee"  # type: ignore[attr-defined]
    return HALF if halved else torch.float32


def begin(copy: Tensor, trunk: Sequence[Tensor], stride: int) -> tuple[Tensor, Tensor, Tensor]:
    """What all steps of a solve read: features ``copy`` ``(B, h, w, C)``, and the weights of both layers of ``trunk``.

    In the features' place comes what the first layer's taps make of them ``(B, h, w, 9·K)``, if it is no more to read.
    """
    projected = _projects(trunk, stride)
    weight_1, weight_2 = lay_out(trunk[0], trunk[2], product_dtype(), taps_first=projected)
    return copy @ weight_1.flatten(0, 1).T if projected else copy, weight_1, weight_2


def _projects(trunk: Sequence[Tensor], stride: int) -> bool:
    return stride == 1 and trunk[0].shape[1] >= 9 * len(trunk[1])


def solve_each(
    start: Tensor,
    weight_1: Tensor,
    weight_2: Tensor,
    trunk: Sequence[Tensor],
    heads: Sequence[Tensor],
    strides: tuple[int, int],
    iteration: Iteration,
    *,
    temperature: float,
    guard: float | None,
    compose: bool,
) -> None:
    """Take ``iteration`` from its beginning to its end, on what ``begin`` gave.

    ``trunk`` and ``heads`` are weights and biases in turn; ``strides`` are the trunk's two.
    """
    (batch, height, width), channels = start.shape[:3], trunk[0].shape[1]
    (rows, columns), dtype = iteration.lattice, product_dtype()
    wide, last = len(trunk[1]), len(trunk[3])
    stride, next_stride = strides
    projected, fits_more = _projects(trunk, stride), dtype == HALF and wide < WIDEST
    mid_height, mid_width = cover(height, stride), cover(width, stride)
    out_height, out_width = cover(mid_height, next_stride), cover(mid_width, next_stride)
    hidden = torch.empty(batch, mid_height, mid_width, wide, dtype=dtype, device=start.device)
    weighed = torch.empty(batch, 2, out_height, out_width, dtype=torch.float32, device=start.device)
    where: dict[str, Any] = {"point": iteration.point, "rows": rows, "columns": columns, "active": iteration.active}

    def first_layer(seen: Tensor, *, still: bool) -> Launch:
        block, warps = GATHERED if projected else FIRST if fits_more else SMALL
        return Launch(
            _first_layer, (cover(mid_height * mid_width, block), batch, 1), warps, **where,
            x=seen, hidden=hidden, weight=weight_1, bias=trunk[1],
            height=height, width=width, out_height=mid_height, out_width=mid_width,
            STRIDE=stride, PROJECTED=projected, STILL=still, CHANNELS=channels, WIDE=wide, BLOCK=block,
            DEPTH=_depth(channels, dtype),
        )  # fmt: skip

    block, warps = SECOND if fits_more else SMALL
    second_layer = Launch(
        _second_layer, (cover(out_height * out_width, block), batch, 1), warps, active=iteration.active,
        hidden=hidden, weighed=weighed, weight=weight_2, bias=trunk[3],
        weight_x=heads[0], weight_y=heads[2],
        height=mid_height, width=mid_width, out_height=out_height, out_width=out_width,
        STRIDE=next_stride, CHANNELS=wide, WIDE=last, BLOCK=block, DEPTH=_depth(wide, dtype),
        HEADS=SMALLEST,
    )  # fmt: skip
    history, knots = iteration.points.shape[1], power_above(max(rows, columns))
    advance = Launch(
        _advance, (batch, 1, 1), warps_for(knots, power_above(out_height), power_above(out_width)), **where,
        weighed=weighed, value=torch.empty_like(iteration.point), best_point=iteration.best_point,
        best_value=iteration.best_value, best=iteration.best, steps=iteration.steps, points=iteration.points,
        errors=iteration.errors, bias_x=heads[1], bias_y=heads[3], last=iteration.max_steps - 1,
        height=out_height, width=out_width, temperature=temperature, epsilon=0.0 if guard is None else guard,
        tolerance=iteration.tolerance, damping=iteration.damping, ridge=iteration.ridge,
        GUARD=guard is not None, COMPOSE=compose, KNOTS=knots, SIZE=power_above(2 * rows * columns), HISTORY=history,
        SLOTS=power_above(max(history, 2)), HEIGHT=power_above(out_height), WIDTH=power_above(out_width),
    )  # fmt: skip
    if projected:
        seen, looks = start, []
    else:
        seen = torch.empty_like(start, dtype=dtype)
        block, across = block_of(channels, contiguous=True)
        look = Launch(
            _look, (cover(height * width, block), batch, 1), 4, **where, x=start, canonical=seen,
            height=height, width=width, CHANNELS=channels, PIXELS=block, ACROSS=across,
        )  # fmt: skip
        looks = [look]
    first = [first_layer(start, still=projected), second_layer, advance]  # by the identity, which moves nothing
    step = [*looks, first_layer(seen, still=False), second_layer, advance]
    for number in range(iteration.max_steps):
        for launch in step if number else first:
            launch(number)


def _depth(channels: int, dtype: torch.dtype) -> int:
    return next((depth for depth in DEPTHS[dtype] if channels % depth == 0), DEPTHS[dtype][-1])
