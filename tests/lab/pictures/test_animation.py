"""The animation: one digit changes its size, the file moves and is small, and an interruption leaves no file."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence
from tiny_pairs import write_pair

import localscale as ls
from localscale.cli import main
from localscale.errors import ConfigError, OutputError
from localscale.lab.pages.app import models
from localscale.lab.pictures import animation
from localscale.lab.pictures.animation import Answers, GrowingDigit, draw_frames, grow_digit, save_animation
from localscale.lab.runs import load_run, read_run


@pytest.fixture(scope="module")
def growing(numbers: Path) -> GrowingDigit:
    return grow_digit(numbers / "dec", control=numbers / "aug", image=1, digit=1, factors=(0.5, 1.0, 2.0))


def moving(path: Path) -> list[np.ndarray]:
    """Return the frames of an animation."""
    with Image.open(path) as image:
        assert image.is_animated
        assert image.info["loop"] == 0, "endless"
        return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]


def test_one_digit_grows_and_the_others_stay(growing: GrowingDigit, numbers: Path):
    triple = read_run(numbers / "dec").make_task().test.triple(1)
    assert growing.label == int(triple.labels)
    changed = (growing.images[0] - growing.images[2]).abs()[0] > 0
    rows, columns = (changed.any(dim=axis).nonzero() for axis in (1, 0))
    assert 10 < max(int(rows.max() - rows.min()), int(columns.max() - columns.min())) < 24, "one of three digits"
    ink = [float(image.sum()) for image in growing.images]
    assert ink == sorted(ink)


def test_canonical_forms_and_answers_are_those_of_the_models(growing: GrowingDigit, numbers: Path):
    run = read_run(numbers / "dec")
    with torch.no_grad():
        logits, report = load_run(numbers / "dec")(run.normalise(growing.images), return_report=True)
        control = load_run(numbers / "aug")(run.normalise(growing.images))
    torch.testing.assert_close(growing.canonical_forms, ls.unscale(growing.images, report["input"].map))
    assert list(growing.answers) == ["control", "DEC"]
    for found, expected in zip(growing.answers.values(), (control, logits), strict=True):
        assert found.numbers == expected.argmax(1).tolist()
        assert found.shares == pytest.approx(expected.softmax(1)[:, growing.label].tolist(), abs=1e-5)


def test_a_frame_shows_image_canonical_form_and_answers():
    images, forms = torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8)
    images[1], forms[0] = 1, 1
    answers = {"control": Answers([3, 7], [0.0, 1.0]), "size equilibrium": Answers([7, 7], [0.5, 0.5])}
    frames = draw_frames(GrowingDigit(7, [1, 2], images, forms, answers))
    first, second = (np.asarray(frame).astype(int) for frame in frames)
    height, width = first.shape[:2]
    left, right = (height // 3, width // 4), (height // 3, 3 * width // 4)
    assert [picture[place].tolist() for picture in (first, second) for place in (left, right)] == [
        [0] * 3,
        [255] * 3,
        [255] * 3,
        [0] * 3,
    ]
    changed = np.abs(first - second).max(axis=(1, 2)) > 0
    below = changed[int(0.75 * height) :]
    assert below.any(), "the control's answer"
    assert not changed[-int(0.08 * height) :].any(), "the other model's answer stays"


@pytest.mark.parametrize("form", ["webp", "gif"])
def test_the_command_writes_a_file_that_moves(form: str, numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    out = tmp_path / f"new/sizes.{form}"
    run = ["--run", str(numbers / "dec"), "--control", str(numbers / "aug")]
    main(["figure", "animation", *run, "--frames", "6", "--seconds", "1.2", "--out", str(out)])
    assert capsys.readouterr().out.strip() == str(out)
    assert out.stat().st_size < 2_000_000
    frames = moving(out)
    assert len(frames) == 6
    differences = [np.abs(a.astype(int) - b).max() for a, b in pairwise(frames)]
    assert min(differences) > 50, "the digit grows from frame to frame"
    assert np.abs(frames[1].astype(int) - frames[5]).mean() < 2, "and shrinks the same way"
    with Image.open(out) as image:
        image.load()
        assert image.info["duration"] == 200


def test_by_default_the_small_model_of_the_app_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "SHIPPED", write_pair(tmp_path / "pair"))
    monkeypatch.chdir(tmp_path)
    main(["figure", "animation", "--frames", "4"])
    assert len(moving(tmp_path / "sizes.webp")) == 4


def test_the_animation_that_opens_the_readme_moves_and_is_small():
    path = Path(__file__).parents[3] / "docs/sizes.webp"
    assert "](docs/sizes.webp)" in (path.parents[1] / "README.md").read_text(encoding="utf-8")
    assert path.stat().st_size <= 2_000_000
    first, *_, last = moving(path)[: len(moving(path)) // 2 + 1]
    assert np.abs(first.astype(int) - last).max() > 200


def test_an_interruption_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "sizes.webp"
    out.write_bytes(b"old")
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for target, name in ((Image.Image, "save"), (Path, "write_bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                save_animation(frames, out, seconds=1)
        assert [path.name for path in tmp_path.iterdir()] == ["sizes.webp"]
        assert out.read_bytes() == b"old"


def test_large_files_and_other_formats_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    with pytest.raises(ConfigError, match=r"ends in \.png; expected \.webp or \.gif"):
        save_animation(frames, tmp_path / "sizes.png", seconds=1)
    monkeypatch.setattr(animation, "MOST_BYTES", 100)
    with pytest.raises(OutputError, match="fewer --frames"):
        save_animation(frames, tmp_path / "sizes.webp", seconds=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--image", "10"], "--image is 10 .* expected 0 to 7"),
        (["--largest", "4"], "would be cropped"),
        (["--smallest", "2"], "expected 0 < smallest < largest"),
        (["--frames", "2"], "at least 4 frames"),
        (["--seconds", "0"], "more than 0 seconds"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], sentence: str, numbers: Path, tmp_path: Path):
    with pytest.raises(SystemExit, match=sentence):
        main(["figure", "animation", "--run", str(numbers / "dec"), *arguments, "--out", str(tmp_path / "a.webp")])


def test_runs_without_a_canonicalizer_are_refused(numbers: Path, scenes: Path, tmp_path: Path):
    for run, sentence in ((numbers / "aug", "no canonicalizer at the input"), (scenes / "dec", "is not on MNIST")):
        with pytest.raises(SystemExit, match=sentence):
            main(["figure", "animation", "--run", str(run), "--out", str(tmp_path / "a.webp")])
