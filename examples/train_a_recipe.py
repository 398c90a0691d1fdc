"""Train a small version of a recipe in a few seconds: real digits, DeiT-Tiny, DEC with equivariance supervision.

It uses about a hundredth of the images and epochs, so the numbers mean nothing. The full recipe is
``localscale train mnist-deit_tiny-dec_compose_joint``. Run from the repository root:
``.venv/bin/python examples/train_a_recipe.py``
"""

import dataclasses
import json
import os
from pathlib import Path

from localscale.lab.recipes import find_recipe
from localscale.lab.runs import load_run
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.training import train

out = Path(os.environ.get("OUT", "out")) / "train_a_recipe"
recipe = find_recipe("mnist-deit_tiny-dec_compose_joint")
recipe = dataclasses.replace(
    recipe,
    pretrained="none",
    precision="no",
    data=MNISTData(root=Path("embedded"), train_count=64, test_count=16, variants=2, bracket_count=0, image_size=64),
    optimization=dataclasses.replace(recipe.optimization, epochs=2, batch_size=16),
)

result = train(recipe, out, resume=True, progress=True)
print("accuracy", result["metrics"]["accuracy"], "InvE", result["metrics"]["invariance_error"]["squared"])
for line in (out / "log.jsonl").read_text().splitlines():
    epoch = json.loads(line)
    print(f"epoch {epoch['epoch']}: loss {epoch['loss']:.3f}, supervision error {epoch['supervision']:.4f}")

model = load_run(out)  # an AdaptedModel: model.canonicalizers, model.unwrap(), model.save_pretrained(...)
print(type(model).__name__, "with a canonicalizer at", ", ".join(model.canonicalizers))
