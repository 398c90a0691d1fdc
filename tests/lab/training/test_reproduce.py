import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from tiny_processes import wait_for
from toy_processes import children

from localscale.cli import main
from localscale.cli.training import parse_train
from localscale.errors import ConfigError
from localscale.lab.recipes import PROTOCOLS
from localscale.lab.recipes.recipe import to_dict
from localscale.lab.recipes.tables import TABLES
from localscale.lab.runs.run import Run
from localscale.lab.tasks.outcomes import Outcomes
from localscale.lab.training.reproduce import Cell, Execution, collect, plan, reproduce
from localscale.metrics import paired_difference

SMALL = (
    *("data.image_size=32", "data.train_count=8", "batch_size=4", "epochs=1", "warmup_epochs=0"),
    *("data.test_count=2", "data.bracket_count=0", "data.variants=1", "pretrained=none", "precision=no"),
)


def finish(cell: Cell, **result: object) -> None:
    cell.folder.mkdir(parents=True)
    Run(cell.folder).result_file.write_text(json.dumps(result))


def running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def planned(table: str, folder: Path) -> dict[str, Cell]:
    return {cell.folder.parent.name: cell for cell in plan(table, seeds=1, out=folder)}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_plans_each_run_once_and_after_the_run_it_starts_from(name, tmp_path):
    cells = plan(name, seeds=2, out=tmp_path)
    table = TABLES[name]
    assert len(cells) == len({cell.folder for cell in cells}) == 2 * len(table.backbones) * len(table.lines)
    seen = set()
    for cell in cells:
        cell.recipe.check()
        assert cell.start is None or cell.start in seen
        seen.add(cell.folder)


OF_ONE_METHOD = ("mnist-dec-sweep", "mnist-sizes-long")


@pytest.mark.parametrize(
    "name",
    [name for name, table in TABLES.items() if table.paper in PROTOCOLS and name not in OF_ONE_METHOD],
)
def test_a_table_of_methods_has_the_peer_and_the_controls_of_warping(name):
    rows = {line.row for line in TABLES[name].lines}
    assert {"centre_zoom", "random_warp"} <= rows
    assert ("zoom" in rows) != (TABLES[name].task == "objects"), "a saliency sampler cannot scale masks back"


@pytest.mark.parametrize("name", TABLES)
def test_the_command_of_a_cell_is_parsed_to_its_recipe(name, tmp_path):
    for cell in plan(name, seeds=2, out=tmp_path)[-len(TABLES[name].lines) :]:
        parsed = parse_train(cell.recipe.name, cell.command()[2:])
        assert parsed.recipe == cell.recipe
        assert (parsed.where.out, parsed.where.resume) == (cell.folder, True)


def test_lines_that_continue_and_joint_lines_share_one_budget(tmp_path):
    epochs = {cell.line.name: cell.recipe.optimization.epochs for cell in plan("mnist-tiny", seeds=1, out=tmp_path)}
    assert (
        epochs["aug"] + epochs["aug_plus"] == epochs["aug_long"] == epochs["dec_joint"] == epochs["dec_compose_joint"]
    )
    assert len({epochs[row] for row in ("aug_plus", "canon", "invl", "dec", "dec_compose")}) == 1


def test_a_line_can_start_from_another_run_than_its_row(tmp_path):
    cells = planned("mnist-hierarchical", tmp_path)
    for first in ("hrvit_b1-base", "resformer_tiny-base", "hrvit_b1-sizes_base", "resformer_tiny-sizes_base"):
        base = cells.pop(first)
        assert (base.start, base.recipe.optimization.epochs) == (None, 8)
    for name, cell in cells.items():
        before = "sizes_base" if name.endswith("sizes_more") else "base"
        assert cell.start == tmp_path / "mnist-hierarchical" / f"{name.partition('-')[0]}-{before}" / "seed0"
        assert cell.recipe.optimization.epochs == 6


def test_lines_of_an_ablation_differ_in_one_field(tmp_path):
    cells = planned("mnist-resolution", tmp_path)
    methods = [cells[f"efficientnet_lite0-{name}"].recipe.method for name in ("dec_joint", "at28")]
    assert [method.config.network.resolution for method in methods] == [56, None]


def test_the_sweep_of_dec_is_the_whole_grid(tmp_path):
    cells = [cell for cell in plan("mnist-dec-sweep", seeds=1, out=tmp_path) if cell.line.row == "dec"]
    grid = {
        (recipe.optimization.canonicalizer_rate, len(recipe.method.config.sites), recipe.method.separation > 0)
        for recipe in (cell.recipe for cell in cells)
    }
    assert len(cells) == len(grid) == 3 * 4 * 2
    assert {rate for rate, _, _ in grid} == {1e-4, 1e-3, 1e-2}
    assert {modules for _, modules, _ in grid} == {1, 2, 3, 4}
    assert all(cell.recipe.method.identity == cell.recipe.method.separation for cell in cells)


def test_only_picks_cells_and_what_they_start_from(tmp_path):
    cells = plan("mnist-tiny", seeds=1, out=tmp_path, only=("canon",))
    assert [cell.line.name for cell in cells] == ["aug", "canon"]
    cells = plan("mnist-tiny", seeds=1, out=tmp_path, only=("deit_tiny-dec", "invl"))
    assert [cell.line.name for cell in cells] == ["aug", "invl", "dec"], "a whole name is no part of others"
    with pytest.raises(ConfigError, match="no cell of mnist-tiny"):
        plan("mnist-tiny", seeds=1, out=tmp_path, only=("cannon",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mnist-tny", "seeds": 1}, "did you mean mnist-tiny"),
        ({"name": "mnist-tiny", "seeds": 0}, "--seeds is 0; expected 1 to 1,000"),
        ({"name": "mnist-tiny", "seeds": 10**21}, "--seeds is 1000000000000000000000; expected 1 to 1,000"),
        ({"name": "mnist-tiny", "seeds": 1, "overrides": ("epochs",)}, "expected field=value"),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        plan(arguments.pop("name"), out=tmp_path, **arguments)


def test_finished_cells_are_skipped_and_a_failure_stops_only_what_starts_from_it(tmp_path, monkeypatch):
    cells = plan("mnist-tiny", seeds=2, out=tmp_path)
    finish(cells[0])
    ran = []

    class Pretended:
        child = None

        def __init__(self, cell: Cell) -> None:
            ran.append(cell.folder)
            self.cell = cell

        def message(self) -> str:
            if self.cell.start is not None and not Run(self.cell.start).result_file.exists():
                return f"{self.cell.folder}: not finished"
            if self.cell.line.name == "aug":
                return f"{self.cell.folder}: exit status 1"
            finish(self.cell)
            return ""

    monkeypatch.setattr("localscale.lab.training.reproduce.Attempt", Pretended)
    monkeypatch.setattr("localscale.lab.training.reproduce.POLL", 0)
    failed = reproduce(cells, Execution(jobs=3))
    assert cells[0].folder not in ran
    assert len(ran) == len(set(ran)) == len(cells) - 1
    from_second = [
        cell for cell in cells if cell.recipe.seed == 1 and (cell.line.name == "aug" or cell.start is not None)
    ]
    assert len(failed) == len(from_second)
    assert sum(cell.finished() for cell in cells) == len(cells) - len(from_second)


def test_finished_runs_are_collected_with_the_epochs_of_the_runs_they_start_from(tmp_path):
    cells = plan("mnist-tiny", seeds=1, out=tmp_path, only=("aug_plus",))
    for cell in cells:
        finish(cell, machine="m", versions={}, metrics={"accuracy": 0.5})
        Run(cell.folder).recipe_file.write_text(json.dumps(to_dict(cell.recipe)))
    found = collect("mnist-tiny", cells, "a command")
    assert [run["row"] for run in found["runs"]] == ["aug", "aug_plus"]
    assert [run["budget_epochs"] for run in found["runs"]] == [40, 60]


def test_a_line_is_compared_with_the_controls_that_start_from_the_same_weights():
    controls = {
        name: {line.name: table.controls_of(line) for line in table.lines}
        for name, table in TABLES.items()
        if table.controls
    }
    for name, of_lines in controls.items():
        assert {control for each in of_lines.values() for control in each} == set(TABLES[name].controls)
    assert controls["imagenet-sizes"]["sizes"] == ("base_plus", "aug")
    assert controls["mnist-tiny"] == {
        **dict.fromkeys(("aug_plus", "aug_long"), ()),
        **dict.fromkeys(("canon", "invl", "dec", "dec_compose"), ("aug_plus",)),
        **dict.fromkeys(("aug", "dec_joint", "dec_compose_joint"), ("aug_long",)),
        **dict.fromkeys(("zoom", "centre_zoom", "random_warp"), ("aug_long",)),
    }


def test_the_rows_of_imagenet_sizes_share_images_budget_and_rate(tmp_path):
    cells = planned("imagenet-sizes", tmp_path)
    rows = [cells[f"vit_tiny-{row}"].recipe for row in ("base_plus", "aug", "sizes")]
    assert len({(row.optimization.epochs, row.optimization.learning_rate, row.start) for row in rows}) == 1
    assert len({(row.data, row.regularization) for row in rows}) == 1
    assert (rows[0].data.crop, rows[0].data.rand_augment, rows[0].regularization.cutmix) == (0.9, 9, 1.0)
    assert cells["deit_tiny-sizes"].recipe.data.crop == 0.875


def test_lines_are_compared_with_their_control_image_by_image(tmp_path):
    cells = [
        cell
        for cell in plan("mnist-tiny", seeds=2, out=tmp_path)
        if cell.line.name in ("aug", "aug_plus", "canon", "dec", "aug_long")
    ]
    right = {"aug_plus": [1, 0, 0, 0], "canon": [1, 1, 0, 1], "dec": [0, 0, 0, 0], "aug": [0] * 4, "aug_long": [1] * 4}
    for cell in cells:
        finish(cell, machine="m", versions={}, metrics={})
        Run(cell.folder).recipe_file.write_text(json.dumps(to_dict(cell.recipe)))
        answers = torch.tensor(right[cell.line.name], dtype=torch.uint8)[:, None]
        images = "other images" if cell.line.name == "dec" else "images"
        Outcomes(answers, cell.recipe.seed * torch.ones(4), images).write(Run(cell.folder).outcomes)
    (found,) = collect("mnist-tiny", cells, "a command")["differences"]  # aug has fewer epochs than aug_long
    assert (found["row"], found["control"], found["images"], found["seeds"]) == ("canon", "aug_plus", 4, [2, 2])
    assert found["accuracy"] == list(paired_difference(*map(torch.tensor, (right["canon"], right["aug_plus"]))))
    assert found["invariance_error"] == [0, 0, 0]


def test_a_broken_result_does_not_hide_the_errors_of_other_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("localscale.lab.training.reproduce.reproduce", lambda *_, **__: ["runs/a: exit status 1"])
    (cell,) = plan("mnist-tiny", seeds=1, out=tmp_path, only=("-aug aug",))
    finish(cell)
    Run(cell.folder).result_file.write_text("{")
    command = ["reproduce", "mnist-tiny", "--seeds", "1", "--only=-aug aug", "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match=r"(?s)result.json cannot be read .*these runs failed, too:\s+runs/a: exit"):
        main([*command, "--results", str(tmp_path)])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_trainings_end_with_reproduce(number, digits, tmp_path):
    """Only the process of reproduce gets the signal, as from ``kill`` or a job scheduler."""
    slow = (*SMALL, f"data.root={digits}", "epochs=1000000")
    (cell,) = plan("mnist-tiny", seeds=1, out=tmp_path, only=("-aug aug",), overrides=slow)
    command = ["reproduce", "mnist-tiny", "--seeds", "1", "--out", str(tmp_path), "--cpu", "--only=-aug aug"]
    process = subprocess.Popen(
        [sys.executable, "-m", "localscale", *command, "--set", *slow],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        wait_for(Run(cell.folder).log.exists)
        (child,) = children(process.pid)
        process.send_signal(number)
        status = process.wait(120)
        wait_for(lambda: not running(child), 60)
    finally:
        process.kill()
        process.wait()
    assert status == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -9}[number]
    if number != signal.SIGKILL:
        assert Run(cell.folder).checkpoint.exists(), "it was asked to stop, and wrote its checkpoint"


@pytest.mark.slow
def test_a_run_that_another_process_still_trains_is_waited_for(digits, tmp_path):
    (cell,) = plan(
        "mnist-tiny",
        seeds=1,
        out=tmp_path,
        only=("-aug aug",),
        overrides=(*SMALL, f"data.root={digits}"),
        flags=("--cpu",),
    )
    output = cell.folder.with_suffix(".txt")

    def end_when_waited_for() -> None:
        wait_for(lambda: output.exists() and "another process is training in" in output.read_text())
        lock.close()

    lock = contextlib.ExitStack()
    with lock:
        lock.enter_context(Run(cell.folder).locked())
        ending = threading.Thread(target=end_when_waited_for)
        ending.start()
        assert reproduce([cell], Execution()) == []
        ending.join()
    assert cell.finished()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_table_is_run_resumed_and_collected_by_real_processes(engine, digits, tmp_path, monkeypatch):
    if engine == "ray":
        pytest.importorskip("ray", reason="needs the extra 'ray'")
        monkeypatch.setenv("RAY_TMPDIR", tempfile.mkdtemp(dir="/tmp"))  # not where other tests look for a cluster
    small = (*SMALL, f"data.root={digits}")
    cells = plan("mnist-tiny", seeds=1, out=tmp_path, only=("aug_plus",), overrides=small, flags=("--cpu",))
    failed = reproduce(cells, Execution(jobs=2, engine=engine, gpus_per_run=0))
    assert failed == []
    found = collect("mnist-tiny", cells, "a command")
    assert [run["row"] for run in found["runs"]] == ["aug", "aug_plus"]
    assert [run["budget_epochs"] for run in found["runs"]] == [1, 2]
    before = (cells[0].folder / "weights.safetensors").stat().st_mtime_ns
    assert reproduce(cells, Execution()) == []
    assert (cells[0].folder / "weights.safetensors").stat().st_mtime_ns == before


def test_the_message_of_a_failed_run_is_shown(tmp_path):
    (cell,) = plan("mnist-tiny", seeds=1, out=tmp_path, only=("-aug aug",), overrides=("epochs=0",))
    output = cell.folder.with_suffix(".txt")
    output.parent.mkdir(parents=True)
    output.write_text("of an earlier attempt\n")
    (message,) = reproduce([cell], Execution())
    assert "epochs is 0; expected a positive number" in message
    assert str(output) in message
    assert "earlier" not in message
    missing = plan("mnist-tiny", seeds=1, out=tmp_path, only=("aug_plus",))[-1]
    assert "which is not finished" in reproduce([missing], Execution())[0]


def test_the_file_of_a_table_has_all_finished_runs_whatever_is_trained(tmp_path, capsys, monkeypatch):
    trained = []
    monkeypatch.setattr(
        "localscale.lab.training.reproduce.reproduce", lambda cells, *_, **__: trained.append(cells) or []
    )
    for cell in plan("mnist-tiny", seeds=2, out=tmp_path / "runs"):
        if (cell.line.name, cell.recipe.seed) in {("aug", 0), ("aug", 1), ("invl", 0)}:
            finish(cell, machine="m", versions={}, metrics={"accuracy": 0.5}, seed=cell.recipe.seed)
            Run(cell.folder).recipe_file.write_text(json.dumps(to_dict(cell.recipe)))
    command = ["reproduce", "mnist-tiny", "--seeds", "2", "--out", str(tmp_path / "runs"), "--results", str(tmp_path)]
    for extra in (["--only", "canon"], ["--collect"]):
        main([*command, *extra])
        found = json.loads((tmp_path / "mnist_tiny.json").read_text())
        assert sorted((run["row"], run["seed"]) for run in found["runs"]) == [("aug", 0), ("aug", 1), ("invl", 0)]
        assert "--collect" not in found["command"]
    assert [[cell.line.name for cell in cells] for cells in trained] == [["aug", "canon"] * 2]
    assert "3 of 24 runs in" in capsys.readouterr().out


def test_nothing_finished_is_nothing_to_write(tmp_path):
    with pytest.raises(ConfigError, match="no run of mnist-tiny is finished"):
        collect("mnist-tiny", plan("mnist-tiny", seeds=1, out=tmp_path), "a command")


def test_the_errors_of_runs_are_shown_when_none_is_finished(tmp_path, monkeypatch):
    monkeypatch.setattr("localscale.lab.training.reproduce.reproduce", lambda *_, **__: ["runs/a: exit status 1"])
    with pytest.raises(SystemExit, match=r"no run of mnist-tiny is finished; these failed:\s+runs/a: exit status 1"):
        main(["reproduce", "mnist-tiny", "--seeds", "1", "--out", str(tmp_path), "--results", str(tmp_path)])
