"""The canonicalizers that come with the package, trained once for every backbone.

``NAME.json`` holds the configuration, and ``NAME.safetensors`` the weights of its size network, in half precision.
"""

from __future__ import annotations

from pathlib import Path

from localscale.canonicalizer.config import DECConfig
from localscale.canonicalizer.sizes import SizeEstimator
from localscale.tensor_files import read_tensors

__all__ = ["SHIPPED", "load_shipped", "shipped_config"]

HERE = Path(__file__).parent
SHIPPED = ("photographs",)
NORMALISATION = ("trunk.mean", "trunk.std")  # those of the backbone, which the files do not hold


def shipped_config(name: str) -> DECConfig:
    """Return the configuration of a shipped canonicalizer.

    >>> shipped_config("photographs").network.trunk
    'efficientnet_lite0'
    """
    return DECConfig.from_json((HERE / f"{name}.json").read_text(encoding="utf-8"))


def load_shipped(name: str, network: SizeEstimator) -> None:
    """Load the weights of a shipped canonicalizer into its size network, and freeze them."""
    held = network.state_dict()
    tensors, _ = read_tensors(HERE / f"{name}.safetensors")
    network.load_state_dict(tensors | {key: held[key] for key in NORMALISATION})
    network.requires_grad_(False)
