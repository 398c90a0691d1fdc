"""Locally scaled MNIST: three digits, each at a size of its own, read as one number (paper, Sec. 5.2)."""

from localscale.lab.data.mnist.dataset import BatchRenderer, LocallyScaledMNIST
from localscale.lab.data.mnist.digits import Digits, load_digits
from localscale.lab.data.mnist.job import MNISTOptions, mnist_job

__all__ = ["BatchRenderer", "Digits", "LocallyScaledMNIST", "MNISTOptions", "load_digits", "mnist_job"]
