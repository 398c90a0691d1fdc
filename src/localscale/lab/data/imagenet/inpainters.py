"""Inpainters: fill the hole that an object leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from localscale.errors import ConfigError, DataError
from localscale.extras import require
from localscale.lab.data.imagenet.input_files import check_checksum, identify
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.stages import Inpainter
from localscale.lab.data.imagenet.weights import check_device, loading

__all__ = ["LamaInpainter", "PatchMatchInpainter", "TeleaInpainter"]

LAMA_SOURCE = "https://github.com/Sanster/models/releases/download/add_big_lama/big-lama.pt"
MULTIPLE = 8  # LaMa halves its input three times
PATCH = 3  # PatchMatch's patch radius, in pixels


class LamaInpainter(Inpainter):
    """LaMa from its TorchScript file. Such a file can run code, so its checksum is verified before it is loaded."""

    @classmethod
    def settings(cls, options: ImageNetOptions) -> dict[str, Any]:
        return {"file": identify(cls._checked_file(options))}

    def __init__(self, options: ImageNetOptions) -> None:
        path, self.device = self._checked_file(options), check_device(options.device)
        with loading(f"LaMa ({path.name})", "use --inpainter patchmatch"):
            self.model = torch.jit.load(str(path), map_location=options.device).eval()

    def __call__(self, pixels: np.ndarray, hole: np.ndarray) -> np.ndarray:
        height, width = hole.shape
        padding = (0, -width % MULTIPLE, 0, -height % MULTIPLE)
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255
        image, mask = (
            F.pad(tensor, padding, mode="replicate").to(self.device)
            for tensor in (image, torch.from_numpy(hole)[None, None].float())
        )
        with torch.inference_mode():
            filled = self.model(image, mask)[0, :, :height, :width].float().cpu()
        if not filled.isfinite().all():
            raise DataError("LaMa returned values that are not finite; use another --inpainter or --device")
        levels = (filled.permute(1, 2, 0).clamp(0, 1) * 255).round().byte().numpy()
        return np.where(hole[..., None], levels, pixels)

    @staticmethod
    def _checked_file(options: ImageNetOptions) -> Path:
        if options.lama is None:
            raise ConfigError(
                f'"lama" needs the TorchScript file big-lama.pt: download {LAMA_SOURCE} (196 MB, Apache-2.0) and pass '
                "it with --lama, or use --inpainter patchmatch, which needs no file"
            )
        check_checksum(options.lama, options.lama_checksum, option="--lama-checksum")
        return options.lama


class PatchMatchInpainter(Inpainter):
    """PatchMatch (``pypatchmatch`` 2 or later): copies patches from elsewhere in the image and needs no weights."""

    def __init__(self, options: ImageNetOptions) -> None:
        self.patchmatch = require("patchmatch.patch_match", "imagenet")
        if not self.patchmatch.patchmatch_available:
            raise ConfigError("pypatchmatch's native library cannot be loaded here; use --inpainter telea or lama")

    def __call__(self, pixels: np.ndarray, hole: np.ndarray) -> np.ndarray:
        self.patchmatch.set_random_seed(0)  # reset for every call, so equal inputs give equal results
        filled = self.patchmatch.inpaint(pixels, hole.astype(np.uint8) * 255, patch_size=PATCH)
        return np.where(hole[..., None], filled, pixels)


class TeleaInpainter(Inpainter):
    """Telea's fast marching method from OpenCV: fast and smooth, suited to small holes."""

    RADIUS = 5

    def __init__(self, options: ImageNetOptions) -> None:
        self.cv2 = require("cv2", "imagenet")

    def __call__(self, pixels: np.ndarray, hole: np.ndarray) -> np.ndarray:
        mask = hole.astype(np.uint8) * 255
        filled = self.cv2.inpaint(np.ascontiguousarray(pixels), mask, self.RADIUS, self.cv2.INPAINT_TELEA)
        return np.where(hole[..., None], filled, pixels)
