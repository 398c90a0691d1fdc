"""Who may open the page, and what it answers: no file of the server, whatever the address or the event."""

import os
import time
from pathlib import Path

import pytest
from PIL import Image

from localscale.cli import main
from localscale.errors import ConfigError, DataError
from localscale.lab.pages.app import uploads
from localscale.lab.pages.app.access import check_password, is_closed, is_loopback, password_check
from localscale.lab.pages.app.events import read_knot, read_mark, read_number, read_whole_number, read_word
from localscale.lab.pages.app.uploads import Limits, sweep, swept, take_upload


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_this_machine_needs_no_password(host: str):
    assert is_loopback(host)
    check_password(host, None, no_password=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "no such host", "a" * 70 + ".x"])
def test_other_machines_need_a_password_or_the_word_that_they_need_none(host: str):
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match=r"give --password TEXT, .* or --no-password"):
        check_password(host, None, no_password=False)
    check_password(host, "long enough", no_password=False)
    check_password(host, None, no_password=True)


def test_the_command_asks_for_a_password():
    with pytest.raises(SystemExit, match=r"--host 0\.0\.0\.0 lets other machines open the page; give --password TEXT"):
        main(["app", "--host", "0.0.0.0", "--port", "0"])
    with pytest.raises(SystemExit, match="contradict"):
        main(["app", "--port", "0", "--password", "long enough", "--no-password"])
    with pytest.raises(SystemExit, match="--password has 5 characters; expected at least 8"):
        main(["app", "--port", "0", "--password", "short"])


def test_the_password_and_no_other_is_accepted():
    check = password_check("pässword")
    assert check("anybody", "pässword")
    assert not any(check("anybody", given) for given in ("", "password", "pässword ", "\udce4"))


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/file=x",
        "/gradio_api/FILE/x",
        "//gradio_api//file=x",
        "/gradio_api/proxy=http://x",
        "/static/../../etc/passwd",
        "/gradio_api/stream/1/2/3/playlist.m3u8",
        "/gradio_api/run-history/records",
        "/runs",
    ],
)
def test_addresses_that_read_files_are_closed(path: str):
    assert is_closed(path)


@pytest.mark.parametrize(
    "path", ["/", "/config", "/login", "/gradio_api/queue/join", "/gradio_api/upload", "/assets/a.js"]
)
def test_addresses_of_the_page_are_open(path: str):
    assert not is_closed(path)


# Uploads


def test_an_upload_is_read_and_deleted(tmp_path: Path):
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    (tmp_path / "broken.png").write_bytes(b"nothing")
    assert take_upload(str(tmp_path / "a.png"), tmp_path, Limits())[0] == "a.png"
    with pytest.raises(DataError, match=r"^broken\.png cannot be opened"):
        take_upload(str(tmp_path / "broken.png"), tmp_path, Limits())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["{out}/a.png", "{in}/../a.png", "{in}/link.png", "a\0b", "", None, ["x"], {"path": "x"}]
)
def test_a_file_elsewhere_is_neither_read_nor_deleted(name: object, tmp_path: Path):
    (tmp_path / "in").mkdir()
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "a.png")
    name = name.format(**{"out": tmp_path, "in": tmp_path / "in"}) if isinstance(name, str) else name
    with pytest.raises(DataError, match=r"^the upload did not arrive") as caught:
        take_upload(name, tmp_path / "in", Limits())
    assert str(tmp_path) not in str(caught.value)
    assert (tmp_path / "a.png").exists()


def test_unused_uploads_are_deleted(tmp_path: Path):
    now = time.time()
    for name, age, size in (("old/a", 100, 10), ("young/b", 10, 10), ("young/c", 5, 900), ("young/d", 1, 900)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
        os.utime(tmp_path / name, (now - age, now - age))
        os.utime((tmp_path / name).parent, (now - age, now - age))
    sweep(tmp_path, older_than=now - 60, most_bytes=10_000)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["b", "c", "d", "young"]
    sweep(tmp_path, older_than=now - 60, most_bytes=1000)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["d", "young"], "the oldest go first"


def test_uploads_are_swept_while_the_page_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uploads, "BETWEEN_SWEEPS", 0.01)
    (tmp_path / "forgotten.png").write_bytes(b"x")
    os.utime(tmp_path / "forgotten.png", (0, 0))
    with swept(tmp_path, Limits()):
        for _ in range(500):
            if not list(tmp_path.iterdir()):
                break
            time.sleep(0.01)
    assert not list(tmp_path.iterdir())


# Events


def test_a_box_around_the_whole_image_has_edges_that_are_floats():
    for data in (
        {"corners": [[0, 0], [1, 1]]},
        {"corners": [[1, 1], [0, 0]]},
        {"stroke": [[0, 0], [1, 1]], "radius": 0},
    ):
        box = read_mark(data)
        assert box.edges == (0, 0, 1, 1)
        assert all(isinstance(edge, float) for edge in box.edges)


ODD = [
    None,
    "x",
    True,
    [],
    {},
    [1],
    float("nan"),
    float("inf"),
    10**400,
    [[0, 0]],
    [[0, 0], [1, "1"]],
    [[0, 0], [1, True]],
]


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_values_of_another_type_are_refused(value: object):
    for read in (
        lambda: read_mark(value),
        lambda: read_mark({"corners": value}),
        lambda: read_mark({"stroke": value, "radius": 0.1} if value != [[0, 0]] else None),
        lambda: read_mark({"stroke": [[0, 0]], "radius": value}),
        lambda: read_knot(value),
        lambda: read_knot({"row": value, "column": 1, "x": 0, "y": 0}),
        lambda: read_knot({"row": 1, "column": 1, "x": value, "y": 0}),
        lambda: read_number(value, "it", 0, 2),
        lambda: read_whole_number(value, "it", 0, 2),
        lambda: read_word(value, "it", ("box", "brush")),
    ):
        with pytest.raises(DataError) as caught:
            read()
        assert len(str(caught.value)) < 200


def test_numbers_of_javascript_are_read():
    assert read_whole_number(3.0, "it", 0, 3) == 3
    with pytest.raises(DataError, match="whole number"):
        read_whole_number(2.5, "it", 0, 3)
    assert read_knot({"row": 1, "column": 2.0, "x": 1, "y": 0.25}) == (1, 2, (1.0, 0.25))
