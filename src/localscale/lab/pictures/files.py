"""Create Matplotlib figures, and write them to files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from localscale.errors import ConfigError
from localscale.extras import require
from localscale.files import write_whole

__all__ = ["FORMATS", "blank_figure", "new_figure", "save_figure"]

FORMATS = ("png", "pdf", "svg")


def blank_figure(*, width: float, height: float) -> tuple[Any, Any]:
    """Return a figure and one axis that covers it; both are measured in inches from the lower left corner."""
    figure = _figure(figsize=(width, height), dpi=200)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, width), ylim=(0, height))
    axis.set_axis_off()
    return figure, axis


def new_figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, Any]:
    """Return a figure of ``width`` × ``height`` inches and its axes ``(rows, columns)``; no display is needed."""
    figure = _figure(figsize=(width, height), dpi=200, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _figure(**settings: Any) -> Any:
    require("matplotlib", "figures")
    from matplotlib.figure import Figure

    return Figure(**settings)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure atomically, in the format that the suffix of ``path`` names: png, pdf or svg."""
    form = path.suffix.removeprefix(".")
    if form not in FORMATS:
        raise ConfigError(f"{path} ends in {path.suffix or 'nothing'}; expected .{', .'.join(FORMATS)}")
    content = io.BytesIO()
    figure.savefig(content, format=form)
    write_whole(path, content.getvalue())
