"""The order of training images, their split between processes, and normalisation."""

import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as F

from localscale.errors import ConfigError
from localscale.lab.backbones.catalogue import Normalise
from localscale.lab.tasks.task import Batches, Indices, Shard, chance, seed_of


def flat(steps: list[Indices]) -> tuple[list[int], list[int], list[int]]:
    return (
        [step.step for step in steps],
        torch.cat([step.images for step in steps]).tolist(),
        torch.cat([step.samples for step in steps]).tolist(),
    )


@st.composite
def orders(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    """Draw the numbers of images, of images per batch and of processes, a first step and a last step."""
    world = draw(st.integers(1, 4))
    size = world * draw(st.integers(1, 4))
    count = draw(st.integers(size, 30))
    first, last = sorted(draw(st.tuples(*[st.integers(0, 3 * (count // size))] * 2)))
    return count, size, world, first, last


@given(orders())
def test_every_epoch_sees_whole_batches_of_different_images(order: tuple[int, int, int, int, int]):
    count, size, *_ = order
    batches = Batches(count, size, seed=3)
    assert batches.per_epoch == count // size
    for epoch in range(3):
        steps = list(batches.steps(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch))
        seen = flat(steps)[1]
        assert len(seen) == len(set(seen)) == batches.per_epoch * size
        assert set(seen) <= set(range(count))


@given(orders())
def test_a_run_can_be_taken_up_at_any_step(order: tuple[int, int, int, int, int]):
    count, size, _, first, last = order
    batches = Batches(count, size, seed=3)
    whole, rest = list(batches.steps(0, last)), list(batches.steps(first, last))
    assert len(rest) == last - first
    for a, b in zip(whole[first:], rest, strict=True):
        assert flat([a]) == flat([b])


@given(orders())
def test_shares_together_are_the_single_processs_batches(order: tuple[int, int, int, int, int]):
    count, size, world, first, last = order
    alone = list(Batches(count, size, seed=3).steps(first, last))
    shares = [list(Batches(count, size, 3, Shard(rank, world)).steps(first, last)) for rank in range(world)]
    for step, parts in zip(alone, zip(*shares, strict=True), strict=True):
        assert {part.step for part in parts} == {step.step}
        assert {len(part.images) for part in parts} == {size // world}
        for name in ("images", "samples"):
            joined = torch.stack([getattr(part, name) for part in parts], dim=1).flatten()
            assert torch.equal(joined, getattr(step, name))


@given(orders())
def test_no_two_samples_of_a_run_have_the_same_number(order: tuple[int, int, int, int, int]):
    count, size, *_ = order
    batches = Batches(count, size, seed=3)
    _, _, samples = flat(list(batches.steps(0, 3 * batches.per_epoch)))
    assert samples == list(range(3 * batches.per_epoch * size))


def test_order_depends_on_seed_and_epoch_alone():
    def images(seed: int, epoch: int) -> list[int]:
        torch.rand(seed + 1)  # the global generator must not matter
        return flat(list(Batches(100, 10, seed).steps(10 * epoch, 10 * epoch + 10)))[1]

    assert images(0, 0) == images(0, 0)
    orders = [images(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(a != b for a, b in pairwise(orders))
    assert sorted(orders[0]) == list(range(100))


@pytest.mark.parametrize(
    ("count", "size", "world", "message"),
    [
        (10, 11, 1, "--batch-size is 11 with 10 training images; expected 1 to 10: try --batch-size 10"),
        (10, 0, 1, "--batch-size is 0 with 10 training images; expected 1 to 10: try --batch-size 1"),
        (10, 7, 2, "--batch-size 7 cannot be divided among 2 processes; try --batch-size 6"),
        (10, 3, 4, "--batch-size 3 cannot be divided among 4 processes; try --batch-size 4"),
    ],
)
def test_batch_sizes_that_cannot_be(count: int, size: int, world: int, message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Batches(count, size, 0, Shard(0, world))
    advised = int(message.rpartition(" ")[2])
    Batches(count, advised, 0, Shard(0, world))


@pytest.mark.parametrize("count", [0, 1, 5, 6])
def test_shards_share_everything_once(count: int):
    shares = [Shard(rank, 3).of(count) for rank in range(3)]
    assert sorted(item for share in shares for item in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert list(Shard().of(count)) == list(range(count))


@pytest.mark.parametrize("channels", [1, 3])
def test_normalise_is_torchvisions(channels: int, rng: torch.Generator):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    images = torch.rand(2, channels, 4, 5, generator=rng)
    torch.testing.assert_close(Normalise(mean, std)(images), F.normalize(images.expand(-1, 3, -1, -1), mean, std))


def test_every_use_has_its_own_generator():
    places = [(0, "order", 1), (1, "order", 1), (0, "order", 11), (0, "step", 1), (0, "step", 1, 0), (0, "step", 1, 1)]
    seeds = [seed_of(*place) for place in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert torch.equal(torch.rand(3, generator=chance(*places[0])), torch.rand(3, generator=chance(*places[0])))
