"""Tables of the runs on pets: accuracy and InvE over seeds, and accuracy by the share that the animal fills."""

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measurement import ResultTable
from benchmarks.pets_runs import METHODS, SHARES, SMALLER, VAL, answers_file, metrics_file, read_json, run_folders
from localscale.errors import DataError

BRACKETS = {"below 0.15": (0.0, 0.15), "0.15 to 0.3": (0.15, 0.3), "above 0.3": (0.3, 1.0)}
PHOTOGRAPHS = {VAL: "as they are", SMALLER: "animal at half its size"}
DIFFERENCE = "difference"

Record = dict[str, Any]  # one run: its result, and its metrics and answers on each folder of photographs


def collect(runs: Path, data: Path) -> dict[str, Any]:
    """Return the results of all seeds in ``runs`` as a JSON document; ``data`` is the folder that was prepared."""
    seeds = sorted(int(path.name.removeprefix("seed")) for path in runs.glob(f"{METHODS['control']}/seed*"))
    if not seeds:
        raise DataError(f"{runs} holds no {METHODS['control']}/seed0; name the --out folder of the run step")
    records: dict[str, list[Record]] = {method: [] for method in METHODS}
    for seed in seeds:
        for method, folder in run_folders(runs, seed).items():
            found = {split: read_json(metrics_file(folder, split)) for split in PHOTOGRAPHS}
            answers = {split: read_json(answers_file(folder, split)) for split in PHOTOGRAPHS}
            records[method].append(
                {"result": read_json(folder / "result.json"), "metrics": found, "answers": answers, "seed": seed}
            )
    first = records["control"][0]["result"]
    tables = [main_table(records), share_table(records, read_json(data / SHARES)), seed_table(records)]
    return {
        "command": f"python -m benchmarks.pets run --data DIR --weights FILE --seeds {' '.join(map(str, seeds))}",
        "machine": first["machine"],
        "versions": first["versions"],
        "tables": [vars(table) for table in tables],
    }


def main_table(records: dict[str, list[Record]]) -> ResultTable:
    """Return accuracy and InvE of each method, and the difference between them."""
    columns: dict[str, Callable[[Record], float]] = {
        "accuracy %": lambda run: 100 * run["metrics"][VAL]["accuracy"],
        "InvE": lambda run: 100 * run["metrics"][VAL]["invariance_error"]["squared"],
        "accuracy %, scaled at random": lambda run: 100 * run["metrics"][VAL]["scaled_accuracy"],
        "accuracy %, animal at half its size": lambda run: 100 * run["metrics"][SMALLER]["accuracy"],
        "InvE, animal at half its size": lambda run: 100 * run["metrics"][SMALLER]["invariance_error"]["squared"],
    }
    first = records["control"][0]
    result, metrics = first["result"], first["metrics"][VAL]
    settings, data = result["recipe"]["optimization"], result["recipe"]["data"]
    network = records["size equilibrium"][0]["result"]["recipe"]["method"]["config"]["network"]
    note = (
        f"Oxford-IIIT Pets: {result['data'].split(';')[0]}, {metrics['images']} validation images of "
        f"{data['image_size']} px, {metrics['variants']} random local scalings of each. {result['recipe']['backbone']} "
        f"with ImageNet weights, fine-tuned for {settings['epochs']} epochs; batch size {settings['batch_size']}, "
        f"learning rate {settings['learning_rate']:g}, target {network['target']:g}. Both methods have the same "
        "images, augmentation (half of the images scaled at random), epochs and rates. For the last two columns the "
        "animal of each validation image was cut out and pasted at half its size, and the hole was "
        "inpainted. The difference is taken seed by seed."
    )
    rows = [
        {
            "method": method,
            "seeds": len(runs),
            **{name: spread([value(run) for run in runs]) for name, value in columns.items()},
        }
        for method, runs in records.items()
    ]
    difference = {name: spread(_differences(records, value), sign="+") for name, value in columns.items()}
    rows.append({"method": DIFFERENCE, "seeds": len(records["control"]), **difference})
    return ResultTable("Photographs of pets, some with smaller animals", note, rows)


def share_table(records: dict[str, list[Record]], shares: dict[str, float]) -> ResultTable:
    """Return the accuracy among photographs whose animals fill a similar share of the area."""
    groups = {
        name: [photograph for photograph, share in shares.items() if low <= share < high]
        for name, (low, high) in BRACKETS.items()
    }
    groups = {f"{name} ({len(members)} images)": members for name, members in groups.items() if members}
    rows = []
    for split, label in PHOTOGRAPHS.items():
        columns = {name: _accuracy_of(members, split) for name, members in groups.items()}
        for method, runs in records.items():
            cells = {name: spread([value(run) for run in runs]) for name, value in columns.items()}
            rows.append({"photographs": label, "method": method, **cells})
        cells = {name: spread(_differences(records, value), sign="+") for name, value in columns.items()}
        rows.append({"photographs": label, "method": DIFFERENCE, **cells})
    note = "Accuracy in %. The share is that of the photograph as it is, by its trimap, whose border is not counted."
    return ResultTable("Pets by the share of the photograph that the animal fills", note, rows)


def seed_table(records: dict[str, list[Record]]) -> ResultTable:
    """Return what each run reached, what it learned about sizes, and how long it took."""
    rows = []
    for method, runs in records.items():
        for run in runs:
            result, metrics = run["result"], run["metrics"]
            learned, seconds = result.get("learned_sizes"), result["seconds"]
            rows.append(
                {
                    "method": method,
                    "seed": run["seed"],
                    "accuracy %": f"{100 * metrics[VAL]['accuracy']:.2f}",
                    "InvE": f"{100 * metrics[VAL]['invariance_error']['squared']:.2f}",
                    "accuracy %, animal at half its size": f"{100 * metrics[SMALLER]['accuracy']:.2f}",
                    "error in log size": f"{learned['error']:.3f}" if learned else "–",
                    "spread of sizes kept": f"{learned['spread']:.2f}" if learned else "–",
                    "converged %": f"{100 * learned['converged']:.0f}" if learned else "–",
                    "learning sizes s": round(seconds["preparation"]) if learned else "–",
                    "training s": round(seconds["training"]),
                    "evaluation s": round(seconds["evaluation"]),
                }
            )
    note = (
        "Several runs shared the GPU, so the times are upper limits. Sizes were measured on held-out training images."
    )
    return ResultTable("Pets: every run", note, rows)


def spread(values: Sequence[float], *, sign: str = "") -> str:
    """Return mean ± standard deviation, or a single value.

    >>> spread([70.0, 71.0, 72.0]), spread([0.5], sign="+")
    ('71.00 ± 1.00', '+0.50')
    """
    mean = f"{statistics.fmean(values):{sign}.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


def _accuracy_of(members: list[str], split: str) -> Callable[[Record], float]:
    return lambda run: 100 * statistics.fmean(run["answers"][split][name] for name in members)


def _differences(records: dict[str, list[Record]], value: Callable[[Record], float]) -> list[float]:
    control, ours = records.values()
    return [value(run) - value(before) for before, run in zip(control, ours, strict=True)]


def as_json(document: dict[str, Any]) -> str:
    """Return the document as text."""
    return json.dumps(document, indent=2) + "\n"
