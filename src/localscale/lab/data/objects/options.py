"""The options of ``localscale data objects``; the command line is generated from this dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localscale.errors import ConfigError

__all__ = ["ObjectsOptions"]


@dataclass(frozen=True)
class ObjectsOptions:
    """Scenes of two scanned objects in front of a panorama; the images of a group differ in the objects' distances."""

    meshes: Path
    """Folder of .glb or .obj meshes, one class each, named by the file or by the model's folder."""
    panoramas: Path
    """Folder of .hdr or .exr panoramas; the test split uses about a quarter of them."""
    count: int = 6_000
    """Number of images; the paper uses 6,000 for training and 2,000 for testing."""
    split: Literal["train", "test"] = "train"
    """Split to generate: train or test, which has other scenes and other panoramas with the same classes."""
    group_size: int = 4
    """Number of images of each scene, with the objects at different distances; the last group may be smaller."""
    image_size: int = 256
    """Side of the images, in pixels."""
    samples: int = 4
    """Number of rays per pixel."""
    image_format: Literal["png", "jpg"] = "png"
    """Format of the images: png or jpg; masks are always png."""
    up: Literal["y", "z"] = "z"
    """Axis that points up in the meshes: z for Google Scanned Objects, y for most other GLB files."""
    renderer: str = "embree"
    """Renderer that draws the scenes; embree (ray casting on the CPU) is the only one."""
    seed: int = 0
    """Seed of the random scenes."""

    def check(self) -> None:
        """Raise ``ConfigError`` if a value is out of range."""
        least = {"count": 1, "group_size": 1, "image_size": 32, "samples": 1, "seed": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least {bound}")
        for name, allowed in {"split": ("train", "test"), "image_format": ("png", "jpg"), "up": ("y", "z")}.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f'{name} is "{getattr(self, name)}"; expected {" or ".join(allowed)}')
