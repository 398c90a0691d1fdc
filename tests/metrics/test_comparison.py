"""The paired bootstrap: against all resamples of few images, the normal approximation of many, and its errors."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from localscale.errors import ConfigError, ShapeError
from localscale.metrics import paired_difference
from tests.reference import resampled_differences

LEVEL = 0.8


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_the_interval_has_the_quantiles_of_all_resamples(data: st.DataObject):
    count = data.draw(st.integers(2, 7))
    scores, control = (data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)) for _ in range(2))
    groups = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    found = paired_difference(*map(torch.tensor, (scores, control)), groups=torch.tensor(groups), level=LEVEL)
    everything = resampled_differences(scores, control, groups)
    assert found.mean == pytest.approx(np.mean(scores) - np.mean(control))
    for end, probability in ((found.low, (1 - LEVEL) / 2), (found.high, (1 + LEVEL) / 2)):
        assert np.mean(everything < end - 1e-9) <= probability + 0.02
        assert np.mean(everything <= end + 1e-9) >= probability - 0.02


def test_the_interval_of_many_images_is_that_of_the_normal_distribution():
    generator = torch.Generator().manual_seed(0)
    control = torch.randn(2000, generator=generator)
    scores = control + 0.1 + 0.5 * torch.randn(2000, generator=generator)  # the images' own variance cancels
    found = paired_difference(scores, control)
    half = 1.96 * float((scores - control).std()) / math.sqrt(2000)
    assert found.low == pytest.approx(found.mean - half, abs=0.05 * half)
    assert found.high == pytest.approx(found.mean + half, abs=0.05 * half)


def test_equal_variants_of_a_photograph_count_once():
    generator = torch.Generator().manual_seed(1)
    scores, control = torch.rand(2, 300, generator=generator)
    alone = paired_difference(scores, control)
    variants = [x.repeat_interleave(7) for x in (scores, control)]
    together = paired_difference(*variants, groups=torch.arange(300).repeat_interleave(7))
    assert torch.tensor(together) == pytest.approx(torch.tensor(alone), abs=1e-9)
    apart = paired_difference(*variants)
    assert apart.high - apart.low < 0.5 * (alone.high - alone.low)


def test_seeds_are_averaged_per_image():
    generator = torch.Generator().manual_seed(2)
    ours, control = torch.rand(3, 50, generator=generator), torch.rand(2, 50, generator=generator)
    assert paired_difference(ours, control) == paired_difference(ours.double().mean(0), control.double().mean(0))


def test_wrong_scores_are_refused():
    ones = torch.ones(4)
    with pytest.raises(ShapeError, match=r"\(4,\) and those of the control \(3,\); .* with the same images"):
        paired_difference(ones, ones[:3])
    with pytest.raises(ShapeError, match="expected one integer for each of the 4 images"):
        paired_difference(ones, ones, groups=torch.arange(3))
    with pytest.raises(ConfigError, match="not finite; leave the image out"):
        paired_difference(ones, ones.log() / 0)
    with pytest.raises(ConfigError, match="level 95; expected"):
        paired_difference(ones, ones, level=95)
