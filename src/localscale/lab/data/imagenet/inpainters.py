"""Who fills the hole that the object leaves: each is an image and a hole → an image, the same outside the hole."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from localscale.errors import ConfigError, DataError
from localscale.extras import require
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.weights import check_device, loading

__all__ = ["LamaInpainter", "PatchMatchInpainter", "TeleaInpainter", "check_file", "check_lama"]

LAMA_SOURCE = "https://github.com/Sanster/models/releases/download/add_big_lama/big-lama.pt"
MULTIPLE = 8  # LaMa halves its input three times
PATCH = 3  # PatchMatch's radius
DIGESTS = {"sha256": 64, "md5": 32}


class LamaInpainter:
    """LaMa from its TorchScript file, which is checked before it is opened: it is a program."""

    def __init__(self, options: ImageNetOptions) -> None:
        path, self.device = check_lama(options), check_device(options.device)
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
            raise DataError("LaMa gave values that are not finite; use another inpainter or device")
        levels = (filled.permute(1, 2, 0).clamp(0, 1) * 255).round().byte().numpy()
        return np.where(hole[..., None], levels, pixels)


class PatchMatchInpainter:
    """PatchMatch (``pypatchmatch`` 2 or later): fills with patches from elsewhere in the same image."""

    def __init__(self, options: ImageNetOptions) -> None:
        self.patchmatch = require("patchmatch.patch_match", "imagenet")
        if not self.patchmatch.patchmatch_available:
            raise ConfigError("pypatchmatch's native library cannot be loaded here; use --inpainter telea or lama")

    def __call__(self, pixels: np.ndarray, hole: np.ndarray) -> np.ndarray:
        self.patchmatch.set_random_seed(0)  # every call starts from it, so equal inputs give equal results
        filled = self.patchmatch.inpaint(pixels, hole.astype(np.uint8) * 255, patch_size=PATCH)
        return np.where(hole[..., None], filled, pixels)


class TeleaInpainter:
    """Telea's fast marching (OpenCV): quick and smooth, for small holes."""

    RADIUS = 5

    def __init__(self, options: ImageNetOptions) -> None:
        self.cv2 = require("cv2", "imagenet")

    def __call__(self, pixels: np.ndarray, hole: np.ndarray) -> np.ndarray:
        mask = hole.astype(np.uint8) * 255
        filled = self.cv2.inpaint(np.ascontiguousarray(pixels), mask, self.RADIUS, self.cv2.INPAINT_TELEA)
        return np.where(hole[..., None], filled, pixels)


def check_lama(options: ImageNetOptions) -> Path:
    """LaMa's file, if there is one and it is what it should be."""
    if options.lama is None:
        raise ConfigError(
            f'"lama" needs the TorchScript file big-lama.pt: fetch {LAMA_SOURCE} (196 MB, Apache-2.0) and name it '
            "with --lama, or use --inpainter patchmatch, which needs no file"
        )
    check_file(options.lama, options.lama_checksum, option="--lama-checksum")
    return options.lama


def check_file(path: Path, checksum: str, *, option: str) -> None:
    """Refuse a file whose hash is not ``checksum``, written as ``sha256:…`` or ``md5:…``."""
    kind, _, expected = checksum.strip().lower().rpartition(":")
    kind = kind or next((name for name, length in DIGESTS.items() if length == len(expected)), "")
    if kind not in DIGESTS or len(expected) != DIGESTS[kind] or set(expected) - set("0123456789abcdef"):
        raise ConfigError(f"checksum {checksum!r}; expected sha256: and 64, or md5: and 32 hexadecimal digits")
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, kind).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if not hmac.compare_digest(found, expected):
        raise DataError(
            f"{path} has {kind} {found}; expected {expected}. It is not the file it should be: fetch it again, or say "
            f"which file you trust with {option} {kind}:…"
        )
