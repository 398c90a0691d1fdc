"""The DPT head alone, on features of every stride."""

import itertools

import pytest
import torch
from tiny_segmenters import randomise_statistics, without_gradient
from torch import Tensor, nn

from localscale.conventions import coordinates, stretch
from localscale.errors import ConfigError, ShapeError
from localscale.heads import DPTHead

PLAIN, PYRAMID = ((12,) * 4, (16,) * 4), ((4, 6, 8, 10), (4, 8, 16, 32))


def features(channels: tuple[int, ...], sizes: list[tuple[int, int]], batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, c, *size, generator=generator) for c, size in zip(channels, sizes, strict=True)]


def head(kind: tuple[tuple[int, ...], tuple[int, ...]] = PLAIN, classes: int = 3, **settings) -> DPTHead:
    torch.manual_seed(0)
    return DPTHead(*kind, classes, **{"width": 8, **settings})


def pyramid_features(batch: int = 2) -> list[Tensor]:
    return features(PYRAMID[0], [(16, 24), (8, 12), (4, 6), (2, 3)], batch)


# Reassembling

GRID = {
    8: [(8, 12), (4, 6), (2, 3), (1, 2)],
    14: [(16, 24), (8, 12), (4, 6), (2, 3)],
    16: [(16, 24), (8, 12), (4, 6), (2, 3)],
    32: [(32, 48), (16, 24), (8, 12), (4, 6)],
}


@pytest.mark.parametrize("stride", GRID)
def test_features_of_one_stride_become_a_pyramid(stride: int):
    made = head(((12,) * 4, (stride,) * 4))
    levels = [part(torch.rand(2, 12, 4, 6)) for part in made.reassemble]
    assert [tuple(level.shape) for level in levels] == [(2, 8, *size) for size in GRID[stride]]


def test_a_pyramid_is_not_resampled():
    made = head(PYRAMID)
    for part, channels in zip(made.reassemble, PYRAMID[0], strict=True):
        assert isinstance(part.project, nn.Identity)
        assert isinstance(part.resample, nn.Identity)
        assert part.mix.in_channels == channels


def test_pyramids_with_other_strides_are_resampled():
    made = head(((4, 6, 8), (16, 32, 64)))
    assert [part.resample.stride for part in made.reassemble] == [(4, 4)] * 3
    scores = made(features((4, 6, 8), [(4, 4), (2, 2), (1, 1)]), (64, 64))
    assert scores.shape == (2, 3, 64, 64)


def test_the_default_neck_is_that_of_dpt_base():
    def necks(**settings) -> list[int]:
        return [part.mix.in_channels for part in head(((768,) * 4, (16,) * 4), **settings).reassemble]

    assert necks() == [96, 192, 384, 768]
    assert necks(neck=(4, 5, 6, 7)) == [4, 5, 6, 7]


def test_strided_convolutions_keep_the_corners_of_odd_grids():
    """With kernel 2k+1 at stride 2k, the first and last outputs are centred on the first and last inputs."""
    for step in (2, 4):
        down = head(((1,) * 4, (32 // step,) * 4)).reassemble[3].resample
        assert down.kernel_size == (step + 1,) * 2
        with torch.no_grad():
            down.weight.zero_()[0, 0, step // 2, step // 2] = 1
            down.bias.zero_()
        grid = torch.rand(1, 1, 2 * step + 1, 2 * step + 1)
        assert torch.equal(down(grid), grid[:, :, ::step, ::step])


# Fusing and scoring


@pytest.mark.parametrize(("size", "classes"), [((64, 96), 3), ((61, 90), 1), ((200, 33), 3)])
def test_scores_have_the_requested_size(size: tuple[int, int], classes: int):
    plain = head(classes=classes)(features((12,) * 4, [(4, 6)] * 4), size)
    pyramid = head(PYRAMID, classes)(pyramid_features(), size)
    assert plain.shape == pyramid.shape == (2, classes, *size)


def test_scores_depend_on_every_level():
    made, given = head(PYRAMID).eval(), pyramid_features()
    with torch.no_grad():
        before = made(given, (64, 96))
        for index in range(4):
            changed = [feature + (level == index) for level, feature in enumerate(given)]
            assert (made(changed, (64, 96)) - before).abs().max() > 1e-4


def test_upsampling_keeps_corners_on_corners():
    ramp = coordinates(5, dtype=torch.float64).expand(1, 1, 3, 5)
    expected = coordinates(12, dtype=torch.float64).expand(1, 1, 7, 12)
    torch.testing.assert_close(stretch(ramp, 7, 12), expected)
    assert stretch(ramp, 3, 5) is ramp


def test_a_score_linear_at_every_level_is_linear_over_the_image():
    made = head(PYRAMID)
    made.reassemble = nn.ModuleList([nn.Identity()] * 4)
    made.refine = nn.Identity()
    for part in made.fuse:
        part.refine, part.project = nn.Identity(), nn.Identity()
        part.enter = None if part.enter is None else nn.Identity()
    with torch.no_grad():
        made.classifier.weight.fill_(1 / (8 * 4))  # the mean over channels and levels
        made.classifier.bias.zero_()
    sizes = [(16, 24), (8, 12), (4, 6), (2, 3)]
    levels = [coordinates(width, dtype=torch.float32).expand(1, 8, height, width) for height, width in sizes]
    linear = coordinates(90, dtype=torch.float32).expand(1, 3, 61, 90)
    torch.testing.assert_close(made.eval()(levels, (61, 90)), linear, atol=1e-5, rtol=0)


def test_gradcheck():
    made = head(((2, 2), (4, 8)), classes=2, width=3).double().eval()
    randomise_statistics(made)
    given = [f.double().requires_grad_() for f in features((2, 2), [(3, 4), (2, 2)], batch=1)]
    assert torch.autograd.gradcheck(lambda *levels: made(levels, (5, 7)), given)


@pytest.mark.parametrize("kind", [PLAIN, PYRAMID], ids=["plain", "pyramid"])
def test_every_parameter_and_feature_gets_a_gradient(kind):
    made = head(kind)
    given = features((12,) * 4, [(4, 6)] * 4) if kind is PLAIN else pyramid_features()
    given = [feature.requires_grad_() for feature in given]
    made(given, (64, 96)).square().sum().backward()
    assert without_gradient(made) == []
    assert all(feature.grad.any() for feature in given)


def test_dropout_is_for_training_only():
    given = pyramid_features()
    with torch.no_grad():
        made = head(PYRAMID, dropout=0.5)
        assert not torch.equal(made(given, (64, 96)), made(given, (64, 96)))
        made.eval()
        assert torch.equal(made(given, (64, 96)), made(given, (64, 96)))
        made = head(PYRAMID, dropout=0.0)
        assert torch.equal(made(given, (64, 96)), made(given, (64, 96)))


# Refusals


def test_one_value_cannot_be_normalised_in_training():
    made = head()
    one, two = (features((12,) * 4, [(2, 2)] * 4, batch) for batch in (1, 2))
    with pytest.raises(ShapeError, match=r"deepest feature is a single pixel.*more or larger images, or call eval"):
        made(one, (32, 32))
    assert made(two, (32, 32)).shape == (2, 3, 32, 32)
    assert made(features((12,) * 4, [(2, 3)] * 4, 1), (32, 48)).shape == (1, 3, 32, 48)
    assert made.eval()(one, (32, 32)).shape == (1, 3, 32, 32)


def test_too_few_features():
    with pytest.raises(ShapeError, match="3 features came; expected 4, finest first"):
        head()(features((12,) * 3, [(4, 6)] * 3), (64, 96))


REFUSED = {
    "classes is 0; expected at least 1": {"classes": 0},
    "width is 0; expected at least 1 channel": {"width": 0},
    "dropout is 1.0; expected 0 or more, and less than 1": {"dropout": 1.0},
    r"neck is \(1, 2, 3, 0\); expected positive": {"neck": (1, 2, 3, 0)},
    "channels has 4 entries, strides 4 and neck 2": {"neck": (1, 2)},
    "channels has 1 entries, strides 1 and neck 1; .* at least 2": {"kind": ((4,), (4,))},
    r"strides is \(4, 0\); expected positive": {"kind": ((4, 4), (4, 0))},
}


@pytest.mark.parametrize(("message", "settings"), REFUSED.items(), ids=itertools.count())
def test_wrong_settings_are_refused(message: str, settings: dict):
    with pytest.raises(ConfigError, match=message):
        head(**settings)
