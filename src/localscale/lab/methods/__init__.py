"""The methods that tables compare, behind one interface: FineTune (Base, Aug, Aug+), Canon, InvL, AugL, DEC, Optim."""

from localscale.lab.methods.augmentation import RandomScaling
from localscale.lab.methods.canon import Canon, DiscreteCanonicalizer
from localscale.lab.methods.dec import DEC
from localscale.lab.methods.equivariance import AugL
from localscale.lab.methods.invariance import InvL
from localscale.lab.methods.method import FineTune, Method, TrainingStep

__all__ = [
    "DEC",
    "AugL",
    "Canon",
    "DiscreteCanonicalizer",
    "FineTune",
    "InvL",
    "Method",
    "RandomScaling",
    "TrainingStep",
]
