"""Put canonicalizers into a network: find sites, wrap modules, save the result."""

from localscale.adaptation.discover import sites
from localscale.adaptation.learning import LearnedSizes, learn_sizes
from localscale.adaptation.model import AdaptedModel, adapt

__all__ = ["AdaptedModel", "LearnedSizes", "adapt", "learn_sizes", "sites"]
