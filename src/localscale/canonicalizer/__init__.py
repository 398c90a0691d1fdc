"""Canonicalizers: their configuration, networks and updates, and the equilibrium that they solve."""

from localscale.canonicalizer.config import DECConfig
from localscale.canonicalizer.interfaces import NetworkSettings, Update
from localscale.canonicalizer.module import Canonicalizer, SiteReport
from localscale.canonicalizer.network import ConvNetwork, EnergyNetwork, MapNetwork
from localscale.canonicalizer.networks import NETWORKS
from localscale.canonicalizer.site import INPUT, Site
from localscale.canonicalizer.sizes import SizeNetwork
from localscale.canonicalizer.updates import UPDATES, Compose, Descent, Direct

__all__ = [
    "INPUT",
    "NETWORKS",
    "UPDATES",
    "Canonicalizer",
    "Compose",
    "ConvNetwork",
    "DECConfig",
    "Descent",
    "Direct",
    "EnergyNetwork",
    "MapNetwork",
    "NetworkSettings",
    "Site",
    "SiteReport",
    "SizeNetwork",
    "Update",
]
