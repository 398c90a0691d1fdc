"""The three locally scaled datasets."""

from localscale.data.generation import generate
from localscale.data.imagenet import LocallyScaledImageNet
from localscale.data.labelled import LabelledImages
from localscale.data.mnist import LocallyScaledMNIST
from localscale.data.mnist.digits import Digits, embedded_digits, load_digits
from localscale.data.objects import LocallyScaledObjects
from localscale.data.stored import Stored

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
