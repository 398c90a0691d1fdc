"""A dataset's files depend on its job alone: not on workers, order, deaths, interruptions or engines."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import toy_job as toy
from toy_job import hashes, toy_job

from localscale.data.generation import Job, Sample, Skip, Stage, generate
from localscale.data.generation.store import Store
from localscale.data.stored import Stored
from localscale.errors import ConfigError, DataError, OutputError

FORMS = ["folder", "shards"]


@pytest.fixture(scope="module", params=FORMS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An uninterrupted run in one process."""
    out = tmp_path_factory.mktemp("whole") / "out"
    summary = generate(toy_job(), out, form=request.param)
    assert (summary.images, summary.skipped) == (102, {"sevens are left out": 9})
    return request.param, out


def start(out: Path, form: str, workers: int, engine: str = "local", seconds: float = 0.05) -> subprocess.Popen[bytes]:
    command = [sys.executable, toy.__file__, str(out), form, str(workers), engine, str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(Path(toy.__file__).parent)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def wait_for(condition: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def finished_chunks(out: Path) -> int:
    return len(list(out.glob(".progress/*.jsonl")))


def children(parent: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        tasks = Path(f"/proc/{parent}/task").iterdir()
        return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return []


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


def test_killed_at_any_moment_and_started_again(whole: tuple[str, Path], tmp_path: Path) -> None:
    form, out = whole
    workers = {"folder": 2, "shards": 1}[form]
    run = tmp_path / "out"
    deaths = 0
    for progress in (0, 3, 7):  # killed before anything is done, and twice on the way
        process = start(run, form, workers)
        wait_for(lambda: (run / "dataset.json").exists() and finished_chunks(run) >= progress)  # noqa: B023
        process.send_signal(signal.SIGKILL)  # and started again at once, while its workers may still be there
        process.wait()
        deaths += not (run / "manifest.jsonl").exists()
    assert deaths == 3
    assert start(run, form, workers, seconds=0).wait() == 0
    assert hashes(run) == hashes(out)


def test_dead_workers_are_replaced(tmp_path: Path) -> None:
    """Every worker is killed, so that only new ones can finish."""
    generate(toy_job(), tmp_path / "whole")
    process = start(tmp_path / "out", "folder", 2, seconds=0.1)
    wait_for(lambda: finished_chunks(tmp_path / "out") >= 2)
    for pid in workers_of(process.pid):
        os.kill(pid, signal.SIGKILL)
    assert process.wait(timeout=60) == 0
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")


def test_a_worker_holds_the_lock_until_it_ends(tmp_path: Path) -> None:
    """A stopped worker outlives its killed parent; while it may still write, nobody else does."""
    process = start(tmp_path, "folder", 2)
    wait_for(lambda: finished_chunks(tmp_path) >= 1)
    orphan = workers_of(process.pid)[0]
    os.kill(orphan, signal.SIGSTOP)
    try:
        process.kill()
        process.wait()
        with pytest.raises(OutputError, match="another run is writing to"):
            generate(toy_job(), tmp_path)
    finally:
        os.kill(orphan, signal.SIGCONT)
    assert generate(toy_job(), tmp_path).images == 102


def workers_of(parent: int) -> list[int]:
    return [pid for pid in children(parent) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def die(status: int) -> Callable[[], object]:
    os._exit(status)


def test_workers_that_always_die_end_the_run(tmp_path: Path) -> None:
    job = Job("toy", 4, {}, [Stage("die", partial(die, 7))], chunk_size=1)  # type: ignore[arg-type]
    with pytest.raises(OutputError, match=r"3 workers died while making items \d to \d, .* exit status 7; run with"):
        generate(job, tmp_path, workers=2)


def refuse() -> object:
    raise DataError("the weights cannot be loaded")


def test_an_error_of_ours_keeps_its_kind_and_its_folder_can_be_used(tmp_path: Path) -> None:
    job = Job("toy", 4, {"weights": "none"}, [Stage("load", refuse)], chunk_size=1)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"^the weights cannot be loaded$"):
        generate(job, tmp_path, workers=2)
    assert generate(toy_job(), tmp_path).images == 102  # nothing had been made with the other settings


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from toy_job import toy_job\nfrom localscale.data import generate\n"
        f"generate(toy_job(), {str(tmp_path / 'out')!r}, workers=2)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(toy.__file__).parent)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode != 0
    assert 'under `if __name__ == "__main__":`' in done.stderr


def test_ctrl_c_leaves_nothing_half_written(tmp_path: Path) -> None:
    generate(toy_job(), tmp_path / "whole", form="shards")
    run = tmp_path / "out"
    process = start(run, "shards", 2)
    wait_for(lambda: finished_chunks(run) >= 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) != 0
    store = Store(run, "shards", 4, toy.SIZE)
    assert 0 < len(store.unfinished()) < len(store.chunks)
    assert not list(run.glob(".drafts/*"))
    generate(toy_job(), run, form="shards")
    assert hashes(run) == hashes(tmp_path / "whole")


def test_a_worker_of_a_local_ray_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    generate(toy_job(), tmp_path / "whole", form="shards")
    run = tmp_path / "out"
    process = start(run, "shards", 2, "ray", seconds=0.15)
    wait_for(lambda: finished_chunks(run) >= 2, 90)
    actors = [pid for pid in descendants(process.pid) if is_actor(pid)]
    os.kill(actors[0], signal.SIGKILL)
    assert process.wait(timeout=120) == 0
    assert hashes(run) == hashes(tmp_path / "whole")


def test_stages_for_gpus_are_actors_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    generate(toy_job(), tmp_path / "whole")
    traces = tmp_path / "traces"
    traces.mkdir()
    monkeypatch.setenv("TOY_TRACES", str(traces))
    assert start(tmp_path / "out", "folder", 2, "ray-with-gpu", seconds=0.02).wait(timeout=120) == 0
    ran = {stage: {path.name.split("-")[1] for path in traces.glob(f"{stage}-*")} for stage in ("double", "write")}
    assert len(ran["double"]) == 1
    assert ran["write"]
    assert not ran["double"] & ran["write"]
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")


def descendants(parent: int) -> list[int]:
    below = children(parent)
    return below + [pid for child in below for pid in descendants(child)]


def is_actor(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return b"MapWorker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


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
    from localscale.data.generation import store

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
    from localscale.data.generation import store

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


def test_no_cluster_at_the_address(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    with pytest.raises(OutputError, match="no Ray cluster answers at auto"):
        generate(toy_job(), tmp_path, engine="ray", address="auto")
