"""The registry of network settings."""

from localscale.canonicalizer.interfaces import NetworkSettings
from localscale.canonicalizer.network import ConvNetwork
from localscale.canonicalizer.sizes import SizeNetwork

__all__ = ["NETWORKS"]

NETWORKS: dict[str, type[NetworkSettings]] = {"conv": ConvNetwork, "sizes": SizeNetwork}
