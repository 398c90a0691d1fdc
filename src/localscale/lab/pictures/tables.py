"""Numbers for figures, out of a table's results."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from localscale.errors import ConfigError, DataError, near_misses
from localscale.files import read_whole

__all__ = ["per_scale_of"]


def per_scale_of(path: Path, rows: tuple[str, ...] = ()) -> tuple[list[str], dict[str, Tensor]]:
    """The scales of a result, and each row's accuracies in percent, ``(seeds, scales)``, by its label."""
    try:
        runs = [run for run in json.loads(read_whole(path, str(path)))["runs"] if "per_scale" in run["metrics"]]
        found: dict[str, list[dict[str, float]]] = {}
        for run in runs:
            found.setdefault(run["label"], []).append(run["metrics"]["per_scale"]["accuracy"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is no result of a table ({type(error).__name__}: {error}); expected a file that localscale "
            "reproduce wrote"
        ) from error
    if not found:
        raise DataError(f"{path} has no accuracy per scale; it is measured for MNIST and ImageNet")
    for row in rows:
        if row not in found:
            raise ConfigError(f"no row {row!r} in {path}: {near_misses(row, found)}")
    scales = list(next(iter(found.values()))[0])
    wanted = rows or tuple(found)
    return scales, {
        row: 100 * torch.tensor([[seed[scale] for scale in scales] for seed in found[row]]) for row in wanted
    }
