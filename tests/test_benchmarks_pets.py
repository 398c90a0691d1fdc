"""The benchmark on pets: photographs with smaller animals, its commands, and the tables of its runs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.pets import main
from benchmarks.pets_runs import METHODS, evaluation_jobs, train_job
from localscale.cli import main as localscale
from localscale.lab.data.images import read_image
from localscale.lab.pages.results import render_page

SIDE = 64
FAST = (
    *("--backbone", "test_vit", "--pretrained", "none", "--precision", "no", "--quiet", "--epochs", "1"),
    *("--batch-size", "2", "--data.image-size", "32", "--data.variants", "1", "--method.learning-steps", "2"),
)


def write_pet(path: Path, colour: tuple[int, int, int], left: int) -> None:
    """Write a square animal of 24 pixels on a grey gradient, with a trimap whose border straddles its edge."""
    pixels = np.repeat(np.linspace(90, 150, SIDE)[:, None, None], SIDE, axis=1).repeat(3, axis=2)
    pixels[20:44, left : left + 24] = colour
    trimap = np.zeros((SIDE, SIDE), np.uint8)
    trimap[18:46, max(left - 2, 0) : left + 26] = 128
    trimap[22:42, left + 2 if left else 0 : left + 22] = 255
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=98)
    Image.fromarray(trimap).save(path.with_name(f"{path.stem}_trimap.png"))


def red_box(path: Path) -> tuple[int, int, int, int]:
    """Return the first and last column and row of the red animal."""
    pixels = np.asarray(read_image(path)).astype(int)
    rows, columns = np.nonzero(pixels[..., 0] - pixels[..., 2] > 90)
    return columns.min(), columns.max(), rows.min(), rows.max()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cv2")
    folder = tmp_path_factory.mktemp("pets")
    for split in ("trainval", "test"):
        for breed, colour in (("cat", (220, 40, 40)), ("dog", (40, 60, 220))):
            for number, left in enumerate((20, 0)):
                write_pet(folder / "pets" / split / breed / f"{breed}_{number}.jpg", colour, left)
    out, sheet = folder / "folders", folder / "sheet.png"
    main(["prepare", "--data", str(folder / "pets"), "--out", str(out), "--inpainter", "telea", "--sheet", str(sheet)])
    assert read_image(sheet).size == (1280, 160)
    return out


def test_animals_are_halved_about_their_centre_or_the_side_that_cuts_them(prepared: Path):
    for split in ("train", "val", "smaller"):
        found = sorted(str(path.relative_to(prepared / split)) for path in (prepared / split).rglob("*.*"))
        assert found == ["cat/cat_0.jpg", "cat/cat_1.jpg", "dog/dog_0.jpg", "dog/dog_1.jpg"]  # no trimaps
    assert red_box(prepared / "val/cat/cat_0.jpg") == pytest.approx((20, 43, 20, 43), abs=1)
    assert red_box(prepared / "smaller/cat/cat_0.jpg") == pytest.approx((26, 37, 26, 37), abs=1)
    assert red_box(prepared / "val/cat/cat_1.jpg") == pytest.approx((0, 23, 20, 43), abs=1)
    left, right, _, _ = red_box(prepared / "smaller/cat/cat_1.jpg")
    assert left == 0
    assert 7 <= right <= 12
    hole = np.asarray(read_image(prepared / "smaller/cat/cat_0.jpg")).astype(int)[21, 21]
    assert abs(hole - 110).max() < 12  # the gradient goes on
    shares = json.loads((prepared / "shares.json").read_text())
    assert shares["cat/cat_0.jpg"] == pytest.approx(400 / SIDE**2, abs=1e-4)


def test_a_folder_without_photographs_is_refused(tmp_path: Path):
    pytest.importorskip("cv2")
    with pytest.raises(SystemExit, match=r"holds no CLASS/NAME\.jpg; name the folder with trainval/ and test/"):
        main(["prepare", "--data", str(tmp_path), "--out", str(tmp_path / "out")])


def test_runs_are_trained_evaluated_and_collected(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    runs, target = tmp_path / "runs", tmp_path / "results" / "pets.json"
    jobs = [train_job(prepared, runs, 0, weights=Path("none"), workers=0, cpu=True, extra=list(FAST))]
    for job in [*jobs, *evaluation_jobs(prepared, runs, 0, workers=0, cpu=True)]:
        program, *arguments = job.arguments
        (localscale if program == "localscale" else main)(arguments)
        assert all(path.exists() for path in job.results)
        assert job.run() == ""
        assert not job.log.exists()  # a finished job starts no process
    for name in METHODS.values():
        shutil.copytree(runs / name / "seed0", runs / name / "seed1")
    main(["collect", "--runs", str(runs), "--data", str(prepared), "--json", str(target)])
    capsys.readouterr()
    table, by_share, seeds = json.loads(target.read_text())["tables"]
    assert [(row["method"], row["seeds"]) for row in table["rows"]] == [
        ("control", 2),
        ("size equilibrium", 2),
        ("difference", 2),
    ]
    assert [row["seed"] for row in seeds["rows"]] == [0, 1, 0, 1]
    control = [float(row["accuracy %"]) for row in seeds["rows"][:2]]
    assert table["rows"][0]["accuracy %"].startswith(f"{np.mean(control):.2f} ± ")
    for row, accuracy in ((0, "accuracy %"), (3, "accuracy %, animal at half its size")):
        assert by_share["rows"][row]["below 0.15 (4 images)"] == table["rows"][0][accuracy]  # all in one bracket
    right = json.loads((runs / "sizes" / "seed0" / "answers_smaller.json").read_text())
    assert list(right) == ["cat/cat_0.jpg", "cat/cat_1.jpg", "dog/dog_0.jpg", "dog/dog_1.jpg"]
    for each in (table, by_share, seeds):
        assert each["title"] in render_page(target.parent)
    (runs / "sizes" / "seed1" / "evaluate_val.json").unlink()
    with pytest.raises(SystemExit, match=r"evaluate_val\.json is missing; finish the run step"):
        main(["collect", "--runs", str(runs), "--data", str(prepared), "--json", str(target)])
