"""Vision models that stay consistent when parts of an image change size.

>>> import timm, localscale as ls
>>> model = ls.adapt(timm.create_model("vit_tiny_patch16_224"), ls.DECConfig(sites=("input", "blocks.0"), knots=(6, 4)))
"""

from localscale import baselines, data, errors, figures, heads, maps, metrics, testing
from localscale.adapt import AdaptedModel, adapt, sites
from localscale.canonicalizer import Canonicalizer, DECConfig, Site, SiteReport
from localscale.equilibrium import Anderson, Implicit, Phantom, Plain, Solution, Unrolled, fixed_point
from localscale.heads import Segmenter, segmenter
from localscale.layouts import Tokens
from localscale.maps import identity_map, map_from_logits, random_map
from localscale.warp import scale, unscale

__all__ = [
    "AdaptedModel",
    "Anderson",
    "Canonicalizer",
    "DECConfig",
    "Implicit",
    "Phantom",
    "Plain",
    "Segmenter",
    "Site",
    "SiteReport",
    "Solution",
    "Tokens",
    "Unrolled",
    "adapt",
    "baselines",
    "data",
    "errors",
    "figures",
    "fixed_point",
    "heads",
    "identity_map",
    "map_from_logits",
    "maps",
    "metrics",
    "random_map",
    "scale",
    "segmenter",
    "sites",
    "testing",
    "unscale",
]
