"""Segmenters: cut out the object in a box."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from localscale.errors import DataError
from localscale.extras import require
from localscale.lab.data.boxes import Box, bounding_box
from localscale.lab.data.generation.job import Skip
from localscale.lab.data.imagenet.annotations import find_mask_file, read_mask
from localscale.lab.data.imagenet.input_files import identify, identify_model, require_path
from localscale.lab.data.imagenet.masks import clean_mask
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.stages import Photograph, Segmenter
from localscale.lab.data.imagenet.weights import check_device, loading

__all__ = ["GivenSegmenter", "GrabCutSegmenter", "SamSegmenter"]


class SamSegmenter(Segmenter):
    """SAM from ``transformers``, prompted with the box; the mask with the highest predicted IoU is used."""

    @classmethod
    def settings(cls, options: ImageNetOptions) -> dict[str, Any]:
        return {"model": identify_model(options.sam_model)}

    def __init__(self, options: ImageNetOptions) -> None:
        transformers = require("transformers", "imagenet")
        self.device = options.device
        with loading(
            f"SAM ({options.sam_model})", "pass a local folder with --sam-model, or choose another --segmenter"
        ):
            self.processor = transformers.SamProcessor.from_pretrained(options.sam_model)
            model = transformers.SamModel.from_pretrained(options.sam_model, use_safetensors=True)
            self.model = model.to(check_device(options.device)).eval()

    def __call__(self, photograph: Photograph, box: Box) -> np.ndarray | Skip:
        image = Image.fromarray(photograph.pixels)
        inputs = self.processor(images=image, input_boxes=[[list(map(float, box.edges))]], return_tensors="pt")
        sizes, reshaped = inputs["original_sizes"], inputs["reshaped_input_sizes"]
        with torch.inference_mode():
            outputs = self.model(
                pixel_values=inputs["pixel_values"].to(self.device),
                input_boxes=inputs["input_boxes"].to(self.device, torch.float32),
                multimask_output=True,
            )
        masks = self.processor.post_process_masks(outputs.pred_masks.cpu(), sizes, reshaped)[0][0]
        return clean_mask(masks[int(outputs.iou_scores[0, 0].argmax())].numpy(), keep=0.1, gap=0.05)


class GrabCutSegmenter(Segmenter):
    """GrabCut from OpenCV, which separates the colours inside the box from those around it and needs no weights."""

    SIDE = 256  # the longer side of the image it works on; a larger one does not improve its colour models
    ROUNDS = 5
    OVAL = 0.85  # fraction of the box's sides: this ellipse is marked "probably object"
    CORES = (0.0, 0.3, 0.5)  # fractions of the box's sides: each attempt marks a larger ellipse as "object"
    ENOUGH = 0.4  # IoU of the mask's bounding box and the box that ends the attempts; chosen on Oxford-IIIT Pets

    def __init__(self, options: ImageNetOptions) -> None:
        self.cv2 = require("cv2", "imagenet")

    def __call__(self, photograph: Photograph, box: Box) -> np.ndarray | Skip:
        factor = min(1.0, self.SIDE / max(photograph.width, photograph.height))
        size = max(round(photograph.width * factor), 1), max(round(photograph.height * factor), 1)
        pixels = np.asarray(Image.fromarray(photograph.pixels).resize(size, Image.Resampling.BOX))
        scaled = box.resized(size[0] / photograph.width, size[1] / photograph.height)
        mask = self._best_cut(np.ascontiguousarray(pixels), scaled)
        if mask is None:
            return Skip("the segmenter found no object", {"detail": "GrabCut's mask collapsed"})
        levels = Image.fromarray(mask.astype(np.uint8) * 255)
        smooth = levels.resize((photograph.width, photograph.height), Image.Resampling.BICUBIC)
        return np.asarray(smooth) >= 128

    def _best_cut(self, pixels: np.ndarray, box: Box) -> np.ndarray | None:
        """Return the mask that fits the box best, or None if every attempt finds nothing.

        GrabCut sometimes keeps a small part of the object only. Further attempts then start from a larger certain core.
        """
        best, most = None, -1.0
        for core in self.CORES:
            mask = self._cut(pixels, box, core)
            overlap = bounding_box(mask).overlap(box) if mask.any() else -1.0
            if overlap > most:
                best, most = mask, overlap
            if most >= self.ENOUGH:
                break
        return best

    def _cut(self, pixels: np.ndarray, box: Box, core: float) -> np.ndarray:
        guess = self._first_guess(box, pixels.shape[1], pixels.shape[0], core)
        if not (guess & 1).any():  # the box is thinner than a pixel
            return np.zeros(guess.shape, bool)
        models = np.zeros((1, 65)), np.zeros((1, 65))
        self.cv2.setRNGSeed(0)  # grabCut clusters with a global random generator
        self.cv2.grabCut(pixels, guess, None, *models, self.ROUNDS, self.cv2.GC_INIT_WITH_MASK)
        return clean_mask((guess & 1).astype(bool))

    def _first_guess(self, box: Box, width: int, height: int, core: float) -> np.ndarray:
        """Mark background outside the box, "probably object" in an ellipse inside it, "probably background" in between.

        If the box covers the whole image, the pixels along the frame are background. OpenCV's two codes for object are
        the odd ones.
        """
        x, y = (np.arange(length) + 0.5 for length in (width, height))
        across, down = (x - box.centre[0]) / (box.right - box.left), (y - box.centre[1]) / (box.bottom - box.top)
        inside = (np.abs(down) <= 0.5)[:, None] & (np.abs(across) <= 0.5)[None]
        if inside.all():
            inside = np.pad(inside[1:-1, 1:-1], 1)
        distance = np.sqrt(across[None] ** 2 + down[:, None] ** 2)
        guess = np.where(inside, self.cv2.GC_PR_BGD, self.cv2.GC_BGD)
        guess[inside & (distance < self.OVAL / 2)] = self.cv2.GC_PR_FGD
        guess[inside & (distance < core / 2)] = self.cv2.GC_FGD
        return guess.astype(np.uint8)


class GivenSegmenter(Segmenter):
    """Masks that the user provides, one PNG for each image."""

    trusted = True

    @classmethod
    def settings(cls, options: ImageNetOptions) -> dict[str, Any]:
        return {"masks": identify(require_path(options.masks, "--masks", "given"))}

    def __init__(self, options: ImageNetOptions) -> None:
        self.folder = require_path(options.masks, "--masks", "given")
        if not self.folder.is_dir():
            raise DataError(f"--masks {self.folder} is a file; expected a folder with a mask for each image")

    def __call__(self, photograph: Photograph, box: Box) -> np.ndarray | Skip:
        path = find_mask_file(self.folder, photograph.name)
        if path is None:
            return Skip("no mask is given")
        try:
            return read_mask(path, photograph)
        except DataError as error:
            return Skip("the given mask cannot be used", {"detail": str(error)})
