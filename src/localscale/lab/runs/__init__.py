"""Runs on disk: the folder of a training run, and reading finished ones."""

from localscale.lab.runs.run import Run

__all__ = ["Run"]
