"""Ask the model of a finished run about image files: their classes, or a mask of the classes of their pixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as T

from localscale.adaptation.source import canonical_size
from localscale.canonicalizer import INPUT
from localscale.lab.data.images import read_image
from localscale.lab.runs.answers import open_model
from localscale.lab.runs.finished import FinishedRun
from localscale.lab.runs.names import names_of_run
from localscale.lab.tasks.folder import central_crop
from localscale.lab.tasks.mask_folder import whole_image
from localscale.warp import unscale

__all__ = ["Prediction", "Predictor"]


@dataclass(frozen=True)
class Prediction:
    """The answer for one image.

    ``classes`` are the likeliest classes with their probabilities or, for a segmenter, the commonest ones with their
    shares of the pixels. ``mask`` is a segmenter's label of each pixel of the image ``(H, W)``. ``canonical`` is the
    canonical form of ``seen``, what the model saw, if it has one; it has the size of the backbone's input.
    """

    classes: list[tuple[str, float]]
    seen: Image.Image
    canonical: Image.Image | None
    mask: np.ndarray | None = None


class Predictor:
    """The model of a finished run, ready for images of any size."""

    def __init__(self, run: FinishedRun) -> None:
        data = run.recipe.loaded_data
        self.model, self.name_of, self.classes = open_model(run), names_of_run(run), run.classes
        self.dense = data.dense
        self.transform = (
            whole_image(data.image_size) if data.dense else central_crop(data.image_size, getattr(data, "crop", 1.0))
        )

    @torch.no_grad()
    def __call__(self, path: Path, top: int = 3) -> Prediction:
        """Return the answer for an image file; a file that is not an image raises ``DataError``."""
        picture = read_image(path)
        image = self.transform(picture)[None].float() / 255
        scores = self.model.network(self.model.normalise(image)).float().softmax(1)[0]
        mask = None
        if self.dense:
            mask = _label_pixels(scores, (picture.height, picture.width))
            scores = torch.bincount(mask.flatten(), minlength=self.classes) / mask.numel()
        best, labels = scores.topk(min(top, self.classes))
        m = self.model.maps(image).get(INPUT)
        return Prediction(
            [
                (self.name_of(label), each)
                for label, each in zip(labels.tolist(), best.tolist(), strict=True)
                if each > 0 or not self.dense
            ],
            _picture(image),
            None if m is None else _picture(unscale(image, m, size=canonical_size(self.model.network))),
            None if mask is None else mask.numpy(),
        )


def _label_pixels(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the class of highest score at each pixel of an image of ``size``, from scores ``(K, h, w)``.

    One class at a time is resized, so that a large photograph with many classes fits into memory.
    """
    best, labels = torch.full(size, -1.0), torch.zeros(size, dtype=torch.int64)
    for label, score in enumerate(scores):
        resized = F.interpolate(score[None, None], size, mode="bilinear", align_corners=False)[0, 0]
        labels[resized > best] = label
        best = torch.maximum(best, resized)
    return labels


def _picture(image: Tensor) -> Image.Image:
    return T.to_pil_image(image[0].clamp(0, 1))
