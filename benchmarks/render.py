"""Results as tables: for the terminal, and as docs/results.md."""

import json
from pathlib import Path
from typing import Any


def render_table(table: dict[str, Any]) -> str:
    """One table as Markdown."""
    names = list(table["rows"][0])
    lines = [
        f"### {table['title']}",
        "",
        table["note"],
        "",
        "| " + " | ".join(names) + " |",
        "|" + "---|" * len(names),
    ]
    lines += ["| " + " | ".join(_cell(row[name]) for name in names) + " |" for row in table["rows"]]
    return "\n".join(lines)


def render_page(results: Path) -> str:
    """Every file of ``results`` as one page."""
    parts = ["# Results", "", "Made by a command from `results/*.json`; not edited by hand."]
    for path in sorted(results.glob("*.json")):
        result = json.loads(path.read_text())
        versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        parts += ["", f"## {path.stem}", "", f"`{result['command']}` on {result['machine']}; {versions}."]
        for table in result["tables"]:
            parts += ["", render_table(table)]
    return "\n".join(parts) + "\n"


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if value == 0 or 0.01 <= abs(value) < 10_000:
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{value:.1e}"
