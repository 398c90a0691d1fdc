"""Files are written atomically, and the original error is raised."""

from pathlib import Path

import pytest

from localscale.errors import DataError, OutputError
from localscale.files import read_whole, write_all, write_whole


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
