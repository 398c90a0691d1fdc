"""A recipe: everything a run depends on, as one frozen value."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro
from torch import nn

from localscale.errors import ConfigError, near_misses
from localscale.lab.methods import DEC, AugL, Canon, FineTune, InvL, RandomScaling
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.recipes.regularization import Regularization
from localscale.lab.tasks.imagenet import ImageNetData
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.tasks.objects import ObjectsData

__all__ = ["Recipe", "from_dict", "to_dict"]


@dataclass(frozen=True)
class Recipe:
    """A row of a table for one backbone."""

    name: tyro.conf.Suppress[str] = ""
    """Its name in the list of recipes."""
    backbone: str = "deit_tiny_patch16_224"
    """Name of the backbone in timm."""
    pretrained: str = "timm"
    """Where the backbone's weights come from: timm (downloaded), none (random), or a safetensors file."""
    start: Path | None = None
    """A finished run to go on from; its backbone's weights replace the pretrained ones."""
    needs_start: tyro.conf.Suppress[str] = ""
    """The recipe whose run this one starts from; empty if none."""
    method: tyro.conf.AvoidSubcommands[FineTune | Canon | InvL | AugL | DEC] = field(default_factory=FineTune)
    """What is done about local scale."""
    data: tyro.conf.AvoidSubcommands[MNISTData | ImageNetData | ObjectsData] = field(default_factory=MNISTData)
    """What is learned."""
    augmentation: RandomScaling = field(default_factory=lambda: RandomScaling(probability=0.0))
    """Random monotone scaling of the training images."""
    optimization: tyro.conf.OmitArgPrefixes[Optimization] = field(default_factory=Optimization)
    """How the weights move."""
    regularization: tyro.conf.OmitArgPrefixes[Regularization] = field(default_factory=Regularization)
    """What keeps it from learning by heart."""
    head_width: int = 256
    """Channels of the head that segments; classifiers have none."""
    head_norm: bool = False
    """Standardise the features before the classifier: for transformers that learn from random weights."""
    precision: Literal["no", "bf16"] = "bf16"
    """bf16: matrix products in half precision; maps and solvers are always float32."""
    max_skipped: int = 20
    """Steps with a loss or gradient that is not finite are skipped; after so many training stops."""
    seed: int = 0
    """Of everything drawn by chance but the dataset."""

    def check(self) -> None:
        """Refuse settings that cannot work, before anything is loaded."""
        for part in (self.method, self.data, self.augmentation, self.optimization, self.regularization):
            part.check()
        self.method.check_answers(dense=self.data.dense)
        mixes = self.regularization.mixup or self.regularization.cutmix or self.regularization.random_erasing
        if self.data.dense and mixes:
            raise ConfigError("mixup, cutmix and random erasing are for one label per image; set them to 0 for masks")
        if self.data.dense and self.head_norm:
            raise ConfigError("head_norm is for classifiers; a head that segments has norms of its own")
        if self.head_width < 1:
            raise ConfigError(f"head_width is {self.head_width}; expected at least 1")
        if self.max_skipped < 0:
            raise ConfigError(f"max_skipped is {self.max_skipped}; expected 0 or more")
        if self.regularization.mixup + self.regularization.cutmix and self.optimization.batch_size % 2:
            raise ConfigError(f"mixup needs an even batch size; try --batch-size {self.optimization.batch_size + 1}")

    def build(self, backbone: nn.Module) -> nn.Module:
        """The model to train."""
        return self.method.build(backbone)


PARTS: dict[str, tuple[type[Any], ...]] = {
    "method": (FineTune, Canon, InvL, AugL, DEC),
    "data": (MNISTData, ImageNetData, ObjectsData),
    "augmentation": (RandomScaling,),
    "optimization": (Optimization,),
    "regularization": (Regularization,),
    "scaling": (RandomScaling,),
    "supervised_scaling": (RandomScaling,),
}


def to_dict(value: Any) -> Any:
    """A recipe, or a part of one, as plain values; the kind of each part beside its fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": _kind(type(value)), **fields}
    if isinstance(value, tuple | list):
        return [to_dict(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_dict(values: dict[str, Any]) -> Recipe:
    """The inverse of ``to_dict``; anything unknown raises."""
    return _read(values, (Recipe,), "the recipe")


def _read(values: Any, kinds: tuple[type[Any], ...], what: str) -> Any:
    known = {_kind(kind): kind for kind in kinds}
    if not isinstance(values, dict) or values.get("kind") not in known:
        found = values.get("kind") if isinstance(values, dict) else type(values).__name__
        raise ConfigError(f"{what} is of kind {found!r}: {near_misses(str(found), known)}")
    kind = known[values["kind"]]
    types = typing.get_type_hints(kind)
    read = {}
    for name, value in values.items():
        if name == "kind":
            continue
        if name not in types:
            raise ConfigError(f"{what} has no field {name!r}: {near_misses(name, types)}")
        if name in PARTS:
            read[name] = _read(value, PARTS[name], name)
        elif Path in (types[name], *typing.get_args(types[name])) and value is not None:
            read[name] = Path(value)
        else:
            read[name] = tuple(value) if isinstance(value, list) else value
    return kind(**read)


def _kind(kind: type[Any]) -> str:
    return "Recipe" if issubclass(kind, Recipe) else kind.__name__
