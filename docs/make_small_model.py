"""Put the small model that the app shows, and its control, into the package, from the two runs that trained them.

localscale reproduce mnist-shipped --seeds 1
python docs/make_small_model.py runs/mnist-shipped
"""

import sys
from pathlib import Path

from localscale.checkpoints import write_weights
from localscale.files import seal, unseal
from localscale.lab.pages.app.models import SHIPPED
from localscale.lab.runs import load_run, read_run

RUNS = {"control": "starnet_s100-aug_long", "model": "starnet_s100-sizes"}
MOST_BYTES = 5_000_000  # of both, because every installation contains them


def main() -> None:
    """Copy recipe, result and half-precision weights; drop the folder of MNIST from the recipe."""
    total = 0
    for name, run in RUNS.items():
        source, target = Path(sys.argv[1], run, "seed0"), SHIPPED / name
        target.mkdir(parents=True, exist_ok=True)
        for file in ("recipe.json", "result.json"):
            values = unseal((source / file).read_text())
            values.get("recipe", values)["data"]["root"] = None
            (target / file).write_text(seal(values, indent=2))
        write_weights(target / "weights.safetensors", load_run(source).half(), {})
        size = sum(file.stat().st_size for file in target.iterdir())
        metrics, total = read_run(target).metrics, total + size
        error = metrics["invariance_error"]["squared"]
        print(f"{target}: {100 * metrics['accuracy']:.2f} %, InvE {error:.4f}, {size / 1e6:.2f} MB")
    if total > MOST_BYTES:
        raise SystemExit(f"both together have {total / 1e6:.2f} MB; expected at most {MOST_BYTES / 1e6:.0f}")


if __name__ == "__main__":
    main()
