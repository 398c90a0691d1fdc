"""Segmentation results as a table: mIoU, EquE beside what resampling alone costs, and evenness within a scene."""

from __future__ import annotations

from typing import Any

from localscale.lab.pages.results.markdown import render_rows
from localscale.lab.pages.results.paper import SEGMENTATION, family_of_backbone
from localscale.lab.pages.results.runs import PAPER_ROW, Run, grouped, site_rows, spread

__all__ = ["render_segmentation"]

NEAREST = {"DeiT": "ViT"}  # what the paper has in place of a backbone that it did not segment with


def render_segmentation(result: dict[str, Any]) -> str:
    """mIoU, EquE and group deviation, and what the canonicalizers did."""
    groups = grouped(result["runs"])
    rows = [_row(backbone, row, runs) for (backbone, row), runs in groups.items()]
    parts = [f"### {result['title']}", "", _definition(result), "", render_rows(rows)]
    sites = site_rows(groups)
    if sites:
        parts += ["", "#### At the sites, means over the last epoch's training images", "", render_rows(sites)]
    return "\n".join(parts)


def _row(backbone: str, row: str, runs: list[Run]) -> dict[str, Any]:
    family = family_of_backbone(backbone)
    printed = SEGMENTATION.get(NEAREST.get(family, family), {}).get(PAPER_ROW.get(row, row), ("–", "–"))
    return {
        "backbone": backbone,
        "row": runs[0]["label"],
        "seeds": len(runs),
        "epochs": runs[0]["budget_epochs"],
        "mIoU %": spread(runs, lambda run: 100 * run["metrics"]["mean_iou"]),
        "EquE": spread(runs, lambda run: run["metrics"]["equivariance_error"]["squared"], digits=4),
        "l2": spread(runs, lambda run: run["metrics"]["equivariance_error"]["l2"], digits=4),
        "relative": spread(runs, lambda run: run["metrics"]["equivariance_error"]["relative"], digits=4),
        "IoU deviation %": _deviation(runs),
        "paper: mIoU %": printed[0],
        "paper: EquE": printed[1],
    }


def _deviation(runs: list[Run]) -> str:
    if any(run["metrics"]["group_deviation"] is None for run in runs):  # no scene with two images
        return "–"
    return spread(runs, lambda run: 100 * run["metrics"]["group_deviation"])


def _definition(result: dict[str, Any]) -> str:
    run = result["runs"][0]
    metrics, recipe = run["metrics"], run["recipe"]
    data, floor = recipe["data"], metrics["equivariance_floor"]
    scaling = data["scaling"]
    return (
        f"{run['data'].split(';')[0]}, {metrics['images']:,} test images of {metrics['groups']:,} scenes, "
        f"{recipe['optimization']['batch_size']} a batch, head of {recipe['head_width']} channels. mIoU is over all "
        "classes, background among them. EquE is the mean squared ℓ2 between S(M(I); Φ) and M(S(I; Φ)) on softmax "
        "masks, per pixel (the paper's equation), l2 and relative its unsquared variants; Φ are "
        f"{metrics['variants']} random {scaling['family']} maps per image, {scaling['knots']} knots, strength "
        f"{scaling['strength']:g}. Resampling alone costs a perfect segmenter {floor['squared']:.4f} (l2 "
        f"{floor['l2']:.4f}, relative {floor['relative']:.4f}). IoU deviation is the standard deviation of an image's "
        "IoU over the images of one scene, mean over scenes. ± is the standard deviation over seeds. Epochs are all "
        "that led to a row's weights. The paper's columns are for its own, larger backbones (ViT beside DeiT), "
        "data and budget; it has no equal-budget control, and does not say whether its EquE is per pixel."
    )
