"""Fine-tune a model on plain loaders: ``fit``.

``fit`` has a training loop of its own, because the library may not import the lab. The lab's loop trains recipes: it
knows a task, a method and a dataset whose samples have numbers, and computes all random numbers from a seed and these
numbers. A user's loader has none of these. The two loops share ``localscale.stopping`` (Ctrl-C stops between two
steps), ``localscale.checkpoints`` (the files), and ``localscale.fitting.traps`` (canonicalizers without a gradient).
"""

from localscale.fitting.loop import fit
from localscale.fitting.settings import EpochReport, Fitted

__all__ = ["EpochReport", "Fitted", "fit"]
