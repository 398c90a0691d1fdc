"""Tasks: the images a run learns from and the metrics it is measured by; ``TASKS`` is the registry."""

from localscale.lab.tasks.imagenet import ImageNetData
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.tasks.objects import ObjectsData
from localscale.lab.tasks.task import Task, TaskData

__all__ = ["TASKS", "ImageNetData", "MNISTData", "ObjectsData", "Task", "TaskData"]

TASKS: dict[str, type[TaskData]] = {"mnist": MNISTData, "imagenet": ImageNetData, "objects": ObjectsData}
