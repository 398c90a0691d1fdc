"""The methods of the paper's tables, behind one interface: Plain (Base, Aug, Aug+), Canon, InvL, AugL, DEC, Optim."""

from localscale.lab.methods.augmentation import RandomScaling
from localscale.lab.methods.canon import Canon, DiscreteCanonicalizer
from localscale.lab.methods.dec import DEC
from localscale.lab.methods.equivariance import AugL
from localscale.lab.methods.invariance import InvL
from localscale.lab.methods.method import Method, Plain, TrainingStep

__all__ = [
    "DEC",
    "AugL",
    "Canon",
    "DiscreteCanonicalizer",
    "InvL",
    "Method",
    "Plain",
    "RandomScaling",
    "TrainingStep",
]
