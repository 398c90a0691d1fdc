"""A local server that imitates Gazebo Fuel and Poly Haven, and fails on request."""

import hashlib
import io
import json
import threading
import time
import zipfile
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import cv2
import numpy as np
from object_inputs import noisy_radiance
from PIL import Image

from localscale.lab.data.objects.fetch import Services


def image_bytes() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "orange").save(buffer, "PNG")
    return buffer.getvalue()


OBJ = (
    "mtllib model.mtl\nv 0 0 0\nv .2 0 0\nv 0 .2 0\nv 0 0 .3\nvt 0 0\nvt 1 0\nvt 0 1\nvt 1 1\nusemtl skin\n"
    "f 1/1 3/3 2/2\nf 1/1 2/2 4/4\nf 2/2 3/3 4/4\nf 3/3 1/1 4/4\n"
)
MODEL = {
    "meshes/model.obj": OBJ.encode(),
    "meshes/model.mtl": b"newmtl skin\nmap_Kd texture.png\n",
    "materials/textures/texture.png": image_bytes(),
    "thumbnails/0.jpg": b"a picture of it",
    "model.sdf": b"<sdf/>",
    "model.config": b"<model/>",
}


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def panorama_bytes(seed: int) -> bytes:
    return cv2.imencode(".hdr", np.ascontiguousarray(noisy_radiance(16, seed)))[1].tobytes()


@dataclass(frozen=True)
class Answer:
    """Anything that a server can send: a body, of which ``pause`` seconds pass before each byte, and headers."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    pause: float = 0.0


class Server:
    """``with Server() as server:`` serves ``models`` and ``panoramas``; ``server.seen`` counts the requests.

    ``faults`` maps a path to a list with one entry per request: a status code, ``"cut"`` (the connection ends too
    early), ``"swap"`` (other bytes of the same length), an ``Answer``, or None for the right answer.
    """

    def __init__(self, models: int = 5, panoramas: int = 3, page: int = 2) -> None:
        self.models = {f"Cup_{k} (blue)" if k == 0 else f"Cup_{k}": zipped(MODEL) for k in range(models)}
        self.panoramas = {f"sky_{k}": panorama_bytes(k) for k in range(panoramas)}
        self.page = page
        self.faults: dict[str, list] = {}
        self.seen: Counter[str] = Counter()

    def __enter__(self) -> "Server":
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.answer(self)

            def log_message(self, *arguments) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.services = Services(fuel=f"{self.address}/1.0", haven=self.address)
        return self

    def __exit__(self, *error) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def content(self, path: str, query: dict[str, list[str]]) -> bytes | None:
        if path == "/1.0/models":
            assert query["q"] == ["collections:Scanned Objects by Google Research"]
            number = int(query["page"][0])
            names = list(self.models)[(number - 1) * self.page : number * self.page]
            listing = [{"name": name, "owner": "GoogleResearch", "filesize": 1} for name in names]
            return json.dumps(listing).encode() if names else None
        if path.startswith("/1.0/GoogleResearch/models/"):
            return self.models.get(path.rsplit("/", 1)[1].removesuffix(".zip"))
        if path == "/assets":
            assert query == {"t": ["hdris"]}
            return json.dumps({name: {"name": name, "authors": {"Ann": "All"}} for name in self.panoramas}).encode()
        if path.startswith("/files/"):
            name = path.rsplit("/", 1)[1]
            data = self.panoramas[name]
            url = f"{self.address}/download/{name}.hdr"
            file = {"url": url, "size": len(data), "md5": hashlib.md5(data, usedforsecurity=False).hexdigest()}
            return json.dumps({"hdri": {"1k": {"hdr": file}, "2k": {"hdr": file}}}).encode()
        if path.startswith("/download/"):
            return self.panoramas.get(path.rsplit("/", 1)[1].removesuffix(".hdr"))
        return None

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        path = unquote(parts.path)
        self.seen[path] += 1
        assert request.headers["User-Agent"].startswith("localscale")
        queue = self.faults.get(path, [])
        fault = queue.pop(0) if queue else None
        body = self.content(path, parse_qs(parts.query))
        if isinstance(fault, Answer):
            self.send(request, fault)
            return
        if isinstance(fault, int) or body is None:
            request.send_error(fault if isinstance(fault, int) else 404)
            return
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: len(body) // 2] if fault == "cut" else body[::-1] if fault == "swap" else body)

    @staticmethod
    def send(request: BaseHTTPRequestHandler, answer: Answer) -> None:
        try:
            request.send_response(answer.status)
            for name, value in answer.headers:
                request.send_header(name, value)
            request.end_headers()
            for k in range(len(answer.body)) if answer.pause else ():
                request.wfile.write(answer.body[k : k + 1])
                request.wfile.flush()
                time.sleep(answer.pause)
            if not answer.pause:
                request.wfile.write(answer.body)
        except OSError:  # the client has heard enough
            pass
