"""Ask the model of a finished run about image files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as T

from localscale.canonicalizer import INPUT
from localscale.errors import ConfigError
from localscale.lab.data.images import read_image
from localscale.lab.runs.answers import open_model
from localscale.lab.runs.finished import FinishedRun
from localscale.lab.runs.names import names_of_run
from localscale.lab.tasks.folder import central_crop
from localscale.warp import unscale

__all__ = ["Prediction", "Predictor"]


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes with their probabilities, what the model saw, and its canonical form, if it has one."""

    classes: list[tuple[str, float]]
    seen: Image.Image
    canonical: Image.Image | None


class Predictor:
    """The model of a finished classification run, ready for images of any size."""

    def __init__(self, run: FinishedRun) -> None:
        data = run.recipe.data
        if data.dense:
            raise ConfigError(f"the run in {run.folder} predicts masks; localscale predict names classes only")
        self.model, self.name_of, self.classes = open_model(run), names_of_run(run), run.classes
        self.crop = central_crop(data.image_size, getattr(data, "crop", 1.0))

    @torch.no_grad()
    def __call__(self, path: Path, top: int = 3) -> Prediction:
        """Return the answer for an image file; a file that is not an image raises ``DataError``."""
        image = self.crop(read_image(path))[None].float() / 255
        probabilities = self.model.network(self.model.normalise(image)).float().softmax(1)[0]
        best, labels = probabilities.topk(min(top, self.classes))
        m = self.model.maps(image).get(INPUT)
        return Prediction(
            [(self.name_of(label), each) for label, each in zip(labels.tolist(), best.tolist(), strict=True)],
            _picture(image),
            None if m is None else _picture(unscale(image, m)),
        )


def _picture(image: Tensor) -> Image.Image:
    return T.to_pil_image(image[0].clamp(0, 1))
