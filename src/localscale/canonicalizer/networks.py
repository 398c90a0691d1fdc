"""The registry of network settings."""

from localscale.canonicalizer.interfaces import NetworkSettings
from localscale.canonicalizer.network import ConvNetwork

__all__ = ["NETWORKS"]

NETWORKS: dict[str, type[NetworkSettings]] = {"conv": ConvNetwork}
