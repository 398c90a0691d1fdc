"""The list of recipes on one screen: how names are composed, the backbones, and the rows of each task."""

from __future__ import annotations

import textwrap

from localscale.lab.backbones.catalogue import BACKBONES
from localscale.lab.recipes import PROTOCOLS, find_recipe, find_row, recipe_names

__all__ = ["list_matching", "overview"]

WIDTH = 108


def overview() -> str:
    """Return rows, backbones and the weights that each row starts from, as text for a terminal."""
    rows = {name: row for protocol in reversed(PROTOCOLS.values()) for name, row in protocol.rows.items()}
    ordered = list(dict.fromkeys(name for protocol in PROTOCOLS.values() for name in protocol.rows))
    ordered.sort(key=lambda name: (name.split("_")[0] != "base", name.split("_")[0] != "aug"))
    lines = [
        "A recipe is called TASK-BACKBONE-ROW, for example mnist-deit_tiny-dec.",
        "",
        "BACKBONE",
        *textwrap.wrap(", ".join(BACKBONES), WIDTH, initial_indent="  ", subsequent_indent="  "),
        "",
        f"{'ROW':19} {'':63}" + "".join(f"{task:>9}" for task in PROTOCOLS),
    ]
    for name in ordered:
        starts = "".join(f"{_start(task, name):>9}" for task in PROTOCOLS)
        lines.append(f"  {name:17} {rows[name].about:63}{starts}")
    return "\n".join(
        [
            *lines,
            "",
            "The columns of the tasks show the weights that a row starts from: pretrained weights, if there are any,",
            "or those of a finished run of the named row, given with --start. A dash: the task has no such row.",
            "localscale recipes PATTERN lists names; localscale train NAME --help shows a recipe's fields.",
        ]
    )


def _start(task: str, name: str) -> str:
    row = PROTOCOLS[task].rows.get(name)
    return "–" if row is None else row.start or "weights"


def list_matching(pattern: str) -> str:
    """Return one line for each recipe whose name contains ``pattern``."""
    names = [name for name in recipe_names() if pattern in name]
    if not names:
        find_recipe(pattern)  # raises and names the near misses
    width = max(map(len, names))
    return "\n".join(f"{name:{width}}  {find_row(name).about}" for name in names)
