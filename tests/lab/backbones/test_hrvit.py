"""HRViT's branches: their resolutions, their fusion, and the merging head."""

import dataclasses
import itertools

import pytest
import timm
import torch
from tiny_hierarchical import HRVIT, TINY_HRVIT, images, shaken, tiny
from torch import Tensor, nn
from torch.nn import functional as F

from localscale.errors import ConfigError
from localscale.lab.backbones import HRViT, HRViTConfig
from localscale.lab.backbones.hrvit import HighResolutionMerge
from localscale.lab.backbones.hrvit_branches import Fusion, HRViTBlock, MixCFN

SIZES = [(32, 32), (48, 80), (50, 33), (9, 21)]


def reach(f: nn.Module, x: Tensor) -> tuple[int, int]:
    """Return the number of input rows and columns that the middle output pixel depends on."""
    x = x.requires_grad_()
    middle = (slice(None), slice(None), x.shape[2] // 2, x.shape[3] // 2)
    (gradient,) = torch.autograd.grad(f(x)[middle].sum(), x)
    touched = gradient.abs().sum((0, 1)) > 0
    return int(touched.any(1).sum()), int(touched.any(0).sum())


# Branches


@pytest.mark.parametrize("size", SIZES)
def test_each_branch_halves_height_and_width_rounded_up(size: tuple[int, int]):
    model = tiny(HRVIT).eval()
    with torch.no_grad():
        branches = model.forward_branches(images(*size))
    for branch, (x, channels) in enumerate(zip(branches, TINY_HRVIT.channels, strict=True)):
        stride = 4 * 2**branch
        assert x.shape == (2, channels, -(-size[0] // stride), -(-size[1] // stride))


def test_b1_has_the_published_structure():
    config = HRViTConfig()
    with torch.device("meta"):
        model = timm.create_model(HRVIT)
    assert [info["num_chs"] for info in model.feature_info] == [32, 64, 128, 256]
    assert [[len(module.branches) for module in stage] for stage in model.stages] == [[1], [2], [3, 3], [4, 4]]
    built = tuple(tuple(tuple(len(b.blocks) for b in module.branches) for module in stage) for stage in model.stages)
    assert built == config.blocks == (((1,),), ((1, 1),), ((1, 1, 6), (1, 1, 6)), ((1, 1, 6, 2), (1, 1, 2, 2)))
    last = [branch.blocks[-1] for branch in model.stages[-1][-1].branches]
    assert [block.attention.window for block in last] == [1, 2, 7, 7]
    assert [c // (2 * b.attention.heads) for c, b in zip(config.channels, last, strict=True)] == [16, 32, 32, 32]
    assert [block.feed_forward.expand.out_channels for block in last] == [128, 256, 512, 1024]


def test_linear_layers_are_initialised_as_in_vits_and_convolutions_as_in_resnets():
    torch.manual_seed(0)
    model = HRViT()
    block = model.stages[3][0].branches[3].blocks[0]
    spread = {
        model.fc: 0.02,
        block.attention.query_value: 0.02,
        block.shortcut.columns: 0.02,
        block.attention.local: (2 / 9) ** 0.5,
        block.feed_forward.large: (2 / 25) ** 0.5,
        model.merge.down[2][0]: (2 / (9 * 1024)) ** 0.5,
    }
    for layer, expected in spread.items():
        assert layer.weight.std().item() == pytest.approx(expected, rel=0.1)
        assert layer.bias is None or not layer.bias.any()


# Fusion


def test_fusion_sums_all_branches_at_each_resolution(rng: torch.Generator):
    fusion = shaken(Fusion((4, 8), (4, 8))).eval()
    fine, coarse = torch.randn(2, 4, 6, 10, generator=rng), torch.randn(2, 8, 3, 5, generator=rng)
    up, down = fusion.paths[0][1], fusion.paths[1][0]
    raised = up[1](F.conv2d(coarse, up[0].weight)).repeat_interleave(2, 2).repeat_interleave(2, 3)
    strided = F.conv2d(fine, down[0].weight, stride=2, padding=1, groups=4)
    lowered = down[3](F.conv2d(down[1](strided), down[2].weight))
    torch.testing.assert_close(fusion(fine, coarse), (F.gelu(fine + raised), F.gelu(coarse + lowered)))


def test_every_output_branch_depends_on_every_input_branch():
    fusion = Fusion((4, 8, 16), (4, 8, 16, 32))
    maps = [torch.randn(1, c, n, n, requires_grad=True) for c, n in ((4, 9), (8, 5), (16, 3))]
    outputs = fusion(*maps)
    assert [tuple(x.shape[1:]) for x in outputs] == [(4, 9, 9), (8, 5, 5), (16, 3, 3), (32, 2, 2)]
    for output, x in itertools.product(outputs, maps):
        (gradient,) = torch.autograd.grad(output.square().sum(), x, retain_graph=True)
        assert gradient.any()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_downsampling_takes_one_convolution_of_kernel_stride_plus_one(steps: int):
    fusion = Fusion((4,), (4,) * (steps + 1))
    down = fusion.paths[steps][0][0]
    assert (down.kernel_size, down.stride, down.groups) == ((2**steps + 1,) * 2, (2**steps,) * 2, 4)


# Blocks


def test_feed_forward_matches_its_equation(rng: torch.Generator):
    mixed = shaken(MixCFN(4, ratio=2))
    x = torch.randn(2, 4, 6, 7, generator=rng)
    wide = F.conv2d(x, mixed.expand.weight, mixed.expand.bias)
    small = F.conv2d(wide[:, :4], mixed.small.weight, mixed.small.bias, padding=1, groups=4)
    large = F.conv2d(wide[:, 4:], mixed.large.weight, mixed.large.bias, padding=2, groups=4)
    expected = F.conv2d(F.gelu(torch.cat((small, large), 1)), mixed.contract.weight, mixed.contract.bias)
    torch.testing.assert_close(mixed(x), expected)


def test_a_block_is_residual(rng: torch.Generator):
    block = shaken(HRViTBlock(8, heads=1, window=2, ratio=2)).eval()
    x = torch.randn(2, 8, 5, 6, generator=rng)
    between = x + block.shortcut(x) + block.attention(block.norm1(x))
    torch.testing.assert_close(block(x), between + block.feed_forward(block.norm2(between)))


def test_stochastic_depth_keeps_the_shortcut():
    block = shaken(HRViTBlock(8, heads=1, window=2, ratio=2, drop_path=0.999)).train()
    x = torch.randn(2, 8, 5, 6)
    torch.testing.assert_close(block(x), x + block.shortcut(x))


def test_stochastic_depth_rises_with_depth():
    model = tiny(HRVIT, drop_path_rate=0.3)
    deepest = [b for s in model.stages for m in s for b in max((x.blocks for x in m.branches), key=len)]
    rates = [block.drop_path1.drop_prob for block in deepest]
    assert rates == [block.drop_path2.drop_prob for block in deepest]
    assert rates == pytest.approx([0, 0.075, 0.15, 0.225, 0.3])


# The head


def test_branches_are_merged_from_the_finest_down(rng: torch.Generator):
    merge = shaken(HighResolutionMerge((4, 8))).eval()
    fine, coarse = torch.randn(2, 4, 5, 4, generator=rng), torch.randn(2, 8, 3, 2, generator=rng)
    wide = merge.widen[0](fine)
    assert wide.shape == (2, 16, 5, 4)
    convolution, norm, _ = merge.down[0]
    strided = F.relu(norm(F.conv2d(wide, convolution.weight, stride=2, padding=1)))
    convolution, norm, _ = merge.last
    expected = F.relu(norm(F.conv2d(strided + merge.widen[1](coarse), convolution.weight)))
    torch.testing.assert_close(merge(fine, coarse), expected)


def test_bottlenecks_are_residual(rng: torch.Generator):
    bottleneck = shaken(HighResolutionMerge((4, 8))).eval().widen[0]
    x = torch.randn(2, 4, 5, 4, generator=rng)
    expected = F.relu(bottleneck.widen(bottleneck.inside(x)) + bottleneck.shortcut(x))
    torch.testing.assert_close(bottleneck(x), expected)
    assert reach(bottleneck, x) == (3, 3)


def test_the_classifier_reads_the_mean_over_pixels():
    model = tiny(HRVIT).eval()
    with torch.no_grad():
        features = model.forward_features(images())
        assert features.shape == (2, 256, 3, 4)
        torch.testing.assert_close(model.forward_head(features, pre_logits=True), features.mean((2, 3)))
        torch.testing.assert_close(model(images()), model.fc(features.mean((2, 3))))


def test_intermediates_are_the_last_branches():
    model = tiny(HRVIT).eval()
    with torch.no_grad():
        branches, merged = model.forward_branches(images()), model.forward_features(images())
        final, chosen = model.forward_intermediates(images(), indices=(0, -1))
        assert torch.equal(final, merged)
        assert [torch.equal(a, b) for a, b in zip(chosen, branches[::2], strict=True)] == [True, True]
        (last,) = model.forward_intermediates(images(), indices=1, intermediates_only=True)
        assert torch.equal(last, branches[-1])


# Refusals


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"windows": (1, 2)},
            "windows, heads and blocks have 3, 2, 3 and 3 entries; expected one per branch",
        ),
        ({"heads": (1,)}, "have 3, 3, 1 and 3 entries"),
        (
            {"blocks": (((1,),), ((1,),), ((1, 1, 1),))},
            r"stage 1 has blocks \(\(1,\),\); .* each of 2 branches",
        ),
        ({"blocks": (((1,),), (), ((1, 1, 1),))}, r"stage 1 has blocks \(\); expected at least one module"),
    ],
)
def test_inconsistent_configurations_are_refused(changed: dict[str, tuple], text: str):
    with pytest.raises(ConfigError, match=text):
        dataclasses.replace(TINY_HRVIT, **changed)


@pytest.mark.parametrize("settings", [{"output_fmt": "NLC"}, {"norm": True}])
def test_other_formats_of_intermediates_are_refused(settings: dict[str, object]):
    with pytest.raises(ConfigError, match="expected 'NCHW' and False"):
        tiny(HRVIT).forward_intermediates(images(), **settings)
