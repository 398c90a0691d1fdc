"""Vision models that stay consistent when parts of an image change size.

>>> import timm, localscale as ls
>>> model = ls.adapt(timm.create_model("vit_tiny_patch16_224"), ls.DECConfig(sites=("input", "blocks.0"), knots=(6, 4)))

Each name is imported when it is first used: the command line answers ``--help`` without loading PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localscale import errors, heads, maps, metrics, testing
    from localscale.adaptation import AdaptedModel, LearnedSizes, adapt, learn_sizes, sites
    from localscale.canonicalizer import (
        Canonicalizer,
        Compose,
        ConvNetwork,
        DECConfig,
        Descent,
        Direct,
        Site,
        SiteReport,
        SizeNetwork,
    )
    from localscale.equilibrium import Anderson, Implicit, Phantom, Picard, Solution, Unrolled, fixed_point
    from localscale.heads import Segmenter, segmenter
    from localscale.layouts import Tokens
    from localscale.maps import identity_map, map_from_logits, map_from_scales, random_map
    from localscale.warp import scale, unscale

__all__ = [
    "AdaptedModel",
    "Anderson",
    "Canonicalizer",
    "Compose",
    "ConvNetwork",
    "DECConfig",
    "Descent",
    "Direct",
    "Implicit",
    "LearnedSizes",
    "Phantom",
    "Picard",
    "Segmenter",
    "Site",
    "SiteReport",
    "SizeNetwork",
    "Solution",
    "Tokens",
    "Unrolled",
    "adapt",
    "errors",
    "fixed_point",
    "heads",
    "identity_map",
    "learn_sizes",
    "map_from_logits",
    "map_from_scales",
    "maps",
    "metrics",
    "random_map",
    "scale",
    "segmenter",
    "sites",
    "testing",
    "unscale",
]

HOMES = {
    "adaptation": ("AdaptedModel", "LearnedSizes", "adapt", "learn_sizes", "sites"),
    "canonicalizer": (
        "Canonicalizer",
        "Compose",
        "ConvNetwork",
        "DECConfig",
        "Descent",
        "Direct",
        "Site",
        "SiteReport",
        "SizeNetwork",
    ),
    "equilibrium": ("Anderson", "Implicit", "Phantom", "Picard", "Solution", "Unrolled", "fixed_point"),
    "heads": ("Segmenter", "segmenter"),
    "layouts": ("Tokens",),
    "maps": ("identity_map", "map_from_logits", "map_from_scales", "random_map"),
    "warp": ("scale", "unscale"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it, and keep it here."""
    home = next((module for module, names in HOMES.items() if name in names), None)
    if home is not None:
        value = getattr(import_module(f"localscale.{home}"), name)
    elif name in __all__:
        value = import_module(f"localscale.{name}")
    else:
        raise AttributeError(f"module 'localscale' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
