"""The models that a visitor can choose: pairs of a base model and the same with DEC."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from timm.data import ImageNetInfo, infer_imagenet_subset
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as T

from localscale.adaptation import AdaptedModel, adapt
from localscale.errors import CheckpointError, ConfigError, LocalScaleError
from localscale.lab.backbones.catalogue import Normalise, create_backbone, normalisation, sketch_of
from localscale.lab.data.imagenet import LocallyScaledImageNet
from localscale.lab.runs.finished import FinishedRun, check_control, read_run
from localscale.lab.tasks.imagenet import ImageNetData
from localscale.lab.tasks.mnist import MNISTData

__all__ = ["SHIPPED", "SMALL", "Models", "Pair", "open_pair", "shipped"]

SMALL = "small"
SHIPPED = Path(__file__).with_name("small")  # runs "dec" and "control"
KEPT = 2  # pairs in memory besides the first


@dataclass(frozen=True)
class Pair:
    """A base model and one with DEC for the same classes, and how to prepare an image for them.

    If ``base`` is ``None``, the base model is ``dec`` with its canonicalizers off. ``crop`` is the fraction of an
    image's shorter side that the central crop keeps.
    """

    name: str
    note: str
    base_label: str
    base: nn.Module | None
    dec: AdaptedModel
    size: int
    crop: float
    normalise: Normalise
    name_of: Callable[[int], str]
    reads_digits: bool = False

    def prepare(self, image: Image.Image) -> Tensor:
        """Return the central crop of an image as the models' input, ``(1, 3, size, size)`` in [0,1]."""
        shorter = max(self.size, int(self.size / self.crop))
        resized = T.resize(image, [shorter], interpolation=v2.InterpolationMode.BICUBIC)
        return T.pil_to_tensor(T.center_crop(resized, [self.size, self.size]))[None].float() / 255


def shipped() -> bool:
    """Return whether this installation has the small model."""
    return (SHIPPED / "dec").is_dir()


def open_pair(name: str, *, control: Path | None = None, pretrained: str = "timm") -> Pair:
    """Load the pair called ``name``.

    Args:
        name: ``"small"``, the folder of a finished run, or the name of a timm model.
        control: the folder of a finished run that is the base model of a run.
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
        return _open_run(name, SHIPPED / "dec", control or SHIPPED / "control")
    folder = Path(name).expanduser()
    if folder.exists() or name.startswith((".", "~")) or os.sep in name:
        return _open_run(name, folder, control)
    if control is not None:
        raise ConfigError(f"{name} is a timm model, which needs no control; leave --control out, or name a run")
    return _open_timm(name, pretrained)


class Models:
    """The pair that the page was opened with, and the pairs chosen last, which are kept in memory."""

    def __init__(self, first: Pair, pretrained: str = "timm") -> None:
        self.first, self.pretrained = first, pretrained
        self._lock = threading.Lock()
        self._others: OrderedDict[str, Pair] = OrderedDict()

    @property
    def names(self) -> list[str]:
        """The names that the page offers."""
        return list(dict.fromkeys((self.first.name, *([SMALL] if shipped() else []))))

    def get(self, name: str) -> Pair:
        """Return the pair called ``name``, loading it if it is not in memory."""
        if name == self.first.name:
            return self.first
        with self._lock:
            if name not in self._others:
                self._others[name] = open_pair(name, pretrained=self.pretrained)
            self._others.move_to_end(name)
            if len(self._others) > KEPT:
                self._others.popitem(last=False)
            return self._others[name]


def _open_run(name: str, folder: Path, control: Path | None) -> Pair:
    run = read_run(folder)
    data = run.recipe.data
    if data.dense:
        raise CheckpointError(f"the run in {folder} is a segmentation model; the app shows classifiers only")
    model = run.load_model()
    base, label, notes = None, "base", [_trained(run)]
    if control is not None:
        other = read_run(control)
        check_control(run, other)
        base, label = other.load_model(), "control"
        notes.append(f"Control, a run without DEC: {_scores(other)}.")
    elif isinstance(model, AdaptedModel):
        notes.append("Base: the same weights with the canonicalizers off.")
    if not isinstance(model, AdaptedModel):
        notes.append(
            "This run has no DEC; the one added here was never trained and changes nothing, so both sides answer alike."
        )
        model = adapt(model, input_size=(3, data.image_size, data.image_size)).eval()
    return Pair(
        name=name,
        note=" ".join(notes),
        base_label=label,
        base=base,
        dec=model,
        size=data.image_size,
        crop=data.crop if isinstance(data, ImageNetData) else 1.0,
        normalise=run.normalise,
        name_of=_names_of_run(run),
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
        raise ConfigError(f"{name} has no classifier; choose a model that predicts classes")
    model = adapt(create_backbone(name, classes=classes, pretrained=pretrained, image_size=size)).eval()
    weights = "Its weights are random. " if pretrained == "none" else ""
    return Pair(
        name=name,
        note=f"{name} from timm. {weights}Its DEC was never trained and changes nothing, so both sides answer alike.",
        base_label="base",
        base=None,
        dec=model,
        size=size,
        crop=config.get("crop_pct") or 1.0,
        normalise=normalisation(sketch),
        name_of=_names_of_imagenet(sketch, classes),
    )


def _trained(run: FinishedRun) -> str:
    task = {
        "mnist": "locally scaled MNIST (three-digit numbers, white on black)",
        "imagenet": "locally scaled ImageNet",
    }
    return f"{run.recipe.backbone} trained on {task[run.task]}: {_scores(run)}."


def _scores(run: FinishedRun) -> str:
    metrics = run.metrics
    return f"{100 * metrics['accuracy']:.1f} % right, InvE {metrics['invariance_error']['squared']:.3f}"


def _names_of_run(run: FinishedRun) -> Callable[[int], str]:
    data, classes = run.recipe.data, run.classes
    if isinstance(data, MNISTData):
        return lambda label: f"{label:03d}"
    if isinstance(data, ImageNetData) and data.test_root is not None:
        with contextlib.suppress(LocalScaleError):  # the test images may have been deleted since
            names = LocallyScaledImageNet(data.test_root).classes
            if len(names) == classes:
                return lambda label: names[label]
    return _names_of_imagenet(sketch_of(run.recipe.backbone), classes)


def _names_of_imagenet(sketch: Any, classes: int) -> Callable[[int], str]:
    subset = infer_imagenet_subset(sketch) if sketch.pretrained_cfg.get("num_classes") == classes else None
    if subset is None:
        return lambda label: f"class {label}"
    info = ImageNetInfo(subset)
    return lambda label: info.index_to_description(label).partition(",")[0]
