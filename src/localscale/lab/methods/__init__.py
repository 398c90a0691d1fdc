"""The methods that tables compare, behind one interface; ``METHODS`` is the registry.

FineTune trains Base, Aug and Aug+. DEC with the gradient update is Optim.
"""

from localscale.lab.methods.augmentation import RandomScaling
from localscale.lab.methods.canon import Canon, DiscreteCanonicalizer
from localscale.lab.methods.controls import CentreZoom, RandomWarp
from localscale.lab.methods.dec import DEC
from localscale.lab.methods.equivariance import AugL
from localscale.lab.methods.invariance import InvL
from localscale.lab.methods.method import FineTune, Method, TrainingStep
from localscale.lab.methods.sizes import SizeEquilibrium
from localscale.lab.methods.zoom import SaliencySampler, Zoom

__all__ = [
    "DEC",
    "METHODS",
    "AugL",
    "Canon",
    "CentreZoom",
    "DiscreteCanonicalizer",
    "FineTune",
    "InvL",
    "Method",
    "RandomScaling",
    "RandomWarp",
    "SaliencySampler",
    "SizeEquilibrium",
    "TrainingStep",
    "Zoom",
]

METHODS: dict[str, type[Method]] = {
    "FineTune": FineTune,
    "Canon": Canon,
    "InvL": InvL,
    "AugL": AugL,
    "DEC": DEC,
    "SizeEquilibrium": SizeEquilibrium,
    "Zoom": Zoom,
    "CentreZoom": CentreZoom,
    "RandomWarp": RandomWarp,
}
