"""Filling holes: what is outside stays bit for bit, and what is inside is a function of the image and the hole."""

import dataclasses
import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from imagenet_models import write_lama
from imagenet_scenes import SKY, disc, paint

from localscale.errors import ConfigError, DataError
from localscale.lab.data.imagenet.inpainters import LamaInpainter, PatchMatchInpainter, TeleaInpainter, check_file
from localscale.lab.data.imagenet.options import BIG_LAMA, ImageNetOptions


def options(**changes) -> ImageNetOptions:
    return dataclasses.replace(ImageNetOptions(images=Path()), **changes)


@pytest.fixture
def lama(tmp_path: Path) -> ImageNetOptions:
    path = write_lama(tmp_path / "lama.pt")
    return options(lama=path, lama_checksum="sha256:" + hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("size", [(96, 80), (93, 77)])
@pytest.mark.parametrize("build", [LamaInpainter, PatchMatchInpainter, TeleaInpainter])
def test_outside_the_hole_nothing_changes(build, lama: ImageNetOptions, size: tuple[int, int]):
    pixels, hole = paint(disc(*size)), disc(*size, radius=24)
    before = pixels.copy()
    inpaint = build(lama)
    filled = inpaint(pixels, hole)
    assert (filled.dtype, filled.shape) == (np.uint8, pixels.shape)
    np.testing.assert_array_equal(filled[~hole], pixels[~hole])
    np.testing.assert_array_equal(pixels, before, "the input is not written to")
    assert np.abs(filled[hole].astype(int) - SKY).max() < 60, "the red disc is gone, the sky goes on"
    np.testing.assert_array_equal(inpaint(pixels, hole), filled)


PROGRAM = """
import hashlib, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from imagenet_scenes import disc, paint
from localscale.lab.data.imagenet.inpainters import PatchMatchInpainter
from localscale.lab.data.imagenet.options import ImageNetOptions
inpaint = PatchMatchInpainter(ImageNetOptions(images=Path()))
for seed in range(int(sys.argv[2])):  # other images before it change nothing
    inpaint(paint(disc(), seed=100 + seed), disc(radius=24))
print(hashlib.sha256(inpaint(paint(disc()), disc(radius=24)).tobytes()).hexdigest())
"""


def test_patchmatch_gives_the_same_in_any_process_and_order():
    results = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), before],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for before in ("0", "2")
    }
    assert len(results) == 1
    assert len(results.pop().strip()) == 64


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_lama_is_not_opened_unless_its_hash_fits(lama: ImageNetOptions, monkeypatch: pytest.MonkeyPatch):
    path = lama.lama
    assert path is not None
    md5 = "md5:" + hashlib.md5(path.read_bytes()).hexdigest()
    LamaInpainter(dataclasses.replace(lama, lama_checksum=md5))
    monkeypatch.setattr("torch.jit.load", lambda *_, **__: pytest.fail("opened before it was checked"))
    with pytest.raises(
        DataError, match=r"has sha256 .*; expected 344c77bb.*say which file you trust with --lama-checksum"
    ):
        LamaInpainter(dataclasses.replace(lama, lama_checksum=BIG_LAMA))
    with pytest.raises(DataError, match=r"nowhere.pt cannot be read: No such file"):
        LamaInpainter(dataclasses.replace(lama, lama=path.with_name("nowhere.pt")))


def test_lama_says_where_its_file_comes_from():
    with pytest.raises(ConfigError, match=r'"lama" needs the TorchScript file.*--lama, or use --inpainter patchmatch'):
        LamaInpainter(options())


@pytest.mark.parametrize("checksum", ["", "sha256:12", "crc32:12345678", "md5:" + "g" * 32, "sha256:" + "a" * 32])
def test_bad_checksums_are_named(tmp_path: Path, checksum: str):
    with pytest.raises(ConfigError, match="expected sha256: and 64, or md5: and 32 hexadecimal digits"):
        check_file(tmp_path / "any", checksum, option="--lama-checksum")
