"""Where a dataset lies on disk, and how it gets there: a chunk of items appears whole, or not at all.

    DIR/dataset.json             kind and settings, written first
    DIR/samples/00000/KEY.png    the files of chunk 0, in the form "folder"
    DIR/shards/00000.tar         the same, in the form "shards" (WebDataset)
    DIR/manifest.jsonl           one line per image or skipped item, written last

While it grows, ``.drafts`` holds what is being written and ``.progress`` the manifest's finished pieces. A chunk is
done when its piece is there, and that piece is renamed into place after the chunk's files are: whatever is killed in
between is made again, from the index alone, to the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import re
import secrets
import shutil
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from localscale.errors import DataError, OutputError
from localscale.lab.data.generation.job import Job, Sample, Skip

__all__ = ["DATASET", "FORMAT", "MANIFEST", "Form", "Store", "chunk_name", "is_key"]

Form = Literal["folder", "shards"]
DATASET, MANIFEST, FORMAT = "dataset.json", "manifest.jsonl", 1
DRAFTS, PROGRESS = ".drafts", ".progress"
KEY = re.compile(r"[A-Za-z0-9_-]+")
SUFFIX = re.compile(r"[a-z0-9]+(\.[a-z0-9]+)*")
RESERVED = {"key", "index", "chunk", "suffixes", "skipped"}
PATIENCE = 5.0  # seconds to wait for a lock


@dataclass(frozen=True)
class Store:
    """A folder that a job of ``size`` items is written to, in chunks of ``chunk_size`` items."""

    root: Path
    form: Form
    chunk_size: int
    size: int

    @property
    def chunks(self) -> range:
        return range(-(-self.size // self.chunk_size))

    def items(self, chunk: int) -> range:
        """The indices of a chunk's items."""
        return range(chunk * self.chunk_size, min((chunk + 1) * self.chunk_size, self.size))

    def unfinished(self) -> list[int]:
        """The chunks that still have to be made."""
        if (self.root / MANIFEST).exists():
            return []
        return [chunk for chunk in self.chunks if not self._piece(chunk).exists()]

    @contextlib.contextmanager
    def opened(self, job: Job) -> Iterator[int]:
        """Hold the folder for one run: made if absent, refused if it holds something else, cleared of drafts.

        Yields the descriptor that holds the lock. Whoever keeps a duplicate of it open keeps the folder locked.
        """
        if self.root.is_file():
            raise OutputError(f"{self.root} is a file, not a folder; choose another --out")
        with _as_output_error(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.root, os.O_RDONLY)
        locked = False
        try:
            self._lock(handle)
            locked = True
            self._check(job)
            with _as_output_error(self.root):
                self._clear()
                if not (self.root / DATASET).exists():
                    self._rename_into(DATASET, json.dumps(self._describe(job), indent=2) + "\n")
            yield handle
        finally:
            if locked:
                shutil.rmtree(self.root / DRAFTS, ignore_errors=True)
            os.close(handle)  # also lets go of the lock, as the end of the process would

    def write_chunk(self, chunk: int, results: Iterable[tuple[int, list[Sample] | Skip]]) -> None:
        """Write a chunk's files, then its piece of the manifest; without its piece a chunk does not count."""
        draft = self.root / DRAFTS / f"{chunk_name(chunk)}-{_token()}"
        lines, keys = list[str](), set[str]()
        with _as_output_error(self.root):
            draft.mkdir(parents=True, exist_ok=True)
            writer = _FolderWriter(draft) if self.form == "folder" else _ShardWriter(draft)
        try:
            for index, result in results:  # what goes wrong in making an item is not the disk's fault
                if not result:
                    raise DataError(f"item {index} gave neither an image nor a reason; return a Skip")
                with _as_output_error(self.root):
                    for sample in [result] if isinstance(result, Skip) else result:
                        lines.append(_line(sample, index, chunk))
                        if isinstance(sample, Sample):
                            _check_name(sample, keys)
                            writer.write(sample)
            with _as_output_error(self.root):
                path = writer.close()
                if keys:
                    place = self.root / ("samples" if self.form == "folder" else "shards")
                    _replace(path, place / f"{chunk_name(chunk)}{path.suffix}")
                self._rename_into(self._piece(chunk), "".join(lines))
        finally:
            with contextlib.suppress(OSError):
                writer.close()
            shutil.rmtree(draft, ignore_errors=True)

    def finish(self) -> None:
        """Put the manifest together, once every chunk is done."""
        with _as_output_error(self.root):
            if not (self.root / MANIFEST).exists():
                draft = self.root / DRAFTS / MANIFEST
                draft.parent.mkdir(exist_ok=True)
                with draft.open("wb") as whole:
                    for chunk in self.chunks:
                        whole.write(self._piece(chunk).read_bytes())
                draft.replace(self.root / MANIFEST)
            shutil.rmtree(self.root / PROGRESS, ignore_errors=True)
            shutil.rmtree(self.root / DRAFTS, ignore_errors=True)

    def _piece(self, chunk: int) -> Path:
        return self.root / PROGRESS / f"{chunk_name(chunk)}.jsonl"

    def _rename_into(self, name: str | Path, text: str) -> None:
        path = self.root / name
        draft = self.root / DRAFTS / f"{path.name}-{_token()}"
        draft.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def _lock(self, handle: int) -> None:
        patience = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() < patience:  # the last workers of a killed run may still be on their way out
                    time.sleep(0.1)
                    continue
                raise OutputError(
                    f"another run is writing to {self.root}; wait for it, or choose another folder with --out"
                ) from error
            except OSError as error:
                raise OutputError(
                    f"{self.root} cannot be locked ({error.strerror}); choose a folder on a disk that can"
                ) from error

    def _check(self, job: Job) -> None:
        """Refuse a folder that holds something else."""
        try:
            found = json.loads((self.root / DATASET).read_text(encoding="utf-8"))
        except FileNotFoundError:
            if any(path.name != DRAFTS for path in self.root.iterdir()):
                raise OutputError(
                    f"{self.root} is not empty and holds no {DATASET}; choose a new or empty folder with --out"
                ) from None
            return
        except (OSError, ValueError, RecursionError) as error:
            raise OutputError(f"{self.root / DATASET} cannot be read ({error}); choose another --out") from error
        wanted = json.loads(json.dumps(self._describe(job)))
        differences = list(_differences(found, wanted))
        if differences and not (self.root / MANIFEST).exists() and not any(self.root.glob(f"{PROGRESS}/*")):
            (self.root / DATASET).unlink()  # nothing was made with those settings, as when a stage could not be loaded
        elif differences:
            raise OutputError(
                f"{self.root} was begun with other settings: {'; '.join(differences[:4])}. "
                "Use the same settings to continue it, or choose another --out"
            )

    def _describe(self, job: Job) -> dict[str, Any]:
        layout = {"form": self.form, "chunk_size": self.chunk_size}
        return {"format": FORMAT, "kind": job.kind, "items": job.size, "layout": layout, "settings": dict(job.settings)}

    def _clear(self) -> None:
        """Remove drafts, and the files of chunks whose piece of the manifest is not there."""
        shutil.rmtree(self.root / DRAFTS, ignore_errors=True)
        if (self.root / MANIFEST).exists():
            shutil.rmtree(self.root / PROGRESS, ignore_errors=True)
            return
        for chunk in self.unfinished():
            shutil.rmtree(self.root / "samples" / chunk_name(chunk), ignore_errors=True)
            (self.root / "shards" / f"{chunk_name(chunk)}.tar").unlink(missing_ok=True)


def chunk_name(chunk: int) -> str:
    """How a chunk's folder or shard is called.

    >>> chunk_name(12)
    '00012'
    """
    return f"{chunk:05d}"


def is_key(text: object) -> bool:
    """Whether ``text`` may name a sample's files: never a path."""
    return isinstance(text, str) and KEY.fullmatch(text) is not None


def _token() -> str:
    """A name for a draft that no other process has, on any machine."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def _line(sample: Sample | Skip, index: int, chunk: int) -> str:
    if taken := RESERVED & sample.record.keys():
        raise DataError(f"the record of item {index} has {', '.join(sorted(taken))}, which the manifest writes itself")
    if isinstance(sample, Skip):
        line = {"index": index, "chunk": chunk, "skipped": sample.reason, **sample.record}
    else:
        suffixes = sorted(sample.files)
        line = {"key": sample.key, "index": index, "chunk": chunk, "suffixes": suffixes, **sample.record}
    return json.dumps(line, allow_nan=False) + "\n"


def _check_name(sample: Sample, keys: set[str]) -> None:
    names = [suffix for suffix in sample.files if SUFFIX.fullmatch(suffix) and suffix != "json"]
    if not is_key(sample.key) or not names or len(names) < len(sample.files):
        raise DataError(
            f"{sample.key!r} with files {list(sample.files)} cannot name files; use letters and digits, at least one "
            "file, and leave json to the record"
        )
    if sample.key in keys:
        raise DataError(f"two samples of one chunk have the key {sample.key}")
    keys.add(sample.key)


class _FolderWriter:
    """Samples as files in a folder."""

    def __init__(self, draft: Path) -> None:
        self.folder = draft / "samples"
        self.folder.mkdir()

    def write(self, sample: Sample) -> None:
        for suffix, data in sample.files.items():
            (self.folder / f"{sample.key}.{suffix}").write_bytes(data)

    def close(self) -> Path:
        return self.folder


class _ShardWriter:
    """Samples as a WebDataset shard without dates or owners, so that the same samples give the same bytes."""

    def __init__(self, draft: Path) -> None:
        self.path = draft / "shard.tar"
        self.tar = tarfile.open(self.path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115 (closed below)

    def write(self, sample: Sample) -> None:
        record = json.dumps(dict(sample.record), allow_nan=False).encode()
        for suffix, data in sorted({**sample.files, "json": record}.items()):
            member = tarfile.TarInfo(f"{sample.key}.{suffix}")
            member.size = len(data)
            self.tar.addfile(member, io.BytesIO(data))

    def close(self) -> Path:
        self.tar.close()
        return self.path


def _replace(draft: Path, path: Path) -> None:
    """Rename, also over a folder that an earlier try left there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    draft.replace(path)


def _differences(found: Any, wanted: Any, name: str = "") -> Iterator[str]:
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key in sorted(found.keys() | wanted.keys()):
            yield from _differences(found.get(key), wanted.get(key), f"{name}.{key}" if name else key)
    elif found != wanted:
        yield f"{name.removeprefix('settings.')} was {_short(found)} and is now {_short(wanted)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


@contextlib.contextmanager
def _as_output_error(root: Path) -> Iterator[None]:
    """Turn what the disk says into what to do."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        remedy = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "; free some space and run the same command again: it goes on where it stopped"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            remedy = "; choose a folder you can write to with --out"
        raise OutputError(f"{root} cannot be written: {error.strerror or error}{remedy}") from error
