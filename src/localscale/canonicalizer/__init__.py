"""Learning the canonical form: configuration, network, updates, and the equilibrium that ties them."""

from localscale.canonicalizer.config import DECConfig
from localscale.canonicalizer.module import Canonicalizer, SiteReport
from localscale.canonicalizer.network import EnergyNetwork, MapNetwork
from localscale.canonicalizer.site import INPUT, Site
from localscale.canonicalizer.updates import UPDATES

__all__ = ["INPUT", "UPDATES", "Canonicalizer", "DECConfig", "EnergyNetwork", "MapNetwork", "Site", "SiteReport"]
