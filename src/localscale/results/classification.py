"""Classification results as tables: every row with its seeds, its budget, and the paper's figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from localscale.results.markdown import render_rows
from localscale.results.paper import ABLATION, CLASSIFICATION, PER_SCALE, family_of_backbone

__all__ = ["render_classification"]

# Which of the paper's rows stands beside which of ours.
PAPER_ROW = {"dec_joint": "dec", "dec_compose": "dec", "dec_compose_joint": "dec"}

Run = dict[str, Any]


def render_classification(result: dict[str, Any]) -> str:
    """Accuracy and InvE, accuracy per scale, and what the canonicalizers did."""
    groups = _grouped(result["runs"])
    parts = [f"### {result['title']}", "", _definition(result), "", _main(groups, result["paper"])]
    if any("per_scale" in run["metrics"] for runs in groups.values() for run in runs):
        parts += ["", "#### Accuracy per scale", "", _scales_note(result), "", _scales(groups, result["paper"])]
    sites = _sites(groups)
    if sites:
        parts += ["", "#### At the sites, means over the last epoch's training images", "", render_rows(sites)]
    return "\n".join(parts)


def _grouped(runs: list[Run]) -> dict[tuple[str, str], list[Run]]:
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run["backbone"], run["row"]), []).append(run)
    return groups


def _definition(result: dict[str, Any]) -> str:
    metrics, recipe = result["runs"][0]["metrics"], result["runs"][0]["recipe"]
    settings = recipe["optimization"]
    return (
        f"{metrics['images']:,} test images, {metrics['variants']} variants of each. InvE is the mean squared ℓ2 "
        "between softmax answers (the paper's equation), l2 and relative are the unsquared variants; all in 10⁻². ± is "
        f"the standard deviation over seeds. Batch {settings['batch_size']}, evaluation in "
        f"{'bfloat16' if recipe['precision'] == 'bf16' else 'float32'} as in training. Epochs are all that led to a "
        "row's weights, those of the run it starts from included. The paper's column is for its own, larger backbone "
        "of that family and its own budget; it has no equal-budget control."
    )


def _main(groups: dict[tuple[str, str], list[Run]], paper: str) -> str:
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


def _scales(groups: dict[tuple[str, str], list[Run]], paper: str) -> str:
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


def _sites(groups: dict[tuple[str, str], list[Run]]) -> list[dict[str, Any]]:
    rows = []
    for (backbone, _), runs in groups.items():
        last = [run["last_epoch"] for run in runs]
        for path in [name.removesuffix("/residual") for name in last[0] if name.endswith("/residual")]:
            at_input = path == "input" and "supervision" in last[0]
            rows.append(
                {
                    "backbone": backbone,
                    "row": runs[0]["label"],
                    "site": path,
                    "residual": statistics.fmean(epoch[f"{path}/residual"] for epoch in last),
                    "steps": statistics.fmean(epoch[f"{path}/steps"] for epoch in last),
                    "moved, % of the side": 100 * statistics.fmean(epoch[f"{path}/displacement"] for epoch in last),
                    "supervision error": statistics.fmean(e["supervision"] for e in last) if at_input else "–",
                }
            )
    return rows


def spread(runs: list[Run], value: Callable[[Run], float]) -> str:
    """Mean ± standard deviation of the runs; the value alone for one."""
    values = [value(run) for run in runs]
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"
