"""The paper's tables of results with our figures beside them, and whether its conclusions hold here."""

from __future__ import annotations

import functools
import operator
import statistics
from collections.abc import Mapping

from localscale.lab.pages.paper.comparison import (
    BASELINES,
    DEC_ROWS,
    OWN_ROWS,
    Comparison,
    Metric,
    row_label,
)
from localscale.lab.pages.paper.findings import Findings, Found, beats, cell, find_best
from localscale.lab.pages.results.markdown import render_rows
from localscale.lab.pages.results.paper import (
    CLASSIFICATION,
    GRIDS,
    KNOTS,
    MODULES,
    PER_SCALE,
    SCALE_1,
    SEGMENTATION,
    family_of_backbone,
)
from localscale.lab.pages.results.runs import INERT, Record, paper_row
from localscale.lab.recipes.tables.mnist_ablations import RATES, swept_name

__all__ = [
    "HIERARCHICAL",
    "IMAGENET",
    "MNIST",
    "OBJECTS",
    "render_ablations",
    "render_imagenet_scales",
    "render_mnist_scales",
    "render_runtime",
    "render_scale_1",
    "render_sweep",
]

PYRAMID = ("HRViT", "ResFormer")
CLASSES = (
    Metric("accuracy %", lambda run: 100 * run["metrics"]["accuracy"], largest=True),
    Metric("InvE 10⁻²", lambda run: 100 * run["metrics"]["invariance_error"]["squared"], largest=False),
)
MASKS = (
    Metric("mIoU %", lambda run: 100 * run["metrics"]["mean_iou"], largest=True),
    Metric("EquE", lambda run: run["metrics"]["equivariance_error"]["squared"], largest=False, digits=4),
)
OBJECTS = Comparison(
    "objects", SEGMENTATION, MASKS, ("objects", "objects_tiny"), "localscale reproduce objects", {"ViT": "DeiT"}
)
MNIST = Comparison(
    "mnist",
    {family: rows for family, rows in CLASSIFICATION["mnist"].items() if family not in PYRAMID},
    CLASSES,
    ("mnist", "mnist_resnet", "mnist_small", "mnist_sizes"),
    "localscale reproduce mnist",
    {},
)
HIERARCHICAL = Comparison(
    "mnist",
    {family: CLASSIFICATION["mnist"][family] for family in PYRAMID},
    CLASSES,
    ("mnist_hierarchical_paper", "mnist_hierarchical"),
    "localscale reproduce mnist-hierarchical-paper",
    {},
)
IMAGENET = Comparison(
    "imagenet",
    CLASSIFICATION["imagenet"],
    CLASSES,
    ("imagenet_tiny", "imagenet_sizes", "imagenet_published", "imagenet"),
    "localscale reproduce imagenet",
    {},
)


PAPER_OPTIM_BYTES = 43.3e9


def render_mnist_scales(findings: Findings) -> str:
    """Return Tab. 3 with our figures for DeiT-Tiny."""
    return _render_scales(_joined(findings, "mnist_sizes", "mnist_small"), "mnist", "aug")


def render_imagenet_scales(findings: Findings) -> str:
    """Return Tab. 5 with our figures for DeiT-Tiny."""
    return _render_scales(_joined(findings, "imagenet", "imagenet_published", "imagenet_tiny"), "imagenet", "base")


def _joined(findings: Findings, *sources: str) -> Found:
    """Return the runs of several results; a later one replaces the rows of an earlier one."""
    return functools.reduce(operator.or_, map(findings.runs, sources))


def _render_scales(found: Found, task: str, reference: str) -> str:
    rows = []
    for row in (*BASELINES, *DEC_ROWS, *OWN_ROWS):
        runs, paper = found.get(("deit_tiny", row), []), PER_SCALE[task].get(paper_row(row), "–")
        if runs or row in PER_SCALE[task]:
            here = "not run"
            if runs:
                names = runs[0]["metrics"]["per_scale"]["accuracy"]
                means = [
                    100 * statistics.fmean(r["metrics"]["per_scale"]["accuracy"][name] for r in runs) for name in names
                ]
                overall = f"{statistics.fmean(means):.2f} ± {statistics.pstdev(means):.2f}"
                here = f"{', '.join(f'{mean:.2f}' for mean in means)}; {overall}"
            rows.append({"row": row_label(task, row, runs), "DeiT-Tiny here": here, "paper (Swin)": paper})

    def deviation(run: Record) -> float:
        return 100 * run["metrics"]["per_scale"]["std"]

    ours = find_best(found, "deit_tiny", DEC_ROWS, deviation, largest=False)
    others = found.get(("deit_tiny", reference), [])
    figures = f" ({cell(ours, deviation)} against {cell(others, deviation)})" if ours and others else ""
    said = beats(ours, others, deviation, largest=False)
    label = row_label(task, reference, others)
    claim = f"**DEC is more even over scales than {label}, by the standard deviation over scales:** {said}{figures}."
    return f"{render_rows(rows)}\n\n{claim}"


def render_scale_1(findings: Findings) -> str:
    """Return Tab. A5 with our figures: accuracy on photographs at their own scale."""

    def unscaled(run: Record) -> float:
        return 100 * run["metrics"]["per_scale"]["accuracy"]["1.0"]

    rows, claims = [], []
    found = _joined(findings, "imagenet", "imagenet_published", "imagenet_tiny", "imagenet_sizes")
    for family, printed in SCALE_1.items():
        here = list(dict.fromkeys(backbone for backbone, _ in found if family_of_backbone(backbone) == family))
        for backbone in here or ["–"]:
            for row in (*BASELINES, *DEC_ROWS):
                runs = found.get((backbone, row), [])
                if runs or row in printed:
                    figures = {
                        "accuracy %": cell(runs, unscaled) if runs else "not run",
                        "paper": printed.get(row, "–"),
                    }
                    rows.append(
                        {"family": family, "here": backbone, "row": row_label("imagenet", row, runs), **figures}
                    )
            ours, base = (find_best(found, backbone, names, unscaled, largest=True) for names in (DEC_ROWS, ("base",)))
            if ours and base:
                kept = statistics.fmean(map(unscaled, ours)) >= statistics.fmean(map(unscaled, base))
                said = "holds" if kept else "**does not hold**"
                claims.append(f"- {backbone}: {cell(ours, unscaled)} against {cell(base, unscaled)} %: {said}.")
    return "\n\n".join((render_rows(rows), "**DEC loses nothing against Base:**", "\n".join(claims)))


def render_ablations(findings: Findings) -> str:
    """Return Tab. A3 and A4 with our figures for the paper's DEC and for the size equilibrium."""
    found = [findings.runs("mnist_ablation_dec"), findings.runs("mnist_ablation_sizes")]
    return "\n\n".join(
        (
            _render_grid("DEC modules", "layers", MODULES, (1, 2, 3, 4), "sites{0}_layers{1}", found),
            _render_grid("layers", "knots", GRIDS, KNOTS, "layers{0}_knots{1}", found),
            "An [older ablation](results.md#mnist_ablation) varies our `compose` update, not the paper's, along three "
            "lines of these grids.",
        )
    )


def _render_grid(
    down: str,
    across: str,
    printed: Mapping[int, tuple[str, ...]],
    columns: tuple[int, ...],
    key: str,
    tables: list[Found],
) -> str:
    accuracy, rows = CLASSES[0].value, []
    for number, figures in printed.items():
        cells = {}
        for column, figure in zip(columns, figures, strict=True):
            runs = [found.get(("deit_tiny", key.format(number, column)), []) for found in tables]
            here = " / ".join(cell(each, accuracy) for each in runs) if any(runs) else "not run"
            cells[f"{across}: {column}"] = f"{figure}; {here}"
        rows.append({down: number, **cells})
    return render_rows(rows)


def render_sweep(findings: Findings) -> str:
    """Return accuracy and movement of the paper's DEC by modules and rate, without and with the separation."""
    found, accuracy = findings.runs("mnist_dec_sweep"), CLASSES[0].value
    rows = []
    for modules in MODULES:
        cells = {}
        for rate in RATES:
            both = [found.get(("deit_tiny", swept_name(rate, modules, separated)), []) for separated in (False, True)]
            cells[f"rate {rate:g}"] = " / ".join(map(_accuracy_and_movement, both)) if any(both) else "not run"
        rows.append({"modules": modules, **cells})
    swept = {row: runs for (_, row), runs in found.items() if row.startswith("dec_")}
    most = max(map(len, swept.values()), default=0)  # a row of one seed may lead by luck
    names = [row for row, runs in swept.items() if len(runs) == most]
    best, control = find_best(found, "deit_tiny", names, accuracy, largest=True), found.get(("deit_tiny", "aug_plus"))
    if not (best and control):
        return render_rows(rows)
    figures = (f"{each.name} {cell(best, each.value)} against {cell(control, each.value)}" for each in CLASSES)
    said = f"{beats(best, control, accuracy, largest=True)} ({'; '.join(figures)})"
    claim = f"The best of those with most seeds, {best[0]['label']}, is more accurate than {control[0]['label']}:"
    return f"{render_rows(rows)}\n\n**{claim}** {said}."


def _accuracy_and_movement(runs: list[Record]) -> str:
    """Return the accuracy, and by how much the maps of the module that moves most move points, in % of the side."""
    if not runs:
        return "not run"

    def moved(run: Record) -> float:
        return max(value for name, value in run["last_epoch"].items() if name.endswith("/displacement"))

    mean = statistics.fmean(map(moved, runs))
    return f"{cell(runs, CLASSES[0].value)} ({f'{100 * mean:.1f} %' if mean >= INERT else 'inert'})"


def render_runtime(findings: Findings) -> str:
    """Return Sec. 5.2's comparison with Optim and App. A4's share of the time, with our figures."""
    steps = {
        (row["batch"], row["method"].partition(",")[0]): row
        for row in findings.rows("training_cuda", "DEC against Optim")
    }
    rows = []
    if steps:
        optim, dec, alone = (steps[10, name] for name in ("Optim", "DEC direct", "backbone alone"))
        added = (optim["peak GiB"] - alone["peak GiB"]) / (dec["peak GiB"] - alone["peak GiB"])
        rows += [
            {
                "statement": "Optim takes more than 8 times the memory of DEC",
                "paper": "43.30 and 5.75 GB",
                "here": f"{optim['peak GiB']:.2f} and {dec['peak GiB']:.2f} GiB; beyond the backbone {added:.0f} times",
                "holds": "holds for what each adds to the backbone" if added > 8 else "**does not hold**",
            },
            {
                "statement": "Optim takes twice the time of DEC",
                "paper": "0.41 and 0.19 s",
                "here": f"{optim['ms'] / 1000:.2f} and {dec['ms'] / 1000:.2f} s",
                "holds": f"{optim['ms'] / dec['ms']:.1f} times here",
            },
        ]
    rows += _deep_runtime(findings.rows("training_cuda", "Time and memory by the steps of a solve"))
    for row in findings.rows("speed_cuda", "Inference with two sites, compiled"):
        if row["model"].startswith("DINOv2"):
            share = 100 * row["overhead %"] / (100 + row["overhead %"])
            said = {"paper": "0.16 of 0.66 s, 24 %", "here": f"{share:.1f} %, two sites, compiled, bfloat16"}
            rows.append({"statement": "The share of DEC in DINOv2's time, batch 128", **said, "holds": "less here"})
    return render_rows(rows) if rows else "Not measured."


def _deep_runtime(measured: list[Record]) -> list[dict[str, str]]:
    """Return the comparison at the fewest steps for which Optim takes the paper's memory, or at the most steps."""
    by_steps: dict[int, dict[str, Record]] = {}
    for row in measured:
        if isinstance(row["ms"], float) and isinstance(row["peak GiB"], float):  # others ran out of memory
            by_steps.setdefault(row["steps"], {})[row["method"]] = row
    both = {steps: found for steps, found in sorted(by_steps.items()) if len(found) == 2}
    if not both:
        return []
    enough = (steps for steps, found in both.items() if found["Optim"]["peak GiB"] * 2**30 >= PAPER_OPTIM_BYTES)
    steps = next(enough, max(both))
    optim, dec = both[steps]["Optim"], both[steps]["DEC direct"]
    memory, time = optim["peak GiB"] / dec["peak GiB"], optim["ms"] / dec["ms"]
    return [
        {
            "statement": f"The same with four modules, a look at the whole image and {steps} steps per solve",
            "paper": "43.30 GB and 0.41 s; 5.75 GB and 0.19 s",
            "here": f"{optim['peak GiB']:.1f} GiB and {optim['ms'] / 1000:.2f} s; "
            f"{dec['peak GiB']:.1f} GiB and {dec['ms'] / 1000:.2f} s",
            "holds": f"{memory:.1f} times the memory, {time:.1f} times the time",
        }
    ]
