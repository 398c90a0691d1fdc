"""Zoom: the sampling grid against the published sums, the start, gradients, and a stored model."""

import math
from pathlib import Path

import pytest
import torch
from baseline_inputs import LABELS, cnn, cross_entropy, draws, images, vit
from torch import Tensor

from localscale.checkpoints import read_weights, write_weights
from localscale.conventions import lattice, resize_cubic
from localscale.errors import ConfigError
from localscale.lab.methods import SaliencySampler, Zoom
from localscale.lab.methods.zoom import sampling_displacement


def trained(**settings) -> SaliencySampler:
    """Return a saliency sampler around a small network, whose saliency is not uniform."""
    model = Zoom(**{"grid": 11, "resolution": 24, **settings}).build(cnn())
    rng = torch.Generator().manual_seed(2)
    weight = model.saliency.to_saliency.weight
    weight.data.copy_(30 * torch.randn(weight.shape, generator=rng))
    return model


def by_sums(saliency: Tensor, width: float) -> Tensor:
    """Return the sampling grid of one image, summed one neighbour at a time."""
    size = len(saliency)
    spacing, found = 1 / (size - 1), torch.zeros(2, size, size, dtype=saliency.dtype)
    reach = math.ceil(3 * width / spacing)
    for row in range(size):
        for column in range(size):
            total, moment = 0.0, torch.zeros(2, dtype=saliency.dtype)
            for y in range(row - reach, row + reach + 1):
                for x in range(column - reach, column + reach + 1):
                    here = saliency[min(max(y, 0), size - 1), min(max(x, 0), size - 1)]
                    distance = ((x - column) ** 2 + (y - row) ** 2) * spacing**2
                    weight = here * math.exp(-distance / (2 * width**2))
                    total, moment = total + weight, moment + weight * torch.tensor([x, y]) * spacing
            found[:, row, column] = (moment / total).clamp(0, 1)
    return found


@pytest.mark.parametrize("width", [0.1, 0.3])
def test_the_grid_is_that_of_the_published_sums(width: float, rng: torch.Generator):
    saliency = torch.rand(2, 7, 7, generator=rng, dtype=torch.float64).exp()
    place = lattice(7, 7, dtype=torch.float64).movedim(-1, 0)
    for one, found in zip(saliency, sampling_displacement(saliency, width), strict=True):
        torch.testing.assert_close(place + found, by_sums(one, width), atol=1e-12, rtol=0)
        assert found.abs().max() > 0.01


def test_what_is_salient_becomes_larger():
    """Neighbours of a salient place read closer to it, so more pixels show it."""
    saliency = torch.ones(1, 31, 31)
    saliency[0, 15, 8] = 60.0  # at x = 8/30, y = 1/2
    x = sampling_displacement(saliency, 0.1)[0, 0, 15]
    assert (x[4:8] > 0.01).all()
    assert (x[9:13] < -0.01).all()
    assert x[8].abs() < 1e-6


def test_at_first_answers_are_the_backbones_up_to_rounding():
    """The grid is a quotient of sums, so its rounding is not that of the identity; bitwise equality is not possible."""
    for backbone in (cnn(), vit()):
        model = Zoom().build(backbone)
        assert model.sampling_map(images()).mean_displacement().max() < 1e-6
        torch.testing.assert_close(model(images()), backbone(images()), atol=1e-5, rtol=1e-4)


def test_images_do_not_see_each_other():
    model, shown = trained(), images(4, 48)[:, :, :30]
    alone = torch.cat([model(image[None]) for image in shown])
    torch.testing.assert_close(model(shown), alone)
    moved = model.sampling_map(shown).mean_displacement()
    assert (moved > 0.01).all()
    assert moved.std() > 1e-4


def test_gradients_reach_the_saliency_network():
    """At first only its last layer has a gradient, afterwards all layers do. The backbone always has one."""
    method = Zoom(grid=11)
    for model, moved in ((method.build(cnn()), False), (trained(), True)):
        found = method.losses(model, images(), LABELS, cross_entropy, draws())
        found["loss"].backward()
        for name, parameter in model.named_parameters():
            if name == "saliency.to_saliency.bias":  # a softmax does not depend on it
                continue
            assert bool(parameter.grad.abs().max() > 1e-9) == (moved or not name.startswith("saliency.layers")), name
        assert found["loss"] == found["task"]
        assert (float(found["displacement"]) > 0.01) == moved


def test_a_stored_model_gives_the_same_answers(tmp_path: Path):
    model = trained()
    write_weights(tmp_path / "model.safetensors", model, {})
    loaded = Zoom(grid=11, resolution=24).build(cnn())
    assert not torch.equal(loaded(images()), model(images()))
    read_weights(tmp_path / "model.safetensors", loaded)
    assert torch.equal(loaded(images()), model(images()))


def test_half_precision_keeps_coordinates_in_single_precision():
    model = trained()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        m, answer = model.sampling_map(images()), model(images())
    assert m.dtype == torch.float32
    assert answer.dtype == torch.bfloat16
    answer.float().sum().backward()
    assert torch.isfinite(model.saliency.to_saliency.weight.grad).all()


def test_large_images_are_sampled_to_the_backbones_size():
    base = cnn()
    model = Zoom().build(base, input_size=(3, 24, 16), source_size=(48, 32))
    large = images(2, 48)[:, :, :, :32]
    torch.testing.assert_close(model(large), base(resize_cubic(large, 24, 16)), atol=1e-4, rtol=0)


@pytest.mark.parametrize("settings", [{"grid": 1}, {"width": 0.0}, {"width": 1.5}, {"resolution": 4}])
def test_settings_that_cannot_work_are_refused(settings: dict):
    Zoom().check()
    with pytest.raises(ConfigError, match=f"--method.{next(iter(settings))}"):
        Zoom(**settings).check()


def test_masks_are_refused():
    Zoom().check_answers(dense=False)
    with pytest.raises(ConfigError, match="has no inverse, so masks cannot be scaled back; use CentreZoom"):
        Zoom().check_answers(dense=True)
