"""Sections with scores: the run, its control and the paper."""

from __future__ import annotations

from localscale.lab.pages.html import Html, element, join, section, table
from localscale.lab.pages.report.plots import draw_scales
from localscale.lab.pages.results.paper import CLASSIFICATION, PER_SCALE, SEGMENTATION, family_of_backbone
from localscale.lab.pages.results.runs import paper_row
from localscale.lab.runs.finished import FinishedRun

__all__ = ["per_scale_section", "scores_section"]

Named = dict[str, FinishedRun]  # "this run" and, if given, "control"


def scores_section(runs: Named) -> Html:
    """Return the table of scores, one row for each run and for each matching row of the paper."""
    dense = next(iter(runs.values())).recipe.data.dense
    head, line = (MASKS, _masks) if dense else (CLASSES, _classes)
    rows = [[f"{label}: {run.recipe.name or run.folder.name}", *line(run)] for label, run in runs.items()]
    printed = [row for row in dict.fromkeys(map(_paper, runs.values())) if row is not None]
    rows += [[name, *figures, *["–"] * (len(head) - 3)] for name, *figures in printed]
    note = "The paper's figures are for a backbone of the same family; its size, data and training budget may differ."
    if not printed:
        known = any(run.task == "objects" or run.task in CLASSIFICATION for run in runs.values())
        note = "The paper has no row for this recipe." if known else ""
    return section("scores", "Scores", table(head, rows), element("p", _definition(dense), " ", note, class_="note"))


CLASSES = ("", "accuracy, %", "InvE, 10⁻²", "l2, 10⁻²", "relative, 10⁻²", "test images", "variants of each")
MASKS = ("", "mIoU, %", "EquE", "l2", "relative", "IoU deviation, %", "test images", "scenes")


def _classes(run: FinishedRun) -> list[str]:
    found = run.metrics
    errors = found.get("invariance_error", {})  # a task of a user's own may not measure it
    shown = [f"{100 * errors[kind]:.2f}" if kind in errors else "–" for kind in ("squared", "l2", "relative")]
    accuracy = f"{100 * found['accuracy']:.2f}" if "accuracy" in found else "–"
    return [accuracy, *shown, *(f"{found[name]:,}" if name in found else "–" for name in ("images", "variants"))]


def _masks(run: FinishedRun) -> list[str]:
    found = run.metrics
    errors = [f"{found['equivariance_error'][kind]:.4f}" for kind in ("squared", "l2", "relative")]
    deviation = "–" if found.get("group_deviation") is None else f"{100 * found['group_deviation']:.2f}"
    groups = f"{found['groups']:,}" if "groups" in found else "–"
    return [f"{100 * found['mean_iou']:.2f}", *errors, deviation, f"{found['images']:,}", groups]


def _paper(run: FinishedRun) -> tuple[str, str, str] | None:
    key, row = run.key_and_row
    family, printed = family_of_backbone(key), paper_row(row)
    table_of_task = SEGMENTATION if run.task == "objects" else CLASSIFICATION.get(run.task, {})
    figures = table_of_task.get(family, {}).get(printed)
    return None if figures is None else (f"paper: {printed}, {family}", *figures)


def _definition(dense: bool) -> str:
    if dense:
        return (
            "EquE is the mean squared ℓ2 distance per pixel between the softmax masks S(M(I); Φ) and M(S(I; Φ)). IoU "
            "deviation is the standard deviation of IoU over the images of a scene."
        )
    return (
        "InvE is the mean squared ℓ2 distance between softmax outputs on an image and on its locally scaled variants."
    )


def per_scale_section(runs: Named) -> Html:
    """Return accuracy at each scale for the runs that measured it."""
    title, measured = "Accuracy per scale", {k: run for k, run in runs.items() if "per_scale" in run.metrics}
    if not measured:
        note = "Accuracy per scale was not measured; runs on MNIST measure it if --data.bracket-count is above 0."
        if any("scaled_accuracy" in run.metrics for run in runs.values()):
            told = [
                f"{label} {100 * run.metrics['scaled_accuracy']:.2f} %"
                for label, run in runs.items()
                if "scaled_accuracy" in run.metrics
            ]
            note = f"Accuracy on the locally scaled variants of the images: {', '.join(told)}."
        return section("scales", title, element("p", note, class_="note"))
    first = next(iter(measured.values()))
    scales = list(first.metrics["per_scale"]["accuracy"])
    lines, totals = {}, {}
    for label, run in measured.items():
        found = run.metrics["per_scale"]
        if list(found["accuracy"]) == scales:
            lines[label] = [100 * value for value in found["accuracy"].values()]
            totals[label] = f"{100 * found['mean']:.2f} ± {100 * found['std']:.2f}"
    row = first.key_and_row[1]
    values, _, total = PER_SCALE.get(first.task, {}).get(paper_row(row), "").partition("; ")
    if len(values.split(", ")) == len(scales):
        lines["paper (Swin)"], totals["paper (Swin)"] = [float(value) for value in values.split(", ")], total
    rows = [[label, *(f"{value:.2f}" for value in line), totals[label]] for label, line in lines.items()]
    kind = "sizes of the digits" if first.task == "mnist" else "size of the object"
    drawn = draw_scales(scales, lines, kind)
    return section("scales", title, join([drawn, table(["", *scales, "mean ± std"], rows)]))
