"""Meshes and panoramas by name, loaded when first needed and kept while there is room."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localscale.lab.data.objects.casting import build_tree
from localscale.lab.data.objects.lighting import Environment, light_environment
from localscale.lab.data.objects.meshes import Mesh, UpAxis, load_mesh
from localscale.lab.data.objects.panoramas import load_panorama

__all__ = ["Assets"]

MESHES_KEPT = 32  # about 7 MB each
PANORAMAS_KEPT = 24  # 6 MB each at 1024×512


class Assets:
    """What a process has loaded of the meshes and panoramas it may need; one per worker."""

    def __init__(self, meshes: Mapping[str, Path], panoramas: Mapping[str, Path], *, up: UpAxis = "z") -> None:
        self._meshes, self._panoramas, self._up = dict(meshes), dict(panoramas), up
        self.mesh = functools.lru_cache(maxsize=MESHES_KEPT)(self._load_mesh)
        self.environment = functools.lru_cache(maxsize=PANORAMAS_KEPT)(self._load_environment)

    def _load_mesh(self, name: str) -> tuple[Mesh, Any]:
        mesh = load_mesh(self._meshes[name], up=self._up)
        return mesh, build_tree(mesh)

    def _load_environment(self, name: str) -> Environment:
        return light_environment(load_panorama(self._panoramas[name]))
