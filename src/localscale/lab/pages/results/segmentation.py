"""Table of segmentation results: mIoU, also of small objects, EquE and the deviation of IoU within a scene."""

from __future__ import annotations

from typing import Any

from localscale.lab.pages.results.markdown import plain, render_rows
from localscale.lab.pages.results.paper import SEGMENTATION, family_of_backbone
from localscale.lab.pages.results.runs import SITES_TITLE, Record, grouped, inert_note, paper_row, site_rows, spread

__all__ = ["render_segmentation"]

OPTIONAL = {"mean_iou_objects": "mIoU % without background", "small_object_iou": "mIoU % of small objects"}
NEAREST = {"DeiT": "ViT"}  # the paper's nearest family, where it has no segmentation result


def render_segmentation(result: dict[str, Any]) -> str:
    """Return tables of mIoU, EquE and IoU deviation, and of canonicalizer statistics."""
    groups = grouped(result["runs"])
    measured = {name for run in result["runs"] for name in run["metrics"]}  # older runs lack some
    rows = [_row(backbone, row, runs, measured) for (backbone, row), runs in groups.items()]
    parts = [f"### {plain(result['title'])}", "", plain(_setting(result)), "", render_rows(rows)]
    sites = site_rows(groups)
    if sites:
        parts += ["", SITES_TITLE, "", inert_note(sites) + render_rows(sites)]
    return "\n".join(parts)


def _row(backbone: str, row: str, runs: list[Record], measured: set[str]) -> dict[str, Any]:
    family = family_of_backbone(backbone)
    printed = SEGMENTATION.get(NEAREST.get(family, family), {}).get(paper_row(row), ("–", "–"))
    return {
        "backbone": backbone,
        "row": runs[0]["label"],
        "seeds": len(runs),
        "epochs": runs[0]["budget_epochs"],
        "mIoU %": spread(runs, lambda run: 100 * run["metrics"]["mean_iou"]),
        **{title: _optional(runs, name) for name, title in OPTIONAL.items() if name in measured},
        "EquE": spread(runs, lambda run: run["metrics"]["equivariance_error"]["squared"], digits=4),
        "l2": spread(runs, lambda run: run["metrics"]["equivariance_error"]["l2"], digits=4),
        "relative": spread(runs, lambda run: run["metrics"]["equivariance_error"]["relative"], digits=4),
        **({"EquE, uniform": _uniform(runs)} if "uniform" in measured else {}),
        "IoU deviation %": _optional(runs, "group_deviation"),
        "paper: mIoU %": printed[0],
        "paper: EquE": printed[1],
    }


def _uniform(runs: list[Record]) -> str:
    if any("uniform" not in run["metrics"] for run in runs):
        return "–"
    return spread(runs, lambda run: run["metrics"]["uniform"]["equivariance_error"]["squared"], digits=4)


def _optional(runs: list[Record], name: str) -> str:
    """Return a metric in percent, or a dash if an older run lacks it or could not measure it."""
    if any(run["metrics"].get(name) is None for run in runs):
        return "–"
    return spread(runs, lambda run: 100 * run["metrics"][name])


def _setting(result: dict[str, Any]) -> str:
    run = result["runs"][0]
    metrics, recipe = run["metrics"], run["recipe"]
    scaling, floor = recipe["data"]["scaling"], metrics["equivariance_floor"]
    return (
        f"{run['data'].split(';')[0]} and {metrics['images']:,} test images of {metrics['groups']:,} scenes. Batch "
        f"size {recipe['optimization']['batch_size']}; a head of {recipe['head_width']} channels. EquE is measured "
        f"with {metrics['variants']} random {scaling['family']} maps per image, {scaling['knots']} knots, strength "
        f"{scaling['strength']:g}{_moved(metrics)}. Resampling alone gives a perfect segmenter an EquE of "
        f"{floor['squared']:.4f} (l2 {floor['l2']:.4f}, relative {floor['relative']:.4f}). {_uniform_note(result)}The "
        "paper has no DeiT, so its ViT is shown. It does not say whether its EquE is per pixel."
    )


def _moved(metrics: dict[str, Any]) -> str:
    found = metrics.get("displacement")  # older runs lack it
    return "" if found is None else f", which move points by {100 * found:.1f} % of the side on average"


def _uniform_note(result: dict[str, Any]) -> str:
    found = next((run["metrics"]["uniform"] for run in result["runs"] if "uniform" in run["metrics"]), None)
    if found is None:
        return ""
    return (
        f"Uniform: {found['variants']} maps per image with increments uniform on the simplex{_moved(found)}; a perfect "
        f"segmenter has {found['equivariance_floor']['squared']:.4f}. "
    )
