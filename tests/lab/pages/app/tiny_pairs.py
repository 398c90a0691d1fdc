"""Write finished runs without training; their random weights are large enough that the models answer differently."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tiny_recipes import BACKBONE, tiny

from localscale.adaptation import AdaptedModel
from localscale.canonicalizer import Compose, DECConfig, SizeNetwork
from localscale.canonicalizer.sizes import SizeEstimator
from localscale.checkpoints import write_weights
from localscale.equilibrium import Picard
from localscale.lab.methods import FineTune, SizeEquilibrium
from localscale.lab.recipes.recipe import to_dict
from localscale.lab.runs.models import create_model

CLASSES = 1000
SIZES = SizeEquilibrium(
    DECConfig(
        knots=6,
        update=Compose(),
        network=SizeNetwork(width=8, blocks=1),
        solver=Picard(2, 1e-3, fixed_steps=True),
        guard=0.1,
    )
)
METRICS = {"accuracy": 0.875, "invariance_error": {"squared": 0.1}, "images": 10, "variants": 2}


def write_pair(folder: Path) -> Path:
    """Write finished runs ``model``, a size equilibrium, and ``control`` into ``folder``, in half precision."""
    for name, method in (("model", SIZES), ("control", FineTune())):
        write_run(folder / name, method, seed=len(name))
    return folder


def write_run(folder: Path, method: object, seed: int = 0) -> Path:
    """Write a folder as ``localscale train`` does."""
    torch.manual_seed(seed)
    recipe = tiny(folder, method, name=f"mnist-{BACKBONE}-{folder.name}", precision="no")
    backbone = create_model(recipe, CLASSES, pretrained="none")
    for name, weight in backbone.named_parameters():
        if weight.dim() > 1:
            weight.data *= 40 if name.startswith("head") else 10
    model = recipe.build(backbone)
    if isinstance(model, AdaptedModel):
        for canonicalizer in model.canonicalizers.values():
            for weight in canonicalizer.parameters():
                torch.nn.init.normal_(weight, std=0.3)
            if isinstance(canonicalizer.network, SizeEstimator):
                canonicalizer.network.trust.fill_(1)
    folder.mkdir(parents=True)
    write_weights(folder / "weights.safetensors", model.half(), {"name": recipe.name})
    (folder / "recipe.json").write_text(json.dumps(to_dict(recipe)), encoding="utf-8")
    result = {"classes": CLASSES, "metrics": METRICS, "seconds": {"training": 1.0, "evaluation": 1.0}}
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return folder
