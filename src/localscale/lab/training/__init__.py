"""Training: one loop for every recipe, and runs that continue after interruptions.

>>> from localscale.lab.recipes import find_recipe
>>> from localscale.lab.training import train
>>> recipe = find_recipe("mnist-deit_tiny-aug")
>>> result = train(recipe, Path("runs/aug"), progress=True)  # doctest: +SKIP
"""

from localscale.lab.training.runner import evaluate_run, train

__all__ = ["evaluate_run", "train"]
