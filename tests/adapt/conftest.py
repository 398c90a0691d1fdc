"""What the tests of saving share."""

from pathlib import Path

import pytest
from backbones import trained


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trained model on VIT's weights, its base unchanged."""
    trained().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"
