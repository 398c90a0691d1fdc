"""What the command ``localscale data objects`` takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localscale.errors import ConfigError

__all__ = ["ObjectsOptions"]


@dataclass(frozen=True)
class ObjectsOptions:
    """Scenes of two scanned objects before a panorama, in groups that differ in the objects' distances."""

    meshes: Path
    """Folder of .glb or .obj meshes, one class each; a class is named by its file, or by its model's folder."""
    panoramas: Path
    """Folder of .hdr or .exr panoramas; about a quarter of them are kept for the test split."""
    count: int = 6_000
    """Number of images; the paper has 6,000 for training and 2,000 for testing."""
    split: Literal["train", "test"] = "train"
    """The test split has other scenes and other panoramas, of the same classes."""
    group_size: int = 4
    """Images of one scene, with the objects at other distances; the last group may be smaller."""
    image_size: int = 256
    """Side of the images, in pixels."""
    samples: int = 4
    """Rays per pixel."""
    image_format: Literal["png", "jpg"] = "png"
    """Format of the images; masks are always png."""
    up: Literal["y", "z"] = "z"
    """The axis that points up in the meshes: z for Google Scanned Objects, y for most other GLB files."""
    renderer: str = "embree"
    """What draws the scenes."""
    seed: int = 0
    """Seed of everything drawn by chance."""

    def check(self) -> None:
        """Refuse what cannot be drawn."""
        least = {"count": 1, "group_size": 1, "image_size": 32, "samples": 1, "seed": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least {bound}")
        for name, allowed in {"split": ("train", "test"), "image_format": ("png", "jpg"), "up": ("y", "z")}.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f'{name} is "{getattr(self, name)}"; expected {" or ".join(allowed)}')
