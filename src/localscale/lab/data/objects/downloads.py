"""Download files completely or not at all: write to a temporary name, verify, rename; retry temporary errors."""

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
    """A client with retries.

    It makes up to ``attempts`` attempts and waits ``pause`` seconds before the second one, twice as long before each
    further one. ``timeout`` is in seconds. Files larger than ``most_bytes`` are refused.
    """

    attempts: int = 4
    pause: float = 1.0
    timeout: float = 60.0
    most_bytes: int = 2 << 30

    def read_json(self, url: str) -> Any:
        """Return the JSON document at ``url``."""

        def read(reply: IO[bytes]) -> Any:
            try:
                return json.loads(reply.read(self.most_bytes))
            except ValueError as error:
                raise DataError(f"the answer of {url} is not JSON: {error}") from error

        return self._ask(url, read)

    def download(self, url: str, path: Path, *, size: int | None = None, md5: str | None = None) -> None:
        """Download ``url`` to ``path``; raise if its length or MD5 checksum differs from what was announced."""

        def write(reply: IO[bytes]) -> None:
            draft = path.with_name(f".{path.name}.part")
            try:
                length, digest = self._copy(reply, draft, url)
                announced = getattr(reply, "headers", {}).get("Content-Length")
                for expected in (size, None if announced is None else int(announced)):
                    if expected is not None and length != expected:
                        raise DataError(f"{url} ended after {length} of {expected} bytes")
                if md5 is not None and digest != md5.lower():
                    raise DataError(f"{url} has the MD5 checksum {digest}; expected {md5}")
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
        """Return ``take(reply)``; retry if there is no connection, the server is busy, or the file is incomplete."""
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise DataError(f"{url} is not a web address; expected http or https")
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


def is_intact(path: Path, *, size: int, md5: str | None = None) -> bool:
    """Return whether a file exists and has this size and MD5 checksum."""
    if not path.is_file() or path.stat().st_size != size:
        return False
    if md5 is None:
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest() == md5.lower()


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
            f"{host} cannot be reached ({reason}); check the network, or copy meshes and panoramas from another machine"
        ) from error


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path.parent} cannot be written: {error.strerror or error}") from error
