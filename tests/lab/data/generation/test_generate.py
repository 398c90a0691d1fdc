"""The files of a dataset depend on its job alone, not on workers, order or full disks."""

import errno
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import toy_job as toy
from toy_job import hashes, toy_job

from localscale.errors import ConfigError, DataError, OutputError
from localscale.lab.data.generation import Job, Sample, Skip, Stage, generate, store
from localscale.lab.data.written import WrittenDataset

FORMS = ["folder", "shards"]


@pytest.fixture(scope="module", params=FORMS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """An uninterrupted run in one process."""
    out = tmp_path_factory.mktemp("whole") / "out"
    summary = generate(toy_job(), out, form=request.param)
    assert (summary.images, summary.skipped) == (62, {"sevens are left out": 5})
    return request.param, out


def test_no_hidden_file_remains_and_every_item_is_in_the_manifest(whole: tuple[Any, Path]) -> None:
    form, out = whole
    names = {path.name for path in out.iterdir()}
    assert names == {"dataset.json", "manifest.jsonl", "samples" if form == "folder" else "shards"}
    lines = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == sorted(line["index"] for line in lines)
    assert {line["index"] for line in lines} == set(range(toy.SIZE))


def test_several_workers_write_the_same_files(tmp_path: Path) -> None:
    generate(toy_job(), tmp_path / "one", form="shards")
    generate(toy_job(), tmp_path / "two", form="shards", workers=2)
    assert hashes(tmp_path / "one") == hashes(tmp_path / "two")


def fail_to_load() -> Callable[[int], Any]:
    raise DataError("the weights cannot be loaded")


def test_an_expected_error_in_a_worker_keeps_its_type(tmp_path: Path) -> None:
    job = Job("toy", 1, {"weights": "none"}, [Stage("load", fail_to_load)])
    with pytest.raises(DataError, match=r"^the weights cannot be loaded$"):
        generate(job, tmp_path, workers=2)
    assert generate(toy_job(), tmp_path).images == 62  # the failed run wrote nothing, so its settings do not matter


def fail() -> Callable[[int], Any]:
    def step(number: int) -> list[Sample]:
        raise FileNotFoundError(2, "no such thing")

    return step


def test_an_error_in_a_stage_is_not_reported_as_one_of_the_disk(tmp_path: Path) -> None:
    job = Job("toy", 1, {}, [Stage("fail", fail)])
    with pytest.raises(FileNotFoundError, match="no such thing"):
        generate(job, tmp_path / "one")
    with pytest.raises(RuntimeError, match=r"(?s)a worker failed.*no such thing"):
        generate(job, tmp_path / "two", workers=2)


def test_a_finished_dataset_is_not_written_again(whole: tuple[Any, Path]) -> None:
    form, out = whole
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert generate(toy_job(), out, form=form).images == 62
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before


def test_other_settings_are_refused(whole: tuple[Any, Path]) -> None:
    form, out = whole
    with pytest.raises(OutputError, match=r"started with other settings: seed was 0 and is now 1\."):
        generate(toy_job(seed=1), out, form=form)
    other: Any = FORMS[FORMS.index(form) - 1]
    with pytest.raises(OutputError, match=f'layout.form was "{form}" and is now "{other}"'):
        generate(toy_job(), out, form=other)


def test_only_one_run_writes_to_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PATIENCE", 0.1)
    with (
        store.Store(tmp_path, "folder", 3, toy.SIZE).opened(toy_job()),
        pytest.raises(OutputError, match="another process is writing to"),
    ):
        generate(toy_job(), tmp_path)
    assert generate(toy_job(), tmp_path).images == 62


@pytest.mark.parametrize(
    ("form", "owner", "method"),
    [
        ("folder", "_FolderWriter", "write"),
        ("shards", "_ShardWriter", "write"),
        ("shards", "_ShardWriter", "close"),
        ("shards", "Store", "_write_whole"),
    ],
)
def test_after_a_full_disk_the_next_run_continues(
    form: Any, owner: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full while a sample is written, while a shard is closed, and while manifest lines are written."""
    generate(toy_job(), tmp_path / "whole", form=form)
    target = getattr(store, owner)
    real, calls = getattr(target, method), 0

    def fill_up(self: object, *arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(target, method, fill_up)
        with pytest.raises(OutputError, match=r"No space left on device; free some space and run the same command"):
            generate(toy_job(), tmp_path / "out", form=form)
    assert not list((tmp_path / "out").glob(".drafts/*"))
    generate(toy_job(), tmp_path / "out", form=form)
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")


def test_a_folder_with_other_files_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match=r"is not empty and contains no dataset\.json"):
        generate(toy_job(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(OutputError, match="is a file, not a folder"):
        generate(toy_job(), tmp_path / "thesis.txt")
    with pytest.raises(OutputError, match="choose a folder you can write to"):
        generate(toy_job(), tmp_path / "thesis.txt" / "out")


def test_a_broken_description_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(OutputError, match=r"dataset\.json cannot be read"):
        generate(toy_job(), tmp_path)


def constant(value: Any) -> Callable[[int], Any]:
    return lambda index: value


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([Sample("key", {"txt": b""}, {})], "have the key key"),
        ([Sample("../key", {"txt": b""}, {})], "expected a key of letters"),
        ([Sample("key", {"json": b"{}"}, {})], "not json"),
        ([Sample("key", {}, {})], "at least one file"),
        ([Sample("key", {"txt": b""}, {"index": 3, "skipped": "no"})], "reserved names index, skipped"),
        ([], "item 0 gave no image"),
    ],
)
def test_invalid_samples(result: list[Sample], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        generate(Job("toy", 2, {}, [Stage("make", partial(constant, result))]), tmp_path)


def test_every_item_may_be_skipped(tmp_path: Path) -> None:
    summary = generate(Job("toy", 5, {}, [Stage("skip", partial(constant, Skip("none is usable")))]), tmp_path)
    assert (summary.images, summary.skipped) == (0, {"none is usable": 5})
    assert len(WrittenDataset(tmp_path)) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers is 0; expected at least 1"),
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"form": "zip"}, 'form "zip" is unknown'),
        ({"engine": "spark"}, 'engine "spark" is unknown'),
        ({"address": "auto"}, 'address auto requires engine "ray"'),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        generate(toy_job(), tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()
