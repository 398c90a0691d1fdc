"""``localscale train folder`` and what follows: evaluate, predict, report, figure, as a user gives them."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_folders import write_folder

from localscale.cli import main
from localscale.cli.training import parse_train
from localscale.lab.runs import load_run, read_run
from localscale.lab.tasks.folder import central_crop

FAST = (
    *("--backbone", "test_vit", "--pretrained", "none", "--precision", "no", "--cpu", "--quiet", "--epochs", "1"),
    *("--batch-size", "4", "--data.image-size", "32", "--data.workers", "0", "--data.variants", "1"),
)
SIZES = ("--method", "sizes", "--method.learning-steps", "2")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    write_folder(folder / "train")
    write_folder(folder / "val", images=2, seed=1)
    return folder


@pytest.fixture(scope="module")
def run(photographs: Path) -> Path:
    folder = photographs / "run"
    where = ("--data.train-root", str(photographs / "train"), "--data.val-root", str(photographs / "val"))
    main(["train", "folder", *where, *FAST, *SIZES, "--control", "--out", str(folder)])
    return folder


def failing(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code not in (0, None)
    printed = capsys.readouterr()
    return f"{stop.value} {printed.err} {printed.out}"


def help_text(flag: str, capsys: pytest.CaptureFixture) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["train", "folder", flag])
    assert stop.value.code in (0, None)
    return capsys.readouterr().out


def test_help_fits_on_a_screen_and_names_options_that_exist(capsys: pytest.CaptureFixture):
    short, every = help_text("--help", capsys), help_text("--help-all", capsys)
    assert len(short.splitlines()) < 35 < len(every.splitlines())
    assert max(map(len, short.splitlines())) <= 140
    named = {line.split()[0] for line in short.splitlines() if line.startswith("--")}
    assert {"--backbone", "--epochs", "--resume", "--help-all"} < named
    left = named - {"--task", "--method", "--control", "--val-fraction", "--help-all"}  # read before the others
    accepted = every.partition("show this help message and exit")[2]  # the text above it repeats the short help
    for name in left:
        assert f"{name} " in accepted or f"{name}," in accepted


def test_a_run_and_its_control_differ_in_the_method_alone(run: Path):
    result, control = (
        json.loads((folder / "result.json").read_text()) for folder in (run, run.with_name("run-control"))
    )
    assert result["class_names"] == ["blue", "green", "red"]
    assert result["learned_sizes"]["steps"] == 2
    assert "learned_sizes" not in control
    assert result["recipe"]["method"]["kind"] == "SizeEquilibrium"
    assert control["recipe"]["method"]["kind"] == "FineTune"
    for name in ("data", "optimization", "augmentation", "regularization", "seed"):
        assert result["recipe"][name] == control["recipe"][name]


def test_a_run_is_measured_on_other_photographs(run: Path, photographs: Path, capsys: pytest.CaptureFixture):
    main(["evaluate", str(run), "--cpu", "--data.val-root", str(photographs / "train")])
    printed = capsys.readouterr().out
    assert "of 12 images" in printed
    assert "% of the variants" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--data.train-root is needed: a folder with one subfolder of images per class"),
        (("--data.train-root", "/nowhere"), "--data.train-root /nowhere is not a folder"),
        (("--method", "size"), "--method is 'size': did you mean sizes"),
        (("--backbone", "resnet19"), "timm has no model 'resnet19': did you mean resnet1"),
        (("--method", "none", "--control"), "is its own control"),
        (("--epoch", "3"), "--epochs"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture, tmp_path: Path
):
    assert message in failing(capsys, "train", "folder", *FAST, "--out", str(tmp_path / "run"), *arguments)


def test_images_and_masks_are_no_classes(capsys: pytest.CaptureFixture, tmp_path: Path):
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
        Image.new("L", (40, 30)).save(tmp_path / name / "a.png")
    said = failing(capsys, "train", "folder", *FAST, "--data.train-root", str(tmp_path), "--out", str(tmp_path / "run"))
    assert "holds images and masks, which are no classes; add --task segmentation to learn masks" in said


def test_predict_takes_files(run: Path, photographs: Path, capsys: pytest.CaptureFixture, tmp_path: Path):
    folder = photographs / "val" / "red"
    said = failing(capsys, "predict", str(run), str(folder), "--out", str(tmp_path))
    assert f"{folder} is a folder; name image files, such as {folder}/*.jpg" in said


def test_predict_names_classes_writes_canonical_forms_and_goes_on_after_a_broken_image(
    run: Path, photographs: Path, capsys: pytest.CaptureFixture, tmp_path: Path
):
    picture = photographs / "val" / "red" / "0.png"
    broken = tmp_path / "broken.jpg"
    broken.write_text("no image")
    arguments = ("predict", str(run), str(broken), str(picture), "--out", str(tmp_path / "forms"), "--top", "2")
    said = failing(capsys, *arguments)
    assert "broken.jpg is not a readable image" in said
    assert "1 of 2 images could not be read" in said
    line = next(line for line in said.splitlines() if "0.png: " in line)
    assert line.count(" %") == 2
    assert sum(name in line.partition(": ")[2] for name in ("blue", "green", "red")) == 2
    with Image.open(tmp_path / "forms" / "0_canonical.png") as both:
        assert both.size == (64, 32)


def test_a_report_and_figures_are_drawn(run: Path, tmp_path: Path):
    pytest.importorskip("matplotlib")
    control = str(run.with_name("run-control"))
    main(["report", str(run), "--control", control, "--images", "2", "--quiet", "--out", str(tmp_path / "report.html")])
    page = (tmp_path / "report.html").read_text()
    assert "Left out" not in page
    assert "The paper has no row" not in page
    assert "Accuracy on the locally scaled variants of the images: this run" in page
    assert any(f"{name}/" in page for name in ("blue", "green", "red"))
    for figure in ("canonical", "learned"):
        out = tmp_path / f"{figure}.png"
        main(["figure", figure, "--run", str(run), "--numbers", "2", "--sizes", "3", "--out", str(out)])
        assert out.exists()


def test_the_app_opens_a_run(run: Path):
    from localscale.lab.pages.app.models import open_pair

    pair = open_pair(str(run), control=run.with_name("run-control"))
    assert "photographs of 3 classes" in pair.notes[0]
    assert [pair.name_of(label) for label in range(3)] == ["blue", "green", "red"]
    assert pair.prepare(Image.new("RGB", (50, 40))).shape == (1, 3, 32, 32)


def test_a_rate_that_cannot_train_a_new_head_is_told(photographs: Path, caplog: pytest.LogCaptureFixture):
    where = ("--data.train-root", str(photographs / "train"), "--out", str(photographs / "slow"))
    main(["train", "folder", *where, *FAST, "--method", "none", "--learning-rate", "1e-3", "--warmup-epochs", "5"])
    assert "--learning-rate 0.001 is too low to train a new head of 3 classes in 2 steps; raise it to about 0.01" in (
        caplog.text
    )
    assert "--warmup-epochs 5 does not fit into --epochs 1; the warm-up is shortened to 0.2 epochs" in caplog.text


def test_the_fraction_to_hold_out_has_a_short_name(caplog: pytest.LogCaptureFixture):
    training = parse_train("folder", [*FAST, "--val-fraction", "0.4"])
    assert training.recipe.data.val_fraction == 0.4
    assert not caplog.text
    parse_train("folder", [*FAST, "--val-fraction", "0.4", "--data.val-root", "val", "--control", *SIZES])
    assert "--val-fraction 0.4 is not used, because --data.val-root is given" in caplog.text


def test_a_control_is_added_to_a_finished_run(photographs: Path, capsys: pytest.CaptureFixture, tmp_path: Path):
    run = tmp_path / "my run"
    where = ("--data.train-root", str(photographs / "train"), "--val-fraction", "0.25", "--out", str(run))
    command = ["train", "folder", *where, *FAST, "--method", "aug"]
    main(command)
    weights = (run / "weights.safetensors").stat().st_mtime_ns
    main([*command, "--control"])
    printed = capsys.readouterr().out
    assert "run is finished, and is not trained again" in printed
    next_command = shlex.split(printed.rpartition("compare them: ")[2])
    assert next_command == ["localscale", "report", str(run), "--control", f"{run}-control"]
    assert (tmp_path / "my run-control" / "result.json").exists()
    assert (run / "weights.safetensors").stat().st_mtime_ns == weights
    with pytest.raises(SystemExit, match=r"the run in .* is finished; choose another folder"):
        main(command)


def test_the_model_of_a_run_knows_its_images(run: Path):
    found = load_run(run).preprocessing
    assert found.input_size == (3, 32, 32)
    photograph = Image.effect_mandelbrot((50, 40), (-2, -1, 1, 1), 50).convert("RGB")
    data = read_run(run).recipe.data
    seen = read_run(run).normalise(central_crop(data.image_size, data.crop)(photograph)[None].float() / 255)[0]
    torch.testing.assert_close(found.transform()(photograph), seen, atol=1e-5, rtol=0)


def test_what_was_learned_about_sizes_is_printed(photographs: Path, capsys: pytest.CaptureFixture):
    where = ("--data.train-root", str(photographs / "train"), "--out", str(photographs / "told"))
    main(["train", "folder", *where, *FAST, *SIZES])
    assert "sizes learned in 2 steps: error 0." in capsys.readouterr().out
