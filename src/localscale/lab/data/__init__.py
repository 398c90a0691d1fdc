"""The three locally scaled datasets."""

from localscale.lab.data.generation import generate
from localscale.lab.data.imagenet import LocallyScaledImageNet
from localscale.lab.data.labelled import LabelledImages
from localscale.lab.data.mnist import LocallyScaledMNIST
from localscale.lab.data.mnist.digits import Digits, embedded_digits, load_digits
from localscale.lab.data.objects import LocallyScaledObjects
from localscale.lab.data.stored import Stored

__all__ = [
    "Digits",
    "LabelledImages",
    "LocallyScaledImageNet",
    "LocallyScaledMNIST",
    "LocallyScaledObjects",
    "Stored",
    "embedded_digits",
    "generate",
    "load_digits",
]
