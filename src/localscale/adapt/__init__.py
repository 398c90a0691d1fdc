"""Canonicalizers in a network: finding sites, wrapping modules, saving the result."""

from localscale.adapt.discover import sites
from localscale.adapt.model import AdaptedModel, adapt

__all__ = ["AdaptedModel", "adapt", "sites"]
