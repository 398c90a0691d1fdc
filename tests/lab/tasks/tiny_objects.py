"""Locally scaled objects without a renderer: two discs, whose colour is their class, on a background of noise.

The library's writer writes them, so they are read like any other dataset.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from localscale.canonicalizer import Compose, ConvNetwork, DECConfig, SizeNetwork
from localscale.equilibrium import Picard, Unrolled
from localscale.lab.data.generation import Job, Sample, Skip, Stage, generate
from localscale.lab.data.images import encode_image, encode_mask
from localscale.lab.data.objects.job import KIND
from localscale.lab.methods import DEC, AugL, Canon, FineTune, RandomScaling, SizeEquilibrium
from localscale.lab.methods.method import Method
from localscale.lab.recipes import Recipe
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.tasks.objects import ObjectsData

Spoil = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray] | str]
SIZE = 32
COLOURS = {"blue": (30, 40, 220), "green": (30, 220, 40), "red": (220, 30, 40)}
CLASSES = 1 + len(COLOURS)

SMALL = DECConfig.paper(
    knots=4,
    mode="equivariant",
    network=ConvNetwork((8, 16), resolution=16),
    solver=Picard(3, 1e-3, fixed_steps=True),
)
DIRECT = DEC(dataclasses.replace(SMALL, sites=("input", "backbone.blocks.0"), knots=(4, 3)))
COMPOSE = DEC(dataclasses.replace(SMALL, update=Compose(), gradient=Unrolled()), supervision=1.0, prior=0.1)
SIZES = SizeEquilibrium(
    DECConfig(
        knots=5,
        mode="equivariant",
        network=SizeNetwork(width=8, blocks=0, weight="learned", sure=0.1),
        solver=Picard(3, 1e-3, fixed_steps=True),
    ),
    learning_steps=4,
    masks=True,
)
METHODS: dict[str, Method] = {
    "plain": FineTune(),
    "canon": Canon(configurations=4, mode="equivariant", learning_steps=5, tuned=True),
    "augl": AugL(),
    "direct": DIRECT,
    "compose": COMPOSE,
    "sizes": SIZES,
}


def draw_group(rng: np.random.Generator, members: int, size: int) -> list[tuple[np.ndarray, np.ndarray, list[float]]]:
    """Return the images ``(size, size, 3)`` of one scene, their class masks, and the scales of its two objects."""
    shown = rng.choice(CLASSES - 1, 2, replace=False)
    across, down, radius = rng.uniform((7, 23), (9, 25)), rng.uniform(10, 22, 2), rng.uniform(4.5, 5.5, 2)
    noise = rng.integers(0, 70, (size, size, 3), np.uint8)
    y, x = np.mgrid[:size, :size]
    scenes = []
    for member in range(members):
        near = np.ones(2) if member == 0 else rng.uniform(0.8, 1.4, 2)
        pixels, classes = noise.copy(), np.zeros((size, size), np.int64)
        for k, which in enumerate(shown):
            disc = (x - across[k]) ** 2 + (y - down[k]) ** 2 < (near[k] * radius[k]) ** 2
            pixels[disc], classes[disc] = list(COLOURS.values())[which], which + 1
        scenes.append((pixels, classes, near.tolist()))
    return scenes


def write_objects(
    folder: Path,
    *,
    groups: int = 4,
    members: int = 3,
    seed: int = 0,
    size: int = SIZE,
    names: tuple[str, ...] = tuple(COLOURS),
    form: str = "folder",
    spoil: Mapping[int, Spoil] | None = None,
) -> Path:
    """Write a dataset; ``spoil[group]`` changes the group's images and classes, or returns a reason to skip them."""

    def make(index: int) -> list[Sample] | Skip:
        rng = np.random.Generator(np.random.PCG64([seed, index]))
        samples = []
        for member, (pixels, classes, near) in enumerate(draw_group(rng, members, size)):
            if spoil and index in spoil:
                spoiled = spoil[index](pixels, classes)
                if isinstance(spoiled, str):
                    return Skip(spoiled, {"group": index})
                pixels, classes = spoiled
            files = {
                "png": encode_image(pixels),
                "class.png": encode_mask(classes),
                "instance.png": encode_mask((classes > 0).astype(np.int64)),
            }
            record = {"group": index, "member": member, "objects": [{"scale": scale} for scale in near]}
            samples.append(Sample(f"{index:06d}_{member:02d}", files, record))
        return samples

    settings = {"seed": seed, "image_size": size, "image_format": "png", "classes": list(names)}
    generate(Job(KIND, groups, settings, [Stage("draw", lambda: make)], chunk_size=3), folder, form=form)  # type: ignore[arg-type]
    return folder


def write_both(folder: Path) -> Path:
    """Write ``folder/train`` with 24 images and ``folder/test`` with 12."""
    write_objects(folder / "train", groups=12, members=2)
    write_objects(folder / "test", groups=4, members=3, seed=1)
    return folder


def tiny(folder: Path, method: str | Method = "plain", **changes: Any) -> Recipe:
    """Return a recipe for the discs in ``folder``; ``changes`` may name fields of its data and optimization."""
    data: dict[str, Any] = {
        "train_root": folder / "train", "test_root": folder / "test", "image_size": SIZE, "variants": 2,
    }  # fmt: skip
    optimization: dict[str, Any] = {
        "epochs": 2, "batch_size": 8, "learning_rate": 2e-3, "canonicalizer_rate": 1e-2,
    }  # fmt: skip
    for part, kind in ((data, ObjectsData), (optimization, Optimization)):
        names = {field.name for field in dataclasses.fields(kind)}
        part |= {name: changes.pop(name) for name in list(changes) if name in names}
    recipe = Recipe(
        name="tiny",
        backbone="test_vit",
        pretrained="none",
        method=METHODS[method] if isinstance(method, str) else method,
        data=ObjectsData(**data),
        augmentation=RandomScaling(probability=0.5),
        optimization=Optimization(**optimization),
        head_width=16,
        precision="no",
    )
    return dataclasses.replace(recipe, **changes)
