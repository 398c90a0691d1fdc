"""Every kernel compiles for a GPU, ahead of time; Triton's compiler rejects some programs that its interpreter runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler is for Linux")
PREAMBLE = """
import warnings
warnings.simplefilter("ignore")
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from localscale.kernels import equilibrium, mixing, next_map, next_map_gradients, warp, warp_to_size, weight_layout
from localscale.kernels import lattice, looks, size_equilibrium, size_network, working_copy

def build(function, pointers, constants, capability=90, even=(), **options):
    names = function.arg_names
    kinds = {n: "constexpr" if n in constants else pointers.get(n, "i32") for n in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if kinds[n].startswith("*") or n in even}
    source = ASTSource(function, kinds, {(names.index(n),): value for n, value in constants.items()}, aligned)
    program = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert program.asm["ptx"]
    return program.metadata.shared

state = {n: "*fp32" for n in ("point", "value", "best_point", "best_value", "best", "points", "errors")}
state |= {"active": "*i8", "steps": "*i64", "tolerance": "fp32", "damping": "fp32", "ridge": "fp32"}
"""
ONE = """
blocks = {"CHANNELS": 768, "PREFIX": 1, "ROWS": 2, "COLUMNS": 2, "ACROSS": 256, "ALIKE": True}
build(warp._unscale, {"along_x": "*fp32", "along_y": "*fp32", "x": "*bf16", "out": "*bf16"}, blocks)
"""
EVERY = """
lattices = {"along_x": "*fp32", "along_y": "*fp32", "to_x": "*fp32", "to_displacement": "*fp32"}
for kind, *sizes, ones in (
    ("*bf16", 768, 1, 2, 2, 256, True, ["x_channel"]),
    ("*fp32", 300, 0, 4, 1, 128, False, []),
    ("*bf16", 3, 0, 8, 32, 1, True, ["x_column", "height", "rows_x"]),  # as launched for a line
):
    blocks = dict(zip(("CHANNELS", "PREFIX", "ROWS", "COLUMNS", "ACROSS", "ALIKE"), sizes))
    blocks |= dict.fromkeys(ones, 1)
    build(warp._unscale, lattices | {"x": kind, "out": kind}, blocks)
    build(warp._unscale_backward, lattices | {"x": kind, "grad": kind}, blocks | {"WANT_X": True, "WANT_MAP": True})
for kind, precision in (("*bf16", "tf32"), ("*fp32", "tf32x3")):
    kinds = {"x": kind, "out": kind, "along_x": "*fp32", "along_y": "*fp32"}
    blocks = {"SOURCE": warp_to_size.SOURCE, "OUTPUTS": warp_to_size.OUTPUTS, "PRECISION": precision, "x_column": 1}
    for capability in (86, 90):
        needs = build(warp_to_size._unscale_to, kinds, blocks, capability, num_warps=warp_to_size.WARPS)
        assert needs <= 99 * 1024, "more memory than smaller GPUs have"
build(warp._to_lattice, {"displacement": "*fp32", "out": "*fp32"}, {"BLOCK_ROWS": 8, "BLOCK_COLUMNS": 64})
pointers = {n: "*fp32" for n in ("features", "scores", "weight_x", "bias_x", "weight_y", "bias_y", "outer", "out")}
numbers = {"temperature": "fp32", "epsilon": "fp32"}
shape = {"HEIGHT": 16, "WIDTH": 16, "KNOTS": 8, "GUARD": True}
for compose in (False, True):
    blocks = {"PIXELS": 256, "CHANNELS": 16, "COMPOSE": compose}
    build(next_map._next_displacements, pointers | numbers, shape | blocks)
names = ("scores", "outer", "out", "grad", "to_scores", "to_outer", "scratch")
kinds = {n: "*fp32" for n in names} | numbers
for compose in (False, True):
    build(next_map_gradients._displacements, kinds, shape | {"COMPOSE": compose}, num_warps=1)
    chosen = shape | {"COMPOSE": compose, "PLANES": next_map_gradients.PLANES}
    build(next_map_gradients._displacements_backward, kinds, chosen, num_warps=1)
line = {"height": 1, "HEIGHT": 1, "WIDTH": 16, "KNOTS": 4, "GUARD": False, "COMPOSE": True}
build(next_map_gradients._displacements_backward, kinds, line | {"PLANES": next_map_gradients.PLANES}, num_warps=1)
for history, slots in ((5, 8), (0, 2)):
    build(mixing._mix, state, {"WIDTH": 128, "HISTORY": history, "SLOTS": slots})
rows = {"x": "*bf16", "intermediate": "*fp32", "out": "*fp32"}
build(working_copy._shrink, rows, {"height": 1, "ROWS": 4, "WIDTH": 32, "NEW_WIDTH": 16})  # as launched for a line
build(working_copy._shrink, rows, {"ROWS": 4, "WIDTH": 256, "NEW_WIDTH": 64})
for lines in ({"height": 1, "new_height": 1}, {}):
    tile = {"CHANNELS": 300, "ALIGNED": 4, "TAPS": 5, "ROWS": 4, "COLUMNS": 2, "ACROSS": 32}
    build(working_copy._shrink_last, rows, tile | lines, num_warps=1)
    for across, (band, warps) in ((128, working_copy.BAND), (256, working_copy.WIDE_BAND)):
        blocks = dict(zip(("WIDTH", "NEW_WIDTH"), working_copy.HELD), ROWS=band, TENTS=16, ACROSS=across)
        even = ("channels", "x_batch", "x_row", "x_column")  # without these, loads are not pipelined
        for capability, most in ((86, 99), (90, 227)):
            kinds = rows | {"epsilon": "fp32"}
            needs = build(working_copy._shrink_band, kinds, blocks | lines, capability, even, num_warps=warps)
            assert 32 * 1024 < needs <= most * 1024, f"{needs} bytes, more than such a GPU has"
build(working_copy._normalise, {"x": "*bf16", "out": "*fp16", "epsilon": "fp32"}, {"PIXELS": 2, "CHANNELS": 1024})
for given, kept in (("*fp32", "*fp16"), ("*bf16", "*fp16"), ("*fp32", "*fp32")):
    kinds = {"first": given, "second": given, "first_out": kept, "second_out": kept}
    build(weight_layout._lay_out_weights, kinds, {"CHANNELS": weight_layout.CHANNELS}, num_warps=2)
pointers = {n: "*fp32" for n in ("x", "scores", "bias", "weight_x", "bias_x", "weight_y", "bias_y")}
for channels, pixels, across in ((3, 256, 1), (96, 32, 32)):
    blocks = {"CHANNELS": channels, "PIXELS": pixels, "ACROSS": across}
    build(equilibrium._warp_features, pointers | state | {"canonical": "*fp16"}, blocks)
for kind in ("*fp16", "*fp32"):
    kinds = pointers | state | {"hidden": kind, "weight": kind}
    for channels, projected in ((3, False), (96, False), (512, False), (768, True)):
        block, warps = equilibrium.FIRST if kind == "*fp16" else equilibrium.SMALL
        depth = equilibrium.depth_of(channels, torch.float16 if kind == "*fp16" else torch.float32)
        chosen = {"STRIDE": 2, "CHANNELS": channels, "PROJECTED": projected, "WIDE": 64, "BLOCK": block, "DEPTH": depth}
        for seen, still in (("*fp32" if channels == 3 else kind, True), (kind, False)):  # as it came, and moved
            chosen["IDENTITY"] = still
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
SIZES = """
tile = {"CHANNELS": 4, "ALIGNED": 4, "TAPS": 5, "ROWS": 4, "COLUMNS": 32, "ACROSS": 4}
build(working_copy._shrink_last, {"x": "*fp16", "out": "*fp16"}, tile)
kinds = {"x": "*bf16", "levels": "*fp16", "looks": "*fp16", "point": "*fp32", "active": "*i8"}
for channels, held, across in ((3, 4, 4), (192, 192, 64), (20, 20, 32)):
    blocks = {"CHANNELS": channels, "HELD": held, "ACROSS": across, "PIXELS": 256}
    build(looks._write_source, kinds, blocks)
    build(looks._look, kinds, blocks | {"LEVELS": 4, "PIXELS": 1024 // across})
springs = ("horizontal", "vertical", "force", "found", "inverses", "rest", "springs", "delta", "trust")
fields = ("sizes", "weights", "moved_sizes", "moved_weights", "before", "biases", "norms", "head", "head_bias", "raw")
kinds |= {n: "*fp32" for n in (*springs, *fields)} | {"out": "*fp16", "weight": "*fp16", "bias": "*fp32"}
numbers = ("half", "target", "least", "most", "background", "shear", "unseen", "epsilon", "eps", "largest")
kinds |= {n: "fp32" for n in numbers} | state
for knots in (8, 16, 32):
    for refine in (False, True):
        build(lattice._solve, kinds, {"KNOTS": knots, "REFINE": refine}, num_warps=lattice.WARPS)
    build(size_equilibrium._correct, kinds, {"KNOTS": knots}, num_warps=lattice.WARPS)
build(size_equilibrium._settle, kinds, {"COMPOSE": True, "KNOTS": 16, "GUARD": True, "PIXELS": 256})
chosen = {"SETTLED": True, "GUARD": True, "KNOTS": 16, "PIXELS": 256, "SIZE": 512, "HISTORY": 0, "SLOTS": 2}
build(size_equilibrium._advance, kinds, chosen)
chosen = {"CHANNELS": 3, "TALL": 16, "WIDTH": 128, "COLUMNS": 16}
build(size_network._edges, kinds, chosen, num_warps=size_network.EDGE_WARPS)
kinds |= {n: "*fp16" for n in ("x", "middle", "activated", "weights")}
chosen = {"STRIDE": 2, "CHANNELS": 32, "WIDE": 64, "BLOCK": size_network.LAYER[0], "DEPTH": 32}
build(size_network._layer, kinds, chosen, num_warps=size_network.LAYER[1])
chosen = {"BLOCKS": 2, "PIXELS": 256, "WIDE": 64, "GROUPS": 8, "BLOCK": size_network.BLOCKS[0], "DEPTH": 64}
needs = build(size_network._blocks, kinds, chosen, 86, num_warps=size_network.BLOCKS[1])
assert needs <= 99 * 1024, "more memory than smaller GPUs have"
"""


def compile_ahead_of_time(script: str, cache: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", PREAMBLE + script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@on_linux
def test_the_warp_compiles_for_a_gpu(tmp_path: Path):
    compile_ahead_of_time(ONE, tmp_path)


@on_linux
@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu(tmp_path: Path):
    compile_ahead_of_time(EVERY, tmp_path)


@on_linux
@pytest.mark.slow
def test_kernels_of_the_size_equilibrium_compile_for_a_gpu(tmp_path: Path):
    compile_ahead_of_time(SIZES, tmp_path)
