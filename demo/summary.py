"""Merge several seeds of the demo: ``python -m demo.summary out/seed0 out/seed1 … > results/demo.json``."""

import json
import platform
import statistics
import sys
from importlib import metadata
from pathlib import Path


def summarise(runs: list[dict]) -> dict:
    """Return the means and the values of each seed, in the form that ``localscale tables`` reads."""
    names = [row["name"] for row in runs[0]["rows"]]
    rows = []
    for index, name in enumerate(names):
        found = [run["rows"][index] for run in runs]
        accuracies = [row["accuracy"] for row in found]
        errors = [row["invariance_error"] for row in found]
        rows.append(
            {
                "model": name,
                "accuracy %": statistics.mean(accuracies),
                "each seed %": ", ".join(f"{value:.2f}" for value in accuracies),
                "InvE 10⁻²": statistics.mean(errors),
                "each seed 10⁻²": ", ".join(f"{value:.2f}" for value in errors),
                "trainable parameters": found[0]["parameters"],
            }
        )
    seeds = ", ".join(str(run["seed"]) for run in runs)
    note = (
        f"Seeds {seeds}. InvE is the mean squared ℓ2 distance between softmax outputs. Both models start from the same "
        "weights and train for the same steps on the same images. Before that, the size network learns without labels."
    )
    versions = {"python": platform.python_version(), "torch": metadata.version("torch")}
    table = {"title": "Two locally scaled digits, 100 classes, 64 px", "note": note, "rows": rows}
    return {"command": "python -m demo --seed N", "machine": "a CPU", "versions": versions, "tables": [table]}


if __name__ == "__main__":
    loaded = [json.loads((Path(folder) / "results.json").read_text()) for folder in sys.argv[1:]]
    if not loaded:
        raise SystemExit("name the --out folders of one or more finished demos, for example out/demo")
    print(json.dumps(summarise(loaded), indent=2))
