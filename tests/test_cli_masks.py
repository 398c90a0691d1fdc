"""``localscale train folder --task segmentation`` and what follows: evaluate, predict, report, as a user gives them."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_masks import write_masks

from localscale.cli import main
from localscale.cli.predict import different_names
from localscale.lab.data.images import read_labels
from localscale.lab.runs import load_run

FAST = (
    *("--task", "segmentation", "--backbone", "test_vit", "--pretrained", "none", "--precision", "no", "--cpu"),
    *("--quiet", "--epochs", "1", "--batch-size", "2", "--data.image-size", "32", "--data.workers", "0"),
    *("--head-width", "8", "--method.learning-steps", "2"),
)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    write_masks(folder / "train")
    write_masks(folder / "val", images=3, seed=1)
    return folder


@pytest.fixture(scope="module")
def run(photographs: Path) -> Path:
    where = ("--data.train-root", str(photographs / "train"), "--data.val-root", str(photographs / "val"))
    main(["train", "folder", *where, *FAST, "--control", "--out", str(photographs / "run")])
    return photographs / "run"


def test_a_run_and_its_control_are_trained_and_measured(run: Path, capsys: pytest.CaptureFixture):
    result, control = (
        json.loads((folder / "result.json").read_text()) for folder in (run, run.with_name("run-control"))
    )
    assert result["classes"] == control["classes"] == 3
    assert result["recipe"]["method"]["config"]["mode"] == "equivariant"
    assert control["recipe"]["method"]["kind"] == "FineTune"
    main(["evaluate", str(run), "--cpu"])
    printed = capsys.readouterr().out
    assert f"mIoU {100 * result['metrics']['mean_iou']:.2f} % of 3 images" in printed
    assert "EquE" in printed
    assert "scene" not in printed
    model = load_run(run)
    assert (model.preprocessing.input_size, model.preprocessing.keep_ratio) == ((3, 32, 32), False)


def test_a_run_is_measured_on_other_images(run: Path, photographs: Path, capsys: pytest.CaptureFixture):
    main(["evaluate", str(run), "--cpu", "--data.val-root", str(photographs / "train")])
    assert "of 8 images" in capsys.readouterr().out


def test_predict_writes_a_mask_for_each_image(
    run: Path, photographs: Path, capsys: pytest.CaptureFixture, tmp_path: Path
):
    pictures = [photographs / part / "images" / "photo 0.jpg" for part in ("train", "val")]
    main(["predict", str(run), *map(str, pictures), "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("% of the pixels") for line in lines] == [1, 1]
    for picture, name in zip(pictures, ("photo 0", "photo 0_2"), strict=True):
        labels = read_labels(tmp_path / f"{name}_mask.png")
        assert labels.shape == np.asarray(Image.open(picture)).shape[:2]
        assert set(np.unique(labels)) <= {0, 1, 2}
        with Image.open(tmp_path / f"{name}_canonical.png") as both:
            assert both.size == (64, 32)


def test_images_of_one_name_get_different_outputs():
    assert different_names(map(Path, ("a/x.png", "b/x.jpg", "x_2.png"))) == ["x", "x_2", "x_2_2"]


def test_a_report_and_figures_are_drawn(run: Path, tmp_path: Path):
    pytest.importorskip("matplotlib")
    control = str(run.with_name("run-control"))
    main(["report", str(run), "--control", control, "--images", "2", "--quiet", "--out", str(tmp_path / "report.html")])
    page = (tmp_path / "report.html").read_text()
    assert "Left out" not in page
    assert "mIoU, %" in page
    assert "photo 0.jpg" in page
    for figure in ("canonical", "learned"):
        out = tmp_path / f"{figure}.png"
        main(["figure", figure, "--run", str(run), "--numbers", "2", "--sizes", "3", "--out", str(out)])
        assert out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), r"--data.train-root is needed: a folder with images/NAME.jpg and masks/NAME.png"),
        (("--task", "segment"), "--task is 'segment': did you mean segmentation"),
        (("--data.train-root", "/nowhere"), "/nowhere is not a folder; expected nowhere/images/NAME.jpg and masks/"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(arguments: tuple[str, ...], message: str, tmp_path: Path):
    with pytest.raises(SystemExit, match=message):
        main(["train", "folder", *FAST, "--out", str(tmp_path / "run"), *arguments])


def test_class_folders_are_no_masks(tmp_path: Path):
    (tmp_path / "cat").mkdir()
    with pytest.raises(SystemExit, match=r"images is not a folder.*leave out --task segmentation"):
        main(["train", "folder", *FAST, "--out", str(tmp_path / "run"), "--data.train-root", str(tmp_path)])
