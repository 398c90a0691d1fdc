"""Downloads, end to end, from a server that imitates the real ones and from no server at all."""

import hashlib
import io
import json
import socket
import stat
import zipfile

import pytest
from object_server import MODEL, Server, zipped

from localscale.errors import ConfigError, DataError, OutputError
from localscale.lab.data.objects.archives import is_unpacked, unpack_model
from localscale.lab.data.objects.catalog import read_meshes, read_panoramas
from localscale.lab.data.objects.downloads import Web, is_intact
from localscale.lab.data.objects.fetch import LICENCES, Services, fetch_objects

FAST = Web(attempts=3, pause=0.01, timeout=5)


@pytest.fixture
def server():
    with Server() as running:
        yield running


def fetch(server: Server, out, **how):
    return fetch_objects(out, **{"meshes": 5, "panoramas": 3, "services": server.services, "web": FAST, **how})


def left_over(out) -> list[str]:
    return [path.name for path in out.rglob("*") if path.name.startswith(".")]


# Success


def test_downloaded_files_can_be_used_and_have_sources_and_licences(server, tmp_path):
    fetched = fetch(server, tmp_path)
    meshes, rejected = read_meshes(tmp_path / "meshes")
    assert [mesh.name for mesh in meshes] == sorted(server.models)
    assert (rejected, fetched.failed, left_over(tmp_path)) == ([], {}, [])
    assert all(mesh.notes == () for mesh in meshes), "the texture was found"
    panoramas = [panorama.name for panorama in read_panoramas(tmp_path / "panoramas")[0]]
    assert panoramas == [f"sky_{k}_1k" for k in range(3)]
    names = {path.name for path in (tmp_path / "meshes").rglob("*") if path.is_file()}
    assert names == {"model.obj", "model.mtl", "texture.png", "contents.json"}
    assert (tmp_path / "LICENCES.md").read_text() == fetched.licences == LICENCES
    sources = json.loads((tmp_path / "sources.json").read_text())["sources"]
    assert len(sources) == 8
    assert sources[0]["licence"] == "CC BY 4.0"
    assert sources[-1] == {
        "name": "sky_2",
        "kind": "panorama",
        "url": f"{server.address}/download/sky_2.hdr",
        "licence": "CC0 1.0",
        "authors": ["Ann"],
        "sha256": hashlib.sha256(server.panoramas["sky_2"]).hexdigest(),
    }
    assert len({source["sha256"] for source in sources}) == 4, "the five meshes are alike"


def test_complete_files_are_not_downloaded_again(server, tmp_path):
    fetch(server, tmp_path, meshes=2, panoramas=1)
    first = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.suffix in (".obj", ".hdr", ".png")}
    fetch(server, tmp_path)
    downloads = {path: count for path, count in server.seen.items() if path.endswith((".zip", ".hdr"))}
    assert len(downloads) == 8
    assert set(downloads.values()) == {1}
    assert all(path.read_bytes() == data for path, data in first.items())


def test_damaged_files_are_downloaded_again(server, tmp_path):
    fetch(server, tmp_path)
    panorama = tmp_path / "panoramas" / "sky_0_1k.hdr"
    whole = panorama.read_bytes()
    panorama.write_bytes(whole[::-1])
    (tmp_path / "meshes" / "Cup_1" / "meshes" / "model.obj").write_bytes(b"cut")
    (tmp_path / "meshes" / "Cup_2" / "materials" / "textures" / "texture.png").unlink()
    fetch(server, tmp_path)
    assert panorama.read_bytes() == whole
    assert all(is_unpacked(tmp_path / "meshes" / name) for name in server.models)
    assert server.seen["/1.0/GoogleResearch/models/Cup_1.zip"] == 2
    assert server.seen["/1.0/GoogleResearch/models/Cup_3.zip"] == 1


def test_requesting_too_many_gives_all(server, tmp_path, caplog):
    fetched = fetch(server, tmp_path, meshes=50, panoramas=0)
    assert len(fetched.sources) == 5
    assert "50 meshes were requested; the collection has 5" in caplog.text


# Failures


@pytest.mark.parametrize("fault", ["cut", "swap", 500, 429])
def test_temporary_errors_are_retried(server, tmp_path, fault):
    server.faults = {"/download/sky_1.hdr": [fault, fault], "/assets": [503]}
    if fault != "swap":
        server.faults["/1.0/GoogleResearch/models/Cup_1.zip"] = [fault]
    fetched = fetch(server, tmp_path)
    assert fetched.failed == {}
    assert (tmp_path / "panoramas" / "sky_1_1k.hdr").read_bytes() == server.panoramas["sky_1"]
    assert left_over(tmp_path) == []


def test_lasting_errors_are_listed_and_the_others_are_downloaded(server, tmp_path, caplog):
    server.faults = {
        "/download/sky_0.hdr": ["swap"] * 3,
        "/download/sky_1.hdr": ["cut"] * 3,
        "/1.0/GoogleResearch/models/Cup_1.zip": [404],
    }
    server.models["Cup_2"] = b"this is no zip file"
    fetched = fetch(server, tmp_path)
    assert {source.name for source in fetched.sources} == {"Cup_0 (blue)", "Cup_3", "Cup_4", "sky_2"}
    assert "has the MD5 checksum" in fetched.failed["sky_0"]
    size = len(server.panoramas["sky_1"])
    assert f"ended after {size // 2} of {size} bytes" in fetched.failed["sky_1"]
    assert "answered 404 Not Found" in fetched.failed["Cup_1"]
    assert server.seen["/1.0/GoogleResearch/models/Cup_1.zip"] == 1, "a missing file is not requested again"
    assert ".Cup_2.zip is a broken zip file: File is not a zip file" in fetched.failed["Cup_2"]
    assert "Cup_1 of the meshes is left out" in caplog.text
    assert left_over(tmp_path) == []
    assert sorted(path.name for path in (tmp_path / "panoramas").iterdir()) == ["sky_2_1k.hdr"]


def test_an_interrupted_listing_is_an_error(server, tmp_path):
    server.faults = {"/1.0/models": [None, 500, 500, 500]}
    with pytest.raises(DataError, match="answered 500"):
        fetch(server, tmp_path)


def test_being_offline_is_reported(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(DataError, match=r"127.0.0.1:\d+ cannot be reached \(.*refused.*\); check the network"):
        fetch_objects(tmp_path, services=Services(address, address), web=FAST)
    unknown = "http://nowhere.invalid"
    with pytest.raises(DataError, match=r"nowhere.invalid cannot be reached"):
        fetch_objects(tmp_path, services=Services(unknown, unknown), web=FAST)


def test_no_download_at_all_is_an_error(server, tmp_path):
    server.models = {"Cup": b"no zip"}
    with pytest.raises(DataError, match=r"no meshes could be downloaded from .*: .Cup.zip is a broken zip file"):
        fetch(server, tmp_path)
    server.panoramas = {}
    with pytest.raises(DataError, match="lists no panoramas"):
        fetch(server, tmp_path, meshes=0)


def test_an_unknown_resolution_lists_the_known_ones(server, tmp_path):
    with pytest.raises(DataError, match='sky_0 has no resolution "3k"; it has 1k, 2k'):
        fetch(server, tmp_path, meshes=0, resolution="3k")


def test_unsafe_names_are_left_out(server, tmp_path):
    server.models = {"../../evil": zipped(MODEL), ".hidden": zipped(MODEL), "a/b": zipped(MODEL), "Cup": zipped(MODEL)}
    fetched = fetch(server, tmp_path / "out", panoramas=0)
    assert [source.name for source in fetched.sources] == ["Cup"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_bad_counts_are_refused(tmp_path):
    for meshes, panoramas in ((0, 0), (-1, 3)):
        with pytest.raises(ConfigError, match="expected at least one file"):
            fetch_objects(tmp_path, meshes=meshes, panoramas=panoramas)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot be written: Not a directory"):
        fetch_objects(tmp_path / "file", services=Services("http://x.invalid", "http://x.invalid"), web=FAST)


def test_bad_addresses_and_answers_are_refused(server, tmp_path):
    url, path = f"{server.address}/download/sky_0.hdr", tmp_path / "file"
    with pytest.raises(DataError, match="is not a web address; expected http or https"):
        FAST.download("file:///etc/passwd", path)
    with pytest.raises(DataError, match="is larger than 100 bytes"):
        Web(attempts=1, most_bytes=100).download(url, path)
    with pytest.raises(DataError, match="is not JSON"):
        Web(attempts=1).read_json(url)
    assert list(tmp_path.iterdir()) == []


# Archives


def archive(tmp_path, files: dict[str, bytes]):
    path = tmp_path / "model.zip"
    path.write_bytes(zipped(files))
    return path


@pytest.mark.parametrize("name", ["/evil.obj", "meshes/../../evil.png", "a\\..\\evil.obj", "C:/evil.obj", "a//b.obj"])
def test_members_outside_the_folder_refuse_the_archive(tmp_path, name):
    path = archive(tmp_path, {**MODEL, name: b"evil"})
    with pytest.raises(DataError, match="which lies outside its folder; nothing was unpacked"):
        unpack_model(path, tmp_path / "out" / "model")
    assert [each.name for each in tmp_path.rglob("*") if each.is_file()] == ["model.zip"]


def test_links_refuse_the_archive(tmp_path):
    buffer = io.BytesIO(zipped(MODEL))
    with zipfile.ZipFile(buffer, "a") as file:
        link = zipfile.ZipInfo("meshes/link.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "/etc/passwd")
    (tmp_path / "model.zip").write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match="which lies outside its folder"):
        unpack_model(tmp_path / "model.zip", tmp_path / "model")


def test_archives_without_a_mesh_or_with_damage_leave_nothing(tmp_path):
    with pytest.raises(DataError, match=r"model.zip has no .obj mesh"):
        unpack_model(archive(tmp_path, {"texture.png": b"x"}), tmp_path / "model")
    path = archive(tmp_path, {**MODEL, "meshes/model.obj": bytes(range(256)) * 400})
    data = bytearray(path.read_bytes())
    data[60:90] = bytes(30)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"model.zip is a broken zip file"):
        unpack_model(path, tmp_path / "model")
    assert [each.name for each in tmp_path.iterdir()] == ["model.zip"]


def test_archives_that_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("localscale.lab.data.objects.archives.MOST_BYTES", 1000)
    with pytest.raises(DataError, match="unpacks to more than 1,000 bytes"):
        unpack_model(archive(tmp_path, {**MODEL, "meshes/big.obj": bytes(10_000)}), tmp_path / "model")


def test_intact_means_size_and_checksum(tmp_path):
    path = tmp_path / "file"
    assert not is_intact(path, size=5)
    path.write_bytes(b"hello")
    assert is_intact(path, size=5, md5="5D41402ABC4B2A76B9719D911017C592")
    assert not is_intact(path, size=4)
    assert not is_intact(path, size=5, md5="0" * 32)
