"""Every ``results/*.json`` as one page."""

from __future__ import annotations

import json
from pathlib import Path

from localscale.errors import DataError
from localscale.lab.pages.results.classification import render_classification
from localscale.lab.pages.results.markdown import render_table
from localscale.lab.pages.results.segmentation import render_segmentation

__all__ = ["render_page"]

RENDERERS = {"classification": render_classification, "segmentation": render_segmentation}


def render_page(results: Path) -> str:
    """The page, one section per file."""
    parts = ["# Results", "", "Made by `localscale tables` from `results/*.json`; not edited by hand."]
    for path in sorted(results.glob("*.json")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
            parts += ["", f"## {path.stem}", "", f"`{result['command']}` on {result['machine']}; {versions}."]
            if result.get("kind") in RENDERERS:
                parts += ["", RENDERERS[result["kind"]](result)]
            else:
                for table in result["tables"]:
                    parts += ["", render_table(table)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is not a result that can be rendered ({type(error).__name__}: {error}); "
                "make it again by its command, or move it away"
            ) from error
    return "\n".join(parts) + "\n"
