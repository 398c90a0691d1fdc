"""Solve for the equilibrium map with three or four kernel launches per step and no host synchronisation.

The reference is ``localscale.equilibrium.fixed_point`` with the update ``direct`` or ``compose``, grid maps, and a
trunk of two layers. Each step launches:

1. ``_warp_features``: the features warped by the current map, S⁻¹(F; l). Step 0 starts at the identity and skips it.
   One program instance works on a block of pixels of one image.
2. ``_first_layer``: 3 × 3 convolution, bias and GELU. One program instance makes all channels of a block of pixels.
   If the features have many channels, the convolution is *projected*: each of its nine taps is a matrix product over
   channels alone, which commutes with the warp. One matrix product before step 0 applies all taps, and each step only
   reads the nine results where the map points and adds them up, so that no ``_warp_features`` is needed.
3. ``_second_layer``: 3 × 3 convolution, bias, GELU and both heads, which give one score per pixel along x and along y.
4. ``_advance``: the scores pooled to the next map (``next_map``), then the solver's step (``mixing``). One program
   instance works on one image.

An image whose residual is below the tolerance is marked inactive on the device, and later launches skip it.

Matrix products are in float16, which has as many digits as TF32, where cuDNN may use TF32, and in float32 elsewhere.
The range of float16 is smaller: if values exceed 65504, the image does not converge, and its report says so.

Not differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.bilinear import block_shape, corner_addresses, interpolate, sampled_corners
from localscale.kernels.launch import Launch, cover, power_above
from localscale.kernels.mixing import Iteration, mix
from localscale.kernels.next_map import displacements_of, warps_for
from localscale.kernels.weight_layout import lay_out_weights

__all__ = ["convolve", "depth_of", "gelu", "launch_steps", "prepare", "product_dtype", "supports"]

HALF = torch.float16
MAX_CHANNELS = 128  # a program instance holds all channels of its pixels
MIN_CHANNELS = 16  # the smallest side of a product on tensor cores
DEPTHS = {HALF: (64, 32), torch.float32: (32,)}  # terms of a matrix product per iteration, preferably dividing channels
# Pixels and warps per program instance of the first layer, the projected first layer, and the second layer.
FIRST, GATHERED, SECOND = (128, 4), (16, 4), (128, 8)
SMALL = (64, 4)  # the same, where larger blocks may exceed a GPU's shared memory


@triton.jit
def gelu(x, dtype: tl.constexpr):
    """Return GELU(x), as exact as ``dtype`` needs.

    Half precision does without ``erf``, which would take twice as long: for |x| < 4.625 the value is x(½ + xP(x²)) with
    the polynomial P that has the smallest error, 1.2e-5; beyond, it is x or 0.
    """
    if dtype == tl.float32:
        return 0.5 * x * (1 + tl.erf(0.7071067811865476 * x))
    near = tl.minimum(tl.maximum(x, -4.625), 4.625)
    u = near * near * (2 / 4.625**2) - 1  # P is a polynomial in u, which lies in [−1, 1]
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
def _corners_around(point, row, column, height, width, rows, columns, x_row, x_column):
    """Return the memory offsets of the four pixels around the position that (row, column) is sampled from.

    ``point`` holds the displacements of the current map. The fractions between the four pixels come last.
    """
    left, right, top, bottom, s, t, _, _ = sampled_corners(
        point, point + rows * columns, row, column, height, width, rows, columns, rows, columns, columns, 1, columns, 1
    )
    at_a, at_b, at_c, at_d = corner_addresses(left, right, top, bottom, 0, x_row, x_column)
    return at_a[:, None], at_b[:, None], at_c[:, None], at_d[:, None], s[:, None], t[:, None]


@triton.jit(do_not_specialize=["step"])
def _warp_features(
    x, canonical, point, active, step, height, width, rows, columns,
    CHANNELS: tl.constexpr, PIXELS: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(1).to(tl.int64)
    if tl.load(active + sample, mask=step > 0, other=1) != 0:
        pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        valid = pixel < height * width
        at_a, at_b, at_c, at_d, s, t = _corners_around(
            point + sample * 2 * rows * columns, tl.where(valid, pixel // width, 0), pixel % width, height, width,
            rows, columns, width * CHANNELS, CHANNELS,
        )  # fmt: skip
        first = sample * height * width * CHANNELS
        for start in tl.static_range(0, CHANNELS, ACROSS):
            channel = (start + tl.arange(0, ACROSS))[None, :]
            mask = valid[:, None] & (channel < CHANNELS)
            value = interpolate(x + first + channel, at_a, at_b, at_c, at_d, s, t, mask)
            target = canonical + first + pixel[:, None] * CHANNELS + channel
            tl.store(target, value.to(canonical.dtype.element_ty), mask=mask)


@triton.jit
def _gather_taps(
    taps, point, pixel, valid, height, width, rows, columns, WIDE: tl.constexpr, BLOCK: tl.constexpr,
    IDENTITY: tl.constexpr,
):  # fmt: skip
    """Return the projected convolution at ``pixel``: the sum of nine tap results, each read where the map points.

    With IDENTITY the map is the identity, and each result is read at the pixel itself.
    """
    channel = tl.arange(0, WIDE)[None, :]
    total = tl.zeros((BLOCK, WIDE), tl.float32)
    first_row, first_column = pixel // width - 1, pixel % width - 1
    for tap in range(9):
        row, column = first_row + tap // 3, first_column + tap % 3
        inside = valid & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        result = taps + tap * WIDE + channel
        if IDENTITY:
            at = (row * width + column)[:, None] * (9 * WIDE)
            total += tl.load(result + at, mask=inside[:, None], other=0).to(tl.float32)
        else:
            at_a, at_b, at_c, at_d, s, t = _corners_around(
                point, tl.where(inside, row, 0), tl.where(inside, column, 0), height, width, rows, columns,
                width * 9 * WIDE, 9 * WIDE,
            )  # fmt: skip
            total += interpolate(result, at_a, at_b, at_c, at_d, s, t, inside[:, None])
    return total


@triton.jit
def convolve(
    source, weight, pixel, valid, height, width, out_width, STRIDE: tl.constexpr, CHANNELS: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Return a 3 × 3 convolution at output pixels ``pixel``.

    ``source`` is ``(height, width, CHANNELS)`` and ``weight`` is ``(WIDE, 9, CHANNELS)``.
    """
    STAGES: tl.constexpr = 1 if weight.dtype.element_ty == tl.float32 else 3  # float32 leaves no memory to prefetch
    total = tl.zeros((BLOCK, WIDE), tl.float32)
    term, wide = tl.arange(0, DEPTH), tl.arange(0, WIDE)[None, :] * (9 * CHANNELS)
    row, column = pixel // out_width * STRIDE - 1, pixel % out_width * STRIDE - 1
    if CHANNELS % DEPTH == 0:  # all terms of one product belong to one tap
        for start in tl.range(0, 9 * CHANNELS, DEPTH, num_stages=STAGES):
            tap, channel = start // CHANNELS, start % CHANNELS
            to_row, to_column = row + tap // 3, column + tap % 3
            inside = valid & (to_row >= 0) & (to_row < height) & (to_column >= 0) & (to_column < width)
            at = (to_row * width + to_column) * CHANNELS + channel
            values = tl.load(source + at[:, None] + term[None, :], mask=inside[:, None], other=0)
            factors = tl.load(weight + wide + (start + term)[:, None])
            total = tl.dot(values.to(factors.dtype), factors, total, input_precision="ieee")
    else:
        for start in tl.range(0, 9 * CHANNELS, DEPTH, num_stages=STAGES):
            k = start + term
            tap, last = k // CHANNELS, k < 9 * CHANNELS
            to_row, to_column = row[:, None] + (tap // 3)[None, :], column[:, None] + (tap % 3)[None, :]
            inside = (valid[:, None] & last[None, :]) & (to_row >= 0) & (to_row < height)
            inside = inside & (to_column >= 0) & (to_column < width)
            at = (to_row * width + to_column) * CHANNELS + (k % CHANNELS)[None, :]
            values = tl.load(source + at, mask=inside, other=0)
            factors = tl.load(weight + wide + k[:, None], mask=last[:, None], other=0)
            total = tl.dot(values.to(factors.dtype), factors, total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["step"])
def _first_layer(
    x, hidden, weight, bias, point, active, step, height, width, out_height, out_width, rows, columns,
    STRIDE: tl.constexpr, PROJECTED: tl.constexpr, IDENTITY: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Apply the first layer to ``x``: the warped features or, with PROJECTED, the nine tap results of the features."""
    sample = tl.program_id(1).to(tl.int64)
    if tl.load(active + sample, mask=step > 0, other=1) != 0:
        pixel, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)[None, :]
        valid = pixel < out_height * out_width
        if PROJECTED:
            total = _gather_taps(
                x + sample * height * width * 9 * WIDE, point + sample * 2 * rows * columns, pixel, valid,
                height, width, rows, columns, WIDE, BLOCK, IDENTITY,
            )  # fmt: skip
        else:
            total = convolve(
                x + sample * height * width * CHANNELS, weight, pixel, valid, height, width, out_width,
                STRIDE, CHANNELS, WIDE, BLOCK, DEPTH,
            )  # fmt: skip
        answer = gelu(total + tl.load(bias + channel), hidden.dtype.element_ty)
        target = hidden + (sample * out_height * out_width + pixel)[:, None] * WIDE + channel
        tl.store(target, answer.to(hidden.dtype.element_ty), mask=valid[:, None])


@triton.jit(do_not_specialize=["step"])
def _second_layer(
    hidden, scores, weight, bias, weight_x, weight_y, active, step, height, width, out_height, out_width,
    STRIDE: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(1).to(tl.int64)
    if tl.load(active + sample, mask=step > 0, other=1) != 0:
        pixel, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)[None, :]
        valid = pixel < out_height * out_width
        total = convolve(
            hidden + sample * height * width * CHANNELS, weight, pixel, valid, height, width, out_width,
            STRIDE, CHANNELS, WIDE, BLOCK, DEPTH,
        )  # fmt: skip
        answer = gelu(total + tl.load(bias + channel), hidden.dtype.element_ty).to(hidden.dtype.element_ty)
        # One matrix product computes both heads. Tensor cores need at least HEADS columns; only the first two are used.
        head, wide = tl.arange(0, HEADS)[None, :], tl.arange(0, WIDE)[:, None]
        along_x, along_y = tl.load(weight_x + wide).to(tl.float32), tl.load(weight_y + wide).to(tl.float32)
        factors = tl.where(head == 0, along_x, tl.where(head == 1, along_y, 0.0)).to(answer.dtype)
        both = tl.dot(answer, factors, input_precision="ieee")
        target = scores + (sample * 2 + head) * (out_height * out_width) + pixel[:, None]
        tl.store(target, both, mask=valid[:, None] & (head < 2))


@triton.jit(do_not_specialize=["step", "last"])
def _advance(
    scores, value, point, best_point, best_value, best, active, steps, points, errors, bias_x, bias_y, step, last,
    height, width, rows, columns, temperature, epsilon, tolerance, damping, ridge,
    GUARD: tl.constexpr, COMPOSE: tl.constexpr, KNOTS: tl.constexpr, SIZE: tl.constexpr, HISTORY: tl.constexpr,
    SLOTS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    if tl.load(active + sample, mask=step > 0, other=1) != 0:
        at = sample * 2 * rows * columns
        displacements_of(
            scores + sample * 2 * height * width, height * width, width, 1, tl.load(bias_x), tl.load(bias_y),
            point + at, value + at, height, width, rows, columns, temperature, epsilon,
            HEIGHT, WIDTH, KNOTS, GUARD, COMPOSE,
        )  # fmt: skip
        tl.debug_barrier()
        mix(
            sample, point, value, best_point, best_value, best, active, steps, points, errors, step, last,
            2 * rows * columns, rows, columns, tolerance, damping, ridge, SIZE, HISTORY, SLOTS,
        )  # fmt: skip


def supports(trunk: Sequence[Tensor]) -> bool:
    """Return whether these kernels can run a trunk with the given weights and biases.

    They need two layers, each with a power of two of channels from 16 to 128.
    """
    widths = [len(bias) for bias in trunk[1::2]]
    return len(widths) == 2 and all(MIN_CHANNELS <= n <= MAX_CHANNELS and n & (n - 1) == 0 for n in widths)


def product_dtype() -> torch.dtype:
    """Return the dtype of all matrix products: float16 where cuDNN's convolutions may use TF32, else float32."""
    try:
        halved = torch.backends.cudnn.allow_tf32
    except RuntimeError:  # PyTorch refuses to read this setting after the newer one was changed
        halved = torch.backends.cudnn.conv.fp32_precision != "ieee"  # type: ignore[attr-defined]
    return HALF if halved else torch.float32


def prepare(copy: Tensor, trunk: Sequence[Tensor], stride: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inputs of all steps of a solve: the features, and the weights of both layers of ``trunk``.

    ``copy`` is the working copy ``(B, h, w, C)``. If the first layer is projected, its nine tap results
    ``(B, h, w, 9·K)`` take the place of the features.
    """
    projected = _projects(trunk, stride)
    weight_1, weight_2 = lay_out_weights(trunk[0], trunk[2], product_dtype(), taps_first=projected)
    return copy @ weight_1.flatten(0, 1).T if projected else copy, weight_1, weight_2


def _projects(trunk: Sequence[Tensor], stride: int) -> bool:
    """Return whether to project the first layer: the tap results must hold no more numbers than the features."""
    return stride == 1 and trunk[0].shape[1] >= 9 * len(trunk[1])


def launch_steps(
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
    """Launch all steps of a solve and leave the result in ``iteration``.

    ``start``, ``weight_1`` and ``weight_2`` are what ``prepare`` returned. ``trunk`` and ``heads`` are weights and
    biases in turn; ``strides`` are those of the trunk's two layers.
    """
    (batch, height, width), channels = start.shape[:3], trunk[0].shape[1]
    (rows, columns), dtype = iteration.lattice, product_dtype()
    wide, last = len(trunk[1]), len(trunk[3])
    stride, next_stride = strides
    projected, large_blocks = _projects(trunk, stride), dtype == HALF and wide < MAX_CHANNELS
    mid_height, mid_width = cover(height, stride), cover(width, stride)
    out_height, out_width = cover(mid_height, next_stride), cover(mid_width, next_stride)
    hidden = torch.empty(batch, mid_height, mid_width, wide, dtype=dtype, device=start.device)
    scores = torch.empty(batch, 2, out_height, out_width, dtype=torch.float32, device=start.device)
    state: dict[str, Any] = {"point": iteration.point, "rows": rows, "columns": columns, "active": iteration.active}

    def first_layer(x: Tensor, *, identity: bool) -> Launch:
        block, warps = GATHERED if projected else FIRST if large_blocks else SMALL
        return Launch(
            _first_layer, (cover(mid_height * mid_width, block), batch, 1), warps, **state,
            x=x, hidden=hidden, weight=weight_1, bias=trunk[1],
            height=height, width=width, out_height=mid_height, out_width=mid_width,
            STRIDE=stride, PROJECTED=projected, IDENTITY=identity, CHANNELS=channels, WIDE=wide, BLOCK=block,
            DEPTH=depth_of(channels, dtype),
        )  # fmt: skip

    block, warps = SECOND if large_blocks else SMALL
    second_layer = Launch(
        _second_layer, (cover(out_height * out_width, block), batch, 1), warps, active=iteration.active,
        hidden=hidden, scores=scores, weight=weight_2, bias=trunk[3],
        weight_x=heads[0], weight_y=heads[2],
        height=mid_height, width=mid_width, out_height=out_height, out_width=out_width,
        STRIDE=next_stride, CHANNELS=wide, WIDE=last, BLOCK=block, DEPTH=depth_of(wide, dtype),
        HEADS=MIN_CHANNELS,
    )  # fmt: skip
    history, knots = iteration.points.shape[1], power_above(max(rows, columns))
    advance = Launch(
        _advance, (batch, 1, 1), warps_for(knots, power_above(out_height), power_above(out_width)), **state,
        scores=scores, value=torch.empty_like(iteration.point), best_point=iteration.best_point,
        best_value=iteration.best_value, best=iteration.best, steps=iteration.steps, points=iteration.points,
        errors=iteration.errors, bias_x=heads[1], bias_y=heads[3], last=iteration.max_steps - 1,
        height=out_height, width=out_width, temperature=temperature, epsilon=0.0 if guard is None else guard,
        tolerance=iteration.tolerance, damping=iteration.damping, ridge=iteration.ridge,
        GUARD=guard is not None, COMPOSE=compose, KNOTS=knots, SIZE=power_above(2 * rows * columns), HISTORY=history,
        SLOTS=power_above(max(history, 2)), HEIGHT=power_above(out_height), WIDTH=power_above(out_width),
    )  # fmt: skip
    first_step = [first_layer(start, identity=projected), second_layer, advance]
    if projected:
        later_steps = [first_layer(start, identity=False), second_layer, advance]
    else:
        canonical = torch.empty_like(start, dtype=dtype)
        block, across = block_shape(channels, contiguous=True)
        warp_features = Launch(
            _warp_features, (cover(height * width, block), batch, 1), 4, **state, x=start, canonical=canonical,
            height=height, width=width, CHANNELS=channels, PIXELS=block, ACROSS=across,
        )  # fmt: skip
        later_steps = [warp_features, first_layer(canonical, identity=False), second_layer, advance]
    for step in range(iteration.max_steps):
        for launch in later_steps if step else first_step:
            launch(step)


def depth_of(channels: int, dtype: torch.dtype) -> int:
    """Return how many terms of a matrix product ``convolve`` takes per iteration."""
    return next((depth for depth in DEPTHS[dtype] if channels % depth == 0), DEPTHS[dtype][-1])
