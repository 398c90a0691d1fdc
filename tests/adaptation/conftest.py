"""The imitation of the Hugging Face Hub, in the place of the real one."""

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from hub_imitation import Hub, serve


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty hub with an empty cache; HF_ENDPOINT and HF_HUB_CACHE are read when huggingface_hub is imported."""
    constants = huggingface_hub.constants
    with serve() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        template = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub
