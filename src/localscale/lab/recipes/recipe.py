"""``Recipe``: everything a training run depends on as one frozen value, and its JSON form."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro
from torch import nn

from localscale.adaptation.discover import usual_input_size
from localscale.canonicalizer import INPUT, DECConfig
from localscale.errors import ConfigError, near_misses
from localscale.lab.methods import METHODS, FineTune, Method, RandomScaling
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.recipes.regularization import Regularization
from localscale.lab.tasks import TASKS, MNISTData, TaskData
from localscale.registry import check_types

__all__ = ["FORMAT", "Recipe", "from_dict", "to_dict"]

FORMAT = 2  # of recipe.json


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a training run learns: a row of a table for one backbone."""

    name: tyro.conf.Suppress[str] = ""
    """Name of the recipe, TASK-BACKBONE-ROW."""
    backbone: str = "deit_tiny_patch16_224"
    """Name of the backbone in timm."""
    pretrained: str = "timm"
    """Weights of the backbone: timm (downloaded), none (random), or a safetensors file."""
    start: Path | None = None
    """Folder of a finished run whose backbone weights replace the pretrained ones."""
    needs_start: tyro.conf.Suppress[str] = ""
    """Name of the recipe whose run this one continues from; empty if none."""
    method: Method = field(default_factory=FineTune)
    """The method and its settings."""
    data: TaskData = field(default_factory=MNISTData)
    """The dataset and how it is evaluated."""
    source_size: int | None = None
    """Side of the images that are loaded, if it is larger than the backbone's input, --data.image-size."""
    augmentation: RandomScaling = field(default_factory=lambda: RandomScaling(probability=0.0))
    """Random monotone scaling of the training images."""
    optimization: tyro.conf.OmitArgPrefixes[Optimization] = field(default_factory=Optimization)
    """Optimizer, learning rates and schedule."""
    regularization: tyro.conf.OmitArgPrefixes[Regularization] = field(default_factory=Regularization)
    """Label smoothing, mixup, cutmix, random erasing and stochastic depth."""
    head_width: int = 256
    """Channels of the segmentation head; classifiers ignore it."""
    head_norm: bool = False
    """Standardise the features before the classifier, for transformers that start from random weights."""
    precision: Literal["no", "bf16"] = "bf16"
    """bf16 computes matrix products in bfloat16; no uses float32. Maps and solvers always use float32."""
    max_skipped: int = 20
    """Training stops after this many steps were skipped because their loss or gradient was not finite."""
    seed: int = 0
    """Seed of initialisation, order, augmentation and dropout. The dataset has its own, --data.data-seed."""

    def check(self) -> None:
        """Raise ``ConfigError`` for settings that cannot work, before any data or weights are loaded."""
        if type(self.data) not in TASKS.values():
            raise ConfigError(
                f"{type(self.data).__name__} is not registered, so the run could not be loaded again; put "
                '@localscale.lab.tasks.register("NAME") above the class'
            )
        if type(self.method) not in METHODS.values():
            name = type(self.method).__name__
            raise ConfigError(
                f"{name} is not registered, so the run could not be loaded again; enter it: METHODS[{name!r}] = {name}"
            )
        for part in (self.method, self.data, self.augmentation, self.optimization, self.regularization):
            part.check()
        self.method.check_answers(dense=self.data.dense)
        mixes = self.regularization.mixup or self.regularization.cutmix or self.regularization.random_erasing
        if self.data.dense and mixes:
            raise ConfigError("segmentation has no --mixup, --cutmix or --random-erasing; set them to 0")
        if self.data.dense and self.head_norm:
            raise ConfigError("--head-norm is for classifiers, and this task is segmentation; leave it out")
        self._check_source_size()
        if self.head_width < 1:
            raise ConfigError(f"--head-width is {self.head_width}; expected at least 1")
        if self.max_skipped < 0:
            raise ConfigError(f"--max-skipped is {self.max_skipped}; expected 0 or more")
        if self.regularization.mixup + self.regularization.cutmix and self.optimization.batch_size % 2:
            raise ConfigError(f"mixup needs an even batch size; try --batch-size {self.optimization.batch_size + 1}")

    def _check_source_size(self) -> None:
        if self.source_size is None:
            return
        if self.source_size < self.data.image_size:
            raise ConfigError(
                f"--source-size is {self.source_size} and the backbone's input, --data.image-size, is "
                f"{self.data.image_size}; expected at least as many pixels"
            )
        config = getattr(self.method, "config", None)
        if isinstance(config, DECConfig) and INPUT not in map(str, config.sites):
            raise ConfigError(
                f"--source-size needs a canonicalizer at {INPUT}, but the sites are "
                f"{', '.join(map(str, config.sites))}; add {INPUT} to --method.config.sites, or leave it out"
            )

    @property
    def loaded_data(self) -> TaskData:
        """The settings of the data with the size of the images that are loaded, ``source_size`` if there is one."""
        if self.source_size is None:
            return self.data
        return dataclasses.replace(self.data, image_size=self.source_size)  # type: ignore[type-var]

    def build(self, backbone: nn.Module) -> nn.Module:
        """Return the model to train: ``backbone`` with what the method adds, for images of the data's size."""
        channels, side = usual_input_size(backbone)[0], self.data.image_size
        large: dict[str, Any] = {} if self.source_size is None else {"source_size": (self.source_size,) * 2}
        return self.method.build(backbone, input_size=(channels, side, side), **large)


REGISTRIES: dict[type[Any], Mapping[str, type[Any]]] = {Method: METHODS, TaskData: TASKS}


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as JSON values, with the format's number and the class of each part as ``kind``."""
    return {"format": FORMAT, **_write(recipe)}


def from_dict(values: dict[str, Any]) -> Recipe:
    """Return the recipe that ``to_dict`` wrote; another format, an unknown class or an unknown field raises."""
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format", 1) if isinstance(values, dict) else type(values).__name__
        raise ConfigError(
            f"the recipe has format {found}, and this version of localscale reads format {FORMAT}; "
            "train the run again, or read it with the version that wrote it"
        )
    return _read({name: value for name, value in values.items() if name != "format"}, Recipe, "the recipe")


def _write(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return {"kind": type(value).__name__, **value.to_dict()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _write(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [_write(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _read(values: Any, annotation: type[Any], what: str) -> Any:
    known = {kind.__name__: kind for kind in REGISTRIES.get(annotation, {"": annotation}).values()}
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str) or values["kind"] not in known:
        found = values.get("kind") if isinstance(values, dict) else type(values).__name__
        hint = "; if it is your own, import the module that registers it first (--import MODULE on the command line)"
        hint = hint if annotation in REGISTRIES else ""
        raise ConfigError(f"{what} is of kind {found!r}: {near_misses(str(found), known)}{hint}")
    kind = known[values["kind"]]
    if hasattr(kind, "from_dict"):
        return kind.from_dict({name: value for name, value in values.items() if name != "kind"})
    types = typing.get_type_hints(kind)
    read = {}
    for name, value in values.items():
        if name == "kind":
            continue
        if name not in types:
            raise ConfigError(f"{what} has no field {name!r}: {near_misses(name, types)}")
        if types[name] in REGISTRIES or dataclasses.is_dataclass(types[name]):
            read[name] = _read(value, types[name], name)
        elif Path in (types[name], *typing.get_args(types[name])) and value is not None:
            read[name] = Path(value) if isinstance(value, str) else value
        else:
            read[name] = tuple(value) if isinstance(value, list) else value
    try:
        found = kind(**read)
    except TypeError as error:
        raise ConfigError(f"{what} is incomplete: {error}") from error
    check_types(found)
    return found
