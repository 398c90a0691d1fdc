"""Who cuts the object out: each segmenter is a picture and a box → a mask, or the reason why there is none."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from localscale.errors import DataError
from localscale.extras import require
from localscale.lab.data.boxes import Box
from localscale.lab.data.generation.job import Skip
from localscale.lab.data.imagenet.given import check_source, find_mask_file, read_mask
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.pictures import Picture, tidy
from localscale.lab.data.imagenet.weights import check_device, loading

__all__ = ["GivenSegmenter", "GrabCutSegmenter", "SamSegmenter"]


class SamSegmenter:
    """SAM of ``transformers``, prompted with the box; of its masks the one it trusts most."""

    def __init__(self, options: ImageNetOptions) -> None:
        transformers = require("transformers", "imagenet")
        self.device = options.device
        with loading(f"SAM ({options.sam_model})", "name a local folder with --sam-model, or use another segmenter"):
            self.processor = transformers.SamProcessor.from_pretrained(options.sam_model)
            model = transformers.SamModel.from_pretrained(options.sam_model, use_safetensors=True)
            self.model = model.to(check_device(options.device)).eval()

    def __call__(self, picture: Picture, box: Box) -> np.ndarray | Skip:
        image = Image.fromarray(picture.pixels)
        inputs = self.processor(images=image, input_boxes=[[list(map(float, box.edges))]], return_tensors="pt")
        sizes, reshaped = inputs["original_sizes"], inputs["reshaped_input_sizes"]
        with torch.inference_mode():
            outputs = self.model(
                pixel_values=inputs["pixel_values"].to(self.device),
                input_boxes=inputs["input_boxes"].to(self.device, torch.float32),
                multimask_output=True,
            )
        masks = self.processor.post_process_masks(outputs.pred_masks.cpu(), sizes, reshaped)[0][0]
        return tidy(masks[int(outputs.iou_scores[0, 0].argmax())].numpy(), keep=0.1, gap=0.05)


class GrabCutSegmenter:
    """GrabCut (OpenCV): colours inside the box against colours around it. No weights."""

    SIDE = 256  # the longer side it works at; its colour models gain nothing from more
    ROUNDS = 5
    OVAL = 0.85  # of the box's width and height: an ellipse that is probably object
    CORE = 0.3  # and one that is object for certain, if there is no mask without it

    def __init__(self, options: ImageNetOptions) -> None:
        self.cv2 = require("cv2", "imagenet")

    def __call__(self, picture: Picture, box: Box) -> np.ndarray | Skip:
        factor = min(1.0, self.SIDE / max(picture.width, picture.height))
        size = max(round(picture.width * factor), 1), max(round(picture.height * factor), 1)
        pixels = np.asarray(Image.fromarray(picture.pixels).resize(size, Image.Resampling.BOX))
        scaled = box.resized(size[0] / picture.width, size[1] / picture.height)
        for certain in (False, True):  # a mask that collapsed is tried again with the middle held fast
            mask = self._cut(np.ascontiguousarray(pixels), scaled, certain=certain)
            if mask.any():
                break
        else:
            return Skip("the segmenter found no object", {"detail": "GrabCut's mask collapsed"})
        levels = Image.fromarray(mask.astype(np.uint8) * 255)
        smooth = levels.resize((picture.width, picture.height), Image.Resampling.BICUBIC)
        return np.asarray(smooth) >= 128

    def _cut(self, pixels: np.ndarray, box: Box, *, certain: bool) -> np.ndarray:
        guess = self._first_guess(box, pixels.shape[1], pixels.shape[0], certain=certain)
        if not (guess & 1).any():  # a box thinner than a pixel
            return np.zeros(guess.shape, bool)
        models = np.zeros((1, 65)), np.zeros((1, 65))
        self.cv2.setRNGSeed(0)  # its clustering draws from a global generator
        self.cv2.grabCut(pixels, guess, None, *models, self.ROUNDS, self.cv2.GC_INIT_WITH_MASK)
        return tidy((guess & 1).astype(bool))

    def _first_guess(self, box: Box, width: int, height: int, *, certain: bool) -> np.ndarray:
        """Background outside the box and along the frame, probably object in an oval inside, probably not in the
        box's corners. OpenCV's numbers for object, certain or not, are odd.
        """
        x, y = (np.arange(length) + 0.5 for length in (width, height))
        across, down = (x - box.centre[0]) / (box.right - box.left), (y - box.centre[1]) / (box.bottom - box.top)
        inside = (np.abs(down) <= 0.5)[:, None] & (np.abs(across) <= 0.5)[None]
        if inside.all():
            inside = np.pad(inside[1:-1, 1:-1], 1)
        distance = np.sqrt(across[None] ** 2 + down[:, None] ** 2)
        guess = np.where(inside, self.cv2.GC_PR_BGD, self.cv2.GC_BGD)
        guess[inside & (distance < self.OVAL / 2)] = self.cv2.GC_PR_FGD
        if certain:
            guess[inside & (distance < self.CORE / 2)] = self.cv2.GC_FGD
        return guess.astype(np.uint8)


class GivenSegmenter:
    """Masks on disk, one PNG for each image."""

    def __init__(self, options: ImageNetOptions) -> None:
        self.folder = check_source(options.masks, "--masks", "given")
        if not self.folder.is_dir():
            raise DataError(f"--masks {self.folder} is a file; expected a folder with a mask for each image")

    def __call__(self, picture: Picture, box: Box) -> np.ndarray | Skip:
        path = find_mask_file(self.folder, picture.name)
        if path is None:
            return Skip("no mask is given")
        try:
            return read_mask(path, picture)
        except DataError as error:
            return Skip("the given mask cannot be used", {"detail": str(error)})
