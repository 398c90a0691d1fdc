"""The models that a visitor can choose, each with the model that it is compared with."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as T

from localscale.adaptation import AdaptedModel, adapt
from localscale.errors import CheckpointError, ConfigError, near_misses
from localscale.lab.backbones.catalogue import Normalise, create_backbone, normalisation, sketch_of
from localscale.lab.runs.answers import PHOTOGRAPHS, method_of
from localscale.lab.runs.finished import FinishedRun, check_control, read_run
from localscale.lab.runs.names import names_of_imagenet, names_of_run
from localscale.lab.tasks.mnist import MNISTData

__all__ = ["SHIPPED", "SMALL", "Models", "Pair", "open_pair", "open_run", "shipped"]

SMALL = "small"
SHIPPED = Path(__file__).with_name("small")  # runs "model" and "control"
KEPT = 2  # pairs in memory besides the first
SHOWN = 60  # characters of an unknown name
log = logging.getLogger(__name__)
ABOUT: dict[str | None, str] = {
    "size equilibrium": "Size equilibrium: a small network estimates how large things are, and a map brings all "
    "of them to one size before the backbone sees the image.",
    "DEC": "DEC, deep equilibrium canonicalizer: a small network finds a map that undoes local changes of size before "
    "the backbone sees the image.",
    PHOTOGRAPHS: "The canonicalizer for photographs comes with the package: a small network finds the things in a "
    "photograph, and a map magnifies small ones before the model sees it.",
    None: "This run has no canonicalizer to show.",
}
INVE = "InvE, invariance error: how much the answers change when parts of an image change size; 0 is best."


class NoClassifierError(ConfigError):
    """A timm model has no classifier."""


@dataclass(frozen=True)
class Pair:
    """A model, another one for the same classes to compare it with, and how to prepare an image for them.

    If ``control`` is ``None``, an adapted model is compared with itself without its canonicalizers, and any other model
    with nothing. ``notes`` are lines about both. ``crop`` is the fraction of an image's shorter side that the central
    crop keeps.
    """

    name: str
    notes: tuple[str, ...]
    model: nn.Module
    control: nn.Module | None
    size: int
    crop: float
    normalise: Normalise
    name_of: Callable[[int], str]
    reads_digits: bool = False

    @property
    def label(self) -> str:
        """The name of the model beside its answers."""
        return method_of(self.model) or "model"

    @property
    def control_label(self) -> str | None:
        """The name of what the model is compared with; ``None`` for a model that is shown alone."""
        if self.control is not None:
            return "control"
        return "canonicalizer off" if isinstance(self.model, AdaptedModel) else None

    def prepare(self, image: Image.Image) -> Tensor:
        """Return the central crop of an image as the models' input, ``(1, 3, size, size)`` in [0,1]."""
        shorter = max(self.size, int(self.size / self.crop))
        resized = T.resize(image, [shorter], interpolation=v2.InterpolationMode.BICUBIC)
        return T.pil_to_tensor(T.center_crop(resized, [self.size, self.size]))[None].float() / 255


def shipped() -> bool:
    """Return whether this installation has the small model."""
    return (SHIPPED / "model").is_dir()


def open_pair(name: str, *, control: Path | None = None, pretrained: str = "timm") -> Pair:
    """Load the pair called ``name``.

    Args:
        name: ``"small"``, the folder of a finished run, or the name of a timm model.
        control: the folder of a finished run that a run is compared with.
        pretrained: the weights of a timm model: ``"timm"`` (downloaded), ``"none"`` (random) or a safetensors file.
    """
    name = name.strip()
    if not name:
        raise ConfigError("no model was named; give small, the folder of a finished run, or the name of a timm model")
    if name == SMALL:
        if not shipped():
            raise CheckpointError(
                f"the small model is not in {SHIPPED}; name the folder of a finished run or a timm model instead"
            )
        return open_run(SHIPPED / "model", name=name, control=control or SHIPPED / "control")
    folder = Path(name).expanduser()
    if folder.exists() or name.startswith((".", "~")) or os.sep in name:
        return open_run(folder, control=control)
    if control is not None:
        raise ConfigError(f"{name} is a timm model, which needs no control; leave --control out, or name a run")
    return _open_timm(name, pretrained)


class Models:
    """The pairs that the page offers: the one that it was opened with, the small one, and the runs in ``folders``.

    A visitor can also type the name of a timm model, but no folder. Each run is called by its recipe, so that no folder
    of the server appears on the page. The first pair and the last two others are kept in memory.
    """

    def __init__(self, first: Pair, pretrained: str = "timm", folders: Sequence[Path] = ()) -> None:
        self.first, self.pretrained = first, pretrained
        self._lock = threading.Lock()
        self._others: OrderedDict[str, Pair] = OrderedDict()
        self._runs: dict[str, Path] = {}
        for folder in folders:
            name = read_run(folder).recipe.name
            taken = sum(each.partition(" (")[0] == name for each in self.names)
            self._runs[f"{name} ({taken + 1})" if taken else name] = folder

    @property
    def names(self) -> list[str]:
        """The names that the page offers."""
        return list(dict.fromkeys((self.first.name, *([SMALL] if shipped() else []), *self._runs)))

    def get(self, name: Any) -> Pair:
        """Return the pair called ``name``, loading it if it is not in memory; no error mentions a folder."""
        if name == self.first.name:
            return self.first
        if not isinstance(name, str) or not (name in self.names or timm.is_model(name.partition(".")[0])):
            raise ConfigError(_unknown(name, self.names))
        with self._lock:
            if name not in self._others:
                self._others[name] = self._load(name)
            self._others.move_to_end(name)
            if len(self._others) > KEPT:
                self._others.popitem(last=False)
            return self._others[name]

    def _load(self, name: str) -> Pair:
        try:
            if name in self._runs:
                return open_run(self._runs[name], name=name)
            return open_pair(SMALL) if name == SMALL else _open_timm(name, self.pretrained)
        except NoClassifierError:
            raise
        except Exception as error:  # it may name a folder of the server
            log.exception("the model %r cannot be loaded", name)
            raise ConfigError(f"the model {name} cannot be loaded; the server's terminal shows why") from error


def _unknown(name: Any, offered: Sequence[str]) -> str:
    shown = name.strip()[:SHOWN] if isinstance(name, str) else ""
    if not shown:
        return "no model was named; choose one, or type the name of a timm model"
    return f"no model is called {shown!r}: {near_misses(shown.partition('.')[0], (*offered, *timm.list_models()))}"


def open_run(folder: Path, *, name: str | None = None, control: Path | None = None) -> Pair:
    """Load the finished run in ``folder``, which must classify, as the pair called ``name``, by default its recipe."""
    run = read_run(folder)
    data = run.recipe.loaded_data
    if data.dense:
        raise CheckpointError(f"the run in {folder} segments; expected a run that classifies")
    model, other = run.load_model(), None
    notes = [_trained(run, model)]
    if control is not None:
        compared = read_run(control)
        check_control(run, compared)
        other = compared.load_model()
        notes[0] += f" Control: {_scores(compared)}."
    elif isinstance(model, AdaptedModel):
        notes[0] += " Compared with the same weights, canonicalizer off."
    notes += [ABOUT[method_of(model)], INVE]
    return Pair(
        name=name or run.recipe.name,
        notes=tuple(notes),
        model=model,
        control=other,
        size=data.image_size,
        crop=getattr(data, "crop", 1.0),
        normalise=run.normalise,
        name_of=names_of_run(run),
        reads_digits=isinstance(data, MNISTData),
    )


def _open_timm(name: str, pretrained: str) -> Pair:
    try:
        sketch = sketch_of(name)
    except ConfigError as error:
        raise ConfigError(f"there is no folder {name}, and {error}") from error
    config: dict[str, Any] = sketch.pretrained_cfg
    classes, size = config["num_classes"], config["input_size"][-1]
    if not classes:
        raise NoClassifierError(f"{name} has no classifier; choose a model that predicts classes")
    base = create_backbone(name, classes=classes, pretrained=pretrained, image_size=size)
    model = adapt(base, "photographs").eval()
    assert model.source_size is not None
    weights = ", with random weights" if pretrained == "none" else ""
    return Pair(
        name=name,
        notes=(f"{name} from timm{weights}, with the {PHOTOGRAPHS}.", ABOUT[PHOTOGRAPHS]),
        model=model,
        control=None,
        size=model.source_size[-1],
        crop=config.get("crop_pct") or 1.0,
        normalise=normalisation(sketch),
        name_of=names_of_imagenet(sketch, classes),
    )


def _trained(run: FinishedRun, model: nn.Module) -> str:
    task = {
        "mnist": "locally scaled MNIST (three-digit numbers, white on black)",
        "imagenet": "locally scaled ImageNet",
        "folder": f"photographs of {run.classes} classes",
    }
    method = method_of(model)
    backbone, shown = run.recipe.backbone, task.get(run.task, run.task)
    return f"{backbone}{f' with {method}' if method else ''}, trained on {shown}: {_scores(run)}."


def _scores(run: FinishedRun) -> str:
    metrics = run.metrics  # a task of a user's own may measure something else
    told = [f"{100 * metrics['accuracy']:.1f} % right"] if "accuracy" in metrics else []
    if "invariance_error" in metrics:
        told.append(f"InvE {metrics['invariance_error']['squared']:.3f}")
    return ", ".join(told) or "not measured"
