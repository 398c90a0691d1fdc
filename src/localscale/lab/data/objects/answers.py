"""Read the answers of the two collections' servers; nothing in them is trusted before it is checked."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localscale.errors import DataError

__all__ = ["PanoramaFile", "is_name", "plain", "read_authors", "read_names", "read_panorama_file"]

NAME = re.compile(r"[\w()&+,'-][\w()&+,.' -]*")
MOST_NAME_BYTES = 150  # a file system allows 255, of which prefix and ending need some
MOST_AUTHORS, MOST_AUTHOR, MOST_TEXT = 20, 100, 300  # the latter two in characters
MD5 = re.compile(r"[0-9a-fA-F]{32}")


@dataclass(frozen=True)
class PanoramaFile:
    """The address of a panorama, its size and its MD5 checksum."""

    url: str
    size: int
    md5: str


def is_name(value: Any) -> bool:
    """Return whether a model's or panorama's name can safely name a file.

    >>> is_name("Cup (blue)"), is_name("../cup"), is_name(".cup"), is_name("x" * 999)
    (True, False, False, False)
    """
    return isinstance(value, str) and bool(NAME.fullmatch(value)) and len(value.encode()) <= MOST_NAME_BYTES


def plain(text: Any) -> str:
    """Return a server's words on one line, cut, and without characters that would control a terminal."""
    shown = "".join(letter if letter.isprintable() else "�" for letter in str(text))
    return shown if len(shown) <= MOST_TEXT else shown[: MOST_TEXT - 1] + "…"


def read_names(models: Any, owner: str) -> list[str]:
    """Return the names on one page of Gazebo Fuel's list that belong to ``owner``; odd entries are left out."""
    if not isinstance(models, list):
        raise DataError(f"returned a {type(models).__name__}; expected a list of models")
    ours = (model for model in models if isinstance(model, dict) and model.get("owner", owner) == owner)
    return [model["name"] for model in ours if isinstance(model.get("name"), str)]


def read_authors(entry: Any) -> tuple[str, ...]:
    """Return the authors of a panorama; Poly Haven lists them as the keys of an object.

    >>> read_authors({"authors": {"Ann": "All"}}), read_authors({"authors": 7})
    (('Ann',), ('Poly Haven',))
    """
    authors = entry.get("authors") if isinstance(entry, dict) else None
    names = [name for name in authors if isinstance(name, str)] if isinstance(authors, dict | list) else []
    return tuple(plain(name)[:MOST_AUTHOR] for name in names[:MOST_AUTHORS]) or ("Poly Haven",)


def read_panorama_file(files: Any, name: str, resolution: str, server: str) -> PanoramaFile:
    """Return the address, size and checksum of the ``.hdr`` file of one resolution."""
    sizes = files.get("hdri") if isinstance(files, dict) else None
    if isinstance(sizes, dict) and sizes and resolution not in sizes:
        raise DataError(f'{name} has no resolution "{resolution}"; it has {_short(sorted(sizes))}')
    forms = sizes.get(resolution) if isinstance(sizes, dict) else None
    file = forms.get("hdr") if isinstance(forms, dict) else None
    if not isinstance(file, dict):
        raise DataError(f"{server} gives no address for the .hdr file of {name}")
    url, size, md5 = (file.get(key) for key in ("url", "size", "md5"))
    if not isinstance(url, str) or type(size) is not int or size <= 0 or not isinstance(md5, str):
        raise DataError(f"{server} gives no address, size and MD5 checksum for the .hdr file of {name}")
    if not MD5.fullmatch(md5):
        raise DataError(f"{server} gives {plain(md5)[:MOST_AUTHOR]!r} as the MD5 checksum of {name}")
    if not is_as_safe(url, server):
        raise DataError(f"{server} gives the address {plain(url)}; expected {urllib.parse.urlsplit(server).scheme}")
    return PanoramaFile(url, size, md5.lower())


def is_as_safe(url: str, server: str) -> bool:
    """Return whether a file's address is encrypted, or the server's was not either."""
    return url.startswith("https://") or (url.startswith("http://") and server.startswith("http://"))


def _short(names: Sequence[str]) -> str:
    return plain(", ".join(names[:20]))
