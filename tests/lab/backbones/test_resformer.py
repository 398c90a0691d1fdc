"""ResFormer equals DeiT apart from its positions, which are compared with slow implementations."""

import math

import pytest
import timm
import torch
from tiny_hierarchical import RESFORMER, images, shaken, tiny
from torch import nn
from torch.nn import functional as F

from localscale.errors import ConfigError, ShapeError
from localscale.lab.backbones import ResFormer
from localscale.lab.backbones.resformer import GlobalPosition, LocalAttention, sinusoids

DEIT = {"embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5, "img_size": (48, 64)}


def slow_sinusoid(channel: int, channels: int, y: int, x: int, height: int, width: int) -> float:
    half = channels // 2
    position = (y + 1) / height if channel < half else (x + 1) / width
    within = channel % half
    angle = 2 * math.pi * position / 10_000 ** (2 * (within // 2) / half)
    return math.cos(angle) if within % 2 else math.sin(angle)


def test_sinusoids_match_the_slow_ones():
    found = sinusoids(3, 5, 16)
    for channel in range(16):
        for y in range(3):
            for x in range(5):
                expected = slow_sinusoid(channel, 16, y, x, 3, 5)
                assert found[0, channel, y, x].item() == pytest.approx(expected, abs=1e-5)


def test_positions_change_smoothly_with_the_size():
    small, large = sinusoids(8, 8, 16), sinusoids(16, 16, 16)
    torch.testing.assert_close(large[:, :, 1::2, 1::2], small)


def test_global_positions_are_convolved_and_added(rng: torch.Generator):
    position = shaken(GlobalPosition(8))
    x = torch.randn(2, 8, 3, 5, generator=rng)
    mixed = F.conv2d(sinusoids(3, 5, 8), position.mix.weight, position.mix.bias, padding=1, groups=8)
    torch.testing.assert_close(position(x), x + mixed)


def test_local_positions_convolve_each_heads_values(rng: torch.Generator):
    attention = shaken(LocalAttention(12, heads=3))
    x = torch.randn(2, 1 + 3 * 5, 12, generator=rng)
    queries, keys, values = attention.qkv(x).chunk(3, dim=-1)
    heads = []
    for part in (slice(0, 4), slice(4, 8), slice(8, 12)):
        likeness = queries[..., part] @ keys[..., part].transpose(1, 2) / math.sqrt(4)
        seen = likeness.softmax(-1) @ values[..., part]
        placed = values[:, 1:, part].reshape(2, 3, 5, 4).permute(0, 3, 1, 2)
        local = F.conv2d(placed, attention.local.weight, attention.local.bias, padding=1, groups=4)
        seen[:, 1:] += local.permute(0, 2, 3, 1).reshape(2, 15, 4)
        heads.append(seen)
    expected = attention.proj(torch.cat(heads, dim=-1))
    torch.testing.assert_close(attention(x, (3, 5)), expected, atol=1e-5, rtol=1e-4)


def test_weights_start_small_and_local_positions_at_zero():
    model = ResFormer(depth=2)
    for weight in (model.cls_token, model.head.weight, model.blocks[1].attn.qkv.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert not any(block.attn.local.weight.any() or block.attn.local.bias.any() for block in model.blocks)


def test_without_positions_it_equals_deit():
    model = tiny(RESFORMER).eval()
    deit = timm.create_model("deit_tiny_patch16_224", **DEIT).eval()
    for silent in (model.pos_embed.mix, *(block.attn.local for block in model.blocks)):
        nn.init.zeros_(silent.weight)
        nn.init.zeros_(silent.bias)
    nn.init.zeros_(deit.pos_embed)
    missing, unknown = deit.load_state_dict(model.state_dict(), strict=False)
    assert missing == ["pos_embed"]
    assert all("pos_embed" in name or ".local." in name for name in unknown)
    with torch.no_grad():
        torch.testing.assert_close(model(images()), deit(images()))
        torch.testing.assert_close(model.forward_features(images()), deit.forward_features(images()))


def test_its_size_differs_from_deits_as_in_the_paper():
    with torch.device("meta"):
        deit = timm.create_model("deit_small_patch16_224", num_classes=0, img_size=512)
        model = ResFormer(embed_dim=384, num_heads=6, num_classes=0, img_size=512)
    more = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in deit.parameters())
    assert round(more / 1e6, 1) == round(51.7 - 52.1, 1)  # Table 2, both with the same decoder


def test_positions_differ_at_every_size():
    model = tiny(RESFORMER).eval()
    with torch.no_grad():
        for size in ((16, 16), (32, 80), (96, 48)):
            tokens = model.forward_features(torch.zeros(1, 3, *size))
            assert tokens.shape == (1, 1 + size[0] * size[1] // 256, 24)
            patches = tokens[0, 1:]
            assert len(patches) == 1 or torch.pdist(patches).min() > 1e-4


def test_the_classifier_reads_the_class_token():
    model = tiny(RESFORMER).eval()
    with torch.no_grad():
        tokens = model.forward_features(images())
        torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), tokens[:, 0])
        torch.testing.assert_close(model(images()), model.head(tokens[:, 0]))


def test_intermediates_are_the_patches_after_each_block():
    model = tiny(RESFORMER).eval()
    with torch.no_grad():
        final, maps = model.forward_intermediates(images(), norm=True)
        assert [x.shape for x in maps] == [(2, 24, 3, 4)] * 2
        tokens = model.forward_features(images())
        assert torch.equal(final, tokens)
        assert torch.equal(maps[-1], tokens[:, 1:].transpose(1, 2).reshape(2, 24, 3, 4))
        rows = model.forward_intermediates(images(), (0,), stop_early=True, output_fmt="NLC", intermediates_only=True)
        first, unnormalised = model.forward_intermediates(images(), (0,), stop_early=True, output_fmt="NLC")
        assert torch.equal(model.norm(rows[0]).transpose(1, 2).reshape(2, 24, 3, 4), maps[0])
        assert torch.equal(first[:, 1:], model.norm(unnormalised[0]))


def test_pruning_removes_later_blocks():
    model = tiny(RESFORMER).eval()
    with torch.no_grad():
        (expected,) = model.forward_intermediates(images(), (0,), intermediates_only=True)
        assert model.prune_intermediate_layers((0,)) == [0]
        assert len(model.blocks) == 1
        assert isinstance(model.norm, nn.LayerNorm)
        (found,) = model.forward_intermediates(images(), (-1,), intermediates_only=True)
    assert torch.equal(found, expected)


def test_stochastic_depth_rises_with_depth():
    model = ResFormer(depth=3, drop_path_rate=0.2)
    assert [block.drop_path1.drop_prob for block in model.blocks] == pytest.approx([0, 0.1, 0.2])
    assert [block.drop_path2.drop_prob for block in model.blocks] == pytest.approx([0, 0.1, 0.2])


def test_positions_and_class_token_have_no_weight_decay():
    kept = tiny(RESFORMER).no_weight_decay()
    local = {f"blocks.{i}.attn.local.{part}" for i in range(2) for part in ("weight", "bias")}
    assert kept == {"cls_token", "pos_embed.mix.weight", "pos_embed.mix.bias", *local}


def test_sizes_that_are_no_multiple_of_the_patch_are_refused():
    with pytest.raises(ShapeError, match="images are 48×70; expected sides that are multiples of 16: resize or pad"):
        tiny(RESFORMER)(images(48, 70))


@pytest.mark.parametrize("settings", [{"embed_dim": 30}, {"embed_dim": 32, "num_heads": 3}])
def test_indivisible_widths_are_refused(settings: dict[str, int]):
    with pytest.raises(ConfigError, match=r"embed_dim is 3.; expected a multiple of 4 and of the 3 heads"):
        ResFormer(**settings)


def test_other_formats_of_intermediates_are_refused():
    with pytest.raises(ConfigError, match="output_fmt is 'NHWC'; expected 'NCHW' or 'NLC'"):
        tiny(RESFORMER).forward_intermediates(images(), output_fmt="NHWC")
