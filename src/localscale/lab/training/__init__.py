"""Training by recipe: one loop for every method, runs that survive interruptions, tables that are planned.

>>> from localscale.lab.training import find_recipe, train
>>> recipe = find_recipe("mnist-deit_tiny-aug")
>>> result = train(recipe, Path("runs/aug"), progress=True)  # doctest: +SKIP
"""

from localscale.lab.recipes import RECIPES, find_recipe
from localscale.lab.recipes.recipe import Recipe
from localscale.lab.runs.run import Run
from localscale.lab.training.runner import evaluate_run, load_run, train

__all__ = ["RECIPES", "Recipe", "Run", "evaluate_run", "find_recipe", "load_run", "train"]
