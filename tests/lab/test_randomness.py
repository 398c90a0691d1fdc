"""The numbers depend on seed, name and index alone, and look random."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from localscale.lab.randomness import stream, uniform


def splitmix(value: int) -> int:
    """Compute the finaliser of SplitMix64 in Python's integers."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


@given(st.integers(-(2**63), 2**64 - 1), st.text(max_size=8), st.integers(0, 2**62), st.integers(1, 4))
def test_numbers_equal_a_computation_in_python_integers(seed: int, name: str, index: int, draws: int) -> None:
    golden = 0x9E3779B97F4A7C15
    key = splitmix(splitmix(seed % 2**64) ^ stream(name))
    state = splitmix(key ^ splitmix((index + golden) % 2**64))
    expected = [(splitmix((state + golden * n) % 2**64) >> 11) * 2.0**-53 for n in range(1, draws + 1)]
    assert uniform(seed, name, torch.tensor([index]), draws)[0].tolist() == expected


def test_order_and_batch_do_not_matter() -> None:
    index = torch.arange(1000)
    whole = uniform(3, "a", index, 5)
    shuffled = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(uniform(3, "a", index[shuffled], 5), whole[shuffled])
    assert torch.equal(torch.cat([uniform(3, "a", index[n : n + 1], 5) for n in range(50)]), whole[:50])
    assert torch.equal(uniform(3, "a", index, 2), whole[:, :2])


def test_numbers_are_uniform_and_uncorrelated() -> None:
    """Uncorrelated along indices, draws, seeds and names."""
    numbers = uniform(0, "a", torch.arange(20_000), 4).numpy()
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-3
    others = [uniform(1, "a", torch.arange(20_000), 4).numpy(), uniform(0, "b", torch.arange(20_000), 4).numpy()]
    pairs = [(numbers[:-1, 0], numbers[1:, 0]), (numbers[:, 0], numbers[:, 1])]
    pairs += [(numbers[:, 0], other[:, 0]) for other in others]
    for a, b in pairs:
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(20_000)


def test_numbers_are_below_one() -> None:
    numbers = uniform(0, "a", torch.arange(100_000), 1)
    assert numbers.dtype == torch.float64
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1


@pytest.mark.parametrize(("name", "value"), [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C)])
def test_names_hash_by_fnv1a(name: str, value: int) -> None:
    assert stream(name) == value
