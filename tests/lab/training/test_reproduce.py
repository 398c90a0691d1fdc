import json
import tempfile
from pathlib import Path

import pytest

from localscale.cli.training import parse_train
from localscale.errors import ConfigError
from localscale.lab.recipes import RECIPES
from localscale.lab.recipes.tables import TABLES, Row
from localscale.lab.runs.run import Run
from localscale.lab.training.reproduce import Cell, Settings, collect, plan, reproduce

SMALL = (
    *("data.root=embedded", "data.image_size=32", "data.train_count=8", "batch_size=4", "epochs=1", "warmup_epochs=0"),
    *("data.test_count=2", "data.bracket_count=0", "data.variants=1", "pretrained=none", "precision=no"),
)


def finish(cell: Cell, **result: object) -> None:
    cell.folder.mkdir(parents=True)
    Run(cell.folder).result_file.write_text(json.dumps(result))


@pytest.mark.parametrize("name", TABLES)
def test_every_table_plans_existing_recipes_once_each_and_starts_before_what_starts_from_them(name, tmp_path):
    cells = plan(name, seeds=2, out=tmp_path)
    table = TABLES[name]
    assert len(cells) == len({cell.folder for cell in cells}) == 2 * len(table.backbones) * len(table.rows)
    seen = set()
    for cell in cells:
        assert cell.recipe in RECIPES
        assert cell.start is None or cell.start in seen
        seen.add(cell.folder)


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if any(row.arguments for row in table.rows)])
def test_what_a_row_changes_can_be_parsed(name, tmp_path):
    resolutions = set()
    for cell in plan(name, seeds=1, out=tmp_path):
        if cell.row.arguments:
            recipe = parse_train(cell.recipe, cell.command()[2:]).recipe
            resolutions.add(getattr(recipe.method, "resolution", 56))
    assert resolutions == ({None} if name == "mnist-resolution" else {56})


def test_rows_that_start_from_others_and_joint_rows_share_one_budget(tmp_path):
    epochs = {}
    for cell in plan("mnist-tiny", seeds=1, out=tmp_path):
        epochs[cell.row.name] = int(cell.arguments[cell.arguments.index("--epochs") + 1])
    assert (
        epochs["aug"] + epochs["aug_plus"] == epochs["aug_long"] == epochs["dec_joint"] == epochs["dec_compose_joint"]
    )
    assert len({epochs[row] for row in ("aug_plus", "canon", "invl", "dec", "dec_compose")}) == 1


def test_rows_of_a_table_can_all_start_from_one(tmp_path):
    cells = {cell.folder.parent.name: cell for cell in plan("mnist-hierarchical", seeds=1, out=tmp_path)}
    assert cells.pop("hrvit_b1-base").start is None
    base = cells.pop("resformer_tiny-base")
    assert (base.start, base.arguments[base.arguments.index("--epochs") + 1]) == (None, "8")
    for name, cell in cells.items():
        assert cell.start is not None
        assert cell.start.parent.name == f"{name.partition('-')[0]}-base"
        assert cell.arguments[cell.arguments.index("--epochs") + 1] == "6"


def test_only_picks_cells_and_what_they_start_from(tmp_path):
    cells = plan("mnist-tiny", seeds=1, out=tmp_path, only="canon")
    assert [cell.row.name for cell in cells] == ["aug", "canon"]
    with pytest.raises(ConfigError, match="no cell of mnist-tiny is called so"):
        plan("mnist-tiny", seeds=1, out=tmp_path, only="cannon")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mnist-tny", "seeds": 1}, "did you mean mnist-tiny"),
        ({"name": "mnist-tiny", "seeds": 0}, "--seeds 0; expected at least 1"),
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

    def pretend(cell: Cell) -> str:
        ran.append(cell.folder)
        if cell.start is not None and not Run(cell.start).result_file.exists():
            return f"{cell.folder}: not finished"
        if cell.row.name == "aug":
            return f"{cell.folder}: exit status 1"
        finish(cell)
        return ""

    monkeypatch.setattr("localscale.lab.training.reproduce.run_cell", pretend)
    failed = reproduce(cells, Settings(jobs=3))
    assert cells[0].folder not in ran
    assert len(ran) == len(set(ran)) == len(cells) - 1
    from_second = [cell for cell in cells if cell.seed == 1 and (cell.row.name == "aug" or cell.start is not None)]
    assert len(failed) == len(from_second)
    assert sum(cell.finished() for cell in cells) == len(cells) - len(from_second)


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_table_is_run_resumed_and_collected_by_real_processes(engine, tmp_path, monkeypatch):
    if engine == "ray":
        pytest.importorskip("ray", reason="needs the extra 'ray'")
        monkeypatch.setenv("RAY_TMPDIR", tempfile.mkdtemp(dir="/tmp"))  # not where other tests look for a cluster
    cells = plan("mnist-tiny", seeds=1, out=tmp_path, only="aug_plus", overrides=SMALL, flags=("--cpu",))
    failed = reproduce(cells, Settings(jobs=2, engine=engine, gpus_per_run=0))
    assert failed == []
    found = collect("mnist-tiny", cells, "a command")
    assert [run["row"] for run in found["runs"]] == ["aug", "aug_plus"]
    assert [run["budget_epochs"] for run in found["runs"]] == [1, 2]
    before = (cells[0].folder / "weights.safetensors").stat().st_mtime_ns
    assert reproduce(cells, Settings()) == []
    assert (cells[0].folder / "weights.safetensors").stat().st_mtime_ns == before


def test_what_went_wrong_in_a_run_is_told(tmp_path):
    folder = tmp_path / "deit_tiny-aug" / "seed0"
    cell = Cell(Row("Aug", "aug"), "deit_tiny", 0, "mnist-deit_tiny-aug", ("--epochs", "0"), folder, None)
    (message,) = reproduce([cell], Settings())
    assert "epochs is 0; expected a positive number" in message
    assert str(folder.with_suffix(".txt")) in message
    missing = Cell(
        Row("Aug+", "aug_plus"), "deit_tiny", 0, "mnist-deit_tiny-aug_plus", (), tmp_path / "b", Path("nowhere")
    )
    assert "which is not finished" in reproduce([missing], Settings())[0]


def test_nothing_finished_is_nothing_to_write(tmp_path):
    with pytest.raises(ConfigError, match="no run of mnist-tiny is finished"):
        collect("mnist-tiny", plan("mnist-tiny", seeds=1, out=tmp_path), "a command")
