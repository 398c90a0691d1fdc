"""Tables of classification results: each row with its seeds, its training budget and the paper's figure."""

from __future__ import annotations

import operator
import statistics
from typing import Any

from localscale.lab.pages.results.markdown import plain, render_rows
from localscale.lab.pages.results.paper import ABLATION, CLASSIFICATION, PER_SCALE, family_of_backbone
from localscale.lab.pages.results.runs import SITES_TITLE, Groups, grouped, inert_note, paper_row, site_rows, spread

__all__ = ["render_classification"]

CANONICAL_TITLE = "#### Sizes of digits in canonical forms"
CANONICAL_NOTE = (
    "On test images whose digits have known boxes. Spread: standard deviation of the log sizes in canonical forms over "
    "that in the images. Slope: of the former as a function of the latter. Both are 0 if all digits become equally "
    "large. Distortion: distance of a box's canonical form from a scaled copy of the box, relative to its size. Size: "
    "mean size in canonical forms, as a fraction of the side. Converged: share of images with a residual below 1e-3."
)

ENERGY_TITLE = "#### What Canon's energies learned"
ENERGY_NOTE = (
    "Share of known configurations that the one of least energy undid on training images, before the backbone was "
    "trained, and the share that a random choice undoes."
)

DIFFERENCE_TITLE = "#### Difference to the control"
DIFFERENCE_NOTE = (
    "Percentage points of accuracy, and InvE in units of 10⁻², with the 95 % interval of a paired bootstrap over test "
    "images. Seeds, and the accuracy at the scales of one image, are averaged per image first, so the interval does "
    "not cover the choice of seeds."
)


def render_classification(result: dict[str, Any]) -> str:
    """Return tables of accuracy and InvE, of differences, of accuracy per scale, and of canonicalizer statistics."""
    groups = grouped(result["runs"])
    parts = [f"### {plain(result['title'])}", "", plain(_setting(result)), "", _main(groups, result["paper"])]
    if result.get("differences"):
        parts += ["", DIFFERENCE_TITLE, "", DIFFERENCE_NOTE, "", _differences(result["differences"], groups)]
    if any("per_scale" in run["metrics"] for runs in groups.values() for run in runs):
        parts += ["", "#### Accuracy per scale", "", _scales_note(result), "", _scales(groups, result["paper"])]
    sites = site_rows(groups)
    if sites:
        parts += ["", SITES_TITLE, "", inert_note(sites) + render_rows(sites)]
    energies = _energy_rows(groups)
    if energies:
        parts += ["", ENERGY_TITLE, "", ENERGY_NOTE, "", render_rows(energies)]
    canonical = _canonical_rows(groups)
    if canonical:
        parts += ["", CANONICAL_TITLE, "", CANONICAL_NOTE, "", render_rows(canonical)]
    return "\n".join(parts)


def _setting(result: dict[str, Any]) -> str:
    metrics, recipe = result["runs"][0]["metrics"], result["runs"][0]["recipe"]
    size = recipe.get("source_size") or recipe["data"]["image_size"]
    batch = recipe["optimization"]["batch_size"]
    return (
        f"{metrics['images']:,} test images of {size} px, each with {metrics['variants']} locally scaled variants. "
        f"Batch size {batch}; training and evaluation in {'bfloat16' if recipe['precision'] == 'bf16' else 'float32'}. "
        f"{_rates(result['runs'])}"
    )


def _rates(runs: list[dict[str, Any]]) -> str:
    """Return the learning rates of the rows that start from pretrained or random weights, and of those that go on."""
    first, more = (
        " or ".join(f"{rate:g}" for rate in sorted({r["optimization"]["learning_rate"] for r in recipes}))
        for recipes in (
            [run["recipe"] for run in runs if not run["recipe"]["start"]],
            [run["recipe"] for run in runs if run["recipe"]["start"]],
        )
    )
    if not first or not more or first == more:
        return f"Learning rate {first or more}."
    return f"Learning rate {first}; {more} for rows that continue another."


def _main(groups: Groups, paper: str) -> str:
    rows = []
    for (backbone, row), runs in groups.items():
        printed = CLASSIFICATION.get(paper, {}).get(family_of_backbone(backbone), {}).get(paper_row(row))
        entry = {
            "backbone": backbone,
            "row": runs[0]["label"],
            "seeds": len(runs),
            "epochs": runs[0]["budget_epochs"],
            "accuracy %": spread(runs, lambda run: 100 * run["metrics"]["accuracy"]),
            "InvE": spread(runs, lambda run: 100 * run["metrics"]["invariance_error"]["squared"]),
            "l2": spread(runs, lambda run: 100 * run["metrics"]["invariance_error"]["l2"]),
            "relative": spread(runs, lambda run: 100 * run["metrics"]["invariance_error"]["relative"]),
        }
        if paper == "ablation":
            entry["paper: accuracy %"] = ABLATION.get(row, "–")
        elif paper:
            entry["paper: accuracy %"], entry["paper: InvE"] = printed or ("–", "–")
        rows.append(entry)
    return render_rows(rows)


def _differences(differences: list[dict[str, Any]], groups: Groups) -> str:
    rows = [
        {
            "backbone": found["backbone"],
            "row": groups[found["backbone"], found["row"]][0]["label"],
            "control": groups[found["backbone"], found["control"]][0]["label"],
            "images": found["images"],
            "seeds": " and ".join(map(str, found["seeds"])),
            "accuracy": _interval(found["accuracy"]),
            "InvE": _interval(found["invariance_error"]),
        }
        for found in differences
    ]
    return render_rows(rows)


def _interval(ends: list[float]) -> str:
    """Return a difference and its interval in hundredths.

    >>> _interval([0.004, -0.001, 0.009])
    '+0.40 [-0.10, +0.90]'
    """
    mean, low, high = (f"{100 * value:+.2f}" for value in ends)
    return f"{mean} [{low}, {high}]"


def _scales_note(result: dict[str, Any]) -> str:
    count = next(run["metrics"]["per_scale"]["images"] for run in result["runs"] if "per_scale" in run["metrics"])
    note = f"Accuracy in % on {count:,} images at each scale; overall is mean ± standard deviation over scales."
    return f"{note} The paper reports these figures for Swin only." if result["paper"] in PER_SCALE else note


def _scales(groups: Groups, paper: str) -> str:
    rows = []
    for (backbone, row), runs in groups.items():
        runs = [run for run in runs if "per_scale" in run["metrics"]]
        if not runs:
            continue
        names = list(runs[0]["metrics"]["per_scale"]["accuracy"])
        means = [
            statistics.fmean(100 * run["metrics"]["per_scale"]["accuracy"][name] for run in runs) for name in names
        ]
        rows.append(
            {"backbone": backbone, "row": runs[0]["label"]}
            | {name: f"{value:.2f}" for name, value in zip(names, means, strict=True)}
            | {"overall": f"{statistics.fmean(means):.2f} ± {statistics.pstdev(means):.2f}"}
            | ({"paper (Swin)": PER_SCALE[paper].get(paper_row(row), "–")} if paper in PER_SCALE else {})
        )
    return render_rows(rows)


def _energy_rows(groups: Groups) -> list[dict[str, Any]]:
    rows = []
    for (backbone, _), runs in groups.items():
        found = [run["learned_energies"] for run in runs if "learned_energies" in run]
        if found:
            undone = spread(found, lambda each: 100 * each["undone"], digits=1)
            shares = {"undone %": undone, "chance %": f"{100 * found[0]['chance']:.1f}"}
            rows.append({"backbone": backbone, "row": runs[0]["label"], "steps": found[0]["steps"], **shares})
    return rows


def _canonical_rows(groups: Groups) -> list[dict[str, Any]]:
    rows = []
    for (backbone, _), runs in groups.items():
        measured = [run for run in runs if "canonical_sizes" in run["metrics"]]
        if not measured:
            continue

        found = [run["metrics"]["canonical_sizes"] for run in measured]
        names = ("spread", "slope", "distortion", "size", "residual", "converged")
        rows.append(
            {
                "backbone": backbone,
                "row": measured[0]["label"],
                "images": found[0]["images"],
                **{name: spread(found, operator.itemgetter(name), digits=3) for name in names},
            }
        )
    return rows
