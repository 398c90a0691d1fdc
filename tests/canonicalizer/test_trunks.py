"""Pretrained trunks of a size network."""

import pytest
import timm
import torch
from backbones import RESNET
from safetensors.torch import load_file

import localscale as ls
from benchmarks.photograph_trunk import load_trunk
from localscale import DECConfig, Picard, SizeNetwork, adapt
from localscale.canonicalizer import shipped
from localscale.canonicalizer.trunks import EfficientNetLite0, shrink_look
from localscale.conventions import resize
from localscale.errors import ConfigError

TRUNK = {"weight": "learned", "trunk": "efficientnet_lite0", "width": 8, "resolution": 48}


def disturbed_classifier() -> torch.nn.Module:
    """An EfficientNet-Lite0 of timm whose batch norms are not the identity."""
    torch.manual_seed(0)
    model = timm.create_model("tf_efficientnet_lite0").eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, 0, 0.1)
    return model


@pytest.mark.parametrize("size", [(64, 64), (50, 71), (33, 96)])
@torch.no_grad()
def test_it_computes_the_features_of_timms_model(size: tuple[int, int]):
    model = disturbed_classifier()
    trunk = EfficientNetLite0(8, absolute=False)
    load_trunk(trunk, model.state_dict())
    trunk.set_normalisation((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    images = torch.rand(2, 3, *size)
    looks = (images - trunk.mean[:, None, None]) / trunk.std[:, None, None]
    x = model.bn1(model.conv_stem(2 * images - 1))
    expected = []
    for block in model.blocks[:5]:
        x = block(x)
        expected.append(x)
    small, large = trunk.features(looks)
    torch.testing.assert_close(small, expected[2], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(large, expected[4], atol=1e-4, rtol=1e-4)


def test_looks_are_resized_images():
    images = torch.rand(2, 3, 90, 130)
    torch.testing.assert_close(shrink_look(images, (40, 57), torch.float32), resize(images, 40, 57))
    half = shrink_look(images, (40, 57), torch.bfloat16)
    torch.testing.assert_close(half.float(), resize(images, 40, 57), atol=0.02, rtol=0)


@pytest.mark.parametrize("steps", [1, 3])
def test_before_training_nothing_moves(steps: int):
    base, images = RESNET.build(), torch.rand(2, 3, 96, 128)
    with torch.no_grad():
        expected = base(images)
        solver = Picard(max_steps=steps, fixed_steps=True)
        model = adapt(base, DECConfig(knots=4, network=SizeNetwork(**TRUNK), solver=solver)).eval()
        assert torch.equal(model(images), expected)


def boxes_and_images(count: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Light squares of different sizes on noise, with the boxes around them."""
    generator = torch.Generator().manual_seed(3)
    images = 0.2 * torch.rand(count, 3, 96, 96, generator=generator)
    boxes = []
    for number in range(count):
        side = 16 + 8 * (number % 6)
        left, top = torch.randint(0, 96 - side, (2,), generator=generator).tolist()
        images[number, :, top : top + side, left : left + side] += 0.8
        boxes.append(torch.tensor([[left, top, left + side, top + side]]) / 96)
    return images, boxes


@pytest.mark.parametrize("absolute", [False, True])
def test_boxes_teach_it(absolute: bool):
    torch.manual_seed(0)
    network = SizeNetwork(**TRUNK, absolute=absolute)
    solver = Picard(max_steps=1, fixed_steps=True)
    model = adapt(RESNET.build(), DECConfig(knots=4, network=network, solver=solver))
    trained = load_file(shipped.HERE / "photographs.safetensors")
    trunk = model.size_canonicalizer().network.trunk
    stages = {
        name.removeprefix("trunk."): value for name, value in trained.items() if "stage" in name or "stem" in name
    }
    assert not trunk.load_state_dict(stages, strict=False).unexpected_keys
    images, boxes = boxes_and_images(24)

    def loss() -> float:
        torch.manual_seed(1)
        return model.size_loss(images, boxes=boxes).item()

    before = loss()
    found = ls.learn_sizes(model, (images, boxes), things="boxes", steps=15, batch_size=8, progress=False)
    assert loss() < 0.9 * before
    assert found.thing_overlap is not None
    estimator = model.size_canonicalizer().network
    assert bool(estimator.mean_size == 0) == absolute
    assert estimator.things > 0
    if absolute:
        with pytest.raises(ConfigError, match="things="):
            ls.learn_sizes(model, images, steps=1, progress=False)


def test_the_pretrained_part_learns_slowly():
    from localscale.adaptation.learning import _groups

    model = adapt(RESNET.build(), DECConfig(knots=4, network=SizeNetwork(**TRUNK)))
    head, trunk = _groups(model.size_canonicalizer().network)
    assert trunk["share"] < head["share"] == 1
    assert sum(len(group["params"]) for group in (head, trunk)) == len(list(model.size_canonicalizer().parameters()))


def test_what_a_trunk_cannot_do_is_refused():
    with pytest.raises(ConfigError, match="efficientnet_lite0"):
        SizeNetwork(weight="learned", trunk="efficientnet")
    with pytest.raises(ConfigError, match="learned"):
        SizeNetwork(trunk="efficientnet_lite0")
    config = DECConfig(sites=("layer1",), network=SizeNetwork(**TRUNK))
    with pytest.raises(ConfigError, match="channels"):
        adapt(timm.create_model("resnet10t"), config)
