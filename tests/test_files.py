"""Files are written atomically, and the original error is raised."""

import errno
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from localscale.errors import DataError, OutputError
from localscale.files import read_whole, seal, unseal, write_all, write_whole


def test_written_over_and_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.txt"
    write_whole(path, "one")
    write_whole(path, b"two")
    assert read_whole(path, "b") == b"two"
    assert [child.name for child in path.parent.iterdir()] == ["b.txt"]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")

    def fail(draft: Path) -> None:
        draft.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_all({tmp_path / "old": lambda draft: draft.write_text("new"), tmp_path / "other": fail})
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old", "old")]


def test_a_name_too_long_and_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written: File name too long"):
        write_whole(tmp_path / ("x" * 250), "text")
    with pytest.raises(OutputError, match="cannot be written"):
        write_whole(tmp_path / "file" / "below", "text")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match=r"mesh a is empty \(zero bytes\)"):
        read_whole(tmp_path / "empty", "mesh a")
    with pytest.raises(DataError, match="mesh b cannot be read: No such file"):
        read_whole(tmp_path / "absent", "mesh b")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write_whole(tmp_path / name, "text")
    with pytest.raises(DataError, match="mesh cannot be read"):
        read_whole(tmp_path / name, "mesh")


def test_files_are_renamed_in_the_order_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def until_second(draft: Path, path: Path) -> Path:
        if path.name == "second":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return replace(draft, path)

    monkeypatch.setattr(Path, "replace", until_second)
    with pytest.raises(OSError, match="Input/output error"):
        write_all({tmp_path / name: lambda draft: draft.write_text("new") for name in ("first", "second", "third")})
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_everything_is_on_the_disk_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, sync, replace = [], os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: steps.append("sync") or sync(number))
    monkeypatch.setattr(Path, "replace", lambda draft, path: steps.append("rename") or replace(draft, path))
    write_all({tmp_path / name: lambda draft: draft.write_text("new") for name in ("a", "b")})
    assert steps == ["sync", "sync", "rename", "sync", "rename", "sync"]
    steps.clear()
    write_whole(tmp_path / "c", "new", durable=True)
    assert steps == ["sync", "rename", "sync"]


# Drafts


def half_written(folder: Path, ready: str) -> None:
    def write(draft: Path) -> None:
        draft.write_text("half")
        (folder / ready).touch()
        time.sleep(600)

    write_all({folder / "file": write})


def test_the_drafts_of_killed_processes_are_cleared_and_no_others(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    dead, alive = (context.Process(target=half_written, args=(tmp_path, name)) for name in ("dead", "alive"))
    foreign = tmp_path / ".file.part"
    foreign.touch()
    for process in (dead, alive):
        process.start()
    while not ((tmp_path / "dead").exists() and (tmp_path / "alive").exists()):
        assert dead.is_alive()
        assert alive.is_alive()
        time.sleep(0.01)
    os.kill(dead.pid, signal.SIGKILL)
    dead.join()
    try:
        assert len(list(tmp_path.glob(".file.*-*.part"))) == 2
        write_all({tmp_path / "other": lambda draft: draft.write_text("new")})
        (left,) = tmp_path.glob(".file.*-*.part")
        assert f".{alive.pid}-" in left.name
        assert foreign.exists()
    finally:
        alive.kill()
        alive.join()
    write_whole(tmp_path / "other", "newer", durable=True)
    assert not list(tmp_path.glob(".file.*-*.part"))


# Checksums


def test_a_sealed_object_comes_back_and_a_changed_one_does_not() -> None:
    values = {"b": [1, 2.5, float("inf")], "a": {"ü": None}}
    text = seal(values, indent=2)
    assert unseal(text) == values
    assert unseal('{"b": 1}') == {"b": 1}, "without a checksum"
    with pytest.raises(ValueError, match="damaged, or was edited by hand: then remove its field crc32"):
        unseal(text.replace("2.5", "2.6"))
    with pytest.raises(ValueError, match="it holds a list; expected a JSON object"):
        unseal("[]")
