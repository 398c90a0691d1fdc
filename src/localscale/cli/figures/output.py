"""Arguments and output that the commands of figures share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from localscale.errors import ConfigError

__all__ = ["named_runs", "save"]


def named_runs(given: tuple[str, ...]) -> dict[str, Path]:
    """Return folders by name, from arguments of the form NAME=FOLDER."""
    found = {}
    for one in given or ("",):
        name, equals, folder = one.partition("=")
        if not (name and equals and folder):
            raise ConfigError(f"--runs {one}: expected NAME=FOLDER, such as Aug=runs/mnist-deit_tiny-aug/seed0")
        found[name] = Path(folder)
    return found


def save(figure: Any, out: Path) -> None:
    """Write a figure and print its path."""
    from localscale.lab.pictures import save_figure

    save_figure(figure, out)
    print(out)
