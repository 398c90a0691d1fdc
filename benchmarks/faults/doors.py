"""Odd files, paths, names and events at the app, in process and through its server on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from unittest import mock

import torch
from PIL import Image

from benchmarks.faults.app_server import AppServer
from benchmarks.faults.campaign import Campaign
from benchmarks.faults.odd_files import odd_file, odd_file_name
from benchmarks.faults.watch import Watch, quiet
from localscale.errors import DataError
from localscale.lab.data.class_folders import list_class_folders
from localscale.lab.data.images import read_image

__all__ = ["Doors"]

CANARY = "this-must-stay-inside"
BACKBONE = "test_resnet"
ROUTES = (
    *("/gradio_api/file={}", "/file={}", "/gradio_api/file/{}", "/file/{}", "//gradio_api//file={}", "/theme.css/{}"),
    *("/gradio_api/proxy={}", "/static/{}", "/assets/{}", "/svelte/{}", "/pwa_icon/{}", "/{}"),
    *("/gradio_api/custom_component/1/client/component/{}", "/gradio_api/stream/{}/0/0/playlist.m3u8"),
    *("/gradio_api/deep_link?session_hash={}", "/gradio_api/run-history/records?path={}"),
)


class Doors(Campaign):
    """Each trial hands one odd thing to the app; nothing may be started, read outside, told, or escape."""

    name: ClassVar[str] = "doors"
    about: ClassVar[str] = "odd files, paths, model names and events at the app, in process and by HTTP"
    goal: ClassVar[int] = 200
    share: ClassVar[float] = 1.0
    patience: ClassVar[float] = 180.0  # the first request starts the server

    def prepare(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.folder, self.uploads, self.secret = folder, folder / "uploads", folder / "secret"
        self.uploads.mkdir()
        for name in ("run", "photos/cat"):
            (self.secret / name).mkdir(parents=True)
        Image.new("RGB", (40, 40), "red").save(self.secret / "private.png", pnginfo=None)
        for name in ("private.txt", "run/recipe.json", "run/result.json"):
            (self.secret / name).write_text(json.dumps({"name": CANARY}))
        (self.secret / "photos" / "cat" / "0.png").write_bytes((self.secret / "private.png").read_bytes())
        self.watch = Watch(self.secret)
        self.handlers = _handlers(self.uploads)
        self.view = self._call("on_load", BACKBONE, self._knots(), "box")[0][5]
        self.server: AppServer | None = None

    def trial(self, draw: Random) -> str | None:
        kinds = (self._upload, self._path, self._model, self._event, self._event, self._dataset, self._request)
        with quiet():
            return draw.choice(kinds)(draw)

    # In process

    def _upload(self, draw: Random) -> str | None:
        kind, data = odd_file(draw)
        (self.uploads / "hash").mkdir(exist_ok=True)
        path = self.uploads / "hash" / odd_file_name(draw)
        path.write_bytes(data)
        with self.watch.looking() as seen:
            shown, said = self._call("on_upload", BACKBONE, self._knots(), "box", str(path))
        if kind.startswith(("EPS", "SVG", "another", "noise", "empty")) and shown and kind != "EPS after an image":
            return f"a file of the kind {kind!r} was shown"
        if kind in ("valid", "16 bits") and not shown and "each side needs" not in said:
            return f"an image of the kind {kind!r} was refused: {said}"
        if path.exists():
            path.unlink()
            return f"an upload of the kind {kind!r} was kept"
        return self._fault(seen, said)

    def _path(self, draw: Random) -> str | None:
        link = self.uploads / f"link-{draw.randrange(10**6)}.png"
        link.symlink_to(self.secret / "private.png")
        inside = f"{self.uploads}/../secret/private.png"
        odd = (
            str(self.secret / "private.png"),
            inside,
            str(link),
            "/etc/passwd",
            "/proc/self/environ",
            "/dev/zero",
            "~",
        )
        values: tuple[Any, ...] = (
            *odd,
            "file:///etc/passwd",
            "",
            "\0",
            "a\0.png",
            ".",
            None,
            3,
            [],
            [inside],
            {"path": inside},
        )
        with self.watch.looking() as seen:
            shown, said = self._call("on_upload", BACKBONE, self._knots(), "box", draw.choice(values))
        link.unlink(missing_ok=True)
        if not (self.secret / "private.png").exists():
            return "a file outside the folder of uploads was deleted"
        return "a file outside the folder of uploads was shown" if shown else self._fault(seen, said)

    def _model(self, draw: Random) -> str | None:
        places = [
            str(self.secret / "run"),
            str(self.secret / "gone"),
            f"{self.secret}/./run",
            "secret/run",
            "/etc",
            "~",
            ".",
        ]
        odd = [
            "resnet18.nothing",
            "hf-hub:a/b",
            "local-dir:/etc",
            "http://x/y",
            "<b>",
            "a\0b",
            "x" * 5000,
            "\x1b[2J",
            "test_resnet.\n",
        ]
        name: Any = draw.choice([*places, *odd, None, 7, True, [], {}, ["small"]])
        handler, arguments = draw.choice(
            [("on_load", (self._knots(), "box")), ("on_model", (1.0, "box")), ("on_upload", (self._knots(), "box", ""))]
        )
        before = (self.view,) if handler == "on_model" else ()
        with self.watch.looking() as seen, mock.patch.object(Path, "home", return_value=self.secret):
            _, said = self._call(handler, *before, name, *arguments)
        if "folder" in said:
            return f"the answer to the model {name!r} tells what exists: {said}"
        return self._fault(seen, said)

    def _event(self, draw: Random) -> str | None:
        event, knots, view = _event(_odd_data(draw)), self._knots(), draw.choice([self.view, self.view, None])
        factor, word, count = _odd_value(draw), draw.choice(["box", "one knot", _odd_value(draw)]), _odd_value(draw)
        calls: list[tuple[str, tuple[Any, ...]]] = [
            ("on_mark", (view, draw.choice([1.0, factor]), draw.choice(["box", word]), event)),
            ("on_drag", (view, knots, draw.choice(["one knot", word]), event)),
            ("on_example", (BACKBONE, knots, draw.choice(["box", word]), event)),
            ("on_factor", (view, factor)),
            ("on_warps", (view, factor)),
            ("on_mode", (view, word)),
            ("on_reset", (view, count)),
            ("on_shuffle", (view, draw.choice([4, count]), word)),
        ]
        handler, arguments = draw.choice(calls)
        with self.watch.looking() as seen:
            _, said = self._call(handler, *arguments)
        return self._fault(seen, said)

    def _dataset(self, draw: Random) -> str | None:
        """Read a dataset that holds links out of it and files that are no images."""
        root = self.folder / f"dataset-{draw.randrange(10**6)}"
        for name in ("cat", "dog"):
            (root / name).mkdir(parents=True, exist_ok=True)
            (root / name / "odd.png").write_bytes(odd_file(draw)[1])
        (root / "cat" / "link.png").symlink_to(self.secret / "private.png")
        (root / "spy").symlink_to(self.secret / "photos")
        try:
            with self.watch.looking() as seen:
                for path, _ in list_class_folders(root, flag="--data.root").items:
                    with contextlib.suppress(DataError):
                        read_image(path)
        finally:
            shutil.rmtree(root)
        return self._fault(seen, "")

    # By HTTP

    def _request(self, draw: Random) -> str | None:
        if self.server is None:
            self.server = AppServer(self.folder, BACKBONE)
        return draw.choice((self._get, self._get, self._put))(draw, self.server)

    def _get(self, draw: Random, server: AppServer) -> str | None:
        route = draw.choice(ROUTES)
        there, gone = (self.secret / name for name in ("private.txt", "missing.txt"))
        way = draw.random()
        answers = [server.get(route.format(_written(Random(way), str(path)))) for path in (there, gone)]
        target = draw.choice(
            ["/etc/passwd", "/proc/self/environ", f"http://{server.place}/config", "..", "\0", "%00", "C:\\x"]
        )
        answers.append(server.get(route.format(_written(draw, target))))
        if fault := _told(answers):
            return f"{route}: {fault}"
        return server.fault()

    def _put(self, draw: Random, server: AppServer) -> str | None:
        kind, data = odd_file(draw)
        name = draw.choice([odd_file_name(draw), "../../secret/private.txt", "/etc/x", "..", "a/../../b.png"])
        given = server.upload(name, data)
        path = draw.choice([given[0] if given else "", str(self.secret / "private.png"), "/etc/passwd", "../secret/x"])
        said = server.event(path)
        if fault := _told([(200, json.dumps(given).encode()), (200, said)]):
            return f"an upload of the kind {kind!r}: {fault}"
        if not (self.secret / "private.png").exists():
            return "a file outside the folder of uploads was deleted"
        return server.fault()

    def _knots(self) -> Any:
        from localscale.lab.pages.app.knots import even_knots

        return even_knots(4)

    def _call(self, handler: str, *arguments: Any) -> tuple[Any, str]:
        """Return what a handler shows, or nothing if it shows a notice, and the notice."""
        import gradio as gr

        told: list[str] = []
        with mock.patch.object(gr, "Warning", told.append), mock.patch.object(gr, "Info"):
            shown = self.handlers[handler].fn(*arguments)
        return (None if told else shown), " ".join(told)

    def _fault(self, seen: list[str], said: str) -> str | None:
        from localscale.lab.pages.app.notices import UNEXPECTED

        if seen:
            return seen[0]
        if UNEXPECTED in said:
            return "a foreign exception came out of a handler"
        if CANARY in said or any(place in said for place in (str(self.uploads), "site-packages", "Traceback")):
            return f"the notice tells too much: {said}"
        return None


def _handlers(uploads: Path) -> dict[str, Any]:
    from localscale.lab.pages.app.server import _environment

    with _environment(str(uploads)):
        from localscale.lab.pages.app.models import Models, open_pair
        from localscale.lab.pages.app.page import make_page
        from localscale.lab.pages.app.uploads import Limits

        async def page() -> Any:  # Gradio leaves an event loop open unless one is running
            pair = open_pair(BACKBONE, pretrained="none")
            return make_page(Models(pair, "none"), Limits(megapixels=4, megabytes=2), uploads)

        return {handler.name: handler for handler in asyncio.run(page()).fns.values()}


def _event(data: Any) -> Any:
    import gradio as gr

    return gr.EventData(None, data)


def _odd_value(draw: Random, depth: int = 0) -> Any:
    plain: tuple[Any, ...] = (
        None,
        True,
        0,
        1,
        -1,
        3,
        4.5,
        1e300,
        10**400,
        float("nan"),
        float("inf"),
        "",
        "x",
        "1",
        "../..",
    )
    if depth > 3 or draw.random() < 0.6:
        return draw.choice(plain)
    inside = [_odd_value(draw, depth + 1) for _ in range(draw.randrange(4))]
    return inside if draw.random() < 0.6 else {str(each)[:9]: each for each in inside}


def _odd_data(draw: Random) -> Any:
    """Return the data of an event, in which one value or more may be anything."""
    point: Callable[[], Any] = lambda: [draw.choice([0, 1, 0.3, 0.7, _odd_value(draw)]) for _ in range(2)]  # noqa: E731
    good: dict[str, Any] = {"corners": [point(), point()], "row": draw.choice([0, 1, _odd_value(draw)]), "column": 1}
    good |= {
        "x": draw.random(),
        "y": draw.choice([0.5, _odd_value(draw)]),
        "number": draw.choice([1, _odd_value(draw)]),
    }
    if draw.random() < 0.3:
        good |= {"stroke": [point() for _ in range(draw.randrange(5))], "radius": draw.choice([0.03, _odd_value(draw)])}
    return draw.choice([good, good, good, _odd_value(draw)])


def _written(draw: Random, path: str) -> str:
    """Return a path in one of the ways in which it can be written in an address."""
    up = draw.choice(["../", "..%2f", "%2e%2e/", "..\\", "....//", "%252e%252e%252f", "/"])
    ways = (
        path,
        urllib.parse.quote(path, safe=""),
        urllib.parse.quote(path),
        up * 8 + path.lstrip("/"),
        "file://" + path,
    )
    return draw.choice((*ways, "/" + path, path.replace("/", "//"), path.replace("/", "/./"), path + "%00.png"))


def _told(answers: list[tuple[int, bytes]]) -> str | None:
    """Return what answers tell of files: their content, or whether the first exists and the second does not."""
    for _, said in answers:
        if CANARY.encode() in said or b"root:x:0" in said or b"PYTHONUNBUFFERED" in said:
            return "the content of a file was read"
        if b"Traceback" in said or b"site-packages" in said:
            return "the answer tells where the server's code lies"
    if len(answers) == 3:
        (status, there), (other, gone) = answers[:2]
        if status != other or there.replace(b"private", b"missing") != gone:
            return f"the answers tell which file exists: {status} {there[:80]!r}, {other} {gone[:80]!r}"
    return None
