"""Detectors: find the box of a photograph's labelled object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image

from localscale.errors import DataError
from localscale.extras import require
from localscale.lab.data.boxes import Box, bounding_box
from localscale.lab.data.generation.job import Skip
from localscale.lab.data.imagenet.annotations import find_box_file, find_mask_file, load_boxes, parse_box, read_mask
from localscale.lab.data.imagenet.box_table import load_box_table
from localscale.lab.data.imagenet.evidence import evidence_box, load_classifier
from localscale.lab.data.imagenet.input_files import identify, identify_model, require_path
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.stages import Detector, Photograph
from localscale.lab.data.imagenet.weights import check_device, loading

__all__ = ["EvidenceDetector", "GivenDetector", "GroundingDinoDetector", "class_prompt"]


class GroundingDinoDetector(Detector):
    """Grounding DINO from ``transformers`` (4.51 or later), prompted with the class name; its best box is used."""

    @classmethod
    def settings(cls, options: ImageNetOptions) -> dict[str, Any]:
        return {"model": identify_model(options.dino_model), "threshold": options.dino_threshold}

    def __init__(self, options: ImageNetOptions) -> None:
        transformers = require("transformers", "imagenet")
        self.threshold, self.device = options.dino_threshold, check_device(options.device)
        with loading(f"Grounding DINO ({options.dino_model})", "pass a local folder with --dino-model"):
            self.processor = transformers.AutoProcessor.from_pretrained(options.dino_model)
            model = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(
                options.dino_model, use_safetensors=True
            )
            self.model = model.to(options.device).eval()

    def __call__(self, photograph: Photograph) -> Box | Skip:
        image = Image.fromarray(photograph.pixels)
        inputs = self.processor(images=image, text=class_prompt(photograph.class_name), return_tensors="pt")
        inputs = inputs.to(self.device)
        with torch.inference_mode():
            outputs = self.model(**inputs)
        found = self.processor.post_process_grounded_object_detection(
            outputs,
            inputs["input_ids"],
            threshold=self.threshold,
            text_threshold=self.threshold,
            target_sizes=[(photograph.height, photograph.width)],
        )[0]
        if not len(found["scores"]):
            return Skip("the detector found no box", {"detail": f"none scored {self.threshold} or more"})
        best = int(found["scores"].argmax())
        left, top, right, bottom = found["boxes"][best].tolist()
        try:
            return Box(left, top, right, bottom, float(found["scores"][best])).clipped(
                photograph.width, photograph.height
            )
        except DataError as error:
            return Skip("the detector found no box", {"detail": str(error)})


class EvidenceDetector(Detector):
    """A box around a classifier's evidence for the image's class, so that no detection model is needed."""

    @classmethod
    def settings(cls, options: ImageNetOptions) -> dict[str, Any]:
        path = options.classifier_weights
        weights = identify(require_path(path, "--classifier-weights", "evidence")) if path else "timm"
        return {"classifier": options.classifier, "weights": weights}

    def __init__(self, options: ImageNetOptions) -> None:
        device = check_device(options.device)
        self.model = load_classifier(options.classifier, options.classifier_weights).to(device)

    def __call__(self, photograph: Photograph) -> Box | Skip:
        box = evidence_box(self.model, photograph.pixels, photograph.class_index)
        if box is None:
            return Skip("the detector found no box", {"detail": "the class score does not depend on the image"})
        return box


class GivenDetector(Detector):
    """Boxes that the user provides: one CSV or JSON file, or a folder with a box or a mask for each image."""

    @classmethod
    def settings(cls, options: ImageNetOptions) -> dict[str, Any]:
        path = require_path(options.boxes or options.masks, "--boxes", "given")
        if _is_table(path):
            load_box_table(path)  # report a wrong file before anything is written
        return {"boxes": identify(path)}

    def __init__(self, options: ImageNetOptions) -> None:
        self.folder = require_path(options.boxes or options.masks, "--boxes", "given")
        self.table = load_box_table(self.folder) if _is_table(self.folder) else None
        self.boxes = None if self.table or self.folder.is_dir() else load_boxes(self.folder)

    def __call__(self, photograph: Photograph) -> Box | Skip:
        try:
            return self._look_up(photograph)
        except DataError as error:
            return Skip("the given box cannot be used", {"detail": str(error)})

    def _look_up(self, photograph: Photograph) -> Box | Skip:
        if self.table is not None:
            return self.table.find(photograph) or Skip("no box is given")
        if self.boxes is not None:
            if photograph.name not in self.boxes:
                return Skip("no box is given")
            return parse_box(self.boxes[photograph.name], photograph)
        path = find_box_file(self.folder, photograph.name)
        if path is not None:
            return parse_box(dict(load_boxes(path)), photograph)
        path = find_mask_file(self.folder, photograph.name)
        if path is None:
            return Skip("no box is given")
        return bounding_box(read_mask(path, photograph))


def _is_table(path: Path) -> bool:
    return path.suffix.lower() == ".csv" and path.is_file()


def class_prompt(name: str) -> str:
    """Return Grounding DINO's prompt for a class: its name in lower case with a full stop.

    >>> class_prompt("Great_white_shark")
    'great white shark.'
    """
    return " ".join(name.replace("_", " ").replace(".", " ").lower().split()) + "."
