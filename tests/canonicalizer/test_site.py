"""``Site``: its fields, its patch grid, its JSON, and its errors."""

import pytest

from localscale.canonicalizer import INPUT, Site
from localscale.errors import ConfigError, SiteError
from localscale.layouts import Tokens

TOKENS = {"layout": "tokens", "channels": 192}


def test_a_site_is_called_by_its_path():
    assert str(Site("stages.1.blocks.0", layout="NHWC")) == "stages.1.blocks.0"


def test_shape_is_for_reading_only():
    assert Site("a", shape=(1, 2, 3)) == Site("a")
    assert hash(Site("a", shape=(1, 2, 3))) == hash(Site("a"))
    assert Site("a", channels=3) != Site("a")


def test_a_stride_is_a_tuple_whatever_came():
    assert Site("a", stride=[16, 8]).stride == (16, 8)
    assert Site("a", stride=[16, 8]) == Site("a", stride=(16, 8))


@pytest.mark.parametrize(
    ("site", "known"),
    [
        (Site(INPUT), False),
        (Site(INPUT, channels=3), True),
        (Site("a"), False),
        (Site("a", layout="NCHW"), False),
        (Site("a", channels=3), False),
        (Site("a", layout="NCHW", channels=3), True),
        (Site("a", layout="NHWC", channels=3), True),
        (Site("a", **TOKENS), False),
        (Site("a", **TOKENS, stride=(16, 16)), True),
    ],
)
def test_known_when_no_trial_run_is_needed(site: Site, known: bool):
    assert site.known is known


# The patch grid.


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_images_need_no_grid(layout: str):
    site = Site("a", layout=layout, channels=3)
    assert site.layout_for(7, (224, 224)) == layout


@pytest.mark.parametrize(
    ("image", "stride", "prefix", "grid"),
    [
        ((224, 224), (16, 16), 1, (14, 14)),
        ((224, 448), (16, 16), 1, (14, 28)),  # not square
        ((448, 224), (16, 16), 5, (28, 14)),  # registers
        ((224, 224), (16, 8), 0, (14, 28)),  # patches not square
        ((230, 239), (16, 16), 2, (14, 14)),  # the rest is dropped
        ((225, 240), (16, 16), 2, (15, 15)),  # the rest is padded
        ((33, 64), (32, 32), 0, (2, 2)),
        ((8, 8), (16, 16), 1, (1, 1)),
    ],
)
def test_the_grid_follows_from_the_image(
    image: tuple[int, int], stride: tuple[int, int], prefix: int, grid: tuple[int, int]
):
    site = Site("blocks.0", **TOKENS, stride=stride, prefix=prefix)
    assert site.layout_for(prefix + grid[0] * grid[1], image) == Tokens(*grid, prefix=prefix)


def test_a_square_number_of_tokens_is_not_taken_for_a_square():
    """8 × 32 = 16 × 16 tokens: the image decides, not a square root."""
    site = Site("a", **TOKENS, stride=(16, 16))
    assert site.layout_for(256, (128, 512)) == Tokens(8, 32)


def test_tokens_that_do_not_fit_the_image():
    site = Site("blocks.0", **TOKENS, stride=(16, 16), prefix=1)
    with pytest.raises(SiteError) as error:
        site.layout_for(200, (230, 224))
    assert str(error.value) == (
        "blocks.0 got 200 tokens for a 230×224 image; with stride (16, 16) and 1 prefix tokens expected 14×14 or 15×14 "
        'patches. Give Site("blocks.0", layout="tokens", prefix=…, stride=…) the true values'
    )
    with pytest.raises(SiteError, match="1 prefix tokens expected 14×14 patches"):
        site.layout_for(196, (224, 224))


# JSON.


@pytest.mark.parametrize(
    "site",
    [
        Site("input"),
        Site("blocks.0", layout="NCHW"),
        Site("blocks.0", channels=192),
        Site("blocks.0", prefix=5),
        Site("blocks.0", stride=(16, 8)),
        Site("blocks.0", **TOKENS, prefix=1, stride=(16, 16), shape=(1, 197, 192)),
    ],
)
def test_json_round_trip(site: Site):
    assert Site.from_json(site.to_json()) == site
    assert Site.from_json(site) is site


def test_json_is_the_path_if_all_else_is_default():
    assert Site("blocks.0", shape=(1, 2, 3)).to_json() == "blocks.0"
    assert Site("blocks.0", prefix=2, shape=(1, 2, 3)).to_json() == {"path": "blocks.0", "prefix": 2}


# Errors.


def test_unknown_layout():
    with pytest.raises(SiteError, match=r"^site 'a' has layout 'token': did you mean tokens\?$"):
        Site("a", layout="token")
    with pytest.raises(SiteError, match=r"^site 'a' has layout 'rows': known: NCHW, NHWC, tokens$"):
        Site("a", layout="rows")


def test_negative_prefix():
    with pytest.raises(SiteError, match=r"^site 'a' has prefix -1; expected 0 or more tokens$"):
        Site("a", prefix=-1)


@pytest.mark.parametrize("stride", [(16,), (16, 16, 16), (0, 16), (16, -1)])
def test_impossible_stride(stride: tuple[int, ...]):
    with pytest.raises(SiteError, match=r"^site 'a' has stride \(.*\); expected image pixels per patch \(y, x\)$"):
        Site("a", stride=stride)


@pytest.mark.parametrize("value", [3, None, ["a"], {}, {"path": 3}, {"layout": "NCHW"}])
def test_values_that_are_not_sites(value: object):
    with pytest.raises(ConfigError, match=r"^a site is .*; expected a dotted path, a Site, or \{\"path\": …\}$"):
        Site.from_json(value)


@pytest.mark.parametrize(("key", "miss"), [("chanels", "channels"), ("strides", "stride"), ("shape", "path")])
def test_unknown_fields_name_the_near_misses(key: str, miss: str):
    with pytest.raises(ConfigError, match=f"^a site has no field '{key}': .*{miss}"):
        Site.from_json({"path": "a", key: 3})
