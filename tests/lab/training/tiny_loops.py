"""Loops over a model of one matrix and images of noise."""

import dataclasses
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from tiny_recipes import Linear, Noise
from torch import nn

from localscale.lab.methods import RandomScaling
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.recipes.recipe import Recipe
from localscale.lab.training.loop import Epoch, Loop

RECIPE = Recipe(
    precision="no",
    augmentation=RandomScaling(probability=0.0),
    optimization=Optimization(epochs=2, batch_size=4, learning_rate=1e-2, weight_decay=0.1, clip=0.5),
)


def loop_of(
    task: Noise | None = None,
    backbone: nn.Module | None = None,
    recipe: Recipe = RECIPE,
    *,
    compile_blocks: bool = False,
    **changes: Any,
) -> Loop:
    AcceleratorState._reset_state()
    torch.manual_seed(0)
    recipe, backbone = dataclasses.replace(recipe, **changes), backbone or Linear()
    return Loop(recipe, backbone, task or Noise(), Accelerator(cpu=True), compile_blocks=compile_blocks)


def epochs_of(loop: Loop) -> list[Epoch]:
    found: list[Epoch] = []
    loop.run(found.append, progress=False)
    return found
