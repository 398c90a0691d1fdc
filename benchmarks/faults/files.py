"""Damaged files: each must load to exactly the values that were written, or be refused by an error of the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from benchmarks.faults.campaign import Campaign
from benchmarks.faults.saved import KINDS, OPEN_KINDS, Saved, equal, in_memory, warmed_up
from localscale.errors import LocalScaleError

__all__ = ["MUTATIONS", "DamagedFiles", "edited_json"]

NUMBERS = (-1, 0, 1, 3.7, 1e308, float("nan"), 10**30)
ODD: tuple[Any, ...] = (None, True, False, *NUMBERS, "", "x", "<b>[a](b)|`", "a\0b", [], [1], {}, {"a": 1})


def _flip(data: bytes, draw: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _replace(data: bytes, draw: Random) -> bytes:
    changed = bytearray(data)
    changed[draw.randrange(len(data))] = draw.choice(b'0123456789-.eE,:[]{}"ntf \n\\')
    return bytes(changed)


def _truncate(data: bytes, draw: Random) -> bytes:
    return data[: draw.choice((0, 1, 8, draw.randrange(len(data)), len(data) - 1))]


def _extend(data: bytes, draw: Random) -> bytes:
    return data + draw.choice((b"\n", b"\0", draw.randbytes(8), data[-100:], data))


def _lose(data: bytes, draw: Random) -> bytes:
    """Lose some bytes, or a line."""
    if draw.random() < 0.3:
        lines = data.splitlines(keepends=True)
        lines.pop(draw.randrange(len(lines)))
        return b"".join(lines)
    start = draw.randrange(len(data))
    return data[:start] + data[start + draw.choice((1, 4, 512)) :]


def _zero(data: bytes, draw: Random) -> bytes:
    start, count = draw.randrange(len(data)), draw.choice((1, 64, 4096))
    part = data[start : start + count]
    return data[:start] + bytes(len(part)) + data[start + len(part) :]


def _swap(data: bytes, draw: Random) -> bytes:
    """Exchange two blocks, or two lines."""
    if draw.random() < 0.3:
        lines = data.splitlines(keepends=True)
        draw.shuffle(lines)
        return b"".join(lines)
    size = max(1, min(draw.choice((4, 64, 512)), len(data) // 2))
    one, two = sorted((draw.randrange(len(data) - size + 1), draw.randrange(len(data) - size + 1)))
    if two < one + size:
        return data
    return data[:one] + data[two : two + size] + data[one + size : two] + data[one : one + size] + data[two + size :]


def _edit(data: bytes, draw: Random) -> bytes:
    """Edit a value of JSON: of the whole file, of one of its lines, or of a safetensors header."""
    size = int.from_bytes(data[:8], "little")
    if 8 + size <= len(data):
        text = edited_json(data[8 : 8 + size].decode(), draw).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + size :]
    lines = data.decode(errors="replace").splitlines()
    try:
        json.loads(lines[0])
    except ValueError:
        return _whole(data, draw)
    number = draw.randrange(len(lines))
    lines[number] = edited_json(lines[number], draw)
    return "".join(f"{line}\n" for line in lines).encode()


def _whole(data: bytes, draw: Random) -> bytes:
    try:
        return edited_json(data.decode(), draw).encode()
    except ValueError:  # no JSON
        return _flip(data, draw)


def edited_json(text: str, draw: Random) -> str:
    """Return a JSON text with one of its values replaced, removed, renamed or added."""
    root = json.loads(text)
    holders: list[Any] = []

    def visit(value: Any) -> None:
        if isinstance(value, dict | list) and value:
            holders.append(value)
            for item in value.values() if isinstance(value, dict) else value:
                visit(item)

    visit(root)
    if not holders or draw.random() < 0.05:
        return json.dumps(draw.choice(ODD))
    holder = draw.choice(holders)
    key = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    deed = draw.choice(("replace", "replace", "near", "remove", "rename", "add"))
    if deed == "remove":
        del holder[key]
    elif deed == "rename" and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    elif deed == "add" and isinstance(holder, dict):
        holder["added"] = draw.choice(ODD)
    elif deed == "add":
        holder.append(draw.choice(ODD))
    else:
        holder[key] = _near(holder[key], draw) if deed == "near" else draw.choice(ODD)
    return json.dumps(root)


def _near(value: Any, draw: Random) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + draw.choice((1, -1, 0.5, 1000))
    return f"{value}x" if isinstance(value, str) else draw.choice(ODD)


MUTATIONS: dict[str, Callable[[bytes, Random], bytes]] = {
    "bits flipped": _flip,
    "a byte replaced": _replace,
    "truncated": _truncate,
    "extended": _extend,
    "bytes lost": _lose,
    "zeroed": _zero,
    "swapped": _swap,
    "JSON edited": _edit,
}


class DamagedFiles(Campaign):
    """Damage one file of a model, checkpoint, run or dataset, and read it."""

    name = "files"
    about = "damaged models, checkpoints, weights, runs and datasets"
    goal = 2_000
    share = 1.0
    patience = 20.0
    kinds: ClassVar[tuple[Saved, ...]] = KINDS + OPEN_KINDS

    def prepare(self, folder: Path) -> None:
        folder = in_memory(folder)
        warmed_up(folder / "warm")
        self.folders = {kind.name: folder / kind.name for kind in self.kinds}
        self.files: dict[str, dict[Path, bytes]] = {}
        self.values: dict[str, Any] = {}
        for kind in self.kinds:
            kind.write(self.folders[kind.name], 1)
            paths = [path for path in sorted(self.folders[kind.name].rglob("*")) if path.is_file()]
            self.files[kind.name] = {path: path.read_bytes() for path in paths}
            self.values[kind.name] = kind.read(self.folders[kind.name])

    def trial(self, draw: Random) -> str | None:
        kind = draw.choice(self.kinds)
        files = self.files[kind.name]
        path = draw.choice(list(files))
        deed = draw.choice([*MUTATIONS, "removed", "replaced by another file", "made a folder"])
        changed: bytes | None = None
        if deed in MUTATIONS:
            changed = MUTATIONS[deed](files[path], draw)
        elif deed == "replaced by another file":
            others = {name: data for held in self.files.values() for name, data in held.items() if name != path}
            changed = others[draw.choice(list(others))]
        if changed == files[path]:
            return None
        try:
            path.unlink()
            if changed is not None:
                path.write_bytes(changed)
            elif deed == "made a folder":
                path.mkdir()
            return self._judge(kind, path, deed)
        finally:
            if path.is_dir():
                path.rmdir()
            path.write_bytes(files[path])

    def _judge(self, kind: Saved, path: Path, deed: str) -> str | None:
        try:
            found = kind.read(self.folders[kind.name])
        except LocalScaleError as error:
            return None if str(error).strip() else f"{path.name} of a {kind.name}, {deed}: an error without a message"
        expected = self.values[kind.name]
        if deed == "removed" and path.name == "log.jsonl":  # reports say that the log is missing
            expected = expected | {"log": []}
        if not kind.sealed or equal(found, expected):
            return None
        wrong = sorted(key for key in expected if key not in found or not equal(found[key], expected[key]))
        return f"{path.name} of a {kind.name}, {deed}: it loads, but not what was written: {', '.join(wrong[:3])}"
