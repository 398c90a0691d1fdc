"""Canonicalizers in a network: finding sites, wrapping modules, saving the result."""

from localscale.adaptation.discover import sites
from localscale.adaptation.model import AdaptedModel, adapt

__all__ = ["AdaptedModel", "adapt", "sites"]
