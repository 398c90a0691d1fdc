"""A run that is killed at any moment and started again writes the files of an uninterrupted run."""

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
from toy_processes import descendants, finished_chunks, is_actor, started, wait_for, workers_of

from localscale.errors import OutputError
from localscale.lab.data.generation import Job, Stage, generate
from localscale.lab.data.generation.store import Store


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The files of an uninterrupted run in one process, in each form."""
    root = tmp_path_factory.mktemp("whole")
    for form in ("folder", "shards"):
        generate(toy_job(), root / form, form=form)  # type: ignore[arg-type]
    return {form: hashes(root / form) for form in ("folder", "shards")}


@pytest.mark.parametrize(
    ("form", "workers", "moments"),
    [("shards", 1, (0, 3)), pytest.param("folder", 2, (0, 2, 5), marks=pytest.mark.slow)],
)
def test_killed_runs_continue(form: str, workers: int, moments: tuple[int, ...], whole: dict, tmp_path: Path) -> None:
    for chunks in moments:
        with started(tmp_path, form, workers, seconds=0.1):
            wait_for(lambda: (tmp_path / "dataset.json").exists() and finished_chunks(tmp_path) >= chunks)  # noqa: B023
        # It was killed. The next run starts at once, while workers of this one may still be alive.
        assert not (tmp_path / "manifest.jsonl").exists()
    generate(toy_job(), tmp_path, form=form)  # type: ignore[arg-type]
    assert hashes(tmp_path) == whole[form]


def test_dead_workers_are_replaced_and_ctrl_c_leaves_no_drafts(whole: dict, tmp_path: Path) -> None:
    """Every worker is killed, so only new ones can continue; then the run is interrupted."""
    with started(tmp_path, "folder", 2, seconds=0.2) as process:
        wait_for(lambda: finished_chunks(tmp_path) >= 1)
        for pid in workers_of(process.pid):
            os.kill(pid, signal.SIGKILL)
        finished = finished_chunks(tmp_path)
        wait_for(lambda: finished_chunks(tmp_path) >= finished + 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) != 0
    store = Store(tmp_path, "folder", 3, toy.SIZE)
    assert 0 < len(store.unfinished()) < len(store.chunks)
    assert not list(tmp_path.glob(".drafts/*"))
    generate(toy_job(), tmp_path)
    assert hashes(tmp_path) == whole["folder"]


@pytest.mark.slow
def test_a_worker_holds_the_lock_until_it_ends(tmp_path: Path) -> None:
    """A stopped worker outlives its killed parent and may still write, so another run must not."""
    with started(tmp_path, "folder", 2, seconds=0.2) as process:
        wait_for(lambda: finished_chunks(tmp_path) >= 1)
        orphan = workers_of(process.pid)[0]
        os.kill(orphan, signal.SIGSTOP)
    try:
        with pytest.raises(OutputError, match="another process is writing to"):
            generate(toy_job(), tmp_path)
    finally:
        os.kill(orphan, signal.SIGCONT)
    assert generate(toy_job(), tmp_path).images == 62


def die(status: int) -> Callable[[], object]:
    os._exit(status)


@pytest.mark.slow
def test_workers_that_always_die_end_the_run(tmp_path: Path) -> None:
    job = Job("toy", 4, {}, [Stage("die", partial(die, 7))], chunk_size=1)  # type: ignore[arg-type]
    with pytest.raises(OutputError, match=r"died 3 times while making items \d to \d.* exit status 7; run with"):
        generate(job, tmp_path, workers=2)


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from toy_job import toy_job\nfrom localscale.lab.data import generate\n"
        f"generate(toy_job(), {str(tmp_path / 'out')!r}, workers=2)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(toy.__file__).parent)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode != 0
    assert 'under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_worker_of_a_local_ray_is_killed(whole: dict, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    with started(tmp_path, "shards", 2, "ray", seconds=0.25) as process:
        wait_for(lambda: finished_chunks(tmp_path) >= 2)
        actors = [pid for pid in descendants(process.pid) if is_actor(pid)]
        os.kill(actors[0], signal.SIGKILL)
        assert process.wait(timeout=300) == 0
    assert hashes(tmp_path) == whole["shards"]


@pytest.mark.slow
def test_gpu_stages_run_in_their_own_ray_actors(whole: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    traces = tmp_path / "traces"
    traces.mkdir()
    monkeypatch.setenv("TOY_TRACES", str(traces))
    with started(tmp_path / "out", "folder", 2, "ray-with-gpu", seconds=0.02) as process:
        assert process.wait(timeout=300) == 0
    ran = {stage: {path.name.split("-")[1] for path in traces.glob(f"{stage}-*")} for stage in ("double", "write")}
    assert len(ran["double"]) == 1
    assert ran["write"]
    assert not ran["double"] & ran["write"]
    assert hashes(tmp_path / "out") == whole["folder"]


@pytest.mark.slow
def test_ray_reports_the_error_of_a_stage(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    with started(tmp_path / "out", "folder", 2, "ray", seconds=-1, stderr=subprocess.PIPE) as process:
        _, told = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "refused: Traceback" in told.decode()
    assert told.decode().strip().endswith("ValueError: cannot sleep for -1.0 seconds")


def test_no_cluster_at_the_address(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    with pytest.raises(OutputError, match="no Ray cluster answers at auto"):
        generate(toy_job(), tmp_path, engine="ray", address="auto")
