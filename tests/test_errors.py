"""The hierarchy of errors, and phrases with near misses."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

import localscale as ls
from localscale import errors
from localscale.errors import LocalScaleError, near_misses

BUILTINS = {
    **dict.fromkeys(["ConvergenceError", "GradientError", "KernelError", "TrainingError"], RuntimeError),
    **dict.fromkeys(["MapError", "ShapeError", "ConfigError", "SiteError", "CheckpointError", "DataError"], ValueError),
    **dict.fromkeys(["OutputError", "HubError"], OSError),
    "MissingExtraError": ImportError,
}


@pytest.mark.parametrize(("name", "builtin"), BUILTINS.items())
def test_every_error_derives_from_the_base_and_from_one_builtin(name: str, builtin: type[Exception]):
    error = getattr(errors, name)
    assert issubclass(error, LocalScaleError)
    assert [kind for kind in {*BUILTINS.values()} if issubclass(error, kind)] == [builtin]


def test_the_warning_is_not_an_error():
    assert issubclass(errors.ConvergenceWarning, UserWarning)
    assert not issubclass(errors.ConvergenceWarning, LocalScaleError)


def test_every_error_is_public_and_there_is_one_base():
    defined = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert defined == set(errors.__all__)
    assert defined == {"LocalScaleError", "ConvergenceWarning", *BUILTINS}
    assert ls.errors is errors


@pytest.mark.parametrize(
    ("name", "known", "sentence"),
    [
        ("knot", ["knots", "sites"], "did you mean knots?"),
        ("blocks.12", ["blocks.0", "blocks.1", "head"], "did you mean blocks.1, blocks.0?"),
        ("zebra", ["knots", "sites"], "known: knots, sites"),
        ("zebra", list("abcdefghijkl"), "known: a, b, c, d, e, f, g, h, i, j, k, l"),
        ("zebra", list("abcdefghijklm"), "known: a, b, c, d, e, f … k, l, m (13 in all)"),
        ("", ["a"], "known: a"),
        ("zebra", [], "known: "),
    ],
)
def test_near_misses(name: str, known: list[str], sentence: str):
    assert near_misses(name, known) == sentence


def test_near_misses_takes_any_iterable_and_names_three_at_most():
    assert near_misses("block", (f"block{i}" for i in range(9))).count("block") == 3
    assert near_misses("grid", {"grip": 1, "affine": 2}) == "did you mean grip?"


@given(name=st.text(max_size=12), known=st.lists(st.text(min_size=1, max_size=8), max_size=30))
def test_near_misses_names_nothing_but_what_is_known(name: str, known: list[str]):
    sentence = near_misses(name, known)
    if sentence.startswith("did you mean "):
        assert any(sentence.startswith(f"did you mean {k}") for k in known)
    else:
        assert sentence.startswith("known: ")
