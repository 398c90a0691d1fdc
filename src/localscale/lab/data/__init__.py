"""The three locally scaled datasets, and generation of datasets of any size.

Each name is imported when it is first used: worker processes load only the dataset that they compute.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localscale.lab.data.generation import generate
    from localscale.lab.data.imagenet import LocallyScaledImageNet
    from localscale.lab.data.labelled import LabelledImages
    from localscale.lab.data.mnist import LocallyScaledMNIST
    from localscale.lab.data.mnist.digits import Digits, embedded_digits, load_digits
    from localscale.lab.data.objects import LocallyScaledObjects
    from localscale.lab.data.written import WrittenDataset

__all__ = [
    "Digits",
    "LabelledImages",
    "LocallyScaledImageNet",
    "LocallyScaledMNIST",
    "LocallyScaledObjects",
    "WrittenDataset",
    "embedded_digits",
    "generate",
    "load_digits",
]

HOMES = {
    "generate": "generation",
    "LocallyScaledImageNet": "imagenet",
    "LabelledImages": "labelled",
    "LocallyScaledMNIST": "mnist",
    "Digits": "mnist.digits",
    "embedded_digits": "mnist.digits",
    "load_digits": "mnist.digits",
    "LocallyScaledObjects": "objects",
    "WrittenDataset": "written",
}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
