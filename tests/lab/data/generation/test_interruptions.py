"""Whatever is killed on the way, the files that come out are those of a run that was not."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import toy_job as toy
from toy_job import hashes, toy_job
from toy_processes import descendants, finished_chunks, is_actor, start, wait_for, workers_of

from localscale.errors import OutputError
from localscale.lab.data.generation import Job, Stage, generate
from localscale.lab.data.generation.store import Store


@pytest.fixture(scope="module", params=[pytest.param("folder", marks=pytest.mark.slow), "shards"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An uninterrupted run in one process."""
    out = tmp_path_factory.mktemp("whole") / "out"
    summary = generate(toy_job(), out, form=request.param)
    assert (summary.images, summary.skipped) == (102, {"sevens are left out": 9})
    return request.param, out


def test_killed_at_any_moment_and_started_again(whole: tuple[str, Path], tmp_path: Path) -> None:
    form, out = whole
    workers = {"folder": 2, "shards": 1}[form]
    run = tmp_path / "out"
    deaths = 0
    for progress in (0, 3, 7):  # killed before anything is done, and twice on the way
        process = start(run, form, workers, seconds=0.15)
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
    process = start(tmp_path / "out", "folder", 2, seconds=0.2)
    wait_for(lambda: finished_chunks(tmp_path / "out") >= 2)
    for pid in workers_of(process.pid):
        os.kill(pid, signal.SIGKILL)
    assert process.wait(timeout=60) == 0
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")


@pytest.mark.slow
def test_a_worker_holds_the_lock_until_it_ends(tmp_path: Path) -> None:
    """A stopped worker outlives its killed parent; while it may still write, nobody else does."""
    process = start(tmp_path, "folder", 2, seconds=0.2)
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


def die(status: int) -> Callable[[], object]:
    os._exit(status)


@pytest.mark.slow
def test_workers_that_always_die_end_the_run(tmp_path: Path) -> None:
    job = Job("toy", 4, {}, [Stage("die", partial(die, 7))], chunk_size=1)  # type: ignore[arg-type]
    with pytest.raises(OutputError, match=r"3 workers died while making items \d to \d, .* exit status 7; run with"):
        generate(job, tmp_path, workers=2)


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from toy_job import toy_job\nfrom localscale.lab.data import generate\n"
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
    process = start(run, "shards", 2, seconds=0.3)
    wait_for(lambda: finished_chunks(run) >= 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) != 0
    store = Store(run, "shards", 4, toy.SIZE)
    assert 0 < len(store.unfinished()) < len(store.chunks)
    assert not list(run.glob(".drafts/*"))
    generate(toy_job(), run, form="shards")
    assert hashes(run) == hashes(tmp_path / "whole")


@pytest.mark.slow
def test_a_worker_of_a_local_ray_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    generate(toy_job(), tmp_path / "whole", form="shards")
    run = tmp_path / "out"
    process = start(run, "shards", 2, "ray", seconds=0.25)
    wait_for(lambda: finished_chunks(run) >= 2, 90)
    actors = [pid for pid in descendants(process.pid) if is_actor(pid)]
    os.kill(actors[0], signal.SIGKILL)
    assert process.wait(timeout=120) == 0
    assert hashes(run) == hashes(tmp_path / "whole")


@pytest.mark.slow
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


def test_ray_tells_what_went_wrong_in_a_stage(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    process = start(tmp_path / "out", "folder", 2, "ray", seconds=-1, stderr=subprocess.PIPE)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "refused: Traceback" in told.decode()
    assert told.decode().strip().endswith("ValueError: cannot sleep for -1.0 seconds")


def test_no_cluster_at_the_address(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    with pytest.raises(OutputError, match="no Ray cluster answers at auto"):
        generate(toy_job(), tmp_path, engine="ray", address="auto")
