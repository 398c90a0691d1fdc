"""``Preprocessing``: how images become the input of a model."""

from __future__ import annotations

import dataclasses
import http.client
import logging
import math
import tempfile
import threading
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from localscale.adaptation.origin import HUB_ID
from localscale.errors import ConfigError
from localscale.registry import check_types, refuse_unknown

__all__ = ["Preprocessing"]

RESAMPLING = {"nearest": 0, "bilinear": 2, "bicubic": 3}  # and Pillow's numbers of them
INTERPOLATIONS = tuple(RESAMPLING)
PROCESSOR = "preprocessor_config.json"
CROPPED_BELOW = 384  # pixels, in transformers' processor of ConvNeXt
SECONDS = 3  # to wait for the hub
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preprocessing:
    """The image size and the normalisation that a model expects.

    Args:
        mean: mean of each channel, of images in [0, 1].
        std: standard deviation of each channel.
        input_size: (channels, height, width).
        interpolation: ``"nearest"``, ``"bilinear"`` or ``"bicubic"``.
        crop: share of the resized image, along each side, that the central crop keeps.
        keep_ratio: resize the shorter side and crop; otherwise resize both sides, which changes the aspect ratio.

    >>> from PIL import Image
    >>> preprocessing = Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), input_size=(3, 224, 224))
    >>> preprocessing.transform()(Image.new("RGB", (640, 480))).shape
    torch.Size([3, 224, 224])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    input_size: tuple[int, int, int]
    interpolation: str = "bicubic"
    crop: float = 1.0
    keep_ratio: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        fits = len(self.mean) == len(self.std) == self.input_size[0] and all(
            map(math.isfinite, (*self.mean, *self.std))
        )
        if not (fits and min(self.input_size) > 0 and min(self.std) > 0 and 0 < self.crop <= 1):
            raise ConfigError(
                f"{self} is no preprocessing; expected one mean and one positive std per channel, "
                "input_size=(channels, height, width), and a crop between 0 and 1"
            )
        if self.interpolation not in INTERPOLATIONS:
            raise ConfigError(f"interpolation is {self.interpolation!r}; expected one of {', '.join(INTERPOLATIONS)}")

    def transform(self) -> Any:
        """Return a torchvision transform from a PIL image, or a ``uint8`` tensor ``(C, H, W)``, to an input."""
        from torchvision.transforms import InterpolationMode, v2

        channels, height, width = self.input_size
        size = [int(side / self.crop) for side in (height, width)]
        resized = size[:1] if self.keep_ratio and height == width else size
        return v2.Compose(
            [
                v2.RGB() if channels == 3 else v2.Grayscale(channels),
                v2.Resize(resized, InterpolationMode(self.interpolation), antialias=True),
                v2.CenterCrop([height, width]),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(self.mean, self.std),
                v2.ToPureTensor(),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocessing:
        """Read the settings that ``to_dict`` returned; unknown keys raise."""
        if not isinstance(values, dict):
            raise ConfigError(f"the preprocessing is {type(values).__name__}; expected a dictionary")
        refuse_unknown("Preprocessing", values, [field.name for field in dataclasses.fields(cls)])
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"the preprocessing is incomplete: {error}") from error

    @classmethod
    def of(cls, source: Any, *, input_size: tuple[int, int, int] | None = None) -> Preprocessing | None:
        """Return the preprocessing that a model of timm or transformers, or an image processor, declares; else None.

        A model of transformers declares it in the folder or repository that it was loaded from, which is looked up in
        the cache, then on the hub. If the hub does not answer within three seconds, the result is None.

        >>> import timm
        >>> Preprocessing.of(timm.create_model("resnet18")).crop
        0.95
        """
        if isinstance(getattr(source, "pretrained_cfg", None), dict):
            from timm.data import resolve_model_data_config

            found = resolve_model_data_config(source)
            mean, std, size = found["mean"], found["std"], tuple(input_size or found["input_size"])
            if not len(mean) == len(std) == size[0]:
                return None
            keep_ratio = found["crop_mode"] != "squash"
            return cls(mean, std, size, found["interpolation"], found["crop_pct"], keep_ratio)
        if hasattr(source, "image_mean") and hasattr(source, "image_std"):
            return _of_processor(source, input_size)
        if type(source).__module__.startswith("transformers."):
            config = getattr(source, "config", None)
            name, commit = (getattr(config, key, None) for key in ("_name_or_path", "_commit_hash"))
            return _of_name(name or "", commit, input_size)
        return None

    @classmethod
    def in_folder(cls, folder: Path, *, input_size: tuple[int, int, int] | None = None) -> Preprocessing | None:
        """Return the preprocessing that transformers' ``preprocessor_config.json`` declares, if there is one."""
        if not (folder / PROCESSOR).is_file():
            return None
        try:
            from transformers import AutoImageProcessor

            processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            return cls.of(processor, input_size=input_size)
        except Exception as error:  # a processor of another kind, or of code that is not run
            logger.info("the preprocessing in %s cannot be used: %s", folder, error)
            return None

    def to_processor(self) -> dict[str, Any]:
        """Return the settings of an image processor of transformers that does the same, for its JSON file."""
        _, height, width = self.input_size
        resized = {"height": int(height / self.crop), "width": int(width / self.crop)}
        if self.keep_ratio and height == width:
            resized = {"shortest_edge": resized["height"]}
        return {
            "image_processor_type": "BitImageProcessor",  # of all processors, this one crops
            "do_convert_rgb": True,
            "do_resize": True,
            "size": resized,
            "resample": RESAMPLING[self.interpolation],
            "do_center_crop": True,
            "crop_size": {"height": height, "width": width},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }


def _of_processor(processor: Any, input_size: tuple[int, int, int] | None) -> Preprocessing | None:
    """Return the preprocessing of an image processor, or None if it does what ``Preprocessing`` cannot express."""
    if getattr(processor, "do_flip_channel_order", False) or getattr(processor, "rescale_offset", False):
        return None  # BGR instead of RGB, or values from -1
    size: Any = dict(processor.size)
    names = {number: name for name, number in RESAMPLING.items()}
    interpolation = names.get(int(processor.resample), "bicubic")
    mean, std = processor.image_mean, processor.image_std
    if not getattr(processor, "do_normalize", True):
        channels = len(mean or (0, 0, 0))
        mean, std = channels * (0.0,), channels * (1.0,)
    if not mean or not std:
        return None
    crop_size = dict(processor.crop_size) if getattr(processor, "do_center_crop", False) else None
    if size.get("shortest_edge"):
        sides = crop_size or {"height": size["shortest_edge"], "width": size["shortest_edge"]}
        own = (len(mean), sides["height"], sides["width"])
        crop = min(1.0, sides["height"] / size["shortest_edge"])
        if getattr(processor, "crop_pct", None):  # ConvNeXt's: a crop below 384 px, both sides resized from there on
            small = size["shortest_edge"] < CROPPED_BELOW
            crop = processor.crop_pct if small else 1.0
            return Preprocessing(mean, std, input_size or own, interpolation, crop, keep_ratio=small)
        return Preprocessing(mean, std, input_size or own, interpolation, crop)
    if size.get("height"):
        sides = crop_size or size
        own = (len(mean), sides["height"], sides["width"])
        crop = min(1.0, sides["height"] / size["height"])
        return Preprocessing(mean, std, input_size or own, interpolation, crop, keep_ratio=False)
    return None


def _of_name(name: str, commit: str | None, input_size: tuple[int, int, int] | None) -> Preprocessing | None:
    """Return the preprocessing of a folder, or of a repository on the hub, from which a model was loaded."""
    if name and Path(name).is_dir():
        return Preprocessing.in_folder(Path(name), input_size=input_size)
    if not HUB_ID.fullmatch(name):
        return None
    try:
        import huggingface_hub

        cached = huggingface_hub.try_to_load_from_cache(name, PROCESSOR, revision=commit)
    except Exception as error:
        logger.info("the preprocessing of %s is unknown: %s", name, error)
        return None
    if isinstance(cached, str):
        return Preprocessing.in_folder(Path(cached).parent, input_size=input_size)
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return None
    text = _fetch(huggingface_hub.hf_hub_url(name, PROCESSOR, revision=commit))
    if text is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, PROCESSOR).write_bytes(text)
        return Preprocessing.in_folder(Path(folder), input_size=input_size)


def _fetch(address: str) -> bytes | None:
    """Return the content of an address, or None after three seconds; ``hf_hub_download`` would try for 23 seconds."""
    found: list[bytes] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(address, timeout=SECONDS) as answer:
                found.append(answer.read(100_000))
        except (OSError, ValueError, http.client.HTTPException) as error:
            logger.info("%s cannot be read: %s", address, error)

    thread = threading.Thread(target=ask, daemon=True)  # no timeout of urlopen covers the lookup of a host's name
    thread.start()
    thread.join(SECONDS)
    return found[0] if found else None
