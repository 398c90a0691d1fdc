"""One thread, reproducible property tests, and the oracles of ``reference.py`` importable from every folder."""

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same for the programs that tests start
settings.register_profile("localscale", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("localscale")


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
