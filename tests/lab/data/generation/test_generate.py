"""A dataset's files depend on its job alone: not on workers, order, deaths, interruptions or engines."""

import errno
import json
import os
from functools import partial
from pathlib import Path

import pytest
import toy_job as toy
from toy_job import hashes, toy_job

from localscale.errors import ConfigError, DataError, OutputError
from localscale.lab.data.generation import Job, Sample, Skip, Stage, generate
from localscale.lab.data.generation.store import Store
from localscale.lab.data.stored import Stored

FORMS = ["folder", "shards"]


@pytest.fixture(scope="module", params=FORMS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An uninterrupted run in one process."""
    out = tmp_path_factory.mktemp("whole") / "out"
    summary = generate(toy_job(), out, form=request.param)
    assert (summary.images, summary.skipped) == (102, {"sevens are left out": 9})
    return request.param, out


def test_nothing_hidden_stays_and_every_item_has_its_lines(whole: tuple[str, Path]) -> None:
    form, out = whole
    names = {path.name for path in out.iterdir()}
    assert names == {"dataset.json", "manifest.jsonl", "samples" if form == "folder" else "shards"}
    lines = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == sorted(line["index"] for line in lines)
    assert {line["index"] for line in lines} == set(range(toy.SIZE))


def test_several_workers_write_the_same_files(whole: tuple[str, Path], tmp_path: Path) -> None:
    form, out = whole
    generate(toy_job(), tmp_path / "out", form=form, workers=3)
    assert hashes(tmp_path / "out") == hashes(out)


def refuse() -> object:
    raise DataError("the weights cannot be loaded")


def test_an_error_of_ours_keeps_its_kind_and_its_folder_can_be_used(tmp_path: Path) -> None:
    job = Job("toy", 4, {"weights": "none"}, [Stage("load", refuse)], chunk_size=1)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"^the weights cannot be loaded$"):
        generate(job, tmp_path, workers=2)
    assert generate(toy_job(), tmp_path).images == 102  # nothing had been made with the other settings


def test_a_finished_dataset_is_left_alone(whole: tuple[str, Path]) -> None:
    form, out = whole
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert generate(toy_job(), out, form=form).images == 102  # type: ignore[arg-type]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before


def test_another_seed_is_refused(whole: tuple[str, Path]) -> None:
    form, out = whole
    with pytest.raises(OutputError, match=r"begun with other settings: seed was 0 and is now 1\. Use the same"):
        generate(toy_job(seed=1), out, form=form)  # type: ignore[arg-type]


def test_another_form_is_refused(whole: tuple[str, Path]) -> None:
    form, out = whole
    other = FORMS[FORMS.index(form) - 1]
    with pytest.raises(OutputError, match=f'layout.form was "{form}" and is now "{other}"'):
        generate(toy_job(), out, form=other)  # type: ignore[arg-type]


def test_two_runs_into_one_folder(tmp_path: Path) -> None:
    with (
        Store(tmp_path, "folder", 4, toy.SIZE).opened(toy_job()),
        pytest.raises(OutputError, match="another run is writing to"),
    ):
        generate(toy_job(), tmp_path)
    assert generate(toy_job(), tmp_path).images == 102


@pytest.mark.parametrize("place", ["close", "piece"])
def test_the_disk_is_full_at_the_end_of_a_chunk(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from localscale.lab.data.generation import store

    generate(toy_job(), tmp_path / "whole", form="shards")
    target, name = (store._ShardWriter, "close") if place == "close" else (store.Store, "_rename_into")
    real, calls = getattr(target, name), 0

    def fail(self: object, *arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 5:  # a shard is closed twice, the second time to be sure
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(target, name, fail)
        with pytest.raises(OutputError, match="No space left on device"):
            generate(toy_job(), tmp_path / "out", form="shards")
    generate(toy_job(), tmp_path / "out", form="shards")
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")


def test_out_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a file, not a folder"):
        generate(toy_job(), tmp_path / "file")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match=r"is not empty and holds no dataset\.json"):
        generate(toy_job(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_broken_description_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(OutputError, match=r"dataset\.json cannot be read"):
        generate(toy_job(), tmp_path)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot be written: .*choose a folder you can write to"):
        generate(toy_job(), tmp_path / "file" / "out")


@pytest.mark.parametrize("form", FORMS)
def test_a_full_disk(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up at the thirtieth file; what was begun is gone, and the next run goes on."""
    generate(toy_job(), tmp_path / "whole", form=form)  # type: ignore[arg-type]
    written = 0
    writers = {"folder": ("_FolderWriter", "write"), "shards": ("_ShardWriter", "write")}
    from localscale.lab.data.generation import store

    writer = getattr(store, writers[form][0])
    real = writer.write

    def write(self: object, sample: Sample) -> None:
        nonlocal written
        written += 1
        if written > 30:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, sample)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "write", write)
        with pytest.raises(OutputError, match=r"No space left on device; free some space and run the same command"):
            generate(toy_job(), tmp_path / "out", form=form)  # type: ignore[arg-type]
    assert not list((tmp_path / "out").glob(".drafts/*"))
    generate(toy_job(), tmp_path / "out", form=form)  # type: ignore[arg-type]
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")


def fail_at(index: int) -> object:
    def step(number: int) -> list[Sample]:
        if number == index:
            raise FileNotFoundError(2, "no such thing")
        return [Sample(f"{number:03d}", {"txt": b""}, {})]

    return step


def test_an_error_in_a_stage_is_not_blamed_on_the_disk(tmp_path: Path) -> None:
    job = Job("toy", 8, {}, [Stage("fail", partial(fail_at, 5))], chunk_size=4)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="no such thing"):
        generate(job, tmp_path / "one")
    with pytest.raises(RuntimeError, match=r"(?s)a worker failed.*no such thing"):
        generate(job, tmp_path / "two", workers=2)


def same_key() -> object:
    return lambda number: [Sample("key", {"txt": b""}, {})]


def path_as_key() -> object:
    return lambda number: [Sample("../key", {"txt": b""}, {})]


def record_as_file() -> object:
    return lambda number: [Sample("key", {"json": b"{}"}, {})]


def no_file() -> object:
    return lambda number: [Sample("key", {}, {})]


def own_index() -> object:
    return lambda number: [Sample("key", {"txt": b""}, {"index": 3, "skipped": "no"})]


def nothing() -> object:
    return lambda number: []


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (same_key, "have the key key"),
        (path_as_key, "cannot name files"),
        (record_as_file, "leave json to the record"),
        (no_file, "at least one file"),
        (own_index, "has index, skipped, which the manifest writes itself"),
        (nothing, "item 0 gave neither an image nor a reason"),
    ],
)
def test_keys_are_names(build: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        generate(Job("toy", 2, {}, [Stage("make", build)]), tmp_path)  # type: ignore[arg-type]


def skip_all() -> object:
    return lambda number: Skip("none is usable")


def test_a_dataset_of_skips_alone(tmp_path: Path) -> None:
    summary = generate(Job("toy", 5, {}, [Stage("skip", skip_all)]), tmp_path)  # type: ignore[arg-type]
    assert (summary.images, summary.skipped) == (0, {"none is usable": 5})
    assert len(Stored(tmp_path)) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers = 0; expected at least 1"),
        ({"chunk_size": 0}, "chunk_size = 0"),
        ({"form": "zip"}, 'form "zip" is unknown'),
        ({"engine": "spark"}, 'engine "spark" is unknown'),
        ({"address": "auto"}, 'address auto is for engine "ray"'),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        generate(toy_job(), tmp_path / "out", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
