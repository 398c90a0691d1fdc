"""Local scalings: monotone maps of [0,1]², their inverses and compositions."""

from localscale.maps.base import Composition, FamilyMap, Map
from localscale.maps.build import FAMILIES, identity_map, map_from_logits, random_map, resampling_error
from localscale.maps.distributions import DISTRIBUTIONS
from localscale.maps.grid import GridMap
from localscale.maps.inverse import ExactInverse, RowwiseInverse
from localscale.maps.monotone import MonotoneMap
from localscale.maps.separable import SeparableMap
from localscale.maps.similarity import map_from_scales

__all__ = [
    "DISTRIBUTIONS",
    "FAMILIES",
    "Composition",
    "ExactInverse",
    "FamilyMap",
    "GridMap",
    "Map",
    "MonotoneMap",
    "RowwiseInverse",
    "SeparableMap",
    "identity_map",
    "map_from_logits",
    "map_from_scales",
    "random_map",
    "resampling_error",
]
