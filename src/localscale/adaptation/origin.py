"""The origin of a base model: its library, the arguments that build it again, and the name of its weights.

Only names that a library registers, and ids of the Hugging Face Hub, are read from a file: never a path or a module.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from localscale.adaptation.wrapper import AdaptedSite
from localscale.errors import CheckpointError

__all__ = ["HUB_ID", "Origin", "find_origin"]

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
ARGUMENTS = {
    "timm": {"num_classes", "in_chans", "img_size"},
    "torchvision": {"num_classes", "image_size", "aux_loss"},
    "transformers": {"config", "revision"},
}
# Fields of a transformers configuration that name files, code or further models.
UNSAFE = {
    "auto_map",
    "attn_implementation",
    "quantization_config",
    "backbone",
    "use_kernels",
    "use_pretrained_backbone",
}
PASS_BASE = "build the base model yourself and call from_pretrained(…, base_model)"


@dataclass(frozen=True)
class Origin:
    """The call that builds a base model again.

    ``library`` is ``"timm"``, ``"transformers"``, ``"torchvision"``, or None for a model that only its author can
    build. ``weights`` names published weights, or is None.
    """

    library: str | None
    name: str
    arguments: dict[str, Any]
    weights: str | None
    hub_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values that ``from_dict`` reads."""
        return {"library": self.library, "name": self.name, "arguments": self.arguments, "weights": self.weights}

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: Path) -> Origin:
        """Read ``to_dict``'s values from the file ``where``; raise ``CheckpointError`` for any other value."""
        library, name, weights = (values.get(key) for key in ("library", "name", "weights"))
        arguments = values.get("arguments", {})
        if library is None:
            raise CheckpointError(f"{where} does not say how to build its base model, {name}; {PASS_BASE}")
        known = all(isinstance(value, str) for value in (library, name)) and isinstance(arguments, dict)
        if (
            not known
            or library not in ARGUMENTS
            or not isinstance(weights, str | None)
            or set(arguments) - ARGUMENTS[library]
        ):
            raise CheckpointError(f"{where} describes a base model that this version does not know; {PASS_BASE}")
        return cls(library, str(name), arguments, weights)

    def build(self, *, weights: bool, token: str | None = None) -> nn.Module:
        """Return the base model, with its published weights or without them."""
        try:
            model = BUILDERS[self.library or ""](self, self.weights if weights else None, token)
        except CheckpointError:
            raise
        except Exception as error:
            what = f"the weights {self.weights} cannot be loaded" if weights else f"{self.name} cannot be built"
            reason = str(error).strip().partition("\n")[0][:200]
            raise CheckpointError(f"{what} ({type(error).__name__}: {reason}); {PASS_BASE}") from error
        return model.eval()


def find_origin(base: nn.Module) -> Origin:
    """Return the origin of ``base``, which may be adapted."""
    home = type(base).__module__.partition(".")[0]
    config, registered = getattr(base, "pretrained_cfg", None), getattr(base, "config", None)
    if isinstance(config, dict) and config.get("architecture"):
        return _find_timm(base, config)
    if home == "transformers" and hasattr(registered, "to_json_string"):
        return _find_transformers(base, registered)
    if home == "torchvision":
        return _find_torchvision(base)
    return Origin(None, type(base).__name__, {}, None)


def new_tensors(base: nn.Module, names: set[str]) -> set[str]:
    """Return those of a base's tensors that its published weights do not hold: the head for other classes."""
    config, prefix = getattr(base, "pretrained_cfg", None), getattr(base, "base_model_prefix", "")
    if isinstance(config, dict):
        if config.get("num_classes") == getattr(base, "num_classes", None):
            return set()
        heads = config.get("classifier") or ()
        return {n for n in names for h in ((heads,) if isinstance(heads, str) else heads) if n.startswith(f"{h}.")}
    return {name for name in names if prefix and not name.startswith(f"{prefix}.")}


# timm


def _find_timm(base: Any, config: dict[str, Any]) -> Origin:
    import timm

    name, tag = config["architecture"], config.get("tag")
    if not timm.is_model(name):
        return Origin(None, name, {}, None)
    arguments: dict[str, Any] = {"num_classes": getattr(base, "num_classes", None)}
    size = getattr(getattr(base, "patch_embed", None), "img_size", None)
    if size and tuple(size) != tuple(config["input_size"][1:]):
        arguments["img_size"] = list(size)
    channels = getattr(base, "in_chans", None)
    if channels not in (None, config["input_size"][0]):
        arguments["in_chans"] = channels
    full = f"{name}.{tag}" if tag else name
    weights = full if full in timm.list_pretrained() else None
    found = Origin("timm", name, arguments, weights, config.get("hf_hub_id") if weights else None)
    return found if _builds(found, base) else Origin(None, name, {}, None)


def _build_timm(origin: Origin, weights: str | None, token: str | None) -> nn.Module:
    import timm

    if not timm.is_model(origin.name):
        raise CheckpointError(f"timm has no model {origin.name!r}; {PASS_BASE}")
    if weights is not None and (weights not in timm.list_pretrained() or weights.partition(".")[0] != origin.name):
        raise CheckpointError(f"timm has no weights {weights!r} for {origin.name}; {PASS_BASE}")
    return timm.create_model(weights or origin.name, pretrained=weights is not None, **origin.arguments)


# transformers


def _find_transformers(base: Any, config: Any) -> Origin:
    import transformers

    name, arguments = type(base).__name__, {"config": _safe(json.loads(config.to_json_string(use_diff=True)))}
    if getattr(transformers, name, None) is not type(base) or getattr(config, "backbone", None):
        return Origin(None, name, {}, None)
    weights = getattr(config, "_name_or_path", "") or ""
    if not HUB_ID.fullmatch(weights) or Path(weights).exists():
        return Origin("transformers", name, arguments, None)
    if getattr(config, "_commit_hash", None):
        arguments["revision"] = config._commit_hash
    return Origin("transformers", name, arguments, weights, weights)


def _build_transformers(origin: Origin, weights: str | None, token: str | None) -> nn.Module:
    from localscale.extras import require

    transformers = require("transformers", "transformers")
    named = getattr(transformers, origin.name, None)
    if not inspect.isclass(named) or not issubclass(named, transformers.PreTrainedModel):
        raise CheckpointError(f"transformers has no model {origin.name!r}; {PASS_BASE}")
    kind: Any = named
    config = kind.config_class.from_dict(_safe(origin.arguments.get("config", {})))
    if weights is None:
        return kind(config)
    if not HUB_ID.fullmatch(weights) or Path(weights).exists():
        raise CheckpointError(f"{weights!r} is not the id of a model on the Hugging Face Hub; {PASS_BASE}")
    revision = origin.arguments.get("revision")
    return kind.from_pretrained(
        weights, config=config, revision=revision or "main", use_safetensors=True, ignore_mismatched_sizes=True,
        token=token,
    )  # fmt: skip


def _safe(value: Any) -> Any:
    """Return a configuration without the fields that name files, code or further models."""
    if isinstance(value, dict):
        return {k: _safe(v) for k, v in value.items() if not str(k).startswith("_") and k not in UNSAFE}
    return [_safe(item) for item in value] if isinstance(value, list) else value


# torchvision


def _find_torchvision(base: Any) -> Origin:
    import torchvision

    last = list(base.state_dict().values())[-1] if base.state_dict() else torch.empty(0)
    arguments: dict[str, Any] = {"num_classes": len(last) if last.dim() else 0}
    if hasattr(base, "image_size"):
        arguments["image_size"] = base.image_size
    if hasattr(base, "aux_classifier"):
        arguments["aux_loss"] = base.aux_classifier is not None
    for name in torchvision.models.list_models():
        builder = torchvision.models.get_model_builder(name)
        if builder.__module__ == type(base).__module__:
            found = Origin("torchvision", name, arguments, None)
            if _builds(found, base):
                return found
    return Origin(None, type(base).__name__, {}, None)


def _build_torchvision(origin: Origin, weights: str | None, token: str | None) -> nn.Module:
    import torchvision

    if origin.name not in torchvision.models.list_models():
        raise CheckpointError(f"torchvision has no model {origin.name!r}; {PASS_BASE}")
    builder = torchvision.models.get_model_builder(origin.name)
    downloads = [name for name in inspect.signature(builder).parameters if name in ("weights", "weights_backbone")]
    return builder(**dict.fromkeys(downloads), **origin.arguments)


BUILDERS = {"timm": _build_timm, "transformers": _build_transformers, "torchvision": _build_torchvision}


# Whether an origin builds the same model


def _builds(origin: Origin, base: nn.Module) -> bool:
    """Return whether ``origin`` builds modules of the same classes, settings and tensors as those of ``base``."""
    try:
        with torch.device("meta"):
            built = BUILDERS[origin.library or ""](origin, None, None)
    except Exception:  # the library refuses these arguments, so another model was meant
        return False
    return dict(_traits(built)) == dict(_traits(base))


def _traits(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield each module's path, class, plain settings and shapes; modules without effect in evaluation are left out."""
    for path, module in _plain_modules(model):
        kind = type(module)
        if isinstance(module, nn.Identity) or "drop" in kind.__name__.lower():
            continue
        settings = {
            name: value
            for name, value in vars(module).items()
            if not name.startswith("_") and "drop" not in name and name not in ("training", "grad_checkpointing")
            if isinstance(value, int | float | str | tuple) and _is_plain(value)
        }
        own: dict[str, Tensor | None] = {**module._parameters, **module._buffers}
        shapes = {name: tuple(tensor.shape) for name, tensor in own.items() if tensor is not None}
        yield path, (f"{kind.__module__}.{kind.__qualname__}", settings, shapes)


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, int | float | str | None)


def _plain_modules(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a model, with those that ``adapt`` replaced in the places of their wrappers."""
    while isinstance(model, AdaptedSite):
        model = model.wrapped
    yield path, model
    for name, child in model.named_children():
        yield from _plain_modules(child, f"{path}.{name}" if path else name)
