"""``localscale train folder``: fine-tune any timm model on a user's own folder of photographs."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localscale.cli.training import Training, Where, parse_recipe, run_folder

__all__ = ["parse_folder", "parse_own"]

logger = logging.getLogger(__name__)

ABOUT = """Fine-tune a model on a folder of photographs, to classify or to segment them.

localscale train folder --data.train-root my/train --data.val-root my/val --backbone resnet18 --method sizes"""
FOLDER_OPTIONS = {
    "--data.train-root": "folder of the training images",
    "--data.val-root": "folder of the images to measure on; without it a part of the training images is held out",
    "--task NAME": "classification (default): my/train/CLASS/IMAGE.jpg\n"
    "segmentation: my/train/images/NAME.jpg and my/train/masks/NAME.png; a mask is as large as its image,\n"
    "its values are the classes 0, 1, 2 …, and 255 marks pixels to ignore",
    "--val-fraction X": "the part to hold out, short for --data.val-fraction (0.2)",
}


@dataclass(frozen=True)
class WithControl:
    """A recipe and its control, trained one after the other in neighbouring folders."""

    training: Training
    control: Training

    def run(self) -> None:
        _or_read(self.training).run()
        print("\ncontrol, the same training without canonicalizers:")
        _or_read(self.control).run()
        folder, control = (shlex.quote(str(run_folder(each))) for each in (self.training, self.control))
        print(f"\ncompare them: localscale report {folder} --control {control}")


def _or_read(training: Training) -> Training:
    """Return a training that prints the result of its folder, if that is finished, instead of refusing the folder."""
    from localscale.lab.runs import Run

    if not Run(run_folder(training)).result_file.exists():
        return training
    print(f"{run_folder(training)} is finished, and is not trained again")
    return dataclasses.replace(training, where=dataclasses.replace(training.where, resume=True))


def parse_folder(arguments: list[str]) -> Training | WithControl:
    """Return the recipe for a folder with the changes of the command line; unknown flags end the program."""
    from localscale.lab.recipes.folder import folder_recipe

    first = _first_flags()
    first.add_argument("--task", default="classification")
    first.add_argument("--val-fraction")
    chosen, rest = first.parse_known_args(arguments)
    if chosen.val_fraction is not None:
        rest += ["--data.val-fraction", chosen.val_fraction]
    recipe = folder_recipe(chosen.backbone, chosen.method, chosen.task)
    options = FOLDER_OPTIONS | _options(recipe)
    found = _with_control(
        recipe, rest, control=chosen.control, prog="localscale train folder", about=ABOUT, options=options
    )
    val_root = (found.training if isinstance(found, WithControl) else found).recipe.data.val_root
    if chosen.val_fraction is not None and val_root is not None:
        logger.warning("--val-fraction %s is not used, because --data.val-root is given", chosen.val_fraction)
    return found


def parse_own(name: str, arguments: list[str]) -> Training | WithControl:
    """Return the recipe for a task that a user registered, with the changes of the command line."""
    from localscale.lab.recipes.folder import own_recipe
    from localscale.lab.tasks import TASKS

    chosen, rest = _first_flags().parse_known_args(arguments)
    recipe = own_recipe(name, TASKS[name](), chosen.backbone, chosen.method)
    about = f"Fine-tune a model on {type(recipe.data).__name__}."
    return _with_control(
        recipe, rest, control=chosen.control, prog=f"localscale train {name}", about=about, options=_options(recipe)
    )


def _first_flags() -> argparse.ArgumentParser:
    """Return a parser for the flags that decide which other flags there are."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--backbone", default="resnet18")
    first.add_argument("--method", default="sizes")
    first.add_argument("--control", action="store_true")
    return first


def _options(recipe: Any) -> dict[str, str]:
    """Return the options that are needed most often, with what they do and the defaults of ``recipe``."""
    from localscale.lab.recipes.folder import FOLDER_METHODS

    steps, width = recipe.optimization, max(map(len, FOLDER_METHODS))
    methods = "\n".join(f"{name:{width}}  {sentence}" for name, (sentence, _) in FOLDER_METHODS.items())
    return {
        "--backbone NAME": "any model of timm (resnet18)",
        "--method NAME": f"what is added to it (sizes):\n{methods}",
        "--control": "also train the same recipe without canonicalizers, in the folder beside, and print both;\n"
        "a run that is finished already is not trained again",
        "--pretrained NAME": f"weights: timm (downloaded), none (random), or a safetensors file ({recipe.pretrained})",
        "--source-size N": "load images of this side, and sample canonical forms from them (the backbone's input)",
        "--epochs N": f"passes over the training images ({steps.epochs})",
        "--batch-size N": f"images in a step ({steps.batch_size})",
        "--learning-rate X": f"of the backbone ({steps.learning_rate:g})",
        "--seed N": f"seed of weights, order and augmentation ({recipe.seed})",
        "--out FOLDER": "folder of the run (runs/RECIPE/seedN)",
        "--resume": "continue an interrupted training",
        "--cpu": "run on the CPU even if a GPU is available",
    }


def _with_control(
    recipe: Any, rest: list[str], *, control: bool, prog: str, about: str, options: dict[str, str]
) -> Training | WithControl:
    """Return the training, with its control if that is wanted; ``--help`` shows ``options``, ``--help-all`` all."""
    from localscale.lab.recipes.folder import control_of

    width = max(map(len, options)) + 2
    lines = (f"{name:{width}}{text}".replace("\n", "\n" + " " * width) for name, text in options.items())
    about = "\n".join((about, "", *lines))
    if "--help" in rest or "-h" in rest:
        print(f"usage: {prog} [options]\n\n{about}\n{'--help-all':{width}}show every option")
        raise SystemExit
    rest = ["--help" if argument == "--help-all" else argument for argument in rest]
    training = parse_recipe(recipe, rest, prog=prog, about=about)
    if not control:
        return training
    where: Where = dataclasses.replace(training.where, out=beside(run_folder(training)))
    return WithControl(training, Training(control_of(training.recipe), where))


def beside(folder: Path) -> Path:
    """Return the control's folder: ``runs/NAME-control/seed0`` beside ``runs/NAME/seed0``, else ``FOLDER-control``."""
    if folder.name.startswith("seed"):
        return folder.parent.with_name(f"{folder.parent.name}-control") / folder.name
    return folder.with_name(f"{folder.name}-control")
