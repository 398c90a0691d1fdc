"""Put canonicalizers into a network: find sites, wrap modules, save the result."""

from localscale.adaptation.discover import sites
from localscale.adaptation.learning import LearnedSizes, learn_sizes
from localscale.adaptation.model import AdaptedModel, adapt
from localscale.adaptation.preprocessing import Preprocessing

__all__ = ["AdaptedModel", "LearnedSizes", "Preprocessing", "adapt", "learn_sizes", "sites"]
