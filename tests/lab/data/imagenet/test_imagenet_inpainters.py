"""Inpainters: pixels outside the hole do not change, and equal inputs give equal results."""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest
from imagenet_models import write_lama
from photographs import SKY, disc, options, paint

from localscale.errors import ConfigError, DataError
from localscale.lab.data.imagenet.inpainters import LamaInpainter, PatchMatchInpainter, TeleaInpainter
from localscale.lab.data.imagenet.input_files import check_checksum
from localscale.lab.data.imagenet.options import BIG_LAMA, ImageNetOptions


@pytest.fixture
def lama(tmp_path: Path) -> ImageNetOptions:
    path = write_lama(tmp_path / "lama.pt")
    return options(lama=path, lama_checksum="sha256:" + hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("build", "size"),
    [(LamaInpainter, (96, 80)), (LamaInpainter, (93, 77)), (PatchMatchInpainter, (93, 77)), (TeleaInpainter, (93, 77))],
)
def test_nothing_changes_outside_the_hole(build, lama: ImageNetOptions, size: tuple[int, int]):
    pixels, hole = paint(disc(*size)), disc(*size, radius=24)
    before = pixels.copy()
    inpaint = build(lama)
    filled = inpaint(pixels, hole)
    assert (filled.dtype, filled.shape) == (np.uint8, pixels.shape)
    np.testing.assert_array_equal(filled[~hole], pixels[~hole])
    np.testing.assert_array_equal(pixels, before, "the input is not written to")
    assert np.abs(filled[hole].astype(int) - SKY).max() < 60, "the red disc is replaced by sky"
    np.testing.assert_array_equal(inpaint(pixels, hole), filled)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_lama_is_loaded_only_if_its_checksum_is_right(lama: ImageNetOptions, monkeypatch: pytest.MonkeyPatch):
    path = lama.lama
    assert path is not None
    md5 = "md5:" + hashlib.md5(path.read_bytes()).hexdigest()
    LamaInpainter(dataclasses.replace(lama, lama_checksum=md5))
    monkeypatch.setattr("torch.jit.load", lambda *_, **__: pytest.fail("loaded before its checksum was verified"))
    with pytest.raises(DataError, match=r"expected 344c77bb.*--lama-checksum"):
        LamaInpainter(dataclasses.replace(lama, lama_checksum=BIG_LAMA))
    with pytest.raises(DataError, match=r"nowhere.pt cannot be read: No such file"):
        LamaInpainter(dataclasses.replace(lama, lama=path.with_name("nowhere.pt")))


@pytest.mark.parametrize("checksum", ["", "sha256:12", "crc32:12345678", "md5:" + "g" * 32, "sha256:" + "a" * 32])
def test_bad_checksums_are_named(tmp_path: Path, checksum: str):
    with pytest.raises(ConfigError, match="expected sha256: and 64 hexadecimal digits"):
        check_checksum(tmp_path / "any", checksum, option="--lama-checksum")
