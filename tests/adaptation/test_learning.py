"""``learn_sizes``: every kind of data, resuming, and the weights that must not change."""

import itertools
import math
import os
import signal
from pathlib import Path

import pytest
import torch
from backbones import VIT, sized
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import localscale as ls
from localscale.checkpoints import read_state
from localscale.errors import CheckpointError, ConfigError, DataError, ShapeError


def model(channels: int = 3) -> ls.AdaptedModel:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = ls.SizeNetwork(width=8, blocks=0)
    config = ls.DECConfig(knots=5, network=network, solver=ls.Picard(max_steps=3), on_failure="identity")
    return ls.adapt(base, config, input_size=(channels, 48, 48))


IMAGES = torch.rand(12, 3, 48, 48, generator=torch.Generator().manual_seed(0))
KINDS = {
    "tensor": IMAGES,
    "fewer than a batch": IMAGES[:2],
    "one image": IMAGES[:1],
    "images with a gradient": IMAGES.clone().requires_grad_(),
    "different sizes": [IMAGES[0], torch.rand(3, 60, 40), torch.rand(3, 33, 50)],
    "loader": DataLoader(IMAGES, batch_size=4),
    "loader with labels": DataLoader(TensorDataset(IMAGES, torch.arange(12)), batch_size=4),
    "list of batches": [IMAGES[:4], IMAGES[4:8]],
    "loader of dictionaries": [{"labels": torch.zeros(4), "pixel_values": IMAGES[:4]}],
    "one dictionary": {"pixel_values": IMAGES[:4]},
    "loader of lists": [[IMAGES[0], torch.rand(3, 60, 40)], [torch.rand(3, 33, 50)]],
    "loader of lists with boxes": [((IMAGES[0], torch.rand(3, 60, 40)), ({"boxes": None}, {"boxes": None}))] * 2,
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_from_any_usual_kind_of_data(kind: str):
    adapted = model()
    base = {name: tensor.clone() for name, tensor in adapted.base_state().items()}
    before = adapted.size_canonicalizer().network.head.weight.clone()
    found = ls.learn_sizes(adapted, KINDS[kind], steps=2, batch_size=4, progress=False)
    assert found.steps == 2
    assert found.error > 0
    assert 0 <= found.converged <= 1
    assert not torch.equal(adapted.size_canonicalizer().network.head.weight, before)
    assert all(torch.equal(tensor, base[name]) for name, tensor in adapted.base_state().items())
    assert all(parameter.grad is None for parameter in adapted.parameters())


def test_the_task_and_the_sizes_are_learned_together():
    adapted = model()
    adapted.size_canonicalizer().network.trust.fill_(0.5)
    (adapted(IMAGES[:4]).square().sum() + adapted.size_loss(IMAGES[:4])).backward()
    assert adapted.size_canonicalizer().network.head.weight.grad.abs().max() > 0


@pytest.mark.parametrize("source", ["latent", "image"])
def test_latent_sites_learn_from_features(source: str):
    base = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3), nn.AdaptiveAvgPool2d(1))
    sites = ("input", ls.Site("2", layout="NCHW", channels=8))
    network = ls.SizeNetwork(width=8, blocks=0)
    adapted = ls.adapt(base, ls.DECConfig(sites, knots=5, network=network, source=source), input_size=(3, 48, 48))
    heads = [canonicalizer.network.head.weight for canonicalizer in adapted.canonicalizers.values()]
    before = [head.clone() for head in heads]
    statistics = base[1].running_mean.clone()
    adapted.train()
    assert ls.learn_sizes(adapted, IMAGES, steps=2, batch_size=4, progress=False).error > 0
    assert not any(torch.equal(*pair) for pair in zip(heads, before, strict=True))
    assert torch.equal(base[1].running_mean, statistics), "the base model only shows its features"
    assert base[1].training
    with adapted.disabled():
        adapted.size_loss(IMAGES[:4]).backward()
    assert all(head.grad is not None for head in heads)
    assert base[0].weight.grad is None


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (torch.rand(4, 3, 48, 40), "VisionTransformer did not take 48×40 images"),
        (torch.rand(4, 3, 64, 64).double(), "images are torch.float64 and VisionTransformer is torch.float32"),
    ],
)
def test_latent_sites_refuse_images_that_the_base_model_does_not_take(images: torch.Tensor, sentence: str):
    adapted = sized("blocks.0")
    with pytest.raises(ShapeError, match=sentence):
        adapted.size_loss(images)
    with pytest.raises(ShapeError, match=sentence):
        ls.learn_sizes(adapted, [VIT.images(), images], steps=1, progress=False)


@pytest.mark.parametrize("kind", ["one is NaN", "constant"])
def test_images_without_sizes_spoil_nothing(kind: str):
    images = torch.full_like(IMAGES, 0.5) if kind == "constant" else IMAGES.clone()
    if kind == "one is NaN":
        images[-1] = torch.nan  # one of those that are held out
        images = torch.cat((images, images))
    adapted = model()
    found = ls.learn_sizes(adapted, images, steps=2, batch_size=4, progress=False)
    assert all(math.isfinite(value) for value in (found.error, found.spread, found.converged))
    assert all(bool(parameter.isfinite().all()) for parameter in adapted.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision_learns_in_full_precision(dtype: torch.dtype):
    adapted = model().to(dtype)
    with torch.no_grad():
        found = ls.learn_sizes(adapted, IMAGES.to(dtype), steps=3, batch_size=4, progress=False)
    assert math.isfinite(found.error)
    assert {parameter.dtype for parameter in adapted.parameters()} == {dtype}
    head = adapted.size_canonicalizer().network.head.weight
    assert head.isfinite().all()
    assert head.any()


def test_the_loss_takes_images_of_different_sizes():
    adapted = model()
    adapted.size_loss([IMAGES[0], torch.rand(3, 60, 40), torch.rand(3, 33, 50), torch.rand(3, 9, 9)]).backward()
    assert adapted.size_canonicalizer().network.head.bias.grad.abs().min() > 0


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (torch.rand(3, 48, 48), r"images have shape \(3, 48, 48\)"),
        (torch.rand(2, 1, 48, 48), r"images have shape \(2, 1, 48, 48\)"),
        (torch.rand(0, 3, 48, 48), r"images have shape \(0, 3, 48, 48\)"),
        (torch.zeros(2, 3, 48, 48, dtype=torch.uint8), "images have dtype torch.uint8"),
        ([IMAGES[:2]], r"images have shape \(2, 3, 48, 48\)"),
        ([], "the list of images is empty"),
        (None, "images are NoneType"),
    ],
)
def test_the_loss_refuses_what_is_no_image(images, sentence: str):
    with pytest.raises(ShapeError, match=sentence):
        model().size_loss(images)


def test_one_channel():
    assert ls.learn_sizes(model(1), torch.rand(4, 1, 48, 48), steps=1, batch_size=4, progress=False).steps == 1


def test_a_stopped_run_resumes(tmp_path: Path):
    class Stop(torch.utils.data.Dataset):
        """A loader that gives four batches and then raises KeyboardInterrupt."""

        reads = 0

        def __iter__(self):
            for _ in range(5):
                Stop.reads += 1
                if Stop.reads > 4:
                    raise KeyboardInterrupt
                yield IMAGES[:4]

    path = tmp_path / "sizes.safetensors"
    adapted = model()
    with pytest.raises(KeyboardInterrupt):
        ls.learn_sizes(adapted, Stop(), steps=9, checkpoint=path, progress=False)
    reached = {name: tensor.clone() for name, tensor in adapted.size_canonicalizer().network.state_dict().items()}
    again = model()
    found = ls.learn_sizes(again, IMAGES, steps=2, checkpoint=path, progress=False)
    assert found.steps == 2, "two steps had been taken: two of the four batches were held out"
    for name, tensor in again.size_canonicalizer().network.state_dict().items():
        assert torch.equal(tensor, reached[name])
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="not a checkpoint of this size network"):
        ls.learn_sizes(model(), IMAGES, steps=3, checkpoint=path, progress=False)


@pytest.mark.parametrize(("presses", "kept"), [(1, 2), (2, 0)])
def test_ctrl_c_in_the_middle_of_a_step(presses: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first Ctrl-C waits for the end of the step; a second one interrupts at once, and no half step is saved."""
    calls, step, path = itertools.count(), torch.optim.AdamW.step, tmp_path / "sizes.safetensors"

    def press(optimizer: torch.optim.AdamW) -> None:
        for _ in range(presses if next(calls) == 1 else 0):
            os.kill(os.getpid(), signal.SIGINT)
        step(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "step", press)
    with pytest.raises(KeyboardInterrupt):
        ls.learn_sizes(model(), IMAGES, steps=9, batch_size=4, checkpoint=path, progress=False)
    assert (read_state(path)["step"] if path.exists() else 0) == kept
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_learned_model_is_saved_and_loaded(tmp_path: Path):
    adapted = model()
    ls.learn_sizes(adapted, IMAGES, steps=2, batch_size=4, progress=False)
    adapted.size_canonicalizer().network.trust.fill_(0.5)
    with torch.no_grad():
        expected = adapted(IMAGES)
    adapted.save_pretrained(tmp_path)
    loaded = ls.AdaptedModel.from_pretrained(tmp_path, adapted.unwrap())
    with torch.no_grad():
        torch.testing.assert_close(loaded(IMAGES), expected)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (torch.rand(4, 1, 48, 48), "expected floating point with 3 channels"),
        (torch.zeros(4, 3, 48, 48, dtype=torch.uint8), "torch.uint8"),
        (torch.rand(0, 3, 48, 48), "images have shape"),
        (torch.full((4, 3, 48, 48), torch.nan), "none of the 4 images to measure on is finite"),
        ([], "gave no batch"),
        ([["not images"]], "a batch holds str"),
        (TensorDataset(IMAGES), "images are TensorDataset; expected .* such as torch.utils.data.DataLoader"),
        (None, "images are NoneType"),
        ("photographs/", "images are str"),
    ],
)
def test_bad_data_is_refused(images, sentence: str):
    with pytest.raises(DataError, match=sentence):
        ls.learn_sizes(model(), images, steps=1, progress=False)


@pytest.mark.parametrize("batches", [1, 3])
def test_a_loader_that_runs_out_is_refused(batches: int):
    """An iterator gives its batches once; learning on from the last of them would go unnoticed."""
    once = iter(IMAGES.split(12 // batches))
    with pytest.raises(DataError, match="gave no more batches; expected one that can be iterated over again"):
        ls.learn_sizes(model(), once, steps=9, progress=False)


def test_a_stream_without_end_is_a_loader():
    assert ls.learn_sizes(model(), itertools.repeat(IMAGES[:4]), steps=2, progress=False).steps == 2


def test_bad_numbers_and_other_networks_are_refused():
    with pytest.raises(ConfigError, match="steps is 0"):
        ls.learn_sizes(model(), IMAGES, steps=0)
    with pytest.raises(ConfigError, match=r"a Conv2d learns no sizes; expected the model that ls.adapt returns"):
        ls.learn_sizes(nn.Conv2d(3, 4, 3), IMAGES)
    other = ls.adapt(nn.Sequential(nn.Conv2d(3, 4, 3)), ls.DECConfig.paper(), input_size=(3, 48, 48))
    with pytest.raises(ConfigError, match="no site has a SizeNetwork"):
        other.size_loss(IMAGES)
