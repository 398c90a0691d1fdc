"""Names that every docstring's example may use."""

from typing import Any

import pytest
import torch

import localscale


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(torch=torch, localscale=localscale, ls=localscale)
