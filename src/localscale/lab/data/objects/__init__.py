"""Locally scaled objects: two scanned objects in front of a panorama, each at its own distance.

The dataset classes are imported when they are first used, so that worker processes do not load torchvision.
"""

from typing import TYPE_CHECKING, Any

from localscale.lab.data.objects.job import objects_job
from localscale.lab.data.objects.options import ObjectsOptions

if TYPE_CHECKING:
    from localscale.lab.data.objects.dataset import LocallyScaledObjects, ObjectsItem

__all__ = ["LocallyScaledObjects", "ObjectsItem", "ObjectsOptions", "objects_job"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from localscale.lab.data.objects import dataset

    return getattr(dataset, name)
