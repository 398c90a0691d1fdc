"""Checkpoints and weights: a bitwise round trip, atomic writes, and errors that are sentences."""

import errno
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from tiny_recipes import COMPOSE
from torch import Tensor, nn

from localscale import checkpoints
from localscale.checkpoints import read_checkpoint, read_state, read_weights, write_checkpoint, write_weights
from localscale.errors import CheckpointError, OutputError
from localscale.lab.recipes.optimization import Optimization
from localscale.tensor_files import read_tensors, write_tensors

STATE = {"position": {"step": 7, "skipped": 1, "schedule": {"best": math.inf, "waited": 0}}}


def trained(seed: int = 0, steps: int = 2) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return an adapted ViT and its optimizer after some steps."""
    torch.manual_seed(seed)
    backbone = timm.create_model("test_vit", num_classes=3, img_size=32)
    settings = Optimization()
    groups = settings.backbone_groups(backbone)
    model = COMPOSE.build(backbone)
    optimizer = settings.optimizer(groups, model)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.rand(2, 3, 32, 32)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    moments = {
        f"{number}.{name}": value
        for number, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    return {name: tensor.clone() for name, tensor in (model.state_dict() | moments).items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert set(a) == set(b)
    for name in a:
        assert torch.equal(a[name], b[name]), name
        assert a[name].dtype == b[name].dtype


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "checkpoint.safetensors", *trained(), STATE)
    return tmp_path / "checkpoint.safetensors"


def test_a_checkpoint_restores_every_tensor_bitwise(path: Path):
    other = trained(seed=1, steps=0)
    assert read_checkpoint(path, *other) == STATE
    assert_same(tensors_of(*other), tensors_of(*trained()))
    assert len(tensors_of(*other)) > 2 * len(other[0].state_dict()), "moments are among them"


def test_the_step_after_restoring_is_the_same(path: Path):
    found = []
    for model, optimizer in (trained(), trained(seed=1, steps=1)):
        read_checkpoint(path, model, optimizer)
        optimizer.zero_grad()
        model(torch.ones(2, 3, 32, 32)).square().sum().backward()
        optimizer.step()
        found.append(tensors_of(model, optimizer))
    assert_same(*found)


def test_weights_are_restored_without_the_optimizer(tmp_path: Path):
    model, _ = trained()
    write_weights(tmp_path / "weights.safetensors", model, {"name": "a"})
    other, _ = trained(seed=1, steps=0)
    assert read_weights(tmp_path / "weights.safetensors", other) == {"name": "a"}
    assert_same(other.state_dict(), model.state_dict())


def test_the_file_is_plain_safetensors(path: Path):
    tensors = safetensors.torch.load_file(path)
    model, _ = trained()
    kept = {f"model.{name}" for name in model.state_dict() if name != "_extra_state"}
    assert {name for name in tensors if name.startswith("model.")} == kept
    moments = {name.split(".")[2] for name in tensors if name.startswith("optimizer.")}
    assert moments == {"exp_avg", "exp_avg_sq", "step"}
    assert len([name for name in tensors if name.startswith("optimizer.")]) == 3 * len(list(model.parameters()))


def test_tensors_that_share_memory_are_kept(tmp_path: Path):
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False)})
    model["b"] = model["a"]
    write_weights(tmp_path / "weights.safetensors", model, {})
    read_weights(tmp_path / "weights.safetensors", model)
    assert set(safetensors.torch.load_file(tmp_path / "weights.safetensors")) == {"a.weight", "b.weight"}


@pytest.mark.parametrize("part", [0.0, 0.001, 0.999])
def test_a_truncated_file_is_refused(part: float, path: Path):
    os.truncate(path, int(part * path.stat().st_size))
    before = tensors_of(*(other := trained(seed=1)))
    with pytest.raises(CheckpointError, match=r"checkpoint.safetensors cannot be read"):
        read_checkpoint(path, *other)
    assert_same(tensors_of(*other), before)


def test_missing_and_foreign_files_are_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"there is no weights.safetensors in"):
        read_weights(tmp_path / "weights.safetensors", nn.Linear(1, 1))
    safetensors.torch.save_file({"weight": torch.zeros(1, 1), "bias": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"other.safetensors cannot be read"):
        read_weights(tmp_path / "other.safetensors", nn.Linear(1, 1))


def test_the_checkpoint_of_another_model_is_refused(path: Path):
    model = timm.create_model("test_vit", num_classes=3, img_size=32)
    with pytest.raises(CheckpointError, match=r"checkpoint.safetensors is of another model: .*cls_token"):
        read_checkpoint(path, model, torch.optim.AdamW(model.parameters()))
    bigger, _ = trained(steps=0)
    bigger.base.reset_classifier(4)
    with pytest.raises(CheckpointError, match=r"another model: size mismatch for .*head.weight"):
        read_checkpoint(path, bigger, torch.optim.AdamW(bigger.parameters()))


def test_a_new_checkpoint_replaces_the_old_and_leaves_no_draft(path: Path):
    before = path.read_bytes()
    write_checkpoint(path, *trained(seed=1), STATE)
    assert path.read_bytes() != before
    assert names(path.parent) == [path.name]


def test_a_full_disk_leaves_the_old_file_and_no_draft(path: Path, monkeypatch: pytest.MonkeyPatch):
    def until_full(draft: Path, tensors: Any, metadata: Any) -> None:
        Path(draft).write_bytes(b"half a file")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = path.read_bytes()
    monkeypatch.setattr(checkpoints, "write_tensors", until_full)
    for name in (path.name, "first.safetensors"):
        with pytest.raises(OutputError, match=rf"{name} cannot be written: .*No space left on device"):
            write_checkpoint(path.with_name(name), *trained(seed=1), STATE)
    assert path.read_bytes() == before
    assert names(path.parent) == [path.name]


def test_a_missing_folder_is_refused(tmp_path: Path):
    with pytest.raises(OutputError, match=r"weights.safetensors cannot be written"):
        write_weights(tmp_path / "gone" / "weights.safetensors", nn.Linear(1, 1), {})


# Damage


def test_flipped_bits_are_refused(path: Path):
    whole = bytearray(path.read_bytes())
    for place in (10, 300, len(whole) // 2, len(whole) - 1):
        whole[place] ^= 16
        path.write_bytes(whole)
        before = tensors_of(*(other := trained(seed=1)))
        with pytest.raises(CheckpointError, match=r"checkpoint.safetensors cannot be read \("):
            read_checkpoint(path, *other)
        assert_same(tensors_of(*other), before)
        whole[place] ^= 16


def test_equal_runs_write_equal_files(path: Path):
    write_checkpoint(path.with_name("again"), *trained(), STATE)
    assert path.with_name("again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda tensors: tensors.pop("optimizer.1.exp_avg"), "parameter 1 lacks its exp_avg"),
        (lambda tensors: [tensors.pop(n) for n in list(tensors) if n.endswith("exp_avg_sq")], "lacks its exp_avg_sq"),
        (lambda tensors: tensors.update({"optimizer.x.step": torch.tensor(1.0)}), "optimizer.x.step is of a parameter"),
        (
            lambda tensors: tensors.update({"optimizer.9999.step": torch.tensor(1.0)}),
            "a parameter that it does not have",
        ),
        (lambda tensors: tensors.update({"optimizer.0.exp_avg": torch.ones(3, 7)}), r"exp_avg has shape \(3, 7\)"),
    ],
)
def test_the_state_of_an_optimizer_must_be_whole(edit: Callable[[dict], object], message: str, path: Path):
    tensors, metadata = read_tensors(path)
    edit(tensors)
    write_tensors(path, tensors, {"localscale": metadata["localscale"]})
    with pytest.raises(CheckpointError, match=rf"is of another optimizer \(.*{message}"):
        read_checkpoint(path, *trained())


@pytest.mark.parametrize("state", ["[1]", "{", "NaN"])
def test_a_state_that_is_no_object_is_refused(state: str, path: Path):
    write_tensors(path, read_tensors(path)[0], {"localscale": state})
    with pytest.raises(CheckpointError, match=r"checkpoint.safetensors cannot be read"):
        read_state(path)
