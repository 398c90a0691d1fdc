"""The three locally scaled datasets."""

from localscale.data.generation import generate
from localscale.data.mnist import LocallyScaledMNIST
from localscale.data.mnist.digits import Digits, embedded_digits, load_digits
from localscale.data.stored import Stored

__all__ = ["Digits", "LocallyScaledMNIST", "Stored", "embedded_digits", "generate", "load_digits"]
