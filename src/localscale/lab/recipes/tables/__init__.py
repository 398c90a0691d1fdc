"""The tables that can be reproduced; ``TABLES`` is the registry."""

from __future__ import annotations

from localscale.errors import ConfigError, near_misses
from localscale.lab.recipes.tables.imagenet import IMAGENET_TABLES
from localscale.lab.recipes.tables.mnist import MNIST_TABLES
from localscale.lab.recipes.tables.mnist_ablations import ABLATION_TABLES
from localscale.lab.recipes.tables.mnist_sizes import EQUAL_COMPUTE, SIZES_TABLES
from localscale.lab.recipes.tables.objects import OBJECTS_TABLES
from localscale.lab.recipes.tables.table import Line, Table

__all__ = ["EQUAL_COMPUTE", "TABLES", "Line", "Table", "find_table"]

TABLES: dict[str, Table] = {**MNIST_TABLES, **SIZES_TABLES, **ABLATION_TABLES, **IMAGENET_TABLES, **OBJECTS_TABLES}


def find_table(name: str) -> Table:
    """Return the table called ``name``."""
    if name not in TABLES:
        raise ConfigError(f"no table {name!r}: {near_misses(name, TABLES)}; localscale reproduce lists all tables")
    return TABLES[name]
