"""Names of the classes that a run tells apart."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from timm.data import ImageNetInfo, infer_imagenet_subset

from localscale.errors import LocalScaleError
from localscale.lab.backbones.catalogue import sketch_of
from localscale.lab.data.imagenet import LocallyScaledImageNet
from localscale.lab.runs.finished import FinishedRun
from localscale.lab.tasks.imagenet import ImageNetData
from localscale.lab.tasks.mnist import MNISTData

__all__ = ["names_of_imagenet", "names_of_run"]


def names_of_run(run: FinishedRun) -> Callable[[int], str]:
    """Return the function from a label to its name, for the classes of ``run``."""
    data, classes = run.recipe.data, run.classes
    if run.class_names:
        return lambda label: run.class_names[label]
    if isinstance(data, MNISTData):
        return lambda label: f"{label:03d}"
    if isinstance(data, ImageNetData) and data.test_root is not None:
        with contextlib.suppress(LocalScaleError):  # the test images may have been deleted since
            names = LocallyScaledImageNet(data.test_root).classes
            if len(names) == classes:
                return lambda label: names[label]
    return names_of_imagenet(sketch_of(run.recipe.backbone), classes)


def names_of_imagenet(sketch: Any, classes: int) -> Callable[[int], str]:
    """Return the function from a label to its name in ImageNet, or to its number if ``sketch`` has other classes."""
    subset = infer_imagenet_subset(sketch) if sketch.pretrained_cfg.get("num_classes") == classes else None
    if subset is None:
        return lambda label: f"class {label}"
    info = ImageNetInfo(subset)
    return lambda label: info.index_to_description(label).partition(",")[0]
