"""One thread, reproducible property tests, and helper modules importable from every folder."""

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *{str(path.parent) for path in HERE.rglob("*.py")}]

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same for the programs that tests start
settings.register_profile("localscale", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("localscale")


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
