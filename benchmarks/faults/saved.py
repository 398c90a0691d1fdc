"""The files that the library writes and reads again, each in two versions, for campaigns that damage them."""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from localscale import AdaptedModel, DECConfig, SizeNetwork, adapt
from localscale.checkpoints import read_checkpoint, read_weights, write_checkpoint, write_weights
from localscale.errors import OutputError
from localscale.files import seal, unseal, write_whole
from localscale.lab.data.generation import Job, Sample, Stage, generate
from localscale.lab.data.written import WrittenDataset
from localscale.lab.pages.results import render_page
from localscale.lab.recipes import Recipe
from localscale.lab.recipes.recipe import to_dict
from localscale.lab.runs import read_run
from localscale.lab.runs.run import Log, Run
from localscale.lab.tasks.outcomes import Outcomes
from localscale.tensor_files import read_tensors

__all__ = ["CHECKPOINT", "DATASET", "KINDS", "MODEL", "OPEN_KINDS", "OPEN_MODEL", "RUN", "WEIGHTS", "Saved", "equal"]
__all__ += ["in_memory", "warmed_up"]

CONFIG = DECConfig(sites=("input",), knots=5, network=SizeNetwork(width=8, blocks=0))
EPOCHS = 3
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Saved:
    """One kind of files: ``write(folder, version)`` writes version 0 or 1, and ``read(folder)`` returns its values.

    ``sealed`` says whether checksums cover all that is read, so that no damage may go unnoticed, ``atomic`` whether one
    rename replaces all that is read, and ``rewritable`` whether another version may be written over one.
    """

    name: str
    write: Callable[[Path, int], None]
    read: Callable[[Path], Any]
    sealed: bool = True
    atomic: bool = True
    rewritable: bool = True


def equal(one: Any, two: Any) -> bool:
    """Return whether two values are the same bit by bit; the first may have more keys in its outermost dictionary."""
    if isinstance(one, dict) and isinstance(two, dict):
        return two.keys() <= one.keys() and all(_same(one[key], two[key]) for key in two)
    return _same(one, two)


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and torch.equal(one, two)
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in two)
    return type(one) is type(two) and one == two


def in_memory(folder: Path) -> Path:
    """Return a new folder in memory, where waiting for the disk takes no time; where there is none, ``folder``."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        return folder
    held = tempfile.mkdtemp(prefix="faults-", dir=shared)
    atexit.register(shutil.rmtree, held, ignore_errors=True)
    return Path(held)


def warmed_up(folder: Path) -> None:
    """Write and read every kind once, on one thread, so that later forks inherit a process that has loaded all."""
    torch.set_num_threads(1)
    for kind in KINDS:
        kind.write(folder / kind.name, 0)
        assert equal(kind.read(folder / kind.name), kind.read(folder / kind.name))


def _make(folder: Path) -> None:
    """Create a folder for files that the library writes into folders that exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise OutputError(f"{folder} cannot be created: {error}") from error


# An adapted model


def _base() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    return nn.Sequential(*layers)


@functools.cache
def _model(version: int) -> AdaptedModel:
    model = adapt(_base(), CONFIG if version else DECConfig.paper(knots=4, guard=None), input_size=(3, 32, 32))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25 * version + 0.125)
    return model


def _write_model(folder: Path, version: int) -> None:
    _model(version).save_pretrained(folder, results={"accuracy": 0.5 + version / 8})


def _read_model(folder: Path) -> dict[str, Any]:
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")  # config.json may differ: it is a copy
        model = AdaptedModel.from_pretrained(folder, _base())
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "_extra_state"}
    return {**tensors, "config": model.dec_config.to_dict(), "sizes": (model.input_size, model.source_size)}


# A checkpoint and weights


def _trained(version: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(version)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
    return model, optimizer


_held = functools.cache(_trained)  # what is written; what is read needs a model of its own


def _write_checkpoint(folder: Path, version: int) -> None:
    _make(folder)
    write_checkpoint(folder / "checkpoint.safetensors", *_held(version), {"position": {"step": 3 + version}})


def _read_checkpoint(folder: Path) -> dict[str, Any]:
    model, optimizer = _trained(2)
    state = read_checkpoint(folder / "checkpoint.safetensors", model, optimizer)
    moments = {str(number): values for number, values in optimizer.state_dict()["state"].items()}
    return {**model.state_dict(), "moments": moments, "state": state}


def _write_weights(folder: Path, version: int) -> None:
    _make(folder)
    write_weights(folder / "weights.safetensors", _held(version)[0], {"name": str(version)})


def _read_weights(folder: Path) -> dict[str, Any]:
    model, _ = _trained(2)
    return {"state": read_weights(folder / "weights.safetensors", model), **model.state_dict()}


# A finished run


def _write_run(folder: Path, version: int) -> None:
    run, recipe = Run(folder), Recipe(name=f"mnist-deit_tiny-{version}", seed=version)
    log = Log(run.log)
    lines = [{"epoch": n, "seconds": 0.25 * n, "skipped": 0, "loss": 1 / (n + version)} for n in range(1, EPOCHS + 1)]
    for line in lines:
        log.add(line)
    metrics = {"accuracy": 0.75 + version / 8, "invariance_error": {"squared": 0.1}, "images": 4, "variants": 2}
    result = {
        "metrics": metrics,
        "classes": 3,
        "class_names": ["a", "b|<b>", "ü"],
        "seconds": {"training": log.seconds},
        "last_epoch": lines[-1],
        "recipe": to_dict(recipe),
    }
    with run.locked():
        write_whole(run.recipe_file, seal(to_dict(recipe), indent=2), durable=True)
        log.write()
        Outcomes(torch.tensor([[1], [version]], dtype=torch.uint8), torch.tensor([0.5, 0.25]), "two").write(
            run.outcomes
        )
        write_whole(run.result_file, seal(result, indent=2), durable=True)


def _read_run(folder: Path) -> dict[str, Any]:
    run = read_run(folder)
    outcomes = Outcomes.read(Run(folder).outcomes)
    found = {"recipe": to_dict(run.recipe), "log": run.log, "right": outcomes.right, "error": outcomes.invariance_error}
    return {**run.result, **found, "images": outcomes.images}


# A generated dataset


def _draw(index: int) -> list[Sample]:
    return [Sample(f"{index:03d}", {"txt": str(index).encode()}, {"group": index, "label": index % 2})]


def _write_dataset(folder: Path, version: int) -> None:
    generate(Job("digits", 4 + version, {"seed": version}, [Stage("draw", lambda: _draw)]), folder)


def _read_dataset(folder: Path) -> dict[str, Any]:
    data = WrittenDataset(folder)
    files = [data.read(position, "txt") for position in range(len(data))]
    return json.loads(json.dumps({"records": data.records, "groups": data.groups()})) | {"files": files}


# Results, as `localscale tables` renders them


@functools.cache
def _results() -> dict[str, dict[str, Any]]:
    paths = [ROOT / "results" / f"{name}.json" for name in ("mnist_tiny", "objects_tiny", "data_cpu")]
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def _write_results(folder: Path, version: int) -> None:
    for name, result in _results().items():
        write_whole(folder / name, json.dumps({**result, "machine": f"machine {version}"}))


def _read_results(folder: Path) -> dict[str, Any]:
    page = render_page(folder)
    assert "<" not in re.sub(r"`[^`\n]*`", "", page), "HTML outside of code"
    return {"page": page}


# The same without checksums, as other programs and earlier versions write them


def _open(write: Callable[[Path, int], None]) -> Callable[[Path, int], None]:
    """Return a function that writes the same files without checksums."""

    def write_open(folder: Path, version: int) -> None:
        write(folder, version)
        for path in folder.rglob("*.safetensors"):
            tensors, metadata = read_tensors(path)
            kept = {name: value for name, value in metadata.items() if not name.endswith("_crc32")}
            kept = kept if path.name != "model.safetensors" else {}  # its description is in config.json
            save_file({name: tensor.clone() for name, tensor in tensors.items()}, path, kept)
        for path in (*folder.glob("re*.json"), *folder.glob("log.jsonl")):
            texts = path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            path.write_text("".join(json.dumps(unseal(text)) + "\n" for text in texts), encoding="utf-8")

    return write_open


MODEL = Saved("model", _write_model, _read_model)
CHECKPOINT = Saved("checkpoint", _write_checkpoint, _read_checkpoint)
WEIGHTS = Saved("weights", _write_weights, _read_weights)
RUN = Saved("run", _write_run, _read_run, atomic=False)
DATASET = Saved("dataset", _write_dataset, _read_dataset, sealed=False, atomic=False, rewritable=False)
RESULTS = Saved("results", _write_results, _read_results, sealed=False, atomic=False)
KINDS = (MODEL, CHECKPOINT, WEIGHTS, RUN, DATASET, RESULTS)
OPEN_KINDS = tuple(
    Saved(f"{kind.name} without checksums", _open(kind.write), kind.read, sealed=False)
    for kind in (MODEL, CHECKPOINT, WEIGHTS, RUN)
)
OPEN_MODEL = OPEN_KINDS[0]
