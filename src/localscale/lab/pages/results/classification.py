"""Classification results as tables: every row with its seeds, its budget, and the paper's figure."""

from __future__ import annotations

import statistics
from typing import Any

from localscale.lab.pages.results.markdown import render_rows
from localscale.lab.pages.results.paper import ABLATION, CLASSIFICATION, PER_SCALE, family_of_backbone
from localscale.lab.pages.results.runs import PAPER_ROW, Groups, grouped, site_rows, spread

__all__ = ["render_classification"]


def render_classification(result: dict[str, Any]) -> str:
    """Accuracy and InvE, accuracy per scale, and what the canonicalizers did."""
    groups = grouped(result["runs"])
    parts = [f"### {result['title']}", "", _definition(result), "", _main(groups, result["paper"])]
    if any("per_scale" in run["metrics"] for runs in groups.values() for run in runs):
        parts += ["", "#### Accuracy per scale", "", _scales_note(result), "", _scales(groups, result["paper"])]
    sites = site_rows(groups)
    if sites:
        parts += ["", "#### At the sites, means over the last epoch's training images", "", render_rows(sites)]
    return "\n".join(parts)


def _definition(result: dict[str, Any]) -> str:
    metrics, recipe = result["runs"][0]["metrics"], result["runs"][0]["recipe"]
    settings = recipe["optimization"]
    return (
        f"{metrics['images']:,} test images of {recipe['data']['image_size']} px, {metrics['variants']} variants of "
        "each. InvE is the mean squared ℓ2 between softmax answers (the paper's equation), l2 and relative are the "
        "unsquared variants; all in 10⁻². ± is the standard deviation over seeds. Batch "
        f"{settings['batch_size']}, evaluation in "
        f"{'bfloat16' if recipe['precision'] == 'bf16' else 'float32'} as in training. Epochs are all that led to a "
        "row's weights, those of the run it starts from included. The paper's column is for its own, larger backbone "
        "of that family and its own budget; it has no equal-budget control."
    )


def _main(groups: Groups, paper: str) -> str:
    rows = []
    for (backbone, row), runs in groups.items():
        printed = CLASSIFICATION.get(paper, {}).get(family_of_backbone(backbone), {}).get(PAPER_ROW.get(row, row))
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
        else:
            entry["paper: accuracy %"], entry["paper: InvE"] = printed or ("–", "–")
        rows.append(entry)
    return render_rows(rows)


def _scales_note(result: dict[str, Any]) -> str:
    count = next(run["metrics"]["per_scale"]["images"] for run in result["runs"] if "per_scale" in run["metrics"])
    return (
        f"{count:,} images at each scale; mean over seeds, then mean ± standard deviation over scales. The paper's "
        "figures are Swin's."
    )


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
            | {"paper (Swin)": PER_SCALE.get(paper, {}).get(PAPER_ROW.get(row, row), "–")}
        )
    return render_rows(rows)
