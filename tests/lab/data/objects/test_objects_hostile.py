"""A server that answers anything: nothing grows without bound, and one bad item leaves the others."""

import hashlib
import io
import json
import struct
import time
import urllib.request
import zipfile

import pytest
from object_server import MODEL, Answer, Server, zipped

from localscale.errors import DataError
from localscale.lab.data.objects import fetch as fetching
from localscale.lab.data.objects.answers import is_as_safe, plain, read_authors, read_names
from localscale.lab.data.objects.archives import unpack_model
from localscale.lab.data.objects.downloads import OnlySafer, Web
from localscale.lab.data.objects.fetch import fetch_objects

FAST = Web(attempts=2, pause=0.01, timeout=5)


@pytest.fixture
def server():
    with Server() as running:
        yield running


def fetch(server: Server, out, **how):
    return fetch_objects(out, **{"meshes": 5, "panoramas": 3, "services": server.services, "web": FAST, **how})


def answer(value) -> Answer:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Answer(body, headers=(("Content-Length", str(len(body))),))


def entry(server: Server, **changes) -> dict:
    data = server.panoramas["sky_1"]
    file = {"url": f"{server.address}/download/sky_1.hdr", "size": len(data), "md5": hashlib.md5(data).hexdigest()}
    return {"hdri": {"1k": {"hdr": {**file, **changes}}}}


# Lists


def test_an_endless_list_of_models_ends(server, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fetching, "MOST_PAGES", 3)
    monkeypatch.setattr(fetching, "PAGE", 2)
    server.models = {f"Cup_{k}": server.models["Cup_1"] for k in range(100)}
    assert len(fetch(server, tmp_path, meshes=50, panoramas=0).sources) == 6, "three pages of two"
    assert "lists more than 6 models" in caplog.text
    monkeypatch.setattr(fetching, "MOST_NAMES", 3)
    assert len(fetch(server, tmp_path, meshes=50, panoramas=0).sources) == 3


@pytest.mark.parametrize("models", [{}, "x", 3, None])
def test_a_list_of_another_type_is_an_error(server, tmp_path, models):
    server.faults = {"/1.0/models": [answer(models)]}
    with pytest.raises(DataError, match=r"returned a \w+; expected a list of models"):
        fetch(server, tmp_path)


def test_odd_entries_of_a_list_are_left_out():
    models = [None, 3, [], {}, {"name": None}, {"name": ["x"]}, {"name": "other", "owner": "somebody"}, {"name": "cup"}]
    assert read_names(models, "us") == ["cup"]


def test_names_that_are_too_long_are_left_out(server, tmp_path):
    server.models = {"x" * 200: server.models["Cup_1"], "ü" * 100: server.models["Cup_1"], **server.models}
    fetched = fetch(server, tmp_path, meshes=9, panoramas=0)
    assert (len(fetched.sources), fetched.failed) == (5, {})


def test_nested_and_vast_json_is_refused(server):
    for body, message in ((b"[" * 200_000, "is not JSON"), (b"1" * 5000, "is not JSON"), (b" " * 2000, "larger than")):
        server.faults = {"/assets": [answer(body)]}
        with pytest.raises(DataError, match=message):
            Web(attempts=1, most_json_bytes=1000 if message == "larger than" else 1 << 20).read_json(
                f"{server.address}/assets?t=hdris"
            )


# Single items


@pytest.mark.parametrize(
    "changes",
    [
        {"url": None},
        {"url": ["http://x"]},
        {"url": "file:///etc/passwd"},
        {"url": "ftp://127.0.0.1/x"},
        {"url": "http://[/x"},
        {"url": "http://127.0.0.1:99999/x"},
        {"url": "http://" + "a" * 80 + ".invalid/x"},
        {"url": "http://127.0.0.1/\x1b[2J"},
        {"url": "http://127.0.0.1/a b"},
        {"size": 1e400},
        {"size": True},
        {"size": -1},
        {"size": "12"},
        {"md5": None},
        {"md5": "\x1b[2J"},
        {"md5": "0" * 32},
    ],
    ids=str,
)
def test_a_bad_panorama_is_recorded_and_the_others_are_kept(server, tmp_path, changes):
    server.faults = {"/files/sky_1": [answer(entry(server, **changes))] * 2}
    fetched = fetch(server, tmp_path, meshes=0)
    assert [source.name for source in fetched.sources] == ["sky_0", "sky_2"]
    assert list(fetched.failed) == ["sky_1"]
    assert fetched.failed["sky_1"].isprintable()
    assert len(fetched.failed["sky_1"]) <= 300
    assert json.loads((tmp_path / "sources.json").read_text())["failed"] == fetched.failed


@pytest.mark.parametrize(
    "files", [[], 3, "hdri", None, {"hdri": "1k"}, {"hdri": ["1k"]}, {"hdri": {"1k": []}}], ids=str
)
def test_a_description_of_another_type_is_recorded(server, tmp_path, files):
    server.faults = {"/files/sky_1": [answer(files)]}
    assert list(fetch(server, tmp_path, meshes=0).failed) == ["sky_1"]


@pytest.mark.parametrize(
    ("entry", "authors"),
    [
        (None, ("Poly Haven",)),
        ({"authors": 7}, ("Poly Haven",)),
        ({"authors": "Ann"}, ("Poly Haven",)),
        ({"authors": ["Ann", 3, None]}, ("Ann",)),
        ({"authors": {"A\x1b[2J": 1}}, ("A�[2J",)),
    ],
)
def test_authors_of_any_type_are_read(entry, authors):
    assert read_authors(entry) == authors
    assert len(read_authors({"authors": ["x" * 10_000] * 1000})) == 20


def test_a_panorama_of_another_kind_is_recorded(server, tmp_path):
    server.panoramas["sky_1"] = b"%!PS-Adobe-3.0 EPSF-3.0\n"
    fetched = fetch(server, tmp_path, meshes=0)
    assert "is not the file that was expected: it begins with b'%!PS" in fetched.failed["sky_1"]
    assert not list((tmp_path / "panoramas").glob("*sky_1*"))


@pytest.mark.parametrize("length", ["x", "-5", "9" * 30, "²"])
def test_an_odd_length_is_ignored(server, tmp_path, length):
    body = server.models["Cup_1"]
    header = ("Content-Length", length.encode().decode("latin-1"))
    server.faults = {"/1.0/GoogleResearch/models/Cup_1.zip": [Answer(body, headers=(header,))] * 2}
    fetch(server, tmp_path, panoramas=0)


def test_redirections_stay_on_the_web_and_encrypted(server, tmp_path):
    path = "/1.0/GoogleResearch/models/Cup_1.zip"
    for target in ("file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"):
        server.faults = {path: [Answer(status=302, headers=(("Location", target),))] * 2}
        failed = fetch(server, tmp_path / target[:3], panoramas=0).failed
        assert "is not followed" in failed["Cup_1"] or "is not allowed" in failed["Cup_1"]
    server.faults = {path: [Answer(status=302, headers=(("Location", server.address + path),)), None]}
    assert fetch(server, tmp_path / "good", panoramas=0).failed == {}


def test_no_redirection_leads_from_an_encrypted_address_to_another():
    request = urllib.request.Request("https://example.invalid/a")
    with pytest.raises(DataError, match=r"leads to http://example\.invalid/b, which is not followed"):
        OnlySafer().redirect_request(request, None, 302, "Found", {}, "http://example.invalid/b")
    assert OnlySafer().redirect_request(request, None, 302, "Found", {}, "https://example.invalid/b") is not None
    assert not is_as_safe("http://example.invalid/b", "https://example.invalid")


def test_a_server_that_drips_is_left(server, tmp_path):
    web = Web(attempts=1, timeout=5, most_seconds=0.3)
    server.faults = {"/assets": [Answer(b" " * 1000, pause=0.05)]}
    started = time.monotonic()
    with pytest.raises(DataError, match=r"did not arrive within 0\.3 seconds"):
        web.read_json(f"{server.address}/assets?t=hdris")
    assert time.monotonic() - started < 30, "all of it takes 50 seconds"


def test_words_of_a_server_cannot_control_a_terminal():
    assert plain("a\x1b[2J\r\nb") == "a�[2J��b"
    assert len(plain("x" * 10_000)) == 300


# Archives


def hostile(name: str) -> bytes:
    good = zipped(MODEL)
    if name == "twice":
        return zipped({**MODEL, "meshes/MODEL.obj": b"x"})
    if name == "file and folder":
        return zipped({**MODEL, "meshes/model.obj/x.png": b"x"})
    if name == "deep":
        return zipped({**MODEL, "/".join("abcdefghi") + "/x.png": b"x"})
    if name == "long":
        return zipped({**MODEL, "x" * 240 + ".png": b"x"})
    if name == "many":
        return zipped({**MODEL, **{f"{k}.txt": b"" for k in range(10_001)}})
    if name == "name that is not text":
        data = bytearray(zipped({**MODEL, "ü.png": b"x"}))
        return bytes(data).replace("ü.png".encode(), b"\xff\xff.png")
    if name == "size of the list":
        data = bytearray(good)
        struct.pack_into("<L", data, data.rfind(b"PK\5\6") + 12, 0xFFFFFFF)
        return bytes(data)
    method = {"lzma": zipfile.ZIP_LZMA, "bzip2": zipfile.ZIP_BZIP2}[name]
    buffer = io.BytesIO(good)
    with zipfile.ZipFile(buffer, "a", method) as archive:
        archive.writestr("meshes/other.png", b"x" * 1000)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("twice", "holds two files of one name"),
        ("file and folder", "holds two files of one name"),
        ("deep", "nested too deeply"),
        ("long", "whose name is too long"),
        ("many", "10,007 files"),
        ("name that is not text", "is a broken zip file"),
        ("size of the list", "at most 10,000 are read"),
        ("lzma", 'compresses "meshes/other.png" in a way that is not read'),
        ("bzip2", 'compresses "meshes/other.png" in a way that is not read'),
    ],
)
def test_a_hostile_archive_is_recorded_and_the_others_are_kept(server, tmp_path, name, message):
    (tmp_path / "model.zip").write_bytes(hostile(name))
    with pytest.raises(DataError, match=message):
        unpack_model(tmp_path / "model.zip", tmp_path / "model")
    server.models["Cup_1"] = hostile(name)
    fetched = fetch(server, tmp_path / "out", panoramas=0)
    assert list(fetched.failed) == ["Cup_1"]
    assert len(fetched.sources) == 4
    assert sorted(path.name for path in (tmp_path / "out" / "meshes").iterdir()) == [
        "Cup_0 (blue)",
        "Cup_2",
        "Cup_3",
        "Cup_4",
    ]
