"""A small imitation of the Hugging Face Hub: repositories are dictionaries of files, served over HTTP."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]


class Hub:
    """The repositories of the service, what was asked of it, and the tokens that it accepts."""

    def __init__(self) -> None:
        self.repositories: dict[str, Files] = {}
        self.private: set[str] = set()
        self.gated: set[str] = set()
        self.tokens = {"write-token"}
        self.asked: list[str] = []
        self.address = ""


def commit_of(files: Files) -> str:
    return hashlib.sha1(b"".join(name.encode() + files[name] for name in sorted(files))).hexdigest()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, value: object, status: int = 200) -> None:
        self.answer(status, json.dumps(value).encode(), Content_Type="application/json")

    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def refused(self, repository: str) -> bool:
        """Answer as the service does for a repository that is missing, private or gated."""
        known = self.token() in self.hub.tokens
        if repository in self.hub.gated and not known:
            self.answer(401, X_Error_Code="GatedRepo", X_Error_Message="Access to model is restricted.")
        elif repository not in self.hub.repositories or (repository in self.hub.private and not known):
            self.answer(404 if known else 401, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        else:
            return False
        return True

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            return self.get_information("/".join(parts[2:4]), parts[4:])
        if len(parts) >= 5 and parts[2] == "resolve":
            return self.get_file("/".join(parts[:2]), "/".join(parts[4:]))
        self.answer(404)

    def get_information(self, repository: str, rest: list[str]) -> None:
        if self.refused(repository):
            return
        files = self.hub.repositories[repository]
        if rest[:1] == ["tree"]:
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
            return self.answer_json(tree)
        siblings = [{"rfilename": name} for name in files]
        self.answer_json({"id": repository, "sha": commit_of(files), "siblings": siblings, "private": False})

    def get_file(self, repository: str, name: str) -> None:
        if self.refused(repository):
            return
        files = self.hub.repositories[repository]
        if name not in files:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")
        tag = hashlib.sha1(files[name]).hexdigest()
        self.answer(200, files[name], ETag=f'"{tag}"', X_Repo_Commit=commit_of(files))

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"POST {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if path == "/api/validate-yaml":
            return self.answer_json({"errors": [], "warnings": []})
        if self.token() not in self.hub.tokens:
            return self.answer_json({"error": "Invalid credentials in Authorization header"}, 401)
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            if asked.get("private") or asked.get("visibility") == "private":
                self.hub.private.add(name)
            self.hub.repositories.setdefault(name, {})
            return self.answer_json({"url": f"{self.hub.address}/{name}", "name": name})
        _, _, user, model, action, *_ = path.strip("/").split("/")
        if action == "preupload":
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return self.answer_json({"files": modes})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.hub.repositories[f"{user}/{model}"][line["value"]["path"]] = base64.b64decode(
                    line["value"]["content"]
                )
        commit = commit_of(self.hub.repositories[f"{user}/{model}"])
        self.answer_json({"commitUrl": f"{self.hub.address}/{user}/{model}/commit/{commit}", "commitOid": commit})


@contextmanager
def serve() -> Iterator[Hub]:
    """Serve an empty hub on a free port of this machine."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
