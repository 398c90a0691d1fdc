"""Finished runs to report on, and a parser of pages."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import tiny_imagenet as tiny_imagenet
import tiny_objects as tiny_objects
import tiny_recipes as tiny_recipes

from localscale.files import unseal
from localscale.lab.training import train

SETTINGS = {"epochs": 2, "test_count": 8, "variants": 2, "bracket_count": 4}
VOID = {"meta", "img", "br"}


def write_numbers(folder: Path) -> Path:
    """Write digits and finished runs ``dec`` and ``aug`` into ``folder``."""
    tiny_recipes.write_digits(folder)
    tiny_recipes.write_backbone(folder / "backbone.safetensors")
    for method, row in (("dec", "dec"), ("plain", "aug")):
        train(tiny_recipes.tiny(folder, method, name=f"mnist-deit_tiny-{row}", **SETTINGS), folder / row, cpu=True)
    return folder


def write_scenes(folder: Path) -> Path:
    """Write scenes of discs and finished runs ``dec`` and ``canon`` into ``folder``."""
    tiny_objects.write_both(folder)
    for method, row in (("direct", "dec"), ("canon", "canon")):
        train(tiny_objects.tiny(folder, method, name=f"objects-vit_base-{row}"), folder / row, cpu=True)
    return folder


def copied(folder: Path, to: Path, **changes: object) -> Path:
    """Copy a run and change fields of its recipe."""
    shutil.copytree(folder, to)
    recipe = unseal((to / "recipe.json").read_text(encoding="utf-8"))
    for name, value in changes.items():
        part, _, field = name.partition("__")
        if field:
            recipe[part][field] = value
        else:
            recipe[name] = value
    (to / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    return to


class Page(HTMLParser):
    """A parsed page; parsing fails if a tag is not closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: list[str] = []
        self.sources: list[str] = []
        self.cells: list[str] = []
        self.names: dict[str, int] = {}
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names[tag] = self.names.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
        if tag == "section":
            self.sections.append(given["id"] or "")
        if "id" in given and tag != "section":
            self.ids.append(given["id"] or "")
        self.sources += [given[name] or "" for name in ("src", "href", "xlink:href", "srcset") if name in given]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a start"
        assert self.open.pop() == tag, f"</{tag}> in the wrong place"

    def handle_data(self, data: str) -> None:
        if self.open and {"td", "th"} & set(self.open):
            self.cells[-1] += data

    def row(self, first: str) -> list[str]:
        """Return the eight cells after the cell that begins with ``first``."""
        start = next(k for k, cell in enumerate(self.cells) if cell.startswith(first))
        return self.cells[start + 1 : start + 9]
