"""Datasets written at any size: an item is a pure function of its index, a chunk of items is whole or absent."""

from localscale.data.generation.job import Job, Sample, Skip, Stage

__all__ = ["Job", "Sample", "Skip", "Stage"]
