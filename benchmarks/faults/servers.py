"""Hostile answers to ``localscale data fetch``, given without a network: bytes that urllib reads as from a socket."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import shutil
import tempfile
import urllib.parse
import urllib.request
import weakref
import zipfile
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from unittest import mock

from benchmarks.faults.campaign import Campaign
from benchmarks.faults.odd_files import with_flipped_bytes
from benchmarks.faults.watch import quiet
from localscale.errors import DataError
from localscale.lab.data.objects import downloads
from localscale.lab.data.objects.downloads import OnlySafer, Web
from localscale.lab.data.objects.fetch import Fetched, Services, fetch_objects

__all__ = ["Servers"]

MODELS, PANORAMAS = ("Cup", "Jug (blue)", "Pot"), ("alley", "beach")
OBJ = b"mtllib model.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 3 1 4\n"
ODD_NAMES: tuple[str, ...] = (
    *("../../evil.obj", "/evil.obj", "a" * 300 + ".obj", "a/" * 30 + "a.obj", "x\0y.obj", "\x1b[2J.png", "C:\\a.png"),
    *("meshes/model.obj/x.png", "MESHES/model.obj", "..", "ü" * 120 + ".png", ".obj", "con.png", "a//b.obj"),
)
SERVER = "http://fuel.invalid"
WEB = Web(attempts=2, pause=0.0, timeout=5, most_bytes=1 << 20, most_json_bytes=1 << 18, most_seconds=5)


class Servers(Campaign):
    """Each trial fetches five items from servers of which some answers are hostile; honest items must arrive."""

    name: ClassVar[str] = "servers"
    about: ClassVar[str] = "answers of any kind to data fetch: lists, addresses, archives, headers, redirections"
    goal: ClassVar[int] = 300
    share: ClassVar[float] = 0.5

    def prepare(self, folder: Path) -> None:
        memory = Path("/dev/shm")  # most of the time would go to a disk
        self.folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else folder))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def trial(self, draw: Random) -> str | None:
        room = self.folder / "room"
        shutil.rmtree(room, ignore_errors=True)
        room.mkdir()
        server = _HostileServer(draw, share=draw.choice([0.1, 0.4]))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), server, OnlySafer())
        services = Services(fuel=f"{SERVER}/1.0", haven=SERVER)
        with quiet(), mock.patch.object(downloads, "OPENER", opener):
            try:
                fetched = fetch_objects(room / "out", meshes=5, panoramas=4, services=services, web=WEB)
            except DataError as error:
                said = str(error)
                honest = not server.hostile & {"list of models", "list of panoramas"}
                whole = set(MODELS) <= server.hostile or set(PANORAMAS) <= server.hostile
                return f"one bad item ended everything: {said[:200]}" if honest and not whole else None
        return _fault(room, fetched, server.hostile)


def _fault(room: Path, fetched: Fetched, hostile: set[str]) -> str | None:
    if [path.name for path in room.iterdir()] != ["out"]:
        return f"files were written outside the folder: {[path.name for path in room.iterdir()]}"
    if left := [path.name for path in (room / "out").glob("*/.*")]:
        return f"{left[0]} was left over"
    kept = {source.name for source in fetched.sources}
    expected = set[str]()
    expected |= set(MODELS) if "list of models" not in hostile else set()
    expected |= set(PANORAMAS) if "list of panoramas" not in hostile else set()
    if lost := expected - hostile - kept:
        return f"{min(lost)} was answered honestly and is lost: {fetched.failed.get(min(lost))}"
    if long := [reason for reason in fetched.failed.values() if len(reason) > 300 or not reason.isprintable()]:
        return f"a reason can control a terminal or is too long: {long[0][:100]!r}"
    for name in PANORAMAS:
        path = room / "out" / "panoramas" / f"{name}_1k.hdr"
        if name not in hostile and name in kept and path.read_bytes() != _panorama(name):
            return f"{path.name} differs from what was announced"
    return None


class _HostileServer(urllib.request.HTTPHandler):
    """Answers requests as Gazebo Fuel and Poly Haven do, except a ``share`` of them, which are noted in ``hostile``."""

    def __init__(self, draw: Random, share: float) -> None:
        super().__init__()
        self.draw, self.share, self.hostile = draw, share, set[str]()

    def http_open(self, request: urllib.request.Request) -> Any:
        path = urllib.parse.unquote(urllib.parse.urlsplit(request.full_url).path)
        item, body = _answer(path, request.full_url)
        if item and self.draw.random() < self.share:
            self.hostile.add(item)
            data = self._hostile(body or b"", path)
        else:
            data = _reply(200 if body is not None else 404, body or b"")
        response = http.client.HTTPResponse(_Socket(data), method="GET")  # type: ignore[arg-type]
        response.begin()
        response.url, response.msg = request.full_url, response.reason  # type: ignore[assignment]
        return response

    def _hostile(self, body: bytes, path: str) -> bytes:
        draw = self.draw
        ways = [
            lambda: _reply(draw.choice([204, 301, 400, 403, 404, 418, 429, 500, 503, 999]), body),
            lambda: _reply(200, body[: draw.randrange(len(body) + 1)]),
            lambda: _reply(200, with_flipped_bytes(draw, body)),
            lambda: _reply(200, draw.randbytes(draw.randrange(200))),
            lambda: _reply(200, body, ("Content-Length", draw.choice(["x", "-1", "9" * 40, "1", ""]))),
            lambda: _reply(200, body, ("Transfer-Encoding", "chunked")),
            lambda: _reply(
                302, b"", ("Location", draw.choice(["file:///etc/passwd", "ftp://x/", "http://[", "", path, "//"]))
            ),
            lambda: draw.choice(
                [b"", b"HTTP/1.1\r\n\r\n", b"\0" * 99, b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n"]
            ),
            lambda: b"HTTP/1.1 500 \x1b[2J" + b"x" * 500 + b"\r\n\r\n",
            lambda: b"HTTP/1.1 200 OK\r\nx: " + b"x" * 70_000 + b"\r\n\r\n",
            lambda: _reply(200, bytes(draw.choice([1 << 18, 1 << 20]) + 1)),
        ]
        if path.endswith(".zip"):
            ways += [lambda: _reply(200, _odd_archive(draw))] * 8
        elif not path.startswith("/download/"):
            ways += [lambda: _reply(200, _odd_json(draw, body))] * 8
        return draw.choice(ways)()


class _Socket:
    """Implement the part of a socket that ``HTTPResponse`` uses."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.data)


def _answer(path: str, url: str) -> tuple[str, bytes | None]:
    """Return the item that a path belongs to, and the honest answer."""
    name = path.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    if path == "/1.0/models":
        first = "page=1&" in url
        return "list of models", json.dumps(
            [{"name": each, "owner": "GoogleResearch"} for each in MODELS]
        ).encode() if first else b"[]"
    if path.startswith("/1.0/"):
        return name, _archive({"meshes/model.obj": OBJ, "meshes/model.mtl": b"newmtl a\n"}) if name in MODELS else None
    if path == "/assets":
        return "list of panoramas", json.dumps({each: {"authors": {"Ann": "All"}} for each in PANORAMAS}).encode()
    if path.startswith("/files/") and name in PANORAMAS:
        data = _panorama(name)
        file = {
            "url": f"{SERVER}/download/{name}.hdr",
            "size": len(data),
            "md5": hashlib.md5(data, usedforsecurity=False).hexdigest(),
        }
        return name, json.dumps({"hdri": {"1k": {"hdr": file}}}).encode()
    return name, _panorama(name) if name in PANORAMAS else None


def _panorama(name: str) -> bytes:
    return b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 8 +X 16\n" + name.encode() * 100


def _archive(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in files.items():
            member = zipfile.ZipInfo(name)
            member.compress_type = method
            file.writestr(member, data)
    return buffer.getvalue()


def _odd_archive(draw: Random) -> bytes:
    files = {"meshes/model.obj": OBJ, draw.choice(ODD_NAMES): draw.randbytes(40)}
    if draw.random() < 0.2:
        files |= {f"{k}.txt": b"" for k in range(2000)}
    data = _archive(files, draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]))
    if draw.random() < 0.5:  # the list at the end is where most decisions are read from
        cut = draw.choice([0, max(0, len(data) - 120)])
        data = data[:cut] + with_flipped_bytes(draw, data[cut:])
    return data


def _odd_json(draw: Random, body: bytes) -> bytes:
    """Return the JSON with one value, at any depth, replaced by anything."""
    if draw.random() < 0.1:
        return draw.choice([b"[" * 100_000, b'{"a":' * 50_000, b"1" * 10_000, b'"\\ud800"', b"NaN", b"\xff\xfe{}"])
    try:
        value = json.loads(body)
    except ValueError:
        return body
    return json.dumps(_replaced(draw, value)).encode()


def _replaced(draw: Random, value: Any) -> Any:
    if isinstance(value, dict | list) and value and draw.random() < 0.8:
        if isinstance(value, list):
            at = draw.randrange(len(value))
            return [_replaced(draw, each) if k == at else each for k, each in enumerate(value)]
        key = draw.choice(sorted(value))
        if draw.random() < 0.2:
            return {**value, draw.choice(["../x", "", "x" * 400, "\x1b[2J", "\ud800", ".."]): value[key]}
        return {**value, key: _replaced(draw, value[key])}
    odd: tuple[Any, ...] = (
        None,
        True,
        -1,
        1e308,
        float("inf"),
        "",
        "x" * 5000,
        "../../x",
        "\x1b[2J",
        "\ud800",
        [],
        {},
        [[[]]],
        {"a": {}},
    )
    return draw.choice(
        (*odd, "file:///etc/passwd", "http://[", "http://x:y/", "http://a b/", "https://" + "a" * 99 + ".invalid")
    )


def _reply(status: int, body: bytes, *headers: tuple[str, str]) -> bytes:
    lengths = (
        []
        if any(name in ("Content-Length", "Transfer-Encoding") for name, _ in headers)
        else [("Content-Length", str(len(body)))]
    )
    lines = "".join(f"{name}: {value}\r\n" for name, value in (*headers, *lengths))
    return f"HTTP/1.1 {status} Odd\r\n{lines}\r\n".encode() + body
