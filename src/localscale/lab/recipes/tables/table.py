"""A table as a value: its lines, backbones, budgets and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from localscale.lab.recipes import PROTOCOLS, find_recipe
from localscale.lab.recipes.changes import Changes, with_changes
from localscale.lab.recipes.recipe import Recipe
from localscale.lab.recipes.rows import Budget, BudgetName, Row

__all__ = ["CONTROLS", "PEERS", "Line", "Table", "lines_of"]


@dataclass(frozen=True)
class Line:
    """A line of a table: a row of the task, and the fields in which this table changes it.

    Args:
        row: name of the row in the task's protocol.
        key: name of the line's runs; the row's name if empty.
        label: name in the rendered table; the row's own if empty.
        start: the line whose run provides the first weights, in place of the row's.
        budget: the budget, if it differs from the row's.
        changes: fields of the recipe to replace.
    """

    row: str
    key: str = ""
    label: str = ""
    start: str | None = None
    budget: BudgetName | None = None
    changes: Changes = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the line in the names of its runs."""
        return self.key or self.row


@dataclass(frozen=True)
class Table:
    """Lines for backbones of one task.

    Args:
        title: heading of the rendered table.
        task: name of the task in ``PROTOCOLS``.
        backbones: names in ``BACKBONES``.
        lines: the lines; each comes after the line that it starts from.
        runs: name of the folder of its runs; tables that share runs share the folder.
        budgets: budgets that replace those of the task.
        changes: fields of every recipe to replace.
        paper: the paper's table to compare with.
        controls: names of the lines that others are compared with, image by image.
    """

    title: str
    task: str
    backbones: tuple[str, ...]
    lines: tuple[Line, ...]
    runs: str
    budgets: Mapping[BudgetName, Budget] = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)
    paper: str = ""
    controls: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """``"segmentation"`` or ``"classification"``: the metrics that are rendered."""
        return "segmentation" if PROTOCOLS[self.task].data.dense else "classification"

    def label(self, line: Line) -> str:
        """Return the name of ``line`` in the rendered table."""
        return line.label or self._row(line).label

    def start(self, line: Line) -> str:
        """Return the name of the line that ``line`` starts from; empty for pretrained weights."""
        return self._row(line).start if line.start is None else line.start

    def controls_of(self, line: Line) -> tuple[str, ...]:
        """Return the names of the lines that ``line`` is compared with, none for a control.

        They are the controls that start from the same weights, or all if none does.
        """
        if line.name in self.controls:
            return ()
        lines = {each.name: each for each in self.lines}
        return tuple(name for name in self.controls if self.start(lines[name]) == self.start(line)) or self.controls

    def recipe(self, line: Line, backbone: str) -> Recipe:
        """Return the recipe of ``line`` for ``backbone`` with this table's budget and changes."""
        recipe = find_recipe(f"{self.task}-{backbone}-{line.row}")
        budget = self.budgets.get(line.budget or self._row(line).budget)
        length: dict[str, float] = {}
        if budget is not None:
            rate = {} if budget.learning_rate is None else {"learning_rate": budget.learning_rate}
            length = {"epochs": budget.epochs, **rate}
        for changes in (self.changes, {"optimization": length}, line.changes):
            recipe = with_changes(recipe, changes)
        return recipe

    def _row(self, line: Line) -> Row:
        return PROTOCOLS[self.task].rows[line.row]


def lines_of(*rows: str) -> tuple[Line, ...]:
    """Return one line for each row, as the task has it."""
    return tuple(map(Line, rows))


CONTROLS = lines_of("centre_zoom", "random_warp")
"""Two controls of warping."""
PEERS = (*lines_of("zoom"), *CONTROLS)
"""The saliency sampler, a peer of canonicalizers that cannot scale masks back, and the two controls."""
