"""Locally scaled objects: two scanned objects in front of a panorama, each at its own distance."""

from localscale.lab.data.objects.dataset import LocallyScaledObjects, ObjectsItem
from localscale.lab.data.objects.job import objects_job
from localscale.lab.data.objects.options import ObjectsOptions

__all__ = ["LocallyScaledObjects", "ObjectsItem", "ObjectsOptions", "objects_job"]
