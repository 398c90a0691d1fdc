"""Every example runs as it stands, from anywhere, and fits on a page."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared import SHARED

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
FAST = ("your_own_site.py",)  # test_dec_in_one_file.py runs the parts of the other short one
PETS = SHARED / "pets"
WEIGHTS = SHARED / "weights" / "deit_tiny_patch16_224.safetensors"
ARGUMENTS = {  # to use real photographs
    "canonical_photographs.py": (PETS / "test",),
    "classify_photographs.py": ("--folder", PETS, "--weights", WEIGHTS),
    "segment_photographs.py": (PETS,),
}
NEED_PETS = ("canonical_photographs.py", "classify_photographs.py")


@pytest.mark.parametrize(
    "example",
    [pytest.param(path, marks=() if path.name in FAST else pytest.mark.slow, id=path.name) for path in EXAMPLES],
)
def test_example_runs(example: Path, tmp_path: Path):
    if example.name in NEED_PETS and not PETS.is_dir():
        pytest.skip(f"{PETS} is absent: {example.name} needs photographs of Oxford-IIIT Pets")
    arguments = [str(each) for each in ARGUMENTS.get(example.name, ())] if PETS.is_dir() else []
    environment = os.environ | {"OUT": str(tmp_path), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, str(example.resolve()), *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_is_short(example: Path):
    lines = len(example.read_text(encoding="utf-8").splitlines())
    assert lines <= (120 if example.name == "dec_in_one_file.py" else 100)
