"""Tasks: the images a run learns from and the metrics it is measured by; ``TASKS`` is the registry."""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from localscale.errors import ConfigError
from localscale.lab.tasks.folder import FolderData
from localscale.lab.tasks.imagenet import ImageNetData
from localscale.lab.tasks.mask_folder import MaskFolderData
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.tasks.objects import ObjectsData
from localscale.lab.tasks.task import Task, TaskData

__all__ = [
    "TASKS",
    "FolderData",
    "ImageNetData",
    "MNISTData",
    "MaskFolderData",
    "ObjectsData",
    "Task",
    "TaskData",
    "register",
]

TASKS: dict[str, type[TaskData]] = {
    "mnist": MNISTData,
    "imagenet": ImageNetData,
    "objects": ObjectsData,
    "folder": FolderData,
    "masks": MaskFolderData,
}

Data = TypeVar("Data", bound=type[TaskData])


def register(name: str) -> Callable[[Data], Data]:
    """Return a decorator that enters the settings of a task of your own in ``TASKS`` as ``name``.

    ``recipe.json`` names the class of its data, and reading it never imports a module. So a program that resumes or
    loads a run imports the module with the decorated class first.

    >>> @register("blank")
    ... @dataclasses.dataclass(frozen=True)
    ... class BlankData(TaskData):
    ...     image_size: int = 32
    ...     def task(self, normalise, batch_size): ...
    >>> TASKS.pop("blank") is BlankData
    True
    """

    def enter(kind: Data) -> Data:
        if not (isinstance(kind, type) and issubclass(kind, TaskData) and dataclasses.is_dataclass(kind)):
            raise ConfigError(f"cannot register {kind!r}; expected a frozen dataclass derived from TaskData")
        if not kind.__dataclass_params__.frozen:
            raise ConfigError(f"{kind.__name__} can be changed after it was checked; use @dataclass(frozen=True)")
        for field in dataclasses.fields(kind):
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise ConfigError(f"{kind.__name__}.{field.name} has no default; give every field one")
        for known, other in TASKS.items():
            again = (other.__module__, other.__qualname__) == (kind.__module__, kind.__qualname__)  # a notebook's cell
            if (known == name or other.__name__ == kind.__name__) and not (known == name and again):
                raise ConfigError(
                    f"{kind.__name__} cannot be the task {name!r}: {other.__module__}.{other.__qualname__} is the "
                    f"task {known!r}; choose another name for the task and for the class"
                )
        TASKS[name] = kind
        return kind

    return enter
