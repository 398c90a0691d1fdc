"""``localscale app`` before there is a page: every wrong start is a sentence and exit status 1."""

import os
import socket
import sys
from pathlib import Path

import pytest

from localscale.cli import main
from localscale.errors import ConfigError, OutputError
from localscale.lab.pages.app import Limits, models
from localscale.lab.pages.app.serve import _environment, _free_port


def refused(*arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["app", *arguments])
    assert isinstance(stopped.value.code, str), "printed, with exit status 1"
    return stopped.value.code


def test_a_port_in_use_is_a_sentence(folder: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused("--model", str(folder / "dec"), "--port", str(port))
    assert said.startswith(f"localscale: port {port} of 127.0.0.1 cannot be listened on")
    assert "--port" in said


def test_a_host_that_is_none_is_a_sentence():
    with pytest.raises(ConfigError, match="there is no host"):
        _free_port("no such host", 0)
    with pytest.raises(OutputError, match="cannot be listened on"):
        _free_port("192.0.2.1", 0)  # an address of nobody
    assert _free_port("127.0.0.1", 0) > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model", "resnet81"), "did you mean resnet18"),
        (("--model", "./nowhere"), "there is no folder nowhere"),
        (("--port", "70000"), "port is 70000"),
        (("--max-megapixels", "0"), "max_megapixels is 0"),
        (("--max-waiting", "0"), "max_waiting is 0"),
    ],
)
def test_wrong_starts_are_sentences(arguments: tuple[str, ...], sentence: str):
    assert sentence in refused("--port", "0", *arguments)


def test_without_the_small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "SHIPPED", tmp_path)
    assert "the small model is not in" in refused("--port", "0")


def test_without_gradio_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert "pip install 'localscale[app]'" in refused("--port", "0")


def test_the_environment_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", "mine")
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)
    with _environment(str(tmp_path)):
        assert os.environ["GRADIO_TEMP_DIR"] == str(tmp_path)
        assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert os.environ["GRADIO_TEMP_DIR"] == "mine"
    assert "GRADIO_ANALYTICS_ENABLED" not in os.environ


def test_help_reads_well(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(["app", "--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    assert all(flag in text for flag in ("--model", "--control", "--host", "--port", "--max-megapixels"))
    assert Limits().megapixels == 40
