"""Fine-tune a model on plain loaders: ``fit``."""

from localscale.fitting.loop import fit
from localscale.fitting.settings import EpochReport, Fitted

__all__ = ["EpochReport", "Fitted", "fit"]
