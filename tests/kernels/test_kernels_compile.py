"""Every kernel compiled ahead of time for a GPU: what Triton's interpreter lets pass, its compiler may not."""

import subprocess
import sys
from pathlib import Path

import pytest

HOPPER = """
import warnings
warnings.simplefilter("ignore")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from localscale.kernels import first_layer, head, mixing, warp

def build(function, pointers, constants):
    names = function.arg_names
    kinds = {n: "constexpr" if n in constants else pointers.get(n, "i32") for n in names}
    source = ASTSource(function, kinds, {(names.index(n),): value for n, value in constants.items()})
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]

tables = {"along_x": "*fp32", "along_y": "*fp32", "to_x": "*fp32", "to_flow": "*fp32"}
for kind in ("*fp32", "*bf16"):
    for pixels, channels in ((4, 256), (256, 4)):
        blocks = {"PIXELS": pixels, "CHANNELS": channels}
        build(warp._unscale, tables | {"x": kind, "out": kind}, blocks)
        build(warp._unscale_backward, tables | {"x": kind, "grad": kind}, blocks | {"WANT_X": True, "WANT_MAP": True})
build(warp._to_table, {"flow": "*fp32", "out": "*fp32"}, {"BLOCK_ROWS": 8, "BLOCK_COLUMNS": 64})
pointers = {n: "*fp32" for n in ("features", "weight_x", "bias_x", "weight_y", "bias_y", "outer", "out")}
numbers = {"temperature": "fp32", "epsilon": "fp32"}
for compose in (False, True):
    blocks = {"PIXELS": 256, "CHANNELS": 16, "KNOTS": 8, "GUARD": True, "COMPOSE": compose}
    build(head._next_offsets, pointers | numbers, blocks)
pointers = {n: "*fp32" for n in ("x", "out", "along_x", "along_y", "weight", "bias")}
for image, pixels in ((3, 32), (0, 16)):
    build(first_layer._first_layer, pointers, {"STRIDE": 2, "IMAGE": image, "PIXELS": pixels, "CHANNELS": 64})
pointers = {n: "*fp32" for n in ("point", "image", "best_image", "best", "points", "errors")}
numbers = {"active": "*i8", "steps": "*i64", "tolerance": "fp32", "damping": "fp32", "ridge": "fp32"}
for history, slots in ((5, 8), (0, 2)):
    build(mixing._mix, pointers | numbers, {"WIDTH": 128, "HISTORY": history, "SLOTS": slots})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler is for Linux")
def test_it_compiles_for_a_gpu(tmp_path: Path):
    """Ahead of time, for Hopper: what the interpreter lets pass, the compiler may not."""
    environment = {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", HOPPER], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
