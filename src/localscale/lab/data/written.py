"""Read a written dataset, from a folder or from shards."""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

from localscale.errors import DataError
from localscale.files import errors_as
from localscale.lab.folders import stays_inside

__all__ = ["DATASET", "FORMAT", "MANIFEST", "WrittenDataset", "chunk_name", "is_key"]

DATASET, MANIFEST, FORMAT = "dataset.json", "manifest.jsonl", 1
KEY = re.compile(r"[A-Za-z0-9_-]+")


class WrittenDataset:
    """A dataset on disk: its ``settings``, the ``records`` of its images, and its ``skipped`` items with their reasons.

    Opening reads only ``dataset.json`` and the manifest, so the object is cheap to pickle for dataloader workers. Paths
    are built from validated keys, never copied from the manifest.
    """

    def __init__(self, root: str | Path, kind: str | None = None) -> None:
        self.root = Path(root).absolute()
        description = self._read_description()
        self.kind: str = description["kind"]
        self.settings: dict[str, Any] = description["settings"]
        self.form: str = description["layout"]["form"]
        if kind is not None and self.kind != kind:
            raise DataError(f'{self.root} holds a dataset of kind "{self.kind}"; expected "{kind}"')
        self.records: list[dict[str, Any]] = []
        self.skipped: list[dict[str, Any]] = []
        for number, line in enumerate(self._read_manifest(), start=1):
            record = _parse(line, self.root / MANIFEST, number)
            (self.skipped if "skipped" in record else self.records).append(record)

    def __len__(self) -> int:
        return len(self.records)

    def read(self, position: int, suffix: str) -> bytes:
        """Return the bytes of one of a sample's files, such as ``"png"`` or ``"class.png"``."""
        record = self.records[position]
        if suffix not in record["suffixes"]:
            raise DataError(f"sample {record['key']} has no file {suffix}; it has {', '.join(record['suffixes'])}")
        name = f"{record['key']}.{suffix}"
        try:
            if self.form == "folder":
                return self._inside(self._folder(record["chunk"]) / name).read_bytes()
            return self._read_member(record["chunk"], name)
        except OSError as error:
            raise DataError(
                f"{name} of {self.root} cannot be read ({error.strerror}); write the dataset again"
            ) from error

    def reasons(self) -> dict[str, int]:
        """Return the number of skipped items by reason, the most frequent reason first."""
        return dict(Counter(record["skipped"] for record in self.skipped).most_common())

    def groups(self) -> dict[int, list[int]]:
        """Return the positions of the images of each group, which differ in scale only, by the group's number."""
        positions: dict[int, list[int]] = {}
        for position, record in enumerate(self.records):
            if not isinstance(record.get("group"), int):
                raise DataError(f"sample {record['key']} of {self.root} has no group; write the dataset again")
            positions.setdefault(record["group"], []).append(position)
        return positions

    @cached_property
    def _folders(self) -> dict[int, Path]:
        """The folders of the chunks that were opened; none of them leads out of the dataset."""
        return {}

    def _folder(self, chunk: int) -> Path:
        if chunk not in self._folders:
            path = self.root / "samples" / chunk_name(chunk)
            if not stays_inside(path, self.root):
                raise self._outside(path)
            self._folders[chunk] = path
        return self._folders[chunk]

    def _inside(self, path: Path) -> Path:
        """Return a file of a folder that was checked; raise if it is a symbolic link out of the dataset."""
        with errors_as(DataError, f"{path} cannot be read"):
            leaves = path.is_symlink() and not stays_inside(path, self.root)
        if leaves:
            raise self._outside(path)
        return path

    def _outside(self, path: Path) -> DataError:
        return DataError(
            f"{path} leads out of {self.root} by a symbolic link, which is not followed; copy the files to their place"
        )

    @cached_property
    def _members(self) -> dict[int, dict[str, tuple[int, int]]]:
        """The offset and size of each file in the shards that were opened."""
        return {}

    def _read_member(self, chunk: int, name: str) -> bytes:
        path = self.root / "shards" / f"{chunk_name(chunk)}.tar"
        if chunk not in self._members:
            if not stays_inside(path, self.root):
                raise self._outside(path)
            try:
                with tarfile.open(path, "r:") as tar:
                    self._members[chunk] = {member.name: (member.offset_data, member.size) for member in tar}
            except tarfile.TarError as error:
                raise DataError(f"{path} is a broken shard ({error}); write the dataset again") from error
        if name not in self._members[chunk]:
            raise DataError(f"{path} lacks {name}; write the dataset again")
        offset, size = self._members[chunk][name]
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(size)
        if len(data) < size:
            raise DataError(f"{path} ends inside {name}; write the dataset again")
        return data

    def _read_description(self) -> dict[str, Any]:
        path = self._inside(self.root / DATASET)
        try:
            description = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DataError(f"no {DATASET} in {self.root}; expected a folder written by `localscale data`") from error
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        layout = description.get("layout") if isinstance(description, dict) else None
        if not isinstance(layout, dict) or layout.get("form") not in ("folder", "shards"):
            raise DataError(f"{path} does not describe a dataset; expected a file written by `localscale data`")
        if description.get("format") != FORMAT:
            raise DataError(f"{path} has format {description.get('format')!r}; this version reads format {FORMAT}")
        if not isinstance(description.get("kind"), str) or not isinstance(description.get("settings"), dict):
            raise DataError(f"{path} lacks its kind or settings; expected a file written by `localscale data`")
        return description

    def _read_manifest(self) -> list[str]:
        try:
            return self._inside(self.root / MANIFEST).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        except FileNotFoundError as error:
            raise DataError(
                f"{self.root} is unfinished: it has no {MANIFEST}. Run the command that wrote it again; it continues "
                "where it stopped"
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(f"{self.root / MANIFEST} cannot be read: {error}") from error


def chunk_name(chunk: int) -> str:
    """Return the name of a chunk's folder or shard.

    >>> chunk_name(12)
    '00012'
    """
    return f"{chunk:05d}"


def is_key(text: object) -> bool:
    """Return whether ``text`` is a valid file name without a path."""
    return isinstance(text, str) and KEY.fullmatch(text) is not None


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is broken in line {number}: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{path} is broken in line {number}: expected an object")
    if "skipped" in record:
        record["skipped"] = str(record["skipped"])
        return record
    suffixes, chunk = record.get("suffixes"), record.get("chunk")
    suffixes = suffixes if isinstance(suffixes, list) else []
    parts = [part if isinstance(suffix, str) else "" for suffix in suffixes for part in str(suffix).split(".")]
    if not (is_key(record.get("key")) and type(chunk) is int and parts and all(map(is_key, parts))):
        raise DataError(f"{path} is broken in line {number}: its key, chunk or suffixes are not valid in a file name")
    return record
