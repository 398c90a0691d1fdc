"""Serve the app on this machine, and ask it anything by HTTP."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import urllib.parse
import weakref
from pathlib import Path

__all__ = ["AppServer"]

SECONDS = 50  # for one request


class AppServer:
    """The app as ``localscale app`` serves it, in a process of its own, with a false Ghostscript on its path."""

    def __init__(self, folder: Path, backbone: str) -> None:
        self.backbone = backbone
        self.marker, tools, temporary = folder / "started", folder / "tools", folder / "temporary"
        tools.mkdir()
        temporary.mkdir()
        for name in ("gs", "gswin64c", "convert", "rsvg-convert", "inkscape", "dcraw"):
            (tools / name).write_text(f"#!/bin/sh\necho {name} >> {self.marker}\n")
            (tools / name).chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "TMPDIR": str(temporary),
            "PYTHONUNBUFFERED": "1",
        }
        command = [sys.executable, "-m", "localscale", "app", backbone, "--pretrained", "none", "--port", "0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=temporary
        )
        self.stop = weakref.finalize(self, _end, self.process)
        assert self.process.stdout is not None
        line = next((line for line in self.process.stdout if " is open" in line), "")
        self.place = urllib.parse.urlsplit(line.split(" ")[0]).netloc
        config = json.loads(self.get("/config")[1])
        uploads = [each for each in config["dependencies"] if any(target[1] == "upload" for target in each["targets"])]
        self.function, self.inputs = uploads[0]["id"], uploads[0]["inputs"]
        self.visits = 0

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> tuple[int, bytes]:
        """Return status and body of the answer; the path is sent as it is."""
        connection = http.client.HTTPConnection(self.place, timeout=SECONDS)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            connection.putheader("Content-Type", kind)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.InvalidURL:
            return 400, b""
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, bytes]:
        """Get a path."""
        return self.ask("GET", "".join(f"%{byte:02X}" if byte <= 32 else chr(byte) for byte in path.encode()))

    def upload(self, name: str, data: bytes) -> list[str]:
        """Upload a file; return the paths that the server names."""
        shown = name.replace('"', "").replace("\n", " ").encode("latin-1", "replace").decode("latin-1")
        head = f'--edge\r\nContent-Disposition: form-data; name="files"; filename="{shown}"\r\n\r\n'.encode("latin-1")
        status, said = self.ask(
            "POST", "/gradio_api/upload", head + data + b"\r\n--edge--\r\n", "multipart/form-data; boundary=edge"
        )
        return json.loads(said) if status == 200 else []

    def event(self, path: str) -> bytes:
        """Send the event of an upload with any path; return what the page is told."""
        self.visits += 1
        session = f"visit{self.visits}"
        file = {"path": path, "meta": {"_type": "gradio.FileData"}}
        data = [self.backbone, None, "box", file][: len(self.inputs)]
        joined = {"data": data, "fn_index": self.function, "session_hash": session, "event_data": None}
        status, said = self.ask("POST", "/gradio_api/queue/join", json.dumps(joined).encode())
        return said if status != 200 else said + self.ask("GET", f"/gradio_api/queue/data?session_hash={session}")[1]

    def fault(self) -> str | None:
        """Return what went wrong in the server, or ``None``."""
        if self.marker.exists():
            return f"a program was started: {self.marker.read_text().split()[0]}"
        return "the server ended" if self.process.poll() is not None else None


def _end(process: subprocess.Popen[str]) -> None:
    with process:  # waits, and closes the pipe
        process.kill()
