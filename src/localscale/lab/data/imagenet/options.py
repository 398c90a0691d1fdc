"""Everything that can be chosen about locally scaled ImageNet; the command line is made from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localscale.errors import ConfigError

__all__ = ["BIG_LAMA", "ImageNetOptions"]

BIG_LAMA = "sha256:344c77bbcb158f17dd143070d1e789f38a66c04202311ae3a258ef66667a9ea9"


@dataclass(frozen=True)
class ImageNetOptions:
    """Locally scaled ImageNet: the labelled object of each image, larger and smaller before its own background."""

    images: Path
    """Folder of images in one subfolder per class, such as ImageNet's val/n01440764/….JPEG."""

    limit: int | None = None
    """Use this many source images, spread over the classes; all of them by default."""

    scales: tuple[float, ...] = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
    """Factors of the object's size; 1.0 is the untouched original."""

    detector: str = "grounding-dino"
    """Who finds the object: grounding-dino, evidence (needs no detector weights), or given."""

    segmenter: str = "sam"
    """Who cuts it out: sam, onnx-sam, grabcut (needs no weights), or given."""

    inpainter: str = "lama"
    """Who fills the hole: lama, patchmatch (needs no weights), or telea."""

    class_index: Path | None = None
    """JSON file {"000": ["n01440764", "tench"], …}; found beside the images folder if it is called class_index.json."""

    size: int | None = None
    """Resize images so that their shorter side has this many pixels; as they are by default."""

    image_format: Literal["png", "jpg"] = "png"
    """Lossless png, or jpg; masks, and originals that are no plain JPEG, are png either way."""

    feather: float = 1.5
    """Width of the pasted object's soft edge, in pixels."""

    margin: float = 0.03
    """How far the filled hole reaches beyond the object, as a fraction of the image's shorter side."""

    agreement: float = 0.3
    """Least overlap (IoU) of the detector's box with the mask's own: below, one is wrong. Given masks are trusted."""

    seed: int = 0
    """Which images a limit picks, and their order."""

    device: str = "cpu"
    """Where models run: cpu, cuda, cuda:1 …"""

    dino_model: str = "IDEA-Research/grounding-dino-tiny"
    """grounding-dino: a model on the Hugging Face hub, or a local folder."""

    dino_threshold: float = 0.25
    """grounding-dino: the lowest score of a box that is used."""

    classifier: str = "deit_tiny_patch16_224"
    """evidence: the timm classifier whose class evidence gives the box."""

    classifier_weights: Path | None = None
    """evidence: a safetensors file with its weights; timm's pretrained ones by default."""

    boxes: Path | None = None
    """given (detector): a JSON file {"class/image.jpg": [left, top, right, bottom]}, or a folder like --masks."""

    sam_model: str = "facebook/sam-vit-base"
    """sam: a model on the Hugging Face hub, or a local folder."""

    sam_encoder: Path | None = None
    """onnx-sam: the image encoder's ONNX file."""

    sam_decoder: Path | None = None
    """onnx-sam: the mask decoder's ONNX file."""

    masks: Path | None = None
    """given (segmenter): a folder with class/image.png or class/image_trimap.png for every class/image.jpg; 128 or more
    is object."""

    lama: Path | None = None
    """lama: the TorchScript file big-lama.pt."""

    lama_checksum: str = BIG_LAMA
    """lama: what the file must hash to, as sha256:… or md5:…; checked before the file, a program, is opened."""

    def check(self) -> None:
        """Refuse what cannot be made."""
        if not self.scales or any(not 0.1 <= scale <= 4 for scale in self.scales):
            raise ConfigError(f"scales are {self.scales}; expected numbers from 0.1 to 4")
        thousandths = [round(1000 * scale) for scale in self.scales]
        if thousandths != sorted(set(thousandths)):
            raise ConfigError(f"scales are {self.scales}; expected increasing order, at least 0.001 apart")
        for name, value, least in (("limit", self.limit, 1), ("size", self.size, 16)):
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; expected at least {least}")
        for name, number, bounds in (
            ("feather", self.feather, (0, 20)),
            ("margin", self.margin, (0, 0.25)),
            ("agreement", self.agreement, (0, 1)),
            ("dino_threshold", self.dino_threshold, (0, 1)),
        ):
            if not bounds[0] <= number <= bounds[1]:
                raise ConfigError(f"{name} is {number}; expected {bounds[0]} to {bounds[1]}")
        if self.image_format not in ("png", "jpg"):
            raise ConfigError(f'image_format is "{self.image_format}"; expected "png" or "jpg"')
