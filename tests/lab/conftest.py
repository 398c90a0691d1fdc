"""Folders that many tests read: digits with backbone weights, and finished runs."""

from pathlib import Path

import pytest
from tiny_recipes import write_backbone, write_digits
from tiny_reports import write_numbers, write_scenes


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_digits(tmp_path_factory.mktemp("digits"))
    write_backbone(folder / "backbone.safetensors")
    return folder


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with digits and finished MNIST runs ``dec`` and ``aug``."""
    return write_numbers(tmp_path_factory.mktemp("numbers"))


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with scenes of discs and finished segmentation runs ``dec`` and ``canon``."""
    return write_scenes(tmp_path_factory.mktemp("scenes"))
