"""The app opens the small pair, any finished run and any timm classifier, and refuses everything else."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_pairs import write_run
from tiny_recipes import COMPOSE

from localscale.conventions import resize_cubic
from localscale.errors import CheckpointError, ConfigError
from localscale.files import unseal
from localscale.lab.methods import Canon, FineTune, Method
from localscale.lab.pages.app.examples import read_examples
from localscale.lab.pages.app.models import SHIPPED, Models, Pair, open_pair
from localscale.lab.pages.app.views import predict
from localscale.lab.runs import load_run, read_run

IMAGES = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_the_small_pair_is_a_run_and_its_control(pair: Pair, folder: Path):
    assert (pair.name, pair.label, pair.control_label) == ("small", "size equilibrium", "control")
    assert (pair.size, pair.name_of(7)) == (64, "007")
    assert "with size equilibrium" in pair.notes[0]
    assert pair.notes[0].count("87.5 % right, InvE 0.100") == 2
    predictions = predict(pair, IMAGES)
    for probabilities, name in ((predictions.control, "control"), (predictions.model, "model")):
        with torch.no_grad():
            torch.testing.assert_close(probabilities, load_run(folder / name)(pair.normalise(IMAGES)).softmax(1))
    assert list(predictions.sites) == ["input"]


def test_a_run_without_a_control_is_compared_with_itself(folder: Path):
    pair = open_pair(str(folder / "model"))
    assert pair.control_label == "canonicalizer off"
    predictions = predict(pair, IMAGES)
    with torch.no_grad():
        torch.testing.assert_close(predictions.control, pair.model.unwrap()(pair.normalise(IMAGES)).softmax(1))
    assert not torch.allclose(predictions.control, predictions.model)


def test_the_words_of_the_notes_are_explained_where_they_appear(folder: Path, tmp_path: Path):
    for run, words in ((folder / "model", "Size equilibrium: "), (write_run(tmp_path / "run", COMPOSE), "DEC, deep ")):
        notes = open_pair(str(run)).notes
        assert [note for note in notes if note.startswith(words)]
        assert [note for note in notes if note.startswith("InvE, invariance error: ")]


@pytest.mark.parametrize("method", [FineTune(), Canon()])
def test_a_run_without_canonicalizers_is_shown_alone(method: Method, tmp_path: Path):
    pair = open_pair(str(write_run(tmp_path / "run", method)))
    assert (pair.label, pair.control_label) == ("model", None)
    assert "This run has no canonicalizer to show." in pair.notes
    predictions = predict(pair, IMAGES)
    assert (predictions.control, predictions.sites) == (None, {})


def test_a_timm_model_is_shown_with_and_without_the_canonicalizer_for_photographs():
    pair = open_pair("test_resnet", pretrained="none")
    assert "with random weights" in pair.notes[0]
    assert (pair.label, pair.control_label) == ("canonicalizer for photographs", "canonicalizer off")
    assert pair.name_of(0) == "tench"
    photograph = next(example for example in read_examples() if example.photograph)
    image = pair.prepare(photograph.image)
    assert image.shape == (1, 3, 2 * 160, 2 * 160)
    predictions = predict(pair, image)
    assert predictions.sites["input"].map.mean_displacement() > 1e-3
    with torch.no_grad():
        alone = pair.model.base(resize_cubic(pair.normalise(image), 160, 160)).softmax(1)
    torch.testing.assert_close(predictions.control, alone)
    assert not torch.allclose(predictions.model, alone, atol=1e-6)
    red = predict(pair, pair.prepare(Image.new("RGB", (300, 200), "red")))
    assert torch.equal(red.model, red.control), "nothing is found in an image of one colour"


def test_the_input_is_the_central_crop(pair: Pair):
    image = Image.new("RGB", (128, 64))
    noise = Image.effect_noise((64, 64), 90).convert("RGB")
    image.paste(noise, (32, 0))
    prepared = 255 * pair.prepare(image)[0].movedim(0, -1)
    assert prepared.round().byte().numpy().tobytes() == noise.tobytes()


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("vit_tinny_patch16_224", ConfigError, "there is no folder .* did you mean vit_tiny_patch"),
        ("./nowhere", CheckpointError, "there is no folder"),
        ("vit_small_patch14_dinov2", ConfigError, "has no classifier"),
        ("", ConfigError, "no model was named"),
    ],
)
def test_unknown_names_are_refused(name: str, kind: type[Exception], message: str):
    with pytest.raises(kind, match=message):
        open_pair(name, pretrained="none")


def test_an_unfinished_or_truncated_run_is_refused(folder: Path, tmp_path: Path):
    stopped = shutil.copytree(folder / "model", tmp_path / "stopped")
    (stopped / "result.json").unlink()
    with pytest.raises(CheckpointError, match="is not finished"):
        open_pair(str(stopped))
    cut = shutil.copytree(folder / "model", tmp_path / "cut")
    (cut / "weights.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(CheckpointError):
        open_pair(str(cut))


def test_a_control_needs_a_run_with_the_same_classes(folder: Path, tmp_path: Path):
    other = shutil.copytree(folder / "control", tmp_path / "other")
    result = unseal((other / "result.json").read_text(encoding="utf-8"))
    (other / "result.json").write_text(json.dumps(result | {"classes": 10}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="number of classes: 10"):
        open_pair(str(folder / "model"), control=other)
    with pytest.raises(ConfigError, match="needs no control"):
        open_pair("test_resnet", control=other, pretrained="none")


def test_the_first_pair_and_the_last_two_stay_in_memory(folder: Path, pair: Pair):
    models = Models(pair, "none", [folder / "model", folder / "control"])
    names = [*models.names[1:], "test_resnet"]
    first, second, third = map(models.get, names)
    assert models.get("small") is pair
    assert models.get(names[2]) is third
    assert models.get(names[1]) is second
    assert models.get(names[0]) is not first


def test_the_page_calls_runs_by_their_recipes(folder: Path, pair: Pair):
    recipes = [read_run(folder / name).recipe.name for name in ("model", "control")]
    models = Models(pair, "none", [folder / "model", folder / "control", folder / "model"])
    assert models.names == ["small", *recipes, f"{recipes[0]} (2)"]
    assert open_pair(str(folder / "model")).name == recipes[0]
    assert all(models.get(name).name == name for name in models.names)


@pytest.mark.parametrize("name", ["{there}", "{there}/model", "/nowhere", "./model", "~", "..", "", None, 3, ["small"]])
def test_a_visitor_opens_no_folder(name: object, folder: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    name = name.format(there=folder) if isinstance(name, str) else name
    with pytest.raises(ConfigError, match=r"no model (is called|was named)") as caught:
        Models(pair, "none").get(name)
    assert "folder" not in str(caught.value)


def test_a_model_that_fails_to_load_tells_no_folder(folder: Path, pair: Pair, tmp_path: Path, caplog):
    run = shutil.copytree(folder / "model", tmp_path / "run")
    models = Models(pair, str(tmp_path / "weights.safetensors"), [run])
    (run / "weights.safetensors").write_bytes(b"\0" * 100)
    for name in (models.names[1], "test_resnet"):
        with pytest.raises(ConfigError, match="cannot be loaded; the server's terminal shows why") as caught:
            models.get(name)
        assert str(tmp_path) not in str(caught.value)
    assert str(tmp_path) in caplog.text


@pytest.mark.skipif(not (SHIPPED / "model").is_dir(), reason="the small model is not in this copy")
def test_the_shipped_files_are_small_and_read_digits():
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 5_000_000
    pair = open_pair("small")
    assert (pair.reads_digits, pair.size, pair.label) == (True, 224, "size equilibrium")
    control, model = (read_run(SHIPPED / name).metrics for name in ("control", "model"))
    assert model["accuracy"] >= control["accuracy"] + 0.015
    assert model["invariance_error"]["squared"] <= 0.6 * control["invariance_error"]["squared"]
