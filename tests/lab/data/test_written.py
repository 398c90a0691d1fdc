"""Written datasets are read back, and broken ones raise an error that says what is wrong."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "generation"))

from toy_job import toy_job

from localscale.errors import DataError
from localscale.lab.data import WrittenDataset, generate
from localscale.lab.data.generation import Job, Sample, Stage


@pytest.fixture(params=["folder", "shards"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    generate(toy_job(size=9), tmp_path / "out", form=request.param)
    return tmp_path / "out"


def test_files_and_groups(written: Path) -> None:
    dataset = WrittenDataset(written, "toy")
    assert (len(dataset), len(dataset.skipped), dataset.settings) == (16, 1, {"seed": 0})
    assert list(dataset.reasons().values()) == [1]
    assert dataset.read(1, "mask.txt") == b"\x01"
    assert dataset.read(15, "txt").startswith(b"b")
    assert list(dataset.groups()) == [0, 2, 4, 8, 10, 12, 14, 16]
    assert dataset.groups()[4] == [4, 5]


def test_webdataset_reads_the_shards(tmp_path: Path) -> None:
    peer = pytest.importorskip("webdataset.tariterators")
    generate(toy_job(size=9), tmp_path / "out", form="shards")
    dataset = WrittenDataset(tmp_path / "out")
    samples: list[dict[str, bytes]] = []
    for path in sorted((tmp_path / "out" / "shards").glob("*.tar")):
        with path.open("rb") as stream:
            samples += peer.group_by_keys(peer.tar_file_expander([{"url": str(path), "stream": stream}]))
    assert [sample["__key__"] for sample in samples] == [record["key"] for record in dataset.records]
    assert [sample["txt"] for sample in samples] == [dataset.read(n, "txt") for n in range(len(dataset))]
    assert [json.loads(sample["json"])["k"] for sample in samples] == [record["k"] for record in dataset.records]


def odd_names() -> object:
    return lambda number: [
        Sample(f"{number}", {"txt": b""}, {"group": number, "source": f"a\u2028b\u0085\udce9{number}"})
    ]


def test_any_text_is_read_back(tmp_path: Path) -> None:
    """Unicode line separators, which do not end a JSON line, and names that are not valid UTF-8."""
    generate(Job("toy", 3, {"name": "\u2028"}, [Stage("make", odd_names)]), tmp_path)  # type: ignore[arg-type]
    sources = [f"a\u2028b\u0085\udce9{n}" for n in range(3)]
    assert [record["source"] for record in WrittenDataset(tmp_path).records] == sources
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text(manifest.read_text().replace("\\u2028", "\u2028").replace("\\u0085", "\u0085"))
    assert [record["source"] for record in WrittenDataset(tmp_path).records] == sources


def test_another_kind_or_suffix(written: Path) -> None:
    with pytest.raises(DataError, match='a dataset of kind "toy"; expected "mnist"'):
        WrittenDataset(written, "mnist")
    with pytest.raises(DataError, match=r"has no file png; it has mask\.txt, txt"):
        WrittenDataset(written).read(0, "png")


def test_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no dataset\.json in .*written by `localscale data`"):
        WrittenDataset(tmp_path)


def test_unfinished(written: Path) -> None:
    (written / "manifest.jsonl").unlink()
    with pytest.raises(DataError, match=r"is unfinished.*it continues where it stopped"):
        WrittenDataset(written)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "does not describe a dataset"),
        ('{"layout": {"form": "folder"}, "format": 2}', "has format 2; this version reads format 1"),
        ('{"layout": {"form": "folder"}, "format": 1, "kind": 3}', "lacks its kind or settings"),
    ],
)
def test_broken_descriptions(written: Path, text: str, message: str) -> None:
    (written / "dataset.json").write_text(text)
    with pytest.raises(DataError, match=message):
        WrittenDataset(written)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        '{"key": "../../etc/passwd", "chunk": 0, "suffixes": ["txt"]}',
        '{"key": "a", "chunk": "0/../..", "suffixes": ["txt"]}',
        '{"key": "a", "chunk": 0, "suffixes": ["../txt"]}',
        '{"key": "a", "chunk": 0}',
        '{"key": "a", "chunk": 0, "suffixes": []}',
        "[" * 100_000,
    ],
)
def test_broken_manifest_lines(written: Path, line: str) -> None:
    with (written / "manifest.jsonl").open("a") as manifest:
        manifest.write(line + "\n")
    with pytest.raises(DataError, match="is broken in line 18"):
        WrittenDataset(written)


def test_missing_and_broken_files(written: Path) -> None:
    dataset = WrittenDataset(written)
    for path in [*written.rglob("*.txt")]:
        path.unlink()
    for path in written.rglob("*.tar"):
        path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(DataError, match="write the dataset again"):
        dataset.read(0, "txt")
