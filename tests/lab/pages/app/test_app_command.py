"""``localscale app`` refuses wrong arguments with an error and exit status 1, before it serves anything."""

import os
import socket
import sys
from pathlib import Path

import pytest

from localscale.cli import main
from localscale.errors import ConfigError, OutputError
from localscale.lab.pages.app import models
from localscale.lab.pages.app.server import _check_port, _environment


def refused(*arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["app", *arguments])
    assert isinstance(stopped.value.code, str), "printed, with exit status 1"
    return stopped.value.code


def test_a_port_in_use_is_refused(folder: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = refused(str(folder / "model"), "--port", str(port))
    assert message.startswith(f"localscale: cannot listen on port {port} of 127.0.0.1")
    assert "--port" in message


def test_a_host_that_is_unknown_or_another_machine_is_refused():
    with pytest.raises(ConfigError, match="host 'no such host' is unknown"):
        _check_port("no such host", 0)
    with pytest.raises(OutputError, match="cannot listen on"):
        _check_port("192.0.2.1", 0)  # reserved for documentation
    assert _check_port("127.0.0.1", 0) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet81",), "did you mean resnet18"),
        (("--port", "70000"), "--port is 70000"),
        (("--max-megapixels", "0"), "--max-megapixels is 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...], message: str):
    assert message in refused("--port", "0", *arguments)


def test_an_installation_without_the_small_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "SHIPPED", tmp_path)
    assert "the small model is not in" in refused("--port", "0")


def test_without_gradio_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert "pip install 'localscale[app]'" in refused("--port", "0")


def test_the_environment_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", "mine")
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)
    with _environment(str(tmp_path)):
        assert os.environ["GRADIO_TEMP_DIR"] == str(tmp_path)
        assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert os.environ["GRADIO_TEMP_DIR"] == "mine"
    assert "GRADIO_ANALYTICS_ENABLED" not in os.environ
