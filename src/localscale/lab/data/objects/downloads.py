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
from typing import Any, TypeVar

from localscale.errors import DataError, OutputError
from localscale.lab.data.objects.answers import plain

__all__ = ["Web", "is_intact"]

logger = logging.getLogger(__name__)
T = TypeVar("T")
BLOCK, HEAD = 1 << 20, 16


@dataclass(frozen=True)
class Web:
    """A client with retries.

    It makes up to ``attempts`` attempts and waits ``pause`` seconds before the second one, twice as long before each
    further one. No part of an answer may take longer than ``timeout`` seconds, and no answer ``most_seconds``. Files
    larger than ``most_bytes`` and JSON documents larger than ``most_json_bytes`` are refused.
    """

    attempts: int = 4
    pause: float = 1.0
    timeout: float = 60.0
    most_bytes: int = 1 << 30
    most_json_bytes: int = 64 << 20
    most_seconds: float = 3600.0

    def read_json(self, url: str) -> Any:
        """Return the JSON document at ``url``."""

        def read(reply: http.client.HTTPResponse) -> Any:
            data = b"".join(self._blocks(reply, url, self.most_json_bytes))
            try:
                return json.loads(data)
            except (ValueError, RecursionError) as error:  # the latter from brackets nested very deeply
                raise DataError(f"the answer of {url} is not JSON: {error}") from error

        return self._ask(url, read)

    def download(
        self, url: str, path: Path, *, size: int | None = None, md5: str | None = None, begins: bytes = b""
    ) -> None:
        """Download ``url`` to ``path``; raise if its length or MD5 checksum differs from what was announced.

        ``begins`` are the bytes with which every file of the expected kind begins.
        """

        def write(reply: http.client.HTTPResponse) -> None:
            draft = path.with_name(f".{path.name}.part")
            try:
                length, digest, first = self._copy(reply, draft, url)
                for expected in (size, _announced(reply)):
                    if expected is not None and length != expected:
                        raise DataError(f"{url} ended after {length} of {expected} bytes")
                if md5 is not None and digest != md5.lower():
                    raise DataError(f"{url} has the MD5 checksum {digest}; expected {md5}")
                if not first.startswith(begins):
                    raise DataError(f"{url} is not the file that was expected: it begins with {first[:16]!r}")
                with _writing(path):
                    draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)

        self._ask(url, write)

    def _copy(self, reply: http.client.HTTPResponse, draft: Path, url: str) -> tuple[int, str, bytes]:
        length, digest, first = 0, hashlib.md5(usedforsecurity=False), b""
        with _writing(draft), draft.open("wb") as file:
            for block in self._blocks(reply, url, self.most_bytes):
                first = first if len(first) >= HEAD else (first + block)[:HEAD]
                length += len(block)
                digest.update(block)
                file.write(block)
        return length, digest.hexdigest(), first

    def _blocks(self, reply: http.client.HTTPResponse, url: str, most: int) -> Iterator[bytes]:
        """Yield an answer as it arrives; raise if it is too large or takes too long."""
        total, deadline = 0, time.monotonic() + self.most_seconds
        while True:
            with _reading(url):
                block = reply.read1(BLOCK)  # read would wait for a whole block, however slowly it comes
            if not block:
                return
            total += len(block)
            if total > most:
                raise DataError(f"{url} is larger than {most:,} bytes") from None
            if time.monotonic() > deadline:
                raise DataError(f"{url} did not arrive within {self.most_seconds:g} seconds")
            yield block

    def _ask(self, url: str, take: Callable[[http.client.HTTPResponse], T]) -> T:
        """Return ``take(reply)``; retry if there is no connection, the server is busy, or the file is incomplete."""
        if not url.startswith(("http://", "https://")) or not url.isascii() or not url.isprintable():
            raise DataError(f"{plain(url)} is not a web address; expected http or https")
        for attempt in range(1, self.attempts + 1):
            try:
                with _reading(url):
                    request = urllib.request.Request(url, headers={"User-Agent": "localscale-data-fetch"})
                    with OPENER.open(request, timeout=self.timeout) as reply:
                        return take(reply)
            except DataError as error:
                cause = error.__cause__
                lasting = isinstance(cause, urllib.error.HTTPError) and cause.code < 500 and cause.code != 429
                lasting |= isinstance(error, UnsafeError)
                if lasting or attempt == self.attempts:
                    raise
                logger.info("%s; attempt %d of %d", error, attempt + 1, self.attempts)
                time.sleep(self.pause * 2 ** (attempt - 1))
        raise AssertionError("unreachable: attempts is at least 1")


class UnsafeError(DataError):
    """A server sent a client to an address that it must not follow; another attempt is useless."""


class OnlySafer(urllib.request.HTTPRedirectHandler):
    """Follow redirections to the web only, and none from an encrypted address to one that is not."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not newurl.startswith("https://") and not (newurl.startswith("http://") and req.type == "http"):
            raise UnsafeError(f"{req.full_url} leads to {plain(newurl)}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


OPENER = urllib.request.build_opener(OnlySafer())


def _announced(reply: http.client.HTTPResponse) -> int | None:
    """Return the length that the header announces, if it is a number."""
    text = reply.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


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
    except (OutputError, DataError):
        raise
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"{url} answered {error.code} {plain(error.reason)}") from error
    except ValueError as error:  # from an address or a header that is malformed
        raise DataError(f"{plain(url)} cannot be read: {plain(error)}") from error
    except (http.client.HTTPException, OSError) as error:
        host = urllib.parse.urlsplit(url).netloc
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"{host} cannot be reached ({plain(reason)}); check the network, or copy meshes and panoramas from another "
            "machine"
        ) from error


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path.parent} cannot be written: {error.strerror or error}") from error
