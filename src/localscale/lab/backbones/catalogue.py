"""The backbones of the paper's tables by short names, and functions that create and load them."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

import localscale.lab.backbones  # noqa: F401  registers its models with timm
from localscale.errors import CheckpointError, ConfigError, DataError, near_misses
from localscale.tensor_files import read_tensors

logger = logging.getLogger(__name__)

__all__ = [
    "BACKBONES",
    "Backbone",
    "Normalise",
    "convolutional",
    "create_backbone",
    "load_weights",
    "normalisation",
    "repeated_blocks",
    "sketch_of",
    "standardise_head",
    "whole_patches",
]

VIT_SITES = ("blocks.0", "blocks.4", "blocks.8")


@dataclass(frozen=True)
class Backbone:
    """A backbone of the tables.

    Args:
        timm_name: its name in timm.
        sites: module paths for canonicalizers after the image, in order of depth.
        mnist_rate: the paper's learning rate on MNIST (App. A1). Rows without a rate of their own also take it for the
            canonicalizers.
        pretrained: ``"timm"``, or ``"none"`` for backbones without weights.
        from_scratch: whether it needs a norm before its classifier to learn MNIST from random weights.
        crop: the part of the shorter side that test photographs show; ``None`` takes the task's.
    """

    timm_name: str
    sites: tuple[str, ...]
    mnist_rate: float = 1e-4
    pretrained: str = "timm"
    from_scratch: bool = False
    crop: float | None = None


BACKBONES: dict[str, Backbone] = {
    "resnet18": Backbone("resnet18", ("layer2", "layer3", "layer4")),
    "resnet34": Backbone("resnet34", ("layer2", "layer3", "layer4")),
    "resnet50": Backbone("resnet50", ("layer2", "layer3", "layer4")),
    "vit_tiny": Backbone("vit_tiny_patch16_224", VIT_SITES, crop=0.9),
    "vit_little": Backbone("vit_little_patch16_reg4_gap_256", VIT_SITES),
    "vit_small": Backbone("vit_small_patch16_224", VIT_SITES),
    "vit_base": Backbone("vit_base_patch16_224", VIT_SITES),
    "deit_tiny": Backbone("deit_tiny_patch16_224", VIT_SITES),
    "deit_small": Backbone("deit_small_patch16_224", VIT_SITES),
    "deit_base": Backbone("deit_base_patch16_224", VIT_SITES),
    "swin_tiny": Backbone("swin_tiny_patch4_window7_224", ("layers.1", "layers.2", "layers.3"), 8e-4),
    "swin_small": Backbone("swin_small_patch4_window7_224", ("layers.1", "layers.2", "layers.3"), 8e-4),
    "swin_base": Backbone("swin_base_patch4_window7_224", ("layers.1", "layers.2", "layers.3"), 8e-4),
    "beit_base": Backbone("beit_base_patch16_224", VIT_SITES),
    "beitv2_base": Backbone("beitv2_base_patch16_224", VIT_SITES),
    "dinov2_small": Backbone("vit_small_patch14_dinov2", VIT_SITES, 2e-5),
    "dinov2_base": Backbone("vit_base_patch14_dinov2", VIT_SITES, 2e-5),
    "efficientnet_lite0": Backbone("tf_efficientnet_lite0", ("blocks.2", "blocks.3", "blocks.5")),
    "starnet_s100": Backbone("starnet_s100", ("stages.1", "stages.2", "stages.3"), 1e-3, pretrained="none"),
    "hrvit_b1": Backbone("hrvit_b1", ("stem.1", "stages.0", "stages.1"), 1e-3, pretrained="none", from_scratch=True),
    "resformer_tiny": Backbone("resformer_tiny_patch16_224", VIT_SITES, 2e-3, pretrained="none", from_scratch=True),
}


def create_backbone(
    name: str,
    *,
    classes: int,
    pretrained: str,
    image_size: int = 224,
    drop_path: float = 0.0,
    fresh_head: bool = False,
) -> Any:
    """Create a timm model with a head for ``classes``.

    Args:
        name: its name in timm.
        classes: number of classes; a pretrained head with as many classes is kept.
        pretrained: ``"timm"`` downloads timm's weights, ``"none"`` leaves them random, anything else is a safetensors
            file with the backbone's own tensors.
        image_size: side of the images in pixels.
        drop_path: rate of stochastic depth.
        fresh_head: replace the pretrained head even if it has as many classes.
    """
    base = name.partition(".")[0]
    sketch = sketch_of(name)
    tags = timm.list_pretrained(f"{base}.*")
    if name != base and name not in tags:
        raise ConfigError(f"timm has no weights {name!r}: {near_misses(name, tags)}")
    settings: dict[str, Any] = {"num_classes": classes}
    if drop_path:
        settings["drop_path_rate"] = drop_path
    if hasattr(sketch, "patch_embed") and sketch.pretrained_cfg["input_size"][-1] != image_size:
        settings["img_size"] = image_size  # convolutions take any size
    try:
        model = timm.create_model(name, pretrained=pretrained == "timm", **settings)
    except TypeError as error:
        raise ConfigError(f"{name} cannot be made for {image_size} px with {settings}: {error}") from error
    except Exception as error:
        if pretrained != "timm":
            raise
        cause = str(error).strip().partition("\n")[0].partition(". ")[0][:200]  # the first sentence
        raise DataError(
            f"the pretrained weights of {name} cannot be loaded ({type(error).__name__}: {cause}); "
            "check the connection, or name a safetensors file with --pretrained FILE, or --pretrained none"
        ) from error
    if pretrained not in ("timm", "none"):
        load_weights(model, Path(pretrained))
    if fresh_head and pretrained != "none":
        model.reset_classifier(classes)
    return model


def standardise_head(model: Any) -> None:
    """Put a BatchNorm without weights before the classifier; after training the two can be merged into one matrix.

    On images that are mostly background, the features of a ViT with random weights differ by only 1 to 2 % of their
    length. Without the norm, the noise of the optimizer's steps hides such small differences from the classifier.

    >>> model = timm.create_model("test_vit", num_classes=7)
    >>> standardise_head(model)
    >>> model.get_classifier()[1]
    Linear(in_features=64, out_features=7, bias=True)
    """
    head, name = model.get_classifier(), model.pretrained_cfg["classifier"]
    if not isinstance(head, nn.Linear) or not isinstance(name, str):
        found = type(head).__name__ if isinstance(name, str) else f"several layers ({', '.join(name)})"
        raise ConfigError(
            f"--head-norm needs a linear classifier, and {type(model).__name__} has {found}; leave it out"
        )
    model.set_submodule(name, nn.Sequential(nn.BatchNorm1d(head.in_features, affine=False), head))


def sketch_of(name: str) -> Any:
    """Create the backbone on the meta device, without weights, to inspect its modules and settings."""
    base = name.partition(".")[0]
    if not timm.is_model(base):
        raise ConfigError(f"timm has no model {name!r}: {near_misses(base, timm.list_models())}")
    with torch.device("meta"):
        return timm.create_model(base, num_classes=0)


def whole_patches(name: str, image_size: int) -> int:
    """Return the smallest multiple of the backbone's patch size that is at least ``image_size``.

    >>> whole_patches("vit_small_patch14_dinov2", 256), whole_patches("resnet18", 256)
    (266, 256)
    """
    embed = getattr(sketch_of(name), "patch_embed", None)
    patch = getattr(embed, "patch_size", (1, 1))[0]
    return -(-image_size // patch) * patch


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a safetensors file into ``model``; a head of another size is skipped, all other tensors must fit."""
    missing = f"no weights at {path}; --pretrained takes a safetensors file, timm or none"
    tensors, _ = read_tensors(path, missing=missing)
    own = model.state_dict()
    head = {name for name in (*own, *tensors) if _in_head(model, name)}
    tensors = _for_its_size(model, tensors)
    kept = {name: tensor for name, tensor in tensors.items() if not (name in head and _other_size(own, name, tensor))}
    left = set(own) - set(kept) - head
    strange = [name for name in kept if name not in own or own[name].shape != kept[name].shape]
    if strange or left:
        example = (strange or sorted(left))[0]
        raise CheckpointError(
            f"{path} does not fit {type(model).__name__}: {len(strange)} tensors are unknown and {len(left)} are "
            f"missing, such as {example}; give --pretrained the weights of the same backbone"
        )
    fresh = sorted(head & set(own) - set(kept))
    if fresh:
        logger.warning("%s has no head of this size: %s starts from random weights", path, fresh[0].rpartition(".")[0])
    model.load_state_dict(kept, strict=False)


@dataclass(frozen=True)
class Normalise:
    """Subtract the mean and divide by the standard deviation of the images that a backbone was pretrained on."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise images ``(B, 1 or C, H, W)`` in [0,1]; return ``(B, C, H, W)``."""
        channels = images.expand(-1, len(self.mean), -1, -1).split(1, dim=1)
        return torch.cat([(c - mean) / std for c, mean, std in zip(channels, self.mean, self.std, strict=True)], dim=1)


def normalisation(model: Any) -> Normalise:
    """Return the normalisation of the images that ``model`` was pretrained on."""
    config = model.pretrained_cfg
    return Normalise(tuple(config["mean"]), tuple(config["std"]))


def repeated_blocks(backbone: nn.Module) -> list[nn.Module]:
    """Return the innermost blocks that a backbone repeats; compiling these takes seconds instead of minutes.

    A block is an item of a module list, has children, and its class is not one of torch's.
    """
    lists = [module for module in backbone.modules() if isinstance(module, nn.Sequential | nn.ModuleList)]
    held = [x for each in lists for x in each if any(x.children()) and not type(x).__module__.startswith("torch.")]
    counts = Counter(map(type, held))
    blocks = {x: None for x in held if counts[type(x)] > 1}
    return [x for x in blocks if not any(inner in blocks for inner in x.modules() if inner is not x)]


def convolutional(backbone: nn.Module) -> bool:
    """Return whether all layers but the classifier are convolutions, which a GPU runs faster with channels last.

    >>> convolutional(timm.create_model("resnet18")), convolutional(timm.create_model("test_vit"))
    (True, False)
    """
    kinds = [type(module) for module in backbone.modules()]
    return nn.Conv2d in kinds and kinds.count(nn.Linear) <= 1


def _for_its_size(model: nn.Module, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors with position embeddings resampled to the model's image size, as timm does for its own."""
    own = model.state_dict()
    other = [name for name, t in tensors.items() if name in own and own[name].shape != t.shape]
    resample: Any = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if resample is None or all(_in_head(model, name) for name in other):
        return tensors
    try:
        return resample(dict(tensors), model)
    except (RuntimeError, ValueError, KeyError, AssertionError, IndexError):
        return tensors  # the caller reports that they belong to another backbone


def _in_head(model: Any, name: str) -> bool:
    heads = model.pretrained_cfg.get("classifier") or ()
    return any(name.startswith(f"{head}.") for head in ((heads,) if isinstance(heads, str) else heads))


def _other_size(own: dict[str, torch.Tensor], name: str, tensor: torch.Tensor) -> bool:
    return name not in own or own[name].shape != tensor.shape
