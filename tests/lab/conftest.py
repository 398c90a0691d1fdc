"""A folder with real digits and a backbone's weights, made once."""

from pathlib import Path

import pytest
from tiny_recipes import write_backbone, write_digits


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_digits(tmp_path_factory.mktemp("digits"))
    write_backbone(folder / "backbone.safetensors")
    return folder
