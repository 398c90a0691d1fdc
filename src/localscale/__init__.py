"""Vision models that stay consistent when parts of an image change size.

>>> import timm, localscale as ls
>>> model = ls.adapt(timm.create_model("vit_tiny_patch16_224"))

Each name is imported when it is first used: the command line answers ``--help`` without loading PyTorch.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from localscale import errors, heads, maps, metrics, testing
    from localscale.adaptation import AdaptedModel, LearnedSizes, Preprocessing, adapt, learn_sizes, sites
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
    from localscale.fitting import EpochReport, Fitted, fit
    from localscale.heads import Segmenter, segmenter
    from localscale.layouts import Tokens
    from localscale.maps import identity_map, map_from_logits, map_from_scales, random_map
    from localscale.warp import scale, scale_boxes, scale_points, unscale

__all__ = [
    "AdaptedModel",
    "Anderson",
    "Canonicalizer",
    "Compose",
    "ConvNetwork",
    "DECConfig",
    "Descent",
    "Direct",
    "EpochReport",
    "Fitted",
    "Implicit",
    "LearnedSizes",
    "Phantom",
    "Picard",
    "Preprocessing",
    "Segmenter",
    "Site",
    "SiteReport",
    "SizeNetwork",
    "Solution",
    "Tokens",
    "Unrolled",
    "adapt",
    "errors",
    "fit",
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
    "scale_boxes",
    "scale_points",
    "segmenter",
    "sites",
    "testing",
    "unscale",
]

HOMES = {
    "adaptation": ("AdaptedModel", "LearnedSizes", "Preprocessing", "adapt", "learn_sizes", "sites"),
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
    "fitting": ("EpochReport", "Fitted", "fit"),
    "heads": ("Segmenter", "segmenter"),
    "layouts": ("Tokens",),
    "maps": ("identity_map", "map_from_logits", "map_from_scales", "random_map"),
    "warp": ("scale", "scale_boxes", "scale_points", "unscale"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it, and keep it here."""
    home = next((module for module, names in HOMES.items() if name in names), None)
    if name == "__version__":
        value: Any = metadata.version("localscale")
    elif home is not None:
        value = getattr(import_module(f"localscale.{home}"), name)
    elif name in __all__:
        value = import_module(f"localscale.{name}")
    else:
        raise AttributeError(f"module 'localscale' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
