"""Save and load adapted models as JSON and safetensors.

``model.safetensors`` is the model: its header holds the description. ``config.json`` holds a copy for readers and other
programs; it is read only if the header has no description, as in files that an earlier version wrote.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from localscale.adaptation.card import CARD_LINE, write_card
from localscale.adaptation.model import AdaptedModel, adapt
from localscale.adaptation.origin import PASS_BASE, Origin, find_origin, new_tensors
from localscale.adaptation.preprocessing import PROCESSOR, Preprocessing
from localscale.adaptation.state import DESCRIPTION, checksum, from_tensor
from localscale.canonicalizer import DECConfig
from localscale.errors import CheckpointError, ConfigError, LocalScaleError, OutputError, near_misses
from localscale.files import errors_as, reason_of, write_all
from localscale.machine import versions
from localscale.tensor_files import read_tensors, write_tensors

__all__ = ["describe_state", "load", "save"]

logger = logging.getLogger(__name__)

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
FILES = (CONFIG, WEIGHTS)  # what loading needs
HELD = "localscale"  # key of the description in the header of the weights
FORMAT = 2
PACKAGES = ("localscale", "torch", "torchvision", "timm", "transformers", "safetensors")
FIELDS = ("format", "config", "input_size", "base_model", "base_digest", "versions")


def save(
    model: AdaptedModel,
    folder: Path,
    *,
    results: dict[str, Any] | None,
    include_base: bool,
    address: str = "this/folder",
) -> None:
    """Write the files of ``AdaptedModel.save_pretrained``; ``address`` is where the card says they are."""
    tensors = {
        f"canonicalizers.{path}.{name}": tensor
        for path, canonicalizer in model.canonicalizers.items()
        for name, tensor in canonicalizer.state_dict().items()
    }
    base, origin = model.base_state(), find_origin(model.base)
    saved = {name for name, tensor in base.items() if checksum(tensor) != model.base_checksums.get(name)}
    if include_base or (origin.library and origin.weights is None):  # nothing else holds these tensors
        saved = set(base)
    elif origin.library:
        saved |= new_tensors(model.base, set(base))
    tensors |= {f"base.{name}": base[name] for name in sorted(saved)}
    description = {
        "format": FORMAT,
        "config": model.dec_config.to_dict(),
        "input_size": list(model.input_size),
        "source_size": None if model.source_size is None else list(model.source_size),
        "base_model": {"class": f"{type(model.base).__module__}.{type(model.base).__qualname__}", **origin.to_dict()},
        "base_digest": _digest({name: crc for name, crc in model.base_checksums.items() if name not in saved}),
        "preprocessing": None if model.preprocessing is None else model.preprocessing.to_dict(),
        "results": results,
        "versions": versions(PACKAGES),
    }
    try:
        config = json.dumps(description, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"results cannot be written as JSON ({error}); expected a dictionary of finite numbers and texts"
        ) from error
    card = write_card(model, description, origin, saved, address)
    metadata = {HELD: json.dumps(description)}
    files: dict[Path, Callable[[Path], object]] = {  # once the first is renamed, the new model is the one that loads
        folder / WEIGHTS: lambda path: write_tensors(path, tensors, metadata),
        folder / CONFIG: lambda path: path.write_text(config, encoding="utf-8"),
    }
    if model.preprocessing is not None and origin.library == "transformers":
        processor = json.dumps(model.preprocessing.to_processor(), indent=2) + "\n"
        files[folder / PROCESSOR] = lambda path: path.write_text(processor, encoding="utf-8")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _may_write_card(folder / CARD):
            files[folder / CARD] = lambda path: path.write_text(card, encoding="utf-8")
        write_all(files)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise OutputError(f"{folder} cannot be written: {reason_of(error)}; choose another folder") from error


def _may_write_card(path: Path) -> bool:
    """Return whether ``path`` is free or a card of this library; a README of something else stays, with a warning."""
    if not path.exists() or CARD_LINE in path.read_text(encoding="utf-8", errors="replace"):
        return True
    logger.warning("%s is no model card of localscale, so it stays as it is and no card is written", path)
    return False


def load(folder: Path, base_model: nn.Module | None, *, token: str | None = None) -> AdaptedModel:
    """Adapt ``base_model`` with the configuration in ``folder`` and load the weights; an error leaves it unchanged.

    Without ``base_model`` it is built as ``folder`` describes.
    """
    description, tensors = _read(folder)
    whole = tensors.pop(DESCRIPTION, None) is not None  # a state_dict: all tensors, under the adapted model's names
    rebuilt = base_model is None
    if base_model is None and whole:
        base_model = Origin.from_dict(description["base_model"], folder / WEIGHTS).build(weights=False)
    elif base_model is None:
        base_model = _build_base(description, tensors, folder, token)
    made_for = description["base_model"]["class"]
    try:
        config = DECConfig.from_dict(description["config"])
        size, source_size = tuple(description["input_size"]), description["source_size"]
        with errors_as(CheckpointError, f"{folder / PROCESSOR} cannot be read"):
            preprocessing = description["preprocessing"] or Preprocessing.in_folder(folder)
        model = adapt(base_model, config, input_size=size, source_size=source_size, preprocessing=preprocessing)
    except ConfigError as error:
        raise CheckpointError(f"{folder} holds a configuration this version cannot use: {error}") from error
    except LocalScaleError as error:
        raise CheckpointError(
            f"{folder} was saved from a {made_for} and does not fit this {type(base_model).__name__}: {error}"
        ) from error
    except (TypeError, RuntimeError, MemoryError, OverflowError) as error:  # torch's, for sizes that are too large
        raise CheckpointError(f"{folder} describes a model that cannot be built: {reason_of(error)}") from error
    model.preprocessing = preprocessing or model.preprocessing
    if whole:
        return _load_state(model, tensors, folder, made_for)
    try:
        targets = _find_targets(model, tensors, folder, made_for)
        given = {name: crc for name, crc in model.base_checksums.items() if f"base.{name}" not in tensors}
        if _digest(given) != description["base_digest"]:
            if rebuilt:
                raise CheckpointError(
                    f"the weights {description['base_model'].get('weights')} are not the ones {folder} was trained "
                    f"with; {PASS_BASE}, or save the model again with include_base=True"
                )
            warnings.warn(
                f"the base model's weights are not the ones {folder} was trained with "
                f"({description['base_model']['name']}); load those before calling from_pretrained",
                stacklevel=3,
            )
    except Exception:
        model.unwrap()
        raise
    with torch.no_grad():
        for name, tensor in tensors.items():
            targets[name].copy_(tensor)
    # Loaded tensors count as changed, so that saving the model again writes them again.
    for name in tensors:
        model.base_checksums.pop(name.removeprefix("base."), None)
    return model


def describe_state(model: AdaptedModel) -> dict[str, Any]:
    """Return what ``load`` needs beside all tensors of a model; only a transformers base is built from it."""
    kind = f"{type(model.base).__module__}.{type(model.base).__qualname__}"
    origin = find_origin(model.base) if kind.startswith("transformers.") else Origin(None, kind, {}, None)
    return {
        "format": FORMAT,
        "config": model.dec_config.to_dict(),
        "input_size": list(model.input_size),
        "source_size": None if model.source_size is None else list(model.source_size),
        "base_model": {"class": kind, **origin.to_dict(), "weights": None},
        "base_digest": None,
        "preprocessing": None if model.preprocessing is None else model.preprocessing.to_dict(),
        "versions": versions(("localscale", "torch")),
    }


def _load_state(model: AdaptedModel, tensors: dict[str, Tensor], folder: Path, made_for: str) -> AdaptedModel:
    """Load a whole ``state_dict``; an error unwraps the base."""
    expected = {name: tensor for name, tensor in model.state_dict().items() if name != DESCRIPTION}
    differing = sorted(set(expected) ^ set(tensors))
    differing += [name for name in expected.keys() & tensors.keys() if expected[name].shape != tensors[name].shape]
    if differing:
        model.unwrap()
        raise CheckpointError(
            f"{folder / WEIGHTS} was saved from a {made_for} and does not fit this {type(model.base).__name__}: "
            f"{len(differing)} tensors differ, {differing[0]} among them"
        )
    model.load_state_dict(tensors)
    model.base_checksums.clear()  # loaded tensors count as changed, so that saving the model again writes them again
    return model


def _build_base(description: dict[str, Any], tensors: dict[str, Tensor], folder: Path, token: str | None) -> nn.Module:
    """Build the base model; its published weights are loaded only if ``tensors`` does not hold all of them."""
    origin = Origin.from_dict(description["base_model"], folder / CONFIG)
    base = origin.build(weights=False)
    lacking = [name for name in base.state_dict() if f"base.{name}" not in tensors]
    if not lacking:
        return base
    if origin.weights is None:
        raise CheckpointError(
            f"{folder / WEIGHTS} lacks {len(lacking)} tensors of {origin.name}, such as {lacking[0]}; {PASS_BASE}"
        )
    return origin.build(weights=True, token=token)


def _find_targets(model: AdaptedModel, tensors: dict[str, Tensor], folder: Path, made_for: str) -> dict[str, Tensor]:
    """Return the parameter or buffer of each saved tensor; raise ``CheckpointError`` if a name or shape differs."""
    base = {f"base.{name}": tensor for name, tensor in model.base_state().items()}
    own = {
        f"canonicalizers.{path}.{name}": tensor
        for path, canonicalizer in model.canonicalizers.items()
        for name, tensor in canonicalizer.state_dict().items()
    }
    missing = [name for name in own if name not in tensors]
    if missing:
        raise CheckpointError(
            f"{folder / WEIGHTS} lacks {len(missing)} tensors, such as {missing[0]}; save the model again"
        )
    targets = own | base
    extra = [name for name in tensors if name not in targets]
    if extra:
        raise CheckpointError(
            f"{folder / WEIGHTS} holds {len(extra)} tensors that this {type(model.base).__name__} does not have, "
            f"{extra[0]} among them ({near_misses(extra[0], targets)}); it was saved from a {made_for}"
        )
    for name, tensor in tensors.items():
        if tensor.shape != targets[name].shape:
            raise CheckpointError(
                f"{name} has shape {tuple(tensor.shape)} in {folder / WEIGHTS} and {tuple(targets[name].shape)} in "
                f"this {type(model.base).__name__}; it was saved from a {made_for}"
            )
    return targets


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return description and tensors of a folder; the tensors of a ``state_dict`` hold the description themselves."""
    path = folder / WEIGHTS
    try:
        if not path.exists():
            _read_description(folder)  # its error comes first
        tensors, metadata = read_tensors(
            path, missing=f"no {WEIGHTS} in {folder}; expected a folder written by save_pretrained"
        )
    except (OSError, ValueError) as error:
        if isinstance(error, LocalScaleError):
            raise
        raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from error
    if DESCRIPTION not in tensors and HELD not in metadata:
        return _read_description(folder), tensors
    try:
        description = from_tensor(tensors[DESCRIPTION]) if DESCRIPTION in tensors else json.loads(metadata[HELD])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} holds a description that cannot be read: {error}") from error
    if DESCRIPTION not in tensors:
        _warn_of_another_copy(folder, description)
    return _check_description(description, path), tensors


def _warn_of_another_copy(folder: Path, description: Any) -> None:
    """Warn if ``config.json`` exists and differs, because someone edited it or a save was interrupted."""
    try:
        same = json.loads((folder / CONFIG).read_text(encoding="utf-8")) == description
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError):
        same = False
    if not same:
        warnings.warn(
            f"{folder / CONFIG} differs from the description in {WEIGHTS}, which is the one that counts; call "
            "save_pretrained again to make them equal",
            stacklevel=5,
        )


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"no {CONFIG} in {folder}; expected a folder written by save_pretrained, or by transformers' Trainer"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from error
    return _check_description(description, path)


def _check_description(description: Any, path: Path) -> dict[str, Any]:
    if not isinstance(description, dict):
        raise CheckpointError(f"{path} does not hold a JSON object; expected a file written by save_pretrained")
    lacking = [name for name in FIELDS if name not in description]
    if lacking:
        raise CheckpointError(f"{path} lacks {', '.join(lacking)}; expected a file written by save_pretrained")
    if description["format"] != FORMAT:
        made_with = description["versions"]
        written_by = made_with.get("localscale") if isinstance(made_with, dict) else None
        raise CheckpointError(
            f"{path} has format {description['format']!r}, written by localscale {written_by or '(version unknown)'}, "
            f"and this version reads format {FORMAT}; rebuild the model with this version and save it again"
        )
    size, large = description["input_size"], description.get("source_size")
    base, digest = description["base_model"], description["base_digest"]
    if not _are_sides(size, 3):
        raise CheckpointError(f"{path} has input_size {size!r}; expected [channels, height, width]")
    if large is not None and not _are_sides(large, 2):
        raise CheckpointError(f"{path} has source_size {large!r}; expected [height, width] or null")
    if not (isinstance(base, dict) and all(isinstance(base.get(name), str) for name in ("class", "name"))):
        raise CheckpointError(f"{path} has base_model {base!r}; expected its class and name")
    if not isinstance(digest, str | None):
        raise CheckpointError(f"{path} has base_digest {digest!r}; expected a text or null")
    held = description.get("preprocessing")
    try:
        preprocessing = None if held is None else Preprocessing.from_dict(held)
    except ConfigError as error:
        raise CheckpointError(f"{path} has preprocessing that cannot be read: {error}") from error
    return {**description, "source_size": large, "preprocessing": preprocessing}


def _are_sides(sides: Any, count: int) -> bool:
    return isinstance(sides, list) and len(sides) == count and all(type(n) is int and n > 0 for n in sides)


def _digest(checksums: dict[str, int]) -> str:
    text = json.dumps(sorted(checksums.items()))
    return f"{checksum(torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)):08x}"
