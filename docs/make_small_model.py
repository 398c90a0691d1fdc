"""Put the small model that the app shows into the package, from the two runs that trained it.

localscale reproduce mnist-shipped --seeds 1
python docs/make_small_model.py runs/mnist-shipped
"""

import json
import sys
from pathlib import Path

from localscale.lab.pages.app.models import SHIPPED
from localscale.lab.runs import load_run
from localscale.lab.runs.checkpoint import write_weights

RUNS = {"control": "starnet_s100-aug_long", "dec": "starnet_s100-dec_compose_joint"}


def main() -> None:
    """Copy recipe, result and half-precision weights; drop the folder of MNIST from the recipe."""
    for name, run in RUNS.items():
        source, target = Path(sys.argv[1], run, "seed0"), SHIPPED / name
        target.mkdir(parents=True, exist_ok=True)
        for file in ("recipe.json", "result.json"):
            values = json.loads((source / file).read_text())
            values.get("recipe", values)["data"]["root"] = None
            (target / file).write_text(json.dumps(values, indent=2) + "\n")
        write_weights(target / "weights.safetensors", load_run(source).half(), {})
        print(target, f"{(target / 'weights.safetensors').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
