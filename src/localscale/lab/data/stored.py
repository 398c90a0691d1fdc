"""Reading a written dataset back, from a folder or from shards."""

from __future__ import annotations

import json
import tarfile
from functools import cached_property
from pathlib import Path
from typing import Any

from localscale.errors import DataError
from localscale.lab.data.generation.store import DATASET, FORMAT, MANIFEST, chunk_name, is_key

__all__ = ["Stored"]


class Stored:
    """A written dataset: ``settings``, a ``records`` entry for every image, and ``skipped`` items with their reasons.

    Paths are made from keys that were checked, never read from the manifest. Opening reads the manifest only, so the
    object travels to dataloader workers cheaply.
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
        """The bytes of one of a sample's files, such as ``"png"`` or ``"class.png"``."""
        record = self.records[position]
        if suffix not in record["suffixes"]:
            raise DataError(f"sample {record['key']} has no file {suffix}; it has {', '.join(record['suffixes'])}")
        name = f"{record['key']}.{suffix}"
        try:
            if self.form == "folder":
                return (self.root / "samples" / chunk_name(record["chunk"]) / name).read_bytes()
            return self._read_member(record["chunk"], name)
        except OSError as error:
            raise DataError(
                f"{name} of {self.root} cannot be read ({error.strerror}); make the dataset again"
            ) from error

    def groups(self, field: str = "group") -> dict[int, list[int]]:
        """The positions of the images of each scene, by the number it has in the manifest."""
        positions: dict[int, list[int]] = {}
        for position, record in enumerate(self.records):
            if not isinstance(record.get(field), int):
                raise DataError(f"sample {record['key']} of {self.root} has no {field}; make the dataset again")
            positions.setdefault(record[field], []).append(position)
        return positions

    @cached_property
    def _members(self) -> dict[int, dict[str, tuple[int, int]]]:
        """For each opened shard, where its files' bytes lie."""
        return {}

    def _read_member(self, chunk: int, name: str) -> bytes:
        path = self.root / "shards" / f"{chunk_name(chunk)}.tar"
        if chunk not in self._members:
            try:
                with tarfile.open(path, "r:") as tar:
                    self._members[chunk] = {member.name: (member.offset_data, member.size) for member in tar}
            except tarfile.TarError as error:
                raise DataError(f"{path} is a broken shard ({error}); make the dataset again") from error
        if name not in self._members[chunk]:
            raise DataError(f"{path} lacks {name}; make the dataset again")
        offset, size = self._members[chunk][name]
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(size)
        if len(data) < size:
            raise DataError(f"{path} ends inside {name}; make the dataset again")
        return data

    def _read_description(self) -> dict[str, Any]:
        path = self.root / DATASET
        try:
            description = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DataError(f"no {DATASET} in {self.root}; expected a folder written by `localscale data`") from error
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        layout = description.get("layout") if isinstance(description, dict) else None
        if not isinstance(layout, dict) or layout.get("form") not in ("folder", "shards"):
            raise DataError(f"{path} describes no dataset; expected a file written by `localscale data`")
        if description.get("format") != FORMAT:
            raise DataError(f"{path} has format {description.get('format')!r}; this version reads format {FORMAT}")
        if not isinstance(description.get("kind"), str) or not isinstance(description.get("settings"), dict):
            raise DataError(f"{path} lacks its kind or settings; expected a file written by `localscale data`")
        return description

    def _read_manifest(self) -> list[str]:
        try:
            return (self.root / MANIFEST).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        except FileNotFoundError as error:
            raise DataError(
                f"{self.root} is unfinished: it has no {MANIFEST}. Run the command that made it again; it goes on "
                "where it stopped"
            ) from error
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.root / MANIFEST} cannot be read: {error}") from error


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
    parts = [part for suffix in suffixes for part in str(suffix).split(".")] if isinstance(suffixes, list) else []
    if not (is_key(record.get("key")) and isinstance(chunk, int) and parts and all(map(is_key, parts))):
        raise DataError(f"{path} is broken in line {number}: key, chunk or suffixes cannot name a file")
    return record
