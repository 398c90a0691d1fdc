"""Downloads that are whole or absent: streamed to a temporary name, checked, renamed; tried again where that helps."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import logging
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from localscale.errors import DataError, OutputError

__all__ = ["Web", "is_intact"]

logger = logging.getLogger(__name__)
T = TypeVar("T")
BLOCK = 1 << 20


@dataclass(frozen=True)
class Web:
    """How to ask servers: how often, how long to wait, and how much to take.

    ``pause`` seconds lie before the second attempt, and twice as many before each further one.
    """

    attempts: int = 4
    pause: float = 1.0
    timeout: float = 60.0
    most_bytes: int = 2 << 30

    def read_json(self, url: str) -> Any:
        """The JSON document at ``url``."""

        def read(reply: IO[bytes]) -> Any:
            try:
                return json.loads(reply.read(self.most_bytes))
            except ValueError as error:
                raise DataError(f"{url} answered something other than JSON: {error}") from error

        return self._ask(url, read)

    def download(self, url: str, path: Path, *, size: int | None = None, md5: str | None = None) -> None:
        """Write what lies at ``url`` to ``path``, if it has the ``size`` and ``md5`` that were announced."""

        def write(reply: IO[bytes]) -> None:
            draft = path.with_name(f".{path.name}.part")
            try:
                length, digest = self._copy(reply, draft, url)
                announced = getattr(reply, "headers", {}).get("Content-Length")
                for expected in (size, None if announced is None else int(announced)):
                    if expected is not None and length != expected:
                        raise DataError(f"{url} ended after {length} of {expected} bytes")
                if md5 is not None and digest != md5.lower():
                    raise DataError(f"{url} has the MD5 sum {digest}; expected {md5}")
                with _writing(path):
                    draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)

        self._ask(url, write)

    def _copy(self, reply: IO[bytes], draft: Path, url: str) -> tuple[int, str]:
        length, digest = 0, hashlib.md5(usedforsecurity=False)
        with _writing(draft), draft.open("wb") as file:
            while True:
                with _reading(url):
                    block = reply.read(BLOCK)
                if not block:
                    return length, digest.hexdigest()
                length += len(block)
                if length > self.most_bytes:
                    raise DataError(f"{url} is larger than {self.most_bytes:,} bytes")
                digest.update(block)
                file.write(block)

    def _ask(self, url: str, take: Callable[[IO[bytes]], T]) -> T:
        """``take`` a server's answer; what may pass (no connection, a busy server, a torn file) is tried again."""
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise DataError(f"{url} is no web address; expected http or https")
        request = urllib.request.Request(url, headers={"User-Agent": "localscale-data-fetch"})
        for attempt in range(1, self.attempts + 1):
            try:
                with _reading(url), urllib.request.urlopen(request, timeout=self.timeout) as reply:
                    return take(reply)
            except DataError as error:
                cause = error.__cause__
                lasting = isinstance(cause, urllib.error.HTTPError) and cause.code < 500 and cause.code != 429
                if lasting or attempt == self.attempts:
                    raise
                logger.info("%s; attempt %d of %d", error, attempt + 1, self.attempts)
                time.sleep(self.pause * 2 ** (attempt - 1))
        raise AssertionError("unreachable: attempts is at least 1")


def is_intact(path: Path, *, size: int | None = None, md5: str | None = None, sha256: str | None = None) -> bool:
    """Whether a file is there and is what it should be."""
    if not path.is_file() or (size is not None and path.stat().st_size != size):
        return False
    for name, expected in {"md5": md5, "sha256": sha256}.items():
        if expected is not None:
            with path.open("rb") as file:
                if hashlib.file_digest(file, name).hexdigest() != expected.lower():
                    return False
    return True


@contextlib.contextmanager
def _reading(url: str) -> Iterator[None]:
    try:
        yield
    except OutputError:
        raise
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"{url} answered {error.code} {error.reason}") from error
    except (http.client.HTTPException, OSError) as error:
        host = urllib.parse.urlsplit(url).netloc
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"{host} cannot be reached ({reason}); check the network, or bring meshes and panoramas by other means"
        ) from error


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path.parent} cannot be written: {error.strerror or error}") from error
