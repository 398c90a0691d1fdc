"""The page without a browser: it is served from one temporary folder, and every handler fills its outputs."""

import asyncio
import http.cookiejar
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from browsers import served
from PIL import Image

from localscale.lab.pages.app import Limits
from localscale.lab.pages.app.knots import even_knots
from localscale.lab.pages.app.models import Models, Pair

gr = pytest.importorskip("gradio", reason="needs the extra app")


@pytest.mark.slow
def test_the_page_is_served_and_leaves_nothing_behind(folder: Path, tmp_path: Path):
    with served(tmp_path, str(folder / "model")) as (address, process):
        assert [path.name[:15] for path in tmp_path.iterdir()] == ["localscale-app-"]
        with urllib.request.urlopen(address) as response:
            assert b"Scale a part" in response.read()
    assert process.returncode == 0
    assert not list(tmp_path.iterdir())


def status(opener: urllib.request.OpenerDirector, address: str, data: dict[str, str] | None = None) -> int:
    body = None if data is None else urllib.parse.urlencode(data).encode()
    try:
        with opener.open(address, body) as response:
            return response.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.slow
def test_nothing_is_answered_without_the_password(folder: Path, tmp_path: Path):
    with served(tmp_path, str(folder / "model"), "--password", "correct horse") as (address, _process):
        address = address.rstrip("/")
        stranger, visitor = (
            urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
            for _ in range(2)
        )
        assert status(stranger, f"{address}/login", {"username": "me", "password": "wrong horse"}) == 400
        assert status(visitor, f"{address}/login", {"username": "me", "password": "correct horse"}) == 200
        for path in ("/config", "/gradio_api/queue/data?session_hash=a"):
            assert status(stranger, address + path) == 401
        for path in ("/gradio_api/upload", "/gradio_api/queue/join", "/gradio_api/run/predict"):
            assert status(stranger, address + path, {}) == 401
        assert status(visitor, f"{address}/config") == 200
        assert status(visitor, f"{address}/gradio_api/file=/etc/hostname") == 404


def test_every_handler_fills_its_outputs(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from localscale.lab.pages.app.page import make_page

    async def page() -> gr.Blocks:  # Gradio leaves an event loop open unless one is running
        return make_page(Models(pair, "none"), Limits(), tmp_path)

    handlers = {handler.name: handler for handler in asyncio.run(page()).fns.values()}
    example, drag = gr.EventData(None, {"number": 1}), gr.EventData(None, {"row": 1, "column": 1, "x": 0.4, "y": 0.3})
    corners = gr.EventData(None, {"corners": [[0.1, 0.2], [0.4, 0.6]]})
    knots, upload, told = even_knots(4), tmp_path / "photo.png", []
    Image.new("RGB", (80, 60), "green").save(upload)
    monkeypatch.setattr(gr, "Info", told.append)
    loaded = handlers["on_load"].fn("small", knots, "box")
    view = loaded[5]
    answered = {
        "on_load": loaded,
        "on_example": handlers["on_example"].fn("small", knots, "box", example),
        "on_model": handlers["on_model"].fn(view, "small", 1.0, "box"),
        "on_factor": handlers["on_factor"].fn(view, 2.0),
        "on_upload": handlers["on_upload"].fn("small", knots, "box", str(upload)),
        "on_mark": handlers["on_mark"].fn(view, 1.0, "box", corners),
        "on_drag": handlers["on_drag"].fn(view, knots, "one knot", drag),
        "on_reset": handlers["on_reset"].fn(view, 5),
        "on_shuffle": handlers["on_shuffle"].fn(view, 5, "its row and column"),
    }
    for name, values in answered.items():
        assert len(values) == len(handlers[name].outputs), name
    assert handlers["on_load"].fn("test_resnet", knots, "box")[5].example.photograph
    assert not view.example.photograph
    assert "ls-sites" in handlers["on_warps"].fn(view, 2.0)
    assert len(told) == 1, "an upload to a model that reads digits is answered with a notice"
    assert "reads three digits" in told[0]
