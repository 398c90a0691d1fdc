"""A data worker that dies, and a file that it cannot read, end training with one sentence."""

import os
import signal
import time
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tiny_folders import write_folder
from torch import nn
from torch.utils.data import DataLoader, Dataset

import localscale as ls
from localscale import processes
from localscale.cli import main
from localscale.errors import ConfigError, DataError, TrainingError
from localscale.lab.tasks.folder import Central, Crops
from localscale.processes import explained

FAST = (
    *("--backbone", "test_vit", "--method", "aug", "--pretrained", "none", "--precision", "no", "--cpu", "--quiet"),
    *("--epochs", "2", "--batch-size", "4", "--data.image-size", "32", "--data.workers", "2", "--data.variants", "1"),
)
MAIN = os.getpid()


def train_folder(folder: Path, *more: str) -> None:
    main(["train", "folder", "--data.train-root", str(folder / "train"), *FAST, "--out", str(folder / "run"), *more])


def refused(folder: Path, *more: str) -> str:
    """Return the sentence with which the command ends."""
    with pytest.raises(SystemExit) as stop:
        train_folder(folder, *more)
    assert stop.value.__suppress_context__
    assert stop.value.__cause__ is None
    return str(stop.value)


def die_in(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def die(dataset: Any, place: Any) -> Any:
        assert os.getpid() != MAIN
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(kind, "__getitem__", die)


@pytest.mark.parametrize("kind", [Crops, Central])
def test_the_command_says_that_a_worker_was_killed(kind: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_folder(tmp_path / "train")
    with monkeypatch.context() as patched:
        die_in(kind, patched)
        told = refused(tmp_path)
    assert told == (
        "localscale: a process that loads images was killed, perhaps because memory ran out; run the same command "
        "again with --resume, which goes on from the last checkpoint, if it happens again with fewer --data.workers"
    )
    train_folder(tmp_path, "--resume")
    assert (tmp_path / "run" / "result.json").exists()


def test_the_command_names_the_image_that_a_worker_cannot_read(tmp_path: Path):
    broken = write_folder(tmp_path / "train") / "green" / "1.png"
    broken.write_bytes(broken.read_bytes()[:150])
    told = refused(tmp_path, "--data.no-check-images")
    assert told.startswith(f"localscale: {broken} is a broken image")
    assert "\n" not in told


class Photographs(Dataset[Any]):
    """Images that a user's own dataset opens; the second is not what it should be."""

    def __init__(self, second: Any) -> None:
        self.second = second

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> Any:
        if place == 1:
            self.second()
        return torch.rand(3, 8, 8), place % 2


def open_broken() -> None:
    Image.open(__file__)


def confuse_a_key() -> None:
    raise KeyError("wrong")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(3)


def refuse() -> None:
    raise ConfigError("of localscale")


@pytest.mark.parametrize(
    ("second", "kind", "told", "cause"),
    [
        (killed, TrainingError, r"images was killed, perhaps because memory ran out; call ls.fit again, which", False),
        (
            leave,
            TrainingError,
            r"images ended unexpectedly, .*; call ls.fit again.* with fewer num_workers$",
            False,
        ),
        (open_broken, DataError, r"\(UnidentifiedImageError: cannot identify .*\); repair or remove that file$", False),
        (refuse, ConfigError, r"^of localscale$", False),
        (confuse_a_key, DataError, r"\(KeyError: 'wrong'\); num_workers=0 shows where in the dataset$", True),
    ],
)
@pytest.mark.parametrize("validating", [False, True])
def test_fit_says_what_happened_in_a_worker(validating: bool, second: Any, kind: type[Any], told: str, cause: bool):
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    batch = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 0, 1])
    loader = DataLoader(Photographs(second), num_workers=1)
    loaders = ([batch], loader) if validating else (loader, None)
    with pytest.raises(kind, match=told) as caught:
        ls.fit(model, *loaders, epochs=1, cpu=True, progress=False)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    assert (caught.value.__cause__ is not None) is cause
    assert caught.value.__suppress_context__


class Torn(Dataset[Any]):
    """Images of a worker that breaks the connection over which it hands on a tensor, and dies some seconds later."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> Any:
        def serve(sharer: Any) -> None:
            sharer._listener.accept().close()
            time.sleep(self.seconds)
            killed()

        resource_sharer._ResourceSharer._serve = serve
        return torch.rand(3, 8, 8), place % 2


@pytest.mark.parametrize(("seconds", "told"), [(0.0, "was killed"), (0.3, "was killed"), (600.0, "ended unexpectedly")])
def test_a_connection_may_break_before_the_signal(seconds: float, told: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "PATIENCE", 0.1 if seconds == 600 else 20)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    with pytest.raises(TrainingError, match=f"a process that loads images {told}") as caught:
        ls.fit(model, DataLoader(Torn(seconds), num_workers=1), epochs=1, cpu=True, progress=False)
    assert caught.value.__suppress_context__


@explained("again")
def failing(error: Exception) -> None:
    raise error


def test_other_errors_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for error in (RuntimeError("a matrix is singular"), KeyError("Caught"), OSError(2, "none"), ValueError()):
        with pytest.raises(type(error)) as caught:
            failing(error)
        assert caught.value is error
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(RuntimeError, match="closed"):
        failing(RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer"))
