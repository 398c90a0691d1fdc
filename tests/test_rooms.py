"""The order of the rooms: a module imports its own room or lower ones, and the library never imports the lab."""

import ast
from pathlib import Path

import localscale

SOURCE = Path(localscale.__file__).parent
LIBRARY = """errors files tensor_files stopping processes checkpoints extras machine registry conventions layouts
sampling kernels maps warp equilibrium canonicalizer adaptation heads metrics fitting testing"""
LAB = "children clusters randomness folders data methods tasks backbones recipes runs training pictures pages"
ORDER = [*LIBRARY.split(), *(f"lab.{name}" for name in LAB.split()), "cli", "__main__"]


def room(name: str) -> str:
    """The room of a dotted name below ``localscale``."""
    first, _, rest = name.partition(".")
    return f"lab.{rest.partition('.')[0]}" if first == "lab" else first


def imports(path: Path) -> set[str]:
    """The rooms that a module imports, anywhere in its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        found |= {room(name.removeprefix("localscale.")) for name in names if name.startswith("localscale.")}
    return found


def test_rooms_import_only_lower_rooms():
    wrong = []
    for path in set(SOURCE.rglob("*.py")) - {SOURCE / "__init__.py", SOURCE / "lab" / "__init__.py"}:
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        own = ORDER.index(room(module))
        wrong += [f"{module} imports {name}" for name in imports(path) if ORDER.index(name) > own]
    assert wrong == []
