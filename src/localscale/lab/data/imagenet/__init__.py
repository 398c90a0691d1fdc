"""Locally scaled ImageNet: photographs whose labelled object was made larger or smaller on its own background."""

from localscale.lab.data.imagenet.dataset import Group, LocallyScaledImageNet
from localscale.lab.data.imagenet.job import imagenet_job
from localscale.lab.data.imagenet.options import ImageNetOptions

__all__ = ["Group", "ImageNetOptions", "LocallyScaledImageNet", "imagenet_job"]
