"""Import packages that only some parts of the library need."""

import importlib
from typing import Any

from localscale.errors import MissingExtraError

__all__ = ["require"]


def require(module: str, extra: str) -> Any:
    """Import and return ``module``, or raise ``MissingExtraError`` with the extra that installs it.

    >>> require("json", "data").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"this needs the package {module.partition('.')[0]} ({error}); pip install 'localscale[{extra}]'"
        ) from error
