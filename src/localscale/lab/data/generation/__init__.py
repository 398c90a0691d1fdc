"""Datasets written at any size: an item is a pure function of its index, a chunk of items is whole or absent."""

from localscale.lab.data.generation.generate import Engine, Summary, generate
from localscale.lab.data.generation.job import Job, Sample, Skip, Stage
from localscale.lab.data.generation.store import Form

__all__ = ["Engine", "Form", "Job", "Sample", "Skip", "Stage", "Summary", "generate"]
