"""What can be chosen: the shipped pair, any run, any classifier of timm; anything else is a sentence."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_pairs import CLASSES, write_run

from localscale.adaptation import AdaptedModel
from localscale.errors import CheckpointError, ConfigError
from localscale.lab.methods import Canon, FineTune
from localscale.lab.pages.app import models
from localscale.lab.pages.app.models import SHIPPED, Models, Pair, open_pair
from localscale.lab.pages.app.predictions import likeliest, predict
from localscale.lab.runs import load_run

IMAGES = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_the_shipped_pair_is_a_run_and_its_control(pair: Pair, folder: Path):
    assert (pair.name, pair.base_label, pair.size, pair.name_of(7)) == ("small", "control", 64, "007")
    assert "87.5 % right, InvE 10.0e-2" in pair.note
    answers = predict(pair, IMAGES)
    for got, name in ((answers.base, "control"), (answers.dec, "dec")):
        with torch.no_grad():
            torch.testing.assert_close(got, load_run(folder / name)(pair.normalise(IMAGES)).softmax(1))
    assert list(answers.sites) == ["input"]


def test_a_run_without_a_control_is_compared_with_itself(folder: Path):
    pair = open_pair(str(folder / "dec"))
    assert pair.base is None
    assert "canonicalizers off" in pair.note
    answers = predict(pair, IMAGES)
    with torch.no_grad():
        plain = pair.dec.unwrap()(pair.normalise(IMAGES)).softmax(1)
    torch.testing.assert_close(answers.base, plain)
    assert not torch.allclose(answers.base, answers.dec)


@pytest.mark.parametrize("method", [FineTune(), Canon()], ids=["plain", "canon"])
def test_a_run_without_dec_gets_one_that_does_nothing(method: object, tmp_path: Path):
    pair = open_pair(str(write_run(tmp_path / "run", method)))
    assert isinstance(pair.dec, AdaptedModel)
    assert "no DEC" in pair.note
    answers = predict(pair, IMAGES)
    torch.testing.assert_close(answers.base, answers.dec)


def test_a_model_of_timm_answers_alike_on_both_sides():
    pair = open_pair("test_resnet", pretrained="none")
    assert "never trained" in pair.note
    assert "weights are random" in pair.note
    assert pair.name_of(0) == "tench"
    seen = pair.see(Image.new("RGB", (300, 200), "red"))
    assert seen.shape == (1, 3, pair.size, pair.size)
    answers = predict(pair, seen)
    torch.testing.assert_close(answers.base, answers.dec)
    assert answers.dec.shape == (1, CLASSES)
    assert answers.sites["input"].map.mean_displacement().item() == 0


def test_an_image_of_the_right_size_is_seen_as_it_is(pair: Pair):
    image = Image.effect_noise((64, 64), 90).convert("RGB")
    seen = 255 * pair.see(image)[0].movedim(0, -1)
    assert seen.round().byte().numpy().tobytes() == image.tobytes()


def test_the_middle_of_a_wide_image_is_seen(pair: Pair):
    image = Image.new("RGB", (128, 64))
    image.paste("white", (32, 0, 96, 64))
    assert pair.see(image).min() == 1


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        (
            "vit_tinny_patch16_224",
            ConfigError,
            "there is no folder .* timm has no model .* did you mean vit_tiny_patch",
        ),
        ("runs/nowhere", CheckpointError, "there is no folder runs/nowhere; name one that localscale train wrote"),
        ("./nowhere", CheckpointError, "there is no folder"),
        ("vit_small_patch14_dinov2", ConfigError, "has no classifier"),
        ("", ConfigError, "no model was named"),
    ],
)
def test_names_that_are_no_model(name: str, kind: type[Exception], sentence: str):
    with pytest.raises(kind, match=sentence):
        open_pair(name, pretrained="none")


def test_folders_that_are_no_finished_run(folder: Path, tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"is not a run: it has no recipe\.json"):
        open_pair(str(tmp_path))
    stopped = shutil.copytree(folder / "dec", tmp_path / "stopped")
    (stopped / "result.json").unlink()
    with pytest.raises(CheckpointError, match="is not finished"):
        open_pair(str(stopped))
    cut = shutil.copytree(folder / "dec", tmp_path / "cut")
    (cut / "weights.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(CheckpointError, match="was it copied whole"):
        open_pair(str(cut))


def test_a_control_must_answer_alike(folder: Path, tmp_path: Path):
    other = shutil.copytree(folder / "control", tmp_path / "other")
    result = json.loads((other / "result.json").read_text(encoding="utf-8"))
    (other / "result.json").write_text(json.dumps(result | {"classes": 10}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="another number of classes: 10"):
        open_pair(str(folder / "dec"), control=other)
    with pytest.raises(ConfigError, match="needs no control"):
        open_pair("test_resnet", control=other, pretrained="none")


def test_an_installation_without_the_small_model_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "SHIPPED", tmp_path)
    with pytest.raises(CheckpointError, match="the small model is not in"):
        open_pair("small")


def test_the_first_model_and_the_last_few_stay_in_memory(folder: Path, pair: Pair):
    kept = Models(pair, "none")
    assert kept.names == ["small"]
    others = [str(folder / "dec"), str(folder / "control"), "test_resnet"]
    opened = [kept.get(name) for name in others]
    assert kept.get("small") is pair
    assert kept.get(others[2]) is opened[2]
    assert kept.get(others[1]) is opened[1]
    assert kept.get(others[0]) is not opened[0]
    with pytest.raises(CheckpointError):
        kept.get("./nowhere")


@pytest.mark.skipif(not (SHIPPED / "dec").is_dir(), reason="the small model is not in this copy")
def test_the_shipped_files_are_small_and_read_digits():
    files = [path for path in SHIPPED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5_000_000
    pair = open_pair("small")
    assert pair.reads_digits
    assert pair.size == 224
    probabilities = predict(pair, torch.zeros(1, 3, 224, 224)).dec[0]
    assert [share for _, share in likeliest(probabilities)] == sorted(probabilities.tolist())[:-6:-1]
