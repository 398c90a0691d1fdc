"""The options of ``localscale data imagenet``; the command line is generated from this dataclass."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from localscale.errors import ConfigError

__all__ = ["BIG_LAMA", "ImageNetOptions"]

BIG_LAMA = "sha256:344c77bbcb158f17dd143070d1e789f38a66c04202311ae3a258ef66667a9ea9"


@dataclass(frozen=True)
class ImageNetOptions:
    """Locally scaled ImageNet: each image with its labelled object made larger and smaller on its own background."""

    images: Path
    """Folder with one subfolder of images per class, such as ImageNet's val/n01440764/….JPEG."""
    limit: int | None = None
    """Number of source images, spread over the classes; all of them by default."""
    scales: tuple[float, ...] = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
    """Factors of the object's size; 1.0 is the unchanged original."""
    frame: Literal["clip", "inside"] = "clip"
    """Treatment of the frame: clip (the frame cuts what leaves it, and an object that touches it is scaled about the
    side that it touches), or inside (images whose object touches the frame or would leave it are skipped)."""
    min_area: float = 0.005
    """Smallest fraction of the image that the object may cover; images below it are skipped."""
    max_area: float = 0.7
    """Largest fraction of the image that the object may cover; images above it are skipped."""
    detector: str = "grounding-dino"
    """Detector of the object: grounding-dino, evidence (needs a classifier only), or given (boxes from disk)."""
    segmenter: str = "sam"
    """Segmenter that cuts the object out: sam, onnx-sam, grabcut (needs no weights), or given (masks from disk)."""
    inpainter: str = "lama"
    """Inpainter that fills the hole: lama, patchmatch (needs no weights), or telea (needs none, for small holes)."""
    class_index: Path | None = None
    """JSON file {"000": ["n01440764", "tench"], …}; by default class_index.json in --images or in a folder above."""
    size: int | None = None
    """Pixels of the shorter side to which images are resized; not resized by default."""
    image_format: Literal["png", "jpg"] = "png"
    """Format of the images: png (lossless) or jpg; masks, and originals that are not plain JPEGs, are always png."""
    feather: float = 1.5
    """Width of the pasted object's soft edge, in pixels."""
    margin: float = 0.03
    """Distance by which the filled hole extends beyond the object, as a fraction of the image's shorter side."""
    agreement: float = 0.3
    """Smallest IoU between the detector's box and the mask's bounding box; images below it are skipped. Masks from disk
    are not compared."""
    seed: int = 0
    """Seed that decides which images --limit selects, and the order of the images."""
    device: str = "cpu"
    """Device that runs the models: cpu, cuda, cuda:1 …"""
    dino_model: str = "IDEA-Research/grounding-dino-tiny"
    """For grounding-dino: model on the Hugging Face hub, or a local folder."""
    dino_threshold: float = 0.25
    """For grounding-dino: smallest score of a box that is used."""
    classifier: str = "deit_tiny_patch16_224"
    """For evidence: timm classifier whose evidence for the class gives the box."""
    classifier_weights: Path | None = None
    """For evidence: safetensors file with the classifier's weights; timm's pretrained weights by default."""
    boxes: Path | None = None
    """For --detector given: CSV file with the columns image,left,top,right,bottom in fractions of the image (of several
    rows for one image the largest box is used), JSON file {"class/image.jpg": [left, top, right, bottom]} in pixels, or
    a folder like --masks; by default --masks itself."""
    sam_model: str = "facebook/sam-vit-base"
    """For sam: model on the Hugging Face hub, or a local folder."""
    sam_encoder: Path | None = None
    """For onnx-sam: ONNX file of the image encoder."""
    sam_decoder: Path | None = None
    """For onnx-sam: ONNX file of the mask decoder."""
    masks: Path | None = None
    """For --segmenter given: folder with class/image.png or class/image_trimap.png for every class/image.jpg; levels
    from 128 (in a trimap above 128) are object."""
    lama: Path | None = None
    """For lama: the TorchScript file big-lama.pt."""
    lama_checksum: str = BIG_LAMA
    """For lama: checksum of the file, sha256:… or md5:…, verified before loading; that of big-lama.pt by default."""

    def check(self) -> None:
        """Raise ``ConfigError`` if a value is out of range."""
        if not self.scales or any(not 0.1 <= scale <= 4 for scale in self.scales):
            raise ConfigError(f"scales are {self.scales}; expected numbers from 0.1 to 4")
        thousandths = [round(1000 * scale) for scale in self.scales]
        if thousandths != sorted(set(thousandths)):
            raise ConfigError(f"scales are {self.scales}; expected increasing order, at least 0.001 apart")
        for name, value, least in (("limit", self.limit, 1), ("size", self.size, 16)):
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; expected at least {least}")
        for name, number, bounds in (
            ("min_area", self.min_area, (0, 1)),
            ("max_area", self.max_area, (0, 1)),
            ("feather", self.feather, (0, 20)),
            ("margin", self.margin, (0, 0.25)),
            ("agreement", self.agreement, (0, 1)),
            ("dino_threshold", self.dino_threshold, (0, 1)),
        ):
            if not bounds[0] <= number <= bounds[1]:
                raise ConfigError(f"{name} is {number}; expected {bounds[0]} to {bounds[1]}")
        if self.min_area >= self.max_area:
            raise ConfigError(f"min_area is {self.min_area}; expected less than max_area, {self.max_area}")
        if self.frame not in ("clip", "inside"):
            raise ConfigError(f'frame is "{self.frame}"; expected "clip" or "inside"')
        if self.image_format not in ("png", "jpg"):
            raise ConfigError(f'image_format is "{self.image_format}"; expected "png" or "jpg"')

    def with_absolute_paths(self) -> ImageNetOptions:
        """Return the same options for a process with another working folder, for example on a cluster."""
        changes: dict[str, Any] = {
            field.name: value.absolute()
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), Path)
        }
        for name in ("dino_model", "sam_model"):  # a local folder, or a name on the hub
            if (path := Path(getattr(self, name))).is_dir():
                changes[name] = str(path.absolute())
        return dataclasses.replace(self, **changes)
