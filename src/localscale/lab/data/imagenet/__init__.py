"""Locally scaled ImageNet: photographs whose labelled object was made larger or smaller on its own background.

The dataset classes are imported when they are first used, so that worker processes do not load torchvision.
"""

from typing import TYPE_CHECKING, Any

from localscale.lab.data.imagenet.job import imagenet_job
from localscale.lab.data.imagenet.options import ImageNetOptions

if TYPE_CHECKING:
    from localscale.lab.data.imagenet.dataset import Group, LocallyScaledImageNet

__all__ = ["Group", "ImageNetOptions", "LocallyScaledImageNet", "imagenet_job"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from localscale.lab.data.imagenet import dataset

    return getattr(dataset, name)
