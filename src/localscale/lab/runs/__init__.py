"""Runs on disk: the folder of a training run, and one reader for finished runs.

>>> from localscale.lab.runs import load_run
>>> model = load_run("runs/mnist-deit_tiny-dec/seed0")  # doctest: +SKIP
"""

from localscale.lab.runs.finished import FinishedRun, load_run, read_run
from localscale.lab.runs.run import Run

__all__ = ["FinishedRun", "Run", "load_run", "read_run"]
