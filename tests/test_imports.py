"""Public names load when they are used, and bring no package that only the lab needs."""

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import localscale as ls

HEAVY = {"accelerate", "tyro", "torchmetrics", "matplotlib", "gradio", "ray"}
SEE = """
import sys
import localscale
assert "torch" not in sys.modules
for name in localscale.__all__:
    assert getattr(localscale, name) is getattr(localscale, name)
assert callable(localscale.adapt)
print(*{name.split(".")[0] for name in sys.modules}, *(n for n in sys.modules if n.startswith("localscale.")))
"""
TIME = """
import os, subprocess, sys
subprocess.run([sys.executable, "-m", "localscale", "--help"], check=True, stdout=subprocess.DEVNULL)
times = os.times()
print(times.children_user + times.children_system)
"""


def run(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_the_library_loads_neither_the_lab_nor_its_packages():
    loaded = set(run(SEE))
    assert "torch" in loaded
    assert {name for name in loaded if name in HEAVY or name.startswith("localscale.lab")} == set()


def test_help_takes_at_most_a_second_and_a_half():
    assert float(run(TIME)[0]) <= 1.5


def test_type_checkers_see_the_names_that_load():
    block = ast.parse(Path(ls.__file__).read_text(encoding="utf-8"))
    seen = {alias.name for node in ast.walk(block) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(ls.__all__) == seen - {"import_module", "metadata", "TYPE_CHECKING", "Any"}
    assert set(ls.__all__) <= set(dir(ls))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'adapted'"):
        _ = ls.adapted


def test_the_version_is_that_of_the_package():
    assert ls.__version__ == metadata.version("localscale")
