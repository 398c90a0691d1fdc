"""safetensors files: every dtype comes back, equal tensors give equal files, and damage is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from localscale.errors import CheckpointError, ConfigError
from localscale.tensor_files import DTYPES, read_metadata, read_tensors, write_tensors


def bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    def known(tensor: Tensor) -> tuple:
        return tensor.dtype, tensor.shape, bits(tensor)

    return one.keys() == two.keys() and all(known(one[name]) == known(two[name]) for name in one)


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = {str(dtype): torch.randint(0, 2, (48,), dtype=torch.uint8, generator=generator) for dtype in DTYPES}
    found = {name: tensor.view(dtype) for (name, tensor), dtype in zip(found.items(), DTYPES, strict=True)}
    transposed = torch.rand(3, 4, generator=generator).t()
    return {"ü \n": torch.ones(2), **found, "scalar": torch.tensor(3.0), "empty": torch.empty(0, 3), "t": transposed}


@pytest.fixture
def path(tensors: dict[str, Tensor], tmp_path: Path) -> Path:
    write_tensors(tmp_path / "a.safetensors", tensors, {"note": "ü"})
    return tmp_path / "a.safetensors"


def test_everything_comes_back_and_other_programs_read_it(path: Path, tensors: dict[str, Tensor]):
    found, metadata = read_tensors(path)
    assert same(found, tensors)
    assert same(load_file(path), tensors)
    assert metadata == read_metadata(path)
    assert (metadata["note"], metadata["format"]) == ("ü", "pt")


def test_files_of_other_programs_are_read(tmp_path: Path, tensors: dict[str, Tensor]):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "b.safetensors")
    found, metadata = read_tensors(tmp_path / "b.safetensors")
    assert same(found, tensors)
    assert metadata == {}


def test_equal_tensors_give_equal_files(path: Path, tensors: dict[str, Tensor]):
    again = path.with_name("again")
    write_tensors(again, dict(reversed(tensors.items())), {"note": "ü"})
    assert again.read_bytes() == path.read_bytes()
    write_tensors(again, tensors, {"note": "u"})
    assert again.read_bytes() != path.read_bytes()


def test_every_flipped_bit_is_found(path: Path):
    whole = bytearray(path.read_bytes())
    for place in range(len(whole)):
        whole[place] ^= 1 << place % 8
        path.write_bytes(whole)
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_tensors(path)
        whole[place] ^= 1 << place % 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:5], "its header is incomplete"),
        (lambda data: data[:100], "its header is incomplete"),
        (lambda data: data[:-1], "the checksum of its tensors is"),
        (lambda data: data + b"x", "the checksum of its tensors is"),
        (lambda data: data.replace(b'"note"', b'"nota"'), "the checksum of its header is"),
        (lambda data: data.replace(b'"header_crc32"', b'"header_crc33"'), "one of its checksums is lost"),
        (lambda data: b"\xff" * 16, "its header is incomplete"),
        (lambda data: b"", "its header is incomplete"),
        (lambda data: (4).to_bytes(8, "little") + b"[{}]", "its header is not the one of a safetensors file"),
    ],
)
def test_damage_is_named(change, message: str, path: Path):
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match=message):
        read_tensors(path)


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F31", "shape": [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}},
        {"a": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}},
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": 3},
        {"__metadata__": {"a": 3}},
    ],
)
def test_a_header_that_describes_other_tensors(header: dict, tmp_path: Path):
    text = json.dumps(header).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_tensors(tmp_path / "a")


def test_tensors_are_no_views_of_the_file(path: Path, tensors: dict[str, Tensor]):
    found, _ = read_tensors(path)
    path.write_bytes(b"")
    assert same(found, tensors)


def test_missing_files_folders_and_odd_names(tmp_path: Path):
    for path in (tmp_path / "gone", tmp_path, tmp_path / "a\0b", tmp_path / ("x" * 300)):
        with pytest.raises(CheckpointError):
            read_tensors(path)
    with pytest.raises(CheckpointError, match=r"^my sentence$"):
        read_tensors(tmp_path / "gone", missing="my sentence")


def test_tensors_that_no_file_can_hold(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"^a is torch.float32, torch.sparse_coo; a safetensors file cannot"):
        write_tensors(tmp_path / "a", {"a": torch.eye(2).to_sparse()})
