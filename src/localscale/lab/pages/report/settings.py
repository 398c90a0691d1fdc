"""Sections with settings and training curves."""

from __future__ import annotations

import math
from typing import Any

from localscale.lab.pages.html import Html, element, section, table
from localscale.lab.pages.report.plots import Series, draw_panels
from localscale.lab.recipes.recipe import to_dict
from localscale.lab.runs.finished import FinishedRun

__all__ = ["curves_section", "settings_section"]

Named = dict[str, FinishedRun]
PANELS = {"loss": "loss", "learning_rate": "learning rate", "gradient": "gradient norm"}
PARTS = ("task", "supervision", "prior", "invariance", "equivariance")  # terms of the loss that a method may have
SITE_PANELS = {"residual": "residual", "steps": "solver steps", "displacement": "displacement, % of the side"}
LOGARITHMIC = ("loss", "gradient norm", "residual")


def settings_section(runs: Named) -> Html:
    """Return all settings of the runs; settings in which they differ come first and are marked."""
    flat = [_flatten(to_dict(run.recipe)) for run in runs.values()]
    names = list(dict.fromkeys(name for settings in flat for name in settings))
    rows = [[name, *(settings.get(name, "–") for settings in flat)] for name in names]
    differing = [[element("mark", name), *values] for name, *values in rows if len(set(values)) > 1]
    head = ["", *runs]
    parts: list[Html] = [table(head, _about(runs))]
    if differing:
        parts += [element("h3", "Settings that differ"), table(head, differing)]
    every = element("details", element("summary", f"All {len(rows)} settings"), table(head, rows))
    return section("settings", "Configuration", *parts, every)


def _about(runs: Named) -> list[list[str]]:
    def versions(run: FinishedRun) -> str:
        return ", ".join(f"{name} {version}" for name, version in run.result.get("versions", {}).items())

    lines = {
        "recipe": lambda run: run.recipe.name or "–",
        "backbone": lambda run: run.recipe.backbone,
        "method": lambda run: type(run.recipe.method).__name__,
        "data": lambda run: run.result.get("data", "–"),
        "seed": lambda run: str(run.recipe.seed),
        "parameters": lambda run: f"{run.result['parameters']:,}" if "parameters" in run.result else "–",
        "steps (skipped)": lambda run: f"{run.result.get('steps', '–')} ({run.result.get('skipped_steps', 0)})",
        "sizes learned": _sizes,
        **({"energies learned": _energies} if any("learned_energies" in r.result for r in runs.values()) else {}),
        "training": lambda run: f"{run.result['seconds']['training']:.1f} s",
        "evaluation": lambda run: f"{run.result['seconds']['evaluation']:.1f} s",
        "machine": lambda run: str(run.result.get("machine", "–")),
        "versions": versions,
        "folder": lambda run: str(run.folder),
    }
    return [[name, *(say(run) for run in runs.values())] for name, say in lines.items()]


def _sizes(run: FinishedRun) -> str:
    found = run.result.get("learned_sizes")
    if found is None:
        return "–"
    known = ""
    if "thing_error" in found:
        known = f"; things: error {found['thing_error']:.3f}, IoU {found['thing_overlap']:.2f}"
    return (
        f"{found['steps']:,} steps; error {found['error']:.3f} in log size, spread {found['spread']:.2f}, "
        f"{100 * found['converged']:.0f} % converged{known}"
    )


def _energies(run: FinishedRun) -> str:
    found = run.result.get("learned_energies")
    if found is None:
        return "–"
    undone, chance = (100 * found[name] for name in ("undone", "chance"))
    return f"{found['steps']:,} steps; undo {undone:.1f} % of known maps, chance {chance:.1f} %"


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flatten(value, f"{prefix}{name}.")
        elif name != "kind" or prefix:
            found[f"{prefix}{name}"] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return found


def curves_section(runs: Named) -> Html:
    """Return curves of loss, learning rate, gradient norm and solver statistics over epochs."""
    logged = {label: run for label, run in runs.items() if run.log}
    panels: dict[str, Series] = {
        title: {label: _curve(run, name) for label, run in logged.items() if name in run.log[0]}
        for name, title in PANELS.items()
    }
    run = next(iter(runs.values()))
    if run.log:
        panels["terms of the loss"] = {name: _curve(run, name) for name in PARTS if name in run.log[0]}
        for kind, title in SITE_PANELS.items():
            sites = [name for name in run.log[0] if name.endswith(f"/{kind}")]
            factor = 100 if kind == "displacement" else 1
            panels[title] = {name.removesuffix(f"/{kind}"): _curve(run, name, factor) for name in sites}
    shown = {title: series for title, series in panels.items() if series}
    parts = [draw_panels(shown, logarithmic=LOGARITHMIC)] if shown else []
    missing = [label for label in runs if label not in logged]
    if missing:
        note = f"There is no log.jsonl in the folder of {' and '.join(missing)}, so training curves are missing."
        parts.append(element("p", note, class_="note"))
    return section("training", "Training", *parts)


def _curve(run: FinishedRun, name: str, factor: float = 1) -> tuple[list[float], list[float]]:
    epochs = [float(line["epoch"]) for line in run.log]
    values = [line.get(name) for line in run.log]
    return epochs, [math.nan if value is None else factor * float(value) for value in values]
