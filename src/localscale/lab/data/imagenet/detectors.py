"""Who finds the labelled object: each detector is a picture → a box, or the reason why there is none."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from localscale.errors import DataError
from localscale.extras import require
from localscale.lab.data.boxes import Box, bounding_box
from localscale.lab.data.generation.job import Skip
from localscale.lab.data.imagenet.evidence import evidence_box, load_classifier
from localscale.lab.data.imagenet.given import (
    check_source,
    find_box_file,
    find_mask_file,
    load_boxes,
    parse_box,
    read_mask,
)
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.pictures import Picture
from localscale.lab.data.imagenet.weights import check_device, loading

__all__ = ["EvidenceDetector", "GivenDetector", "GroundingDinoDetector", "class_prompt"]


class GroundingDinoDetector:
    """Grounding DINO of ``transformers`` (4.51 or later), asked for the class by name; the best box counts."""

    def __init__(self, options: ImageNetOptions) -> None:
        transformers = require("transformers", "imagenet")
        self.threshold, self.device = options.dino_threshold, check_device(options.device)
        with loading(f"Grounding DINO ({options.dino_model})", "name a local folder with --dino-model"):
            self.processor = transformers.AutoProcessor.from_pretrained(options.dino_model)
            model = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(
                options.dino_model, use_safetensors=True
            )
            self.model = model.to(options.device).eval()

    def __call__(self, picture: Picture) -> Box | Skip:
        image = Image.fromarray(picture.pixels)
        inputs = self.processor(images=image, text=class_prompt(picture.class_name), return_tensors="pt")
        inputs = inputs.to(self.device)
        with torch.inference_mode():
            outputs = self.model(**inputs)
        found = self.processor.post_process_grounded_object_detection(
            outputs,
            inputs["input_ids"],
            threshold=self.threshold,
            text_threshold=self.threshold,
            target_sizes=[(picture.height, picture.width)],
        )[0]
        if not len(found["scores"]):
            return Skip("the detector found no box", {"detail": f"none scored {self.threshold} or more"})
        best = int(found["scores"].argmax())
        left, top, right, bottom = found["boxes"][best].tolist()
        try:
            return Box(left, top, right, bottom, float(found["scores"][best])).clipped(picture.width, picture.height)
        except DataError as error:
            return Skip("the detector found no box", {"detail": str(error)})


class EvidenceDetector:
    """A box around the evidence of a classifier for the image's own class: no detector is needed."""

    def __init__(self, options: ImageNetOptions) -> None:
        device = check_device(options.device)
        self.model = load_classifier(options.classifier, options.classifier_weights).to(device)

    def __call__(self, picture: Picture) -> Box | Skip:
        box = evidence_box(self.model, picture.pixels, picture.class_index)
        if box is None:
            return Skip("the detector found no box", {"detail": "the class score does not depend on the image"})
        return box


class GivenDetector:
    """Boxes on disk: one JSON file for all, or a folder with a box or a mask for each image."""

    def __init__(self, options: ImageNetOptions) -> None:
        self.folder: Path = check_source(options.boxes or options.masks, "--boxes", "given")
        self.boxes = None if self.folder.is_dir() else load_boxes(self.folder)

    def __call__(self, picture: Picture) -> Box | Skip:
        try:
            return self._look_up(picture)
        except DataError as error:
            return Skip("the given box cannot be used", {"detail": str(error)})

    def _look_up(self, picture: Picture) -> Box | Skip:
        if self.boxes is not None:
            if picture.name not in self.boxes:
                return Skip("no box is given")
            return parse_box(self.boxes[picture.name], picture)
        path = find_box_file(self.folder, picture.name)
        if path is not None:
            return parse_box(dict(load_boxes(path)), picture)
        path = find_mask_file(self.folder, picture.name)
        if path is None:
            return Skip("no box is given")
        return bounding_box(read_mask(path, picture))


def class_prompt(name: str) -> str:
    """What Grounding DINO is asked: the class in lower case with a full stop.

    >>> class_prompt("Great_white_shark")
    'great white shark.'
    """
    return " ".join(name.replace("_", " ").replace(".", " ").lower().split()) + "."
