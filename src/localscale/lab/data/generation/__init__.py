"""Write datasets of any size in parallel; a run can be continued, because each item depends on its index alone."""

from localscale.lab.data.generation.generate import Engine, Summary, generate
from localscale.lab.data.generation.job import Job, Sample, Skip, Stage
from localscale.lab.data.generation.store import Form

__all__ = ["Engine", "Form", "Job", "Sample", "Skip", "Stage", "Summary", "generate"]
