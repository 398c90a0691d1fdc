"""Figures: the right data at the right place, and files."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import localscale as ls
from localscale.cli import main
from localscale.errors import ConfigError, DataError, OutputError, ShapeError
from localscale.lab.pictures import draw_functions, draw_masks, draw_per_scale, draw_residuals, draw_warp, save_figure
from localscale.lab.pictures.curves import read_per_scale
from localscale.lab.pictures.masks import OBJECTS, STRANGE


def test_each_class_has_its_colour_and_unknown_classes_another():
    images, truth = torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long)
    truth[0, 0], truth[0, 1] = 7, 3
    answer = truth.clone()
    answer[0, 2] = 9  # a class that the scene does not have
    axes = draw_masks(images, truth, {"DEC": answer}).axes
    drawn = np.asarray(axes[2].images[0].get_array())
    for row, colour in ((0, OBJECTS[1]), (1, OBJECTS[0]), (2, STRANGE)):
        assert drawn[row, 0] == pytest.approx(0.85 * np.array(colour), abs=1e-6)
    assert drawn[3, 0] == pytest.approx([0.75] * 3)
    assert np.array_equal(np.asarray(axes[1].images[0].get_array())[:2], drawn[:2]), "truth in the same colours"


def test_captions_stand_under_their_row():
    images, truth = torch.rand(2, 3, 8, 8), torch.zeros(2, 8, 8, dtype=torch.long)
    axes = draw_masks(images, truth, {"Aug": truth}, {"Aug": ["one", "two"]}).axes
    assert [axis.get_xlabel() for axis in axes] == ["", "", "", "", "one", "two"]
    assert [axes[row].get_ylabel() for row in (0, 2, 4)] == ["image", "truth", "Aug"]


def test_masks_of_a_scene_from_the_command_line(scenes: Path, numbers: Path, tmp_path: Path):
    out, data, run = tmp_path / "masks.svg", str(scenes / "test"), f"DEC={scenes / 'dec'}"
    main(["figure", "masks", "--data", data, "--runs", run, f"Canon={scenes / 'canon'}", "--out", str(out)])
    assert out.read_text().count("IoU") == 6
    for arguments, sentence in (
        (["--runs", run, "--scene", "9"], "--scene 9: .* has 4 scenes, 0 to 3"),
        (["--runs", f"DEC={numbers / 'dec'}"], "classifies; expected a run of objects"),
        (["--runs"], "expected NAME=FOLDER"),
    ):
        with pytest.raises(SystemExit, match=sentence):
            main(["figure", "masks", "--data", data, *arguments, "--out", str(out)])


def test_masks_of_another_size_are_refused():
    with pytest.raises(ShapeError, match=r"Aug has shape \(1, 4, 5\) .* expected a label for every pixel"):
        draw_masks(torch.rand(1, 3, 4, 4), torch.zeros(1, 4, 4), {"Aug": torch.zeros(1, 4, 5)})


def test_the_grid_moves_as_the_image_does():
    m = ls.random_map(1, 4, strength=2.0, generator=torch.Generator().manual_seed(0))
    before, after = draw_warp(torch.rand(3, 11, 21), m).axes
    side = torch.tensor([20.0, 10.0])
    for line, moved in zip(before.lines, after.lines, strict=True):
        points = torch.as_tensor(np.stack(line.get_data(), -1)).float()
        found = torch.as_tensor(np.stack(moved.get_data(), -1)).float()
        assert torch.allclose(m((points / side)[None])[0] * side, found, atol=1e-4)


def test_one_map_for_one_image():
    with pytest.raises(ShapeError, match=r"there are 2 maps; expected \(3, height, width\) and 1"):
        draw_warp(torch.rand(3, 8, 8), ls.identity_map(2))


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_figures_are_written_whole(form: str, start: bytes, tmp_path: Path):
    figure = draw_warp(torch.rand(3, 8, 8), ls.identity_map())
    save_figure(figure, tmp_path / "new" / f"warp.{form}")
    assert (tmp_path / "new" / f"warp.{form}").read_bytes().startswith(start)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"warp.{form}"]


def test_paths_that_cannot_be_written_are_refused(tmp_path: Path):
    figure = draw_warp(torch.rand(3, 8, 8), ls.identity_map())
    with pytest.raises(ConfigError, match=r"ends in \.bmp; expected \.png, \.pdf, \.svg"):
        save_figure(figure, tmp_path / "warp.bmp")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot be written"):
        save_figure(figure, tmp_path / "file" / "warp.png")


def test_warp_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    Image.new("L", (20, 12)).save(tmp_path / "grey.png")
    main(["figure", "warp", "--image", str(tmp_path / "grey.png"), "--out", str(tmp_path / "warp.png")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "warp.png")
    with Image.open(tmp_path / "warp.png") as drawn:
        assert drawn.width > 500
    with pytest.raises(SystemExit, match=r"localscale: .*gone"):
        main(["figure", "warp", "--image", str(tmp_path / "gone.png"), "--out", str(tmp_path / "b.png")])


def test_the_seeds_of_a_row_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    runs = [
        {"label": label, "metrics": {"per_scale": {"accuracy": {"0.7": low, "1.0": high}}}}
        for label, low, high in (("Aug", 0.5, 0.75), ("Aug", 0.25, 0.75), ("DEC", 0.5, 1.0))
    ]
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"runs": [*runs, {"label": "old", "metrics": {}}]}))
    scales, lines = read_per_scale(path)
    assert scales == ["0.7", "1.0"]
    assert lines["Aug"].tolist() == [[50, 75], [25, 75]]
    assert lines["DEC"].tolist() == [[50, 100]]
    axis = draw_per_scale(scales, lines, ylabel="accuracy %").axes[0]
    assert [line.get_ydata().tolist() for line in axis.lines] == [[37.5, 75], [50, 100]]
    assert len(axis.collections) == 1, "one seed has no deviation"
    main(["figure", "per-scale", "--result", str(path), "--rows", "DEC", "--out", str(tmp_path / "a.svg")])
    assert (tmp_path / "a.svg").exists()
    with pytest.raises(ConfigError, match=r"no row 'Dec' in .*DEC"):
        read_per_scale(path, ("Dec",))
    path.write_text("{}")
    with pytest.raises(DataError, match="is not a result of localscale reproduce"):
        read_per_scale(path)
    path.write_text(json.dumps({"runs": []}))
    with pytest.raises(DataError, match="has no accuracy per scale"):
        read_per_scale(path)


def test_scales_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match=r"base has shape \(2, 3\); expected \(images, 2\)"):
        draw_per_scale([0.7, 1.0], {"base": torch.rand(2, 3)}, ylabel="")


def test_residuals_are_medians_and_ranges():
    values = torch.tensor([[1.0, 0.1], [0.5, 0.01], [0.25, 0.001]])
    axis = draw_residuals({"input": values}, tolerance=1e-3).axes[0]
    assert axis.lines[0].get_ydata().tolist() == pytest.approx([0.5, 0.01])
    assert axis.get_yscale() == "log"


def test_a_local_scaling_keeps_both_ends_and_a_global_one_does_not():
    axes = draw_functions(4.0).axes
    for axis, end in ((axes[0], 0.25), (axes[2], 1.0)):
        places = axis.lines[1].get_ydata()
        assert (places[0], places[-1]) == pytest.approx((0, end))
        assert (np.diff(places) > 0).all()


def test_growth_is_drawn_from_a_benchmarks_results(tmp_path: Path):
    cost = {
        "forward ms": 1.0,
        "forward and backward ms": 2.0,
        "forward peak MiB": 3,
        "forward and backward peak MiB": 4,
    }
    rows = [{"axis": axis, "value": value, **cost} for axis in ("batch", "steps") for value in (1, 2)]
    (tmp_path / "speed.json").write_text(
        json.dumps({"tables": [{"title": "How the cost of a solve grows", "rows": rows}]})
    )
    main(["figure", "growth", "--result", str(tmp_path / "speed.json"), "--out", str(tmp_path / "growth.svg")])
    assert "peak memory, MiB" in (tmp_path / "growth.svg").read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [("{}", "not a benchmark result"), ('{"tables": []}', "has no table"), ("x", "not a bench")],
)
def test_files_without_growth_are_refused(content: str, said: str, tmp_path: Path):
    (tmp_path / "speed.json").write_text(content)
    with pytest.raises(SystemExit, match=said):
        main(["figure", "growth", "--result", str(tmp_path / "speed.json"), "--out", str(tmp_path / "growth.svg")])
