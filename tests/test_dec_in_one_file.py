"""The example that writes the method out in plain PyTorch computes what the library computes."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import localscale as ls

FILE = Path(__file__).parents[1] / "examples" / "dec_in_one_file.py"
SOLVER = {"max_steps": 200, "tolerance": 1e-12}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("dec_in_one_file", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "STEPS", SOLVER["max_steps"])
    monkeypatch.setattr(module, "TOLERANCE", SOLVER["tolerance"])
    return module


class Base(nn.Module):
    """The example's network without its canonicalizers."""

    def __init__(self, cnn: nn.Module):
        super().__init__()
        self.stem, self.body, self.head = cnn.stem, cnn.body, cnn.head

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(self.stem(image).relu()).relu().mean(dim=(2, 3)))


def copy_weights(ours: nn.Module, theirs: ls.Canonicalizer):
    for layer, other in zip(ours.layers, theirs.network.trunk.layers, strict=True):
        other.load_state_dict(layer.state_dict())
    for axis, head in enumerate((theirs.network.to_x, theirs.network.to_y)):
        head.weight.data = ours.to_logits.weight.data[axis, :, 0, 0][None].clone()
        head.bias.data = ours.to_logits.bias.data[axis][None].clone()


def test_it_needs_only_torch():
    lines = FILE.read_text(encoding="utf-8").splitlines()
    imports = [line.split()[1] for line in lines if line.startswith(("import ", "from "))]
    assert {name.partition(".")[0] for name in imports} == {"collections", "torch"}


def test_maps_and_warps_are_the_librarys(example):
    rows, columns = 3 * torch.randn(2, 5, 6, 5, dtype=torch.float64)
    m = ls.map_from_logits(rows, columns, guard=0.1)
    phi = example.map_from_logits(rows, columns)
    torch.testing.assert_close(phi, m.displacements)
    features = torch.randn(5, 3, 20, 30, dtype=torch.float64)
    torch.testing.assert_close(example.unscale(features, phi), ls.unscale(features, m))


def test_the_first_maps_are_the_identity(example):
    assert not example.SmallCNN()(torch.rand(2, 1, 32, 32)).isnan().any()
    assert not example.Canonicalizer(3, knots=5)(torch.rand(2, 3, 32, 32)).any()


def test_maps_answers_and_gradients_are_the_librarys(example):
    torch.manual_seed(0)
    cnn = example.SmallCNN().double()
    for canonicalizer in (cnn.at_image, cnn.at_latent):  # weights that move something, as after training
        nn.init.normal_(canonicalizer.to_logits.weight, std=0.5)
    config = ls.DECConfig.paper(sites=("input", "body"), knots=(6, 4), solver=ls.Picard(**SOLVER))
    image = torch.rand(3, 1, 32, 32, dtype=torch.float64)
    model = ls.adapt(Base(cnn), config, input_size=(1, 32, 32)).double()
    copy_weights(cnn.at_image, model.canonicalizers["input"])
    copy_weights(cnn.at_latent, model.canonicalizers["body"])

    logits, report = model(image, return_report=True)
    found = cnn.at_image(image)
    assert report["input"].converged.all()
    assert found.abs().max() > 0.01
    torch.testing.assert_close(found, report["input"].map.displacements, atol=1e-8, rtol=0)
    torch.testing.assert_close(cnn(image), logits, atol=1e-8, rtol=0)

    logits.square().sum().backward()
    theirs = [model.canonicalizers[site].network.trunk.layers[0].weight.grad for site in ("input", "body")]
    cnn.zero_grad()
    cnn(image).square().sum().backward()
    ours = [canonicalizer.layers[0].weight.grad for canonicalizer in (cnn.at_image, cnn.at_latent)]
    torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-5)
