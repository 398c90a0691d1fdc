"""The outcome of every test image: two processes together, and the file that a run keeps."""

from pathlib import Path

import pytest
import torch

from localscale.errors import CheckpointError
from localscale.lab.tasks.outcomes import OutcomeRecorder, Outcomes


def test_outcomes_come_back_from_their_file_which_is_small(tmp_path: Path):
    recorder = OutcomeRecorder(images=1000, versions=7)
    logits, labels = torch.randn(1000, 7, 5), torch.randint(5, (1000,))
    error = torch.rand(1000)
    for numbers in torch.randperm(1000).split(64):
        recorder.add(numbers, logits[numbers], labels[numbers], error[numbers])
    written = recorder.finish("these images")
    written.write(tmp_path / "outcomes.safetensors")
    read = Outcomes.read(tmp_path / "outcomes.safetensors")
    assert torch.equal(read.right, (logits.argmax(2) == labels[:, None]).to(torch.uint8))
    assert torch.equal(read.invariance_error, error)
    assert read.images == "these images"
    assert (tmp_path / "outcomes.safetensors").stat().st_size < 12_000


def test_a_broken_file_is_named(tmp_path: Path):
    (tmp_path / "outcomes.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match="holds no outcomes of test images"):
        Outcomes.read(tmp_path / "outcomes.safetensors")
