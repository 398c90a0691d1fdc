"""The page with every file of ``results/``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from localscale.errors import DataError
from localscale.lab.pages.results.classification import render_classification
from localscale.lab.pages.results.markdown import render_rows, render_table
from localscale.lab.pages.results.segmentation import render_segmentation
from localscale.lab.recipes.tables import TABLES

__all__ = ["read_results", "render_page"]

INTRODUCTION = """# Results

This page lists every measurement in `results/*.json`, with the command, the machine and the package versions that
produced it. `localscale tables` writes the page; do not edit it by hand.

- **accuracy**, **mIoU**: in %; mIoU is the mean over all classes, including the background.
- **InvE**: the mean squared ℓ2 distance between the softmax outputs on an image and on its locally scaled variants (the
  paper's equation). Tables of trained models give it in units of 10⁻².
- **EquE**: the mean squared ℓ2 distance per pixel between the softmax masks S(M(I); Φ) and M(S(I; Φ)) (the paper's
  equation).
- **l2**, **relative**: the same errors without the square; relative is also divided by the norm of the output on the
  unscaled image.
- **IoU deviation**: the standard deviation of IoU over the images of one scene, averaged over scenes.
- **±**: the standard deviation over seeds.
- **epochs**: all training that led to a row's weights, including the run that the row starts from.
- **paper**: the figure of the paper for a backbone of the same family, whose size, data and training budget may differ.
  The paper has no equal-budget control."""

RENDERERS = {"classification": render_classification, "segmentation": render_segmentation}


def render_page(folder: Path) -> str:
    """Return the page as Markdown: one section per result, then the backbones that were never trained."""
    parts = [INTRODUCTION]
    results = read_results(folder)
    for name, result in results.items():
        with _naming(folder / f"{name}.json"):
            parts += ["", f"## {name}", "", *_section(result)]
    return "\n".join([*parts, *_never_trained(list(results.values()))]) + "\n"


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the contents of the JSON files in ``folder``, by their names without ``.json``."""
    results = {}
    for path in sorted(folder.glob("*.json")):
        with _naming(path):
            results[path.stem] = json.loads(path.read_text(encoding="utf-8"))
    return results


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in errors about what it holds."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not a result that can be rendered ({type(error).__name__}: {error}); "
            "write it again with its command, or move it to another folder"
        ) from error


def _section(result: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    parts = [f"`{result['command']}` on {result['machine']}; {versions}.", ""]
    if result.get("kind") in RENDERERS:
        return [*parts, RENDERERS[result["kind"]](result)]
    return [*parts, "\n\n".join(render_table(table) for table in result["tables"])]


def _never_trained(results: list[dict[str, Any]]) -> list[str]:
    """List the backbones that a table names and no result of its task contains."""
    trained = {
        (TABLES[result["table"]].task, run["backbone"])
        for result in results
        if result.get("table") in TABLES
        for run in result["runs"]
    }
    missing = {
        name: [key for key in table.backbones if (table.task, key) not in trained] for name, table in TABLES.items()
    }
    rows = [
        {"table": f"`localscale reproduce {name}`", "backbones never trained": ", ".join(keys)}
        for name, keys in missing.items()
        if keys
    ]
    if not rows:
        return []
    note = (
        "Recipes exist for these backbones too, but they were never trained, for lack of GPU time. This page has no "
        "result for them; the tests train every method on tiny backbones only."
    )
    return ["", "## Backbones never trained", "", note, "", render_rows(rows)]
