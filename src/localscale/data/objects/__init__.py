"""Locally scaled objects: two scanned objects before a panorama, each at its own distance."""

from localscale.data.objects.dataset import LocallyScaledObjects, ObjectsItem
from localscale.data.objects.job import objects_job
from localscale.data.objects.options import ObjectsOptions

__all__ = ["LocallyScaledObjects", "ObjectsItem", "ObjectsOptions", "objects_job"]
