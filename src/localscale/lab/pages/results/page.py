"""The page with every file of ``results/``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from localscale.errors import ConfigError, DataError
from localscale.files import errors_as
from localscale.lab.pages.results.classification import render_classification
from localscale.lab.pages.results.markdown import plain, render_rows, render_table
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
    trained = set()
    for name, result in read_results(folder).items():
        with _naming(folder / f"{name}.json"):
            parts += ["", f"## {plain(name)}", "", *_section(result)]
            trained |= _trained(result)
    return "\n".join([*parts, *_never_trained(trained)]) + "\n"


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the contents of the JSON files in ``folder``, by their names without ``.json``."""
    results = {}
    with errors_as(DataError, f"{folder} cannot be read"):
        if not folder.is_dir():
            raise ConfigError(f"--results {folder} is not a folder; name the folder of the JSON files")
        paths = sorted(folder.glob("*.json"))
    for path in paths:
        with _naming(path):
            results[path.stem] = json.loads(path.read_text(encoding="utf-8"))
    return results


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in errors about what it holds."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise DataError(
            f"{path} is not a result that can be rendered ({type(error).__name__}: {error}); "
            "write it again with its command, or move it to another folder"
        ) from error


def _section(result: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    command = " ".join(str(result["command"]).split()).replace("`", "'")
    parts = [f"`{command}` on {plain(result['machine'])}; {plain(versions)}.", ""]
    if result.get("kind") in RENDERERS:
        return [*parts, RENDERERS[result["kind"]](result)]
    return [*parts, "\n\n".join(render_table(table) for table in result["tables"])]


def _trained(result: dict[str, Any]) -> set[tuple[str, str]]:
    """Return task and backbone of each run in the result of a table."""
    if result.get("table") not in TABLES:
        return set()
    return {(TABLES[result["table"]].task, run["backbone"]) for run in result["runs"]}


def _never_trained(trained: set[tuple[str, str]]) -> list[str]:
    """List the backbones that a table names and no result of its task contains: ``trained`` lacks them."""
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
        "Recipes exist for these backbones too, but they were never trained. The recorded runs had little GPU time and "
        "no network connection, and Swin, BEiT and DINOv2 need weights that timm downloads. This page has no result "
        "for them; the tests train every method on tiny backbones only."
    )
    return ["", "## Backbones never trained", "", note, "", render_rows(rows)]
