"""``learn_sizes`` from masks and boxes: every way to give them, what is measured, and what is refused."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import localscale as ls
from localscale.errors import ConfigError, DataError

IMAGES = torch.rand(12, 3, 48, 48, generator=torch.Generator().manual_seed(0))
MASKS = torch.zeros(12, 48, 48, dtype=torch.long)
MASKS[:, 10:30, 20:40] = 1
BOXES = [torch.tensor([[0.2, 0.2, 0.5, 0.6]]) if number % 3 else torch.empty(0, 4) for number in range(12)]


def model(weight: str = "learned") -> ls.AdaptedModel:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = ls.SizeNetwork(width=8, blocks=0, weight=weight)
    config = ls.DECConfig(knots=5, network=network, solver=ls.Picard(max_steps=3), on_failure="identity")
    return ls.adapt(base, config, input_size=(3, 48, 48))


KINDS = {
    "all masks": ("masks", (IMAGES, MASKS)),
    "loader of masks": ("masks", DataLoader(TensorDataset(IMAGES, MASKS.to(torch.uint8)), batch_size=4)),
    "masks of another size": ("masks", [(IMAGES, MASKS[:, ::2, ::3])]),
    "masks in dictionaries": ("masks", [{"pixel_values": IMAGES, "labels": MASKS.unsqueeze(1)}]),
    "all boxes": ("boxes", (IMAGES, BOXES)),
    "loader of boxes": ("boxes", [(IMAGES[:6], BOXES[:6]), (IMAGES[6:], BOXES[6:])]),
    "boxes in dictionaries": ("boxes", [{"pixel_values": IMAGES, "boxes": torch.rand(12, 2, 4)}]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_from_masks_and_boxes(kind: str):
    adapted, (things, given) = model(), KINDS[kind]
    found = ls.learn_sizes(adapted, given, things=things, steps=2, batch_size=4, progress=False)
    assert found.thing_error > 0
    assert 0 <= found.thing_overlap <= 1
    assert found.thing_spread >= 0
    network = adapted.size_canonicalizer().network
    assert network.head.weight.abs().amax(dim=(1, 2, 3)).min() > 0, "size and weight are learned"
    assert network.things > 0
    if things == "masks":
        assert float(network.mean_size.exp()) == pytest.approx(20 / 48, abs=0.03)


def test_the_loss_for_a_loop_of_ones_own():
    for known in ({"masks": MASKS}, {"boxes": BOXES}):
        adapted = model()
        adapted.size_loss(IMAGES, **known).backward()
        assert adapted.size_canonicalizer().network.head.bias.grad.abs().min() > 0


def test_a_taught_model_is_saved_and_loaded(tmp_path):
    adapted, path = model(), tmp_path / "sizes.safetensors"
    ls.learn_sizes(adapted, (IMAGES, MASKS), things="masks", steps=2, progress=False, checkpoint=path)
    again = model()
    ls.learn_sizes(again, (IMAGES, MASKS), things="masks", steps=2, progress=False, checkpoint=path)
    adapted.save_pretrained(tmp_path / "model")
    loaded = ls.AdaptedModel.from_pretrained(tmp_path / "model", model().unwrap())
    for other in (again, loaded):
        for name, tensor in adapted.size_canonicalizer().network.state_dict().items():
            assert torch.equal(other.size_canonicalizer().network.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("things", "given", "sentence"),
    [
        ("masks", IMAGES, "a batch of 12 images came with NoneType"),
        ("masks", [(IMAGES[:4], MASKS[:3])], "4 images came with Tensor of length 3"),
        ("boxes", [(IMAGES[:4], [torch.rand(1, 4)] * 3)], 'things="boxes" expects batches'),
        ("boxes", [{"pixel_values": IMAGES}], "a dictionary with 'boxes'"),
    ],
)
def test_images_without_their_masks_or_boxes_are_refused(things, given, sentence: str):
    with pytest.raises(DataError, match=sentence):
        ls.learn_sizes(model(), given, things=things, steps=1, progress=False)


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match=r"adapt the model with DECConfig\(network=SizeNetwork\(weight=\"learned\""):
        ls.learn_sizes(model("edges"), (IMAGES, MASKS), things="masks", steps=1, progress=False)
    with pytest.raises(ConfigError, match="did you mean masks"):
        ls.learn_sizes(model(), (IMAGES, MASKS), things="mask", steps=1, progress=False)
    with pytest.raises(ConfigError, match="both given"):
        model().size_loss(IMAGES, masks=MASKS, boxes=BOXES)
