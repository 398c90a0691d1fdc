"""Names that every docstring's example may use, and our kernels run by Python where there is no GPU."""

import os
from pathlib import Path
from typing import Any

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported

import pytest
import torch

import localscale


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(torch=torch, localscale=localscale, ls=localscale)
