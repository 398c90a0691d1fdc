"""Write a dataset to a folder, chunk by chunk. A chunk of items appears complete or not at all.

    DIR/dataset.json             kind and settings, written first
    DIR/samples/00000/KEY.png    the files of chunk 0, in the form "folder"
    DIR/shards/00000.tar         the same, in the form "shards" (WebDataset)
    DIR/manifest.jsonl           one line per image or skipped item, written last

Until the dataset is finished, ``.drafts`` contains the files being written, and ``.progress`` the manifest lines of
each finished chunk. The lines are renamed into place after the chunk's files, so a chunk without lines is unfinished.
The next run computes it again, from the indices alone, to the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import secrets
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from localscale.errors import DataError, OutputError
from localscale.lab.data.generation.job import Job, Sample, Skip
from localscale.lab.data.written import DATASET, FORMAT, MANIFEST, chunk_name, is_key
from localscale.lab.folders import differences, locked

__all__ = ["Form", "Store"]

Form = Literal["folder", "shards"]
DRAFTS, PROGRESS = ".drafts", ".progress"
SUFFIX = re.compile(r"[a-z0-9]+(\.[a-z0-9]+)*")
RESERVED = {"key", "index", "chunk", "suffixes", "skipped"}
PATIENCE = 5.0  # seconds to wait for the lock, which the last workers of a killed run may still hold


@dataclass(frozen=True)
class Store:
    """The folder of a dataset of ``size`` items, written in chunks of ``chunk_size`` items."""

    root: Path
    form: Form
    chunk_size: int
    size: int

    @property
    def chunks(self) -> range:
        return range(-(-self.size // self.chunk_size))

    def items(self, chunk: int) -> range:
        """Return the indices of a chunk's items."""
        return range(chunk * self.chunk_size, min((chunk + 1) * self.chunk_size, self.size))

    def unfinished(self) -> list[int]:
        """Return the chunks that still have to be computed."""
        with _as_output_error(self.root):
            if (self.root / MANIFEST).exists():
                return []
            return [chunk for chunk in self.chunks if not self.is_finished(chunk)]

    def is_finished(self, chunk: int) -> bool:
        """Return whether a chunk is complete: its lines of the manifest are written after its files."""
        return self._piece(chunk).exists()

    @contextlib.contextmanager
    def opened(self, job: Job) -> Iterator[int]:
        """Lock the folder for one run, create it if it is missing, and remove the drafts of killed runs.

        Raise ``OutputError`` if the folder contains anything but this job's dataset. Yield the descriptor that holds
        the lock: a process that keeps a duplicate of it open keeps the folder locked.
        """
        with locked(self.root, activity="writing to", patience=PATIENCE) as descriptor:
            with _as_output_error(self.root):
                self._check(job)
            try:
                with _as_output_error(self.root):
                    self._clear()
                    if not (self.root / DATASET).exists():
                        self._write_whole(self.root / DATASET, json.dumps(self._describe(job), indent=2) + "\n")
                yield descriptor
            finally:
                shutil.rmtree(self.root / DRAFTS, ignore_errors=True)

    def write_draft(self, name: str, data: bytes) -> Path:
        """Write a file that is deleted at the end of the run, and return its path."""
        with _as_output_error(self.root):
            draft = self.root / DRAFTS / name
            draft.parent.mkdir(exist_ok=True)
            draft.write_bytes(data)
        return draft

    def write_chunk(self, chunk: int, results: Iterable[tuple[int, list[Sample] | Skip]]) -> None:
        """Write the files of a chunk's items, and then its lines of the manifest, which mark it as finished."""
        draft = self.root / DRAFTS / f"{chunk_name(chunk)}-{_token()}"
        lines, keys = list[str](), set[str]()
        with _as_output_error(self.root):
            draft.mkdir(parents=True, exist_ok=True)
            writer = _FolderWriter(draft) if self.form == "folder" else _ShardWriter(draft)
        try:
            for index, result in results:  # computed here, so that an error of a stage is not reported as a disk error
                if not result:
                    raise DataError(f"item {index} gave no image; return a Skip with the reason")
                with _as_output_error(self.root):
                    for sample in [result] if isinstance(result, Skip) else result:
                        lines.append(_line(sample, index, chunk))
                        if isinstance(sample, Sample):
                            _check_name(sample, keys)
                            writer.write(sample)
            with _as_output_error(self.root):
                path = writer.close()
                if keys:
                    folder = self.root / ("samples" if self.form == "folder" else "shards")
                    _replace(path, folder / f"{chunk_name(chunk)}{path.suffix}")
                self._write_whole(self._piece(chunk), "".join(lines))
        finally:
            with contextlib.suppress(OSError):
                writer.close()
            shutil.rmtree(draft, ignore_errors=True)

    def finish(self) -> None:
        """Join the chunks' lines into the manifest, after every chunk is finished."""
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

    def _write_whole(self, path: Path, text: str) -> None:
        draft = self.root / DRAFTS / f"{path.name}-{_token()}"
        draft.parent.mkdir(exist_ok=True)
        path.parent.mkdir(exist_ok=True)
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def _check(self, job: Job) -> None:
        """Raise ``OutputError`` if the folder contains anything but this job's dataset."""
        try:
            found = json.loads((self.root / DATASET).read_text(encoding="utf-8"))
        except FileNotFoundError:
            if any(path.name != DRAFTS for path in self.root.iterdir()):
                raise OutputError(
                    f"{self.root} is not empty and contains no {DATASET}; choose a new or empty folder with --out"
                ) from None
            return
        except (OSError, ValueError, RecursionError) as error:
            raise OutputError(f"{self.root / DATASET} cannot be read ({error}); choose another --out") from error
        wanted = json.loads(json.dumps(self._describe(job)))
        changes = [line.removeprefix("settings.") for line in differences(found, wanted)]
        if changes and not (self.root / MANIFEST).exists() and not any(self.root.glob(f"{PROGRESS}/*")):
            (self.root / DATASET).unlink()  # the earlier run wrote nothing, for example because a stage failed to load
        elif changes:
            raise OutputError(
                f"{self.root} was started with other settings: {'; '.join(changes[:4])}. "
                "Use the same settings to continue it, or choose another --out"
            )

    def _describe(self, job: Job) -> dict[str, Any]:
        layout = {"form": self.form, "chunk_size": self.chunk_size}
        return {"format": FORMAT, "kind": job.kind, "items": job.size, "layout": layout, "settings": dict(job.settings)}

    def _clear(self) -> None:
        """Remove drafts and the files of unfinished chunks."""
        shutil.rmtree(self.root / DRAFTS, ignore_errors=True)
        if (self.root / MANIFEST).exists():
            shutil.rmtree(self.root / PROGRESS, ignore_errors=True)
            return
        for chunk in self.unfinished():
            shutil.rmtree(self.root / "samples" / chunk_name(chunk), ignore_errors=True)
            (self.root / "shards" / f"{chunk_name(chunk)}.tar").unlink(missing_ok=True)


def _token() -> str:
    """Return a name that no other process on any machine uses."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def _line(sample: Sample | Skip, index: int, chunk: int) -> str:
    if taken := RESERVED & sample.record.keys():
        raise DataError(f"the record of item {index} has the reserved names {', '.join(sorted(taken))}; rename them")
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
            f"sample {sample.key!r} has the files {list(sample.files)}; expected a key of letters, digits, - and _, "
            "and at least one file, but not json, which holds the record"
        )
    if sample.key in keys:
        raise DataError(f"two samples of one chunk have the key {sample.key}")
    keys.add(sample.key)


class _FolderWriter:
    """Writes samples as files in a folder."""

    def __init__(self, draft: Path) -> None:
        self.folder = draft / "samples"
        self.folder.mkdir()

    def write(self, sample: Sample) -> None:
        for suffix, data in sample.files.items():
            (self.folder / f"{sample.key}.{suffix}").write_bytes(data)

    def close(self) -> Path:
        return self.folder


class _ShardWriter:
    """Writes samples as a WebDataset shard without dates and owners, so that equal samples give equal bytes."""

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
    """Rename ``draft`` to ``path``, and replace a folder that an earlier attempt left there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    draft.replace(path)


@contextlib.contextmanager
def _as_output_error(root: Path) -> Iterator[None]:
    """Convert an ``OSError`` into an ``OutputError`` that says what to do."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        remedy = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "; free some space and run the same command again, it continues where it stopped"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            remedy = "; choose a folder you can write to with --out"
        raise OutputError(f"{root} cannot be written: {error.strerror or error}{remedy}") from error
