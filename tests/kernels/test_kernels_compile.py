"""Every kernel compiled ahead of time for a GPU: what Triton's interpreter lets pass, its compiler may not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOPPER = """
import warnings
warnings.simplefilter("ignore")
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from localscale.kernels import copy, equilibrium, head, increments, mixing, warp, weights

def build(function, pointers, constants, capability=90, even=(), **options):
    names = function.arg_names
    kinds = {n: "constexpr" if n in constants else pointers.get(n, "i32") for n in names}
    places = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if kinds[n].startswith("*") or n in even}
    source = ASTSource(function, kinds, {(names.index(n),): value for n, value in constants.items()}, places)
    program = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert program.asm["ptx"]
    return program.metadata.shared

tables = {"along_x": "*fp32", "along_y": "*fp32", "to_x": "*fp32", "to_flow": "*fp32"}
for kind, *sizes, ones in (
    ("*bf16", 768, 1, 2, 2, 256, True, ["x_channel"]),
    ("*fp32", 300, 0, 4, 1, 128, False, []),
    ("*bf16", 3, 0, 8, 32, 1, True, ["x_column", "height", "rows_x"]),  # as launched for a line
):
    blocks = dict(zip(("CHANNELS", "PREFIX", "ROWS", "COLUMNS", "ACROSS", "ALIKE"), sizes))
    blocks |= dict.fromkeys(ones, 1)
    build(warp._unscale, tables | {"x": kind, "out": kind}, blocks)
    build(warp._unscale_backward, tables | {"x": kind, "grad": kind}, blocks | {"WANT_X": True, "WANT_MAP": True})
build(warp._to_table, {"displacement": "*fp32", "out": "*fp32"}, {"BLOCK_ROWS": 8, "BLOCK_COLUMNS": 64})
pointers = {n: "*fp32" for n in ("features", "weighed", "weight_x", "bias_x", "weight_y", "bias_y", "outer", "out")}
numbers = {"temperature": "fp32", "epsilon": "fp32"}
shape = {"HEIGHT": 16, "WIDTH": 16, "KNOTS": 8, "GUARD": True}
for compose in (False, True):
    blocks = {"PIXELS": 256, "CHANNELS": 16, "COMPOSE": compose}
    build(head._next_displacements, pointers | numbers, shape | blocks)
names = ("weighed", "outer", "out", "grad", "to_weighed", "to_outer", "spare")
lattices = {n: "*fp32" for n in names} | numbers
for compose in (False, True):
    build(increments._increments, lattices, shape | {"COMPOSE": compose}, num_warps=1)
    chosen = shape | {"COMPOSE": compose, "PLANES": increments.PLANES}
    build(increments._increments_backward, lattices, chosen, num_warps=1)
line = {"height": 1, "HEIGHT": 1, "WIDTH": 16, "KNOTS": 4, "GUARD": False, "COMPOSE": True}
build(increments._increments_backward, lattices, line | {"PLANES": increments.PLANES}, num_warps=1)
state = {n: "*fp32" for n in ("point", "value", "best_point", "best_value", "best", "points", "errors")}
state |= {"active": "*i8", "steps": "*i64", "tolerance": "fp32", "damping": "fp32", "ridge": "fp32"}
for history, slots in ((5, 8), (0, 2)):
    build(mixing._mix, state, {"WIDTH": 128, "HISTORY": history, "SLOTS": slots})
rows = {"x": "*bf16", "between": "*fp32", "out": "*fp32"}
build(copy._shrink, rows, {"height": 1, "ROWS": 4, "WIDTH": 32, "NEW_WIDTH": 16})  # as launched for a line
build(copy._shrink, rows, {"ROWS": 4, "WIDTH": 256, "NEW_WIDTH": 64})
for lines in ({"height": 1, "new_height": 1}, {}):
    build(copy._shrink_last, rows, {"USED": 5, "ROWS": 4, "COLUMNS": 2, "ACROSS": 32} | lines, num_warps=1)
    for across, (band, warps) in ((128, copy.BAND), (256, copy.WIDE_BAND)):
        blocks = {"ROWS": band, "TENTS": 16, "WIDTH": copy.HELD[0], "NEW_WIDTH": copy.HELD[1], "ACROSS": across}
        even = ("channels", "x_batch", "x_row", "x_column")  # else nothing is read ahead
        for capability, most in ((86, 99), (90, 227)):
            kinds = rows | {"epsilon": "fp32"}
            needs = build(copy._shrink_band, kinds, blocks | lines, capability, even, num_warps=warps)
            assert 32 * 1024 < needs <= most * 1024, f"{needs} bytes, more than such a GPU has"
build(copy._normalise, {"x": "*bf16", "out": "*fp16", "epsilon": "fp32"}, {"PIXELS": 2, "CHANNELS": 1024})
for given, kept in (("*fp32", "*fp16"), ("*bf16", "*fp16"), ("*fp32", "*fp32")):
    kinds = {"first": given, "second": given, "first_out": kept, "second_out": kept}
    build(weights._lay_out, kinds, {"CHANNELS": weights.CHANNELS}, num_warps=2)
pointers = {n: "*fp32" for n in ("x", "weighed", "bias", "weight_x", "bias_x", "weight_y", "bias_y")}
for channels, pixels, across in ((3, 256, 1), (96, 32, 32)):
    blocks = {"CHANNELS": channels, "PIXELS": pixels, "ACROSS": across}
    build(equilibrium._look, pointers | state | {"canonical": "*fp16"}, blocks)
for kind in ("*fp16", "*fp32"):
    kinds = pointers | state | {"hidden": kind, "weight": kind}
    for channels, projected in ((3, False), (96, False), (128, False), (768, True)):
        block, warps = equilibrium.FIRST if kind == "*fp16" else equilibrium.SMALL
        depth = equilibrium._depth(channels, torch.float16 if kind == "*fp16" else torch.float32)
        chosen = {"STRIDE": 2, "CHANNELS": channels, "PROJECTED": projected, "WIDE": 64, "BLOCK": block, "DEPTH": depth}
        for seen, still in (("*fp32" if channels == 3 else kind, True), (kind, False)):  # as it came, and moved
            chosen["STILL"] = still
            needs = build(equilibrium._first_layer, kinds | {"x": seen}, chosen, 86, num_warps=warps)
            assert needs <= 99 * 1024, "more memory than smaller GPUs have"
    halves = ((64, equilibrium.SECOND, 64), (128, equilibrium.SMALL, 64))
    for wide, (block, warps), depth in halves if kind == "*fp16" else ((32, equilibrium.SMALL, 32),):
        chosen = {"STRIDE": 2, "BLOCK": block, "CHANNELS": wide, "WIDE": 128, "DEPTH": depth, "HEADS": 16}
        needs = build(equilibrium._second_layer, kinds, chosen, 86, num_warps=warps)
        assert needs <= 99 * 1024, "more memory than smaller GPUs have"
chosen = shape | {"COMPOSE": False, "SIZE": 128, "HISTORY": 5, "SLOTS": 8}
build(equilibrium._advance, pointers | numbers | state, chosen, num_warps=1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler is for Linux")
def test_it_compiles_for_a_gpu(tmp_path: Path):
    """Ahead of time, for Hopper: what the interpreter lets pass, the compiler may not."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", HOPPER], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
