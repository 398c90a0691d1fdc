"""The methods of the paper's tables, behind one interface: Plain (Base, Aug, Aug+), Canon, InvL, AugL, DEC, Optim."""

from localscale.baselines.augmentation import RandomScaling
from localscale.baselines.canon import Canon, DiscreteCanonicalizer
from localscale.baselines.dec import DEC
from localscale.baselines.equivariance import AugL
from localscale.baselines.invariance import InvL
from localscale.baselines.method import Method, Plain, TrainingStep

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
