from pathlib import Path

import pytest
from tiny_pairs import write_pair

from localscale.lab.pages.app import models
from localscale.lab.pages.app.models import Pair, open_pair


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def pair(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The tiny pair, in place of the one that comes with the package."""
    monkeypatch.setattr(models, "SHIPPED", folder)
    return open_pair("small")
