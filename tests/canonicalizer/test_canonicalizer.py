"""The canonicalizer h, from features to equilibrium maps."""

import pytest
import torch
from canonicalizer_inputs import canonicalizer, noise, smooth
from dec_configs import dec_config
from torch import Tensor, nn

from localscale.canonicalizer import UPDATES, Canonicalizer, SiteReport
from localscale.equilibrium import Anderson, Picard
from localscale.errors import ConvergenceError, ConvergenceWarning, ShapeError
from localscale.maps import FAMILIES, GridMap, SeparableMap, identity_map
from localscale.warp import unscale

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)
EACH_UPDATE = pytest.mark.parametrize("update", UPDATES)


class Seen(nn.Module):
    """A network that returns the identity and records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Tensor] = []

    def forward(self, x: Tensor) -> GridMap | SeparableMap:
        self.shown.append(x)
        return identity_map(len(x), 6, dtype=x.dtype)


def shown_to_the_network(features: Tensor, **settings) -> Tensor:
    module = Canonicalizer(features.shape[1], (6, 6), dec_config(**settings))
    module.network = Seen()
    module(features)
    return module.network.shown[0]


@EACH_UPDATE
@pytest.mark.parametrize(
    ("family", "shape"), [("grid", (2, 3, 64, 48)), ("separable", (1, 192, 14, 14)), ("grid", (2, 8, 1, 1))]
)
def test_every_map_is_the_identity_at_initialisation(update: str, family: str, shape: tuple[int, ...]):
    report = canonicalizer(shape[1], (5, 4), update=update, family=family)(noise(*shape))
    assert isinstance(report, SiteReport)
    assert torch.equal(report.map.state(), identity_map(shape[0], (5, 4), family=family).state())
    assert not report.map.displacement_field(13, 11).any()
    assert report.converged.tolist() == [True] * shape[0]
    assert report.residual.tolist() == [0.0] * shape[0]
    assert report.steps.tolist() == [1] * shape[0]


@EACH_FAMILY
def test_the_map_is_an_equilibrium(family: str):
    """One more step of the update does not change the map."""
    module = canonicalizer(3, std=1.0, family=family, dtype=torch.float64, tolerance=1e-10, max_steps=60)
    features = smooth(3, 3, 40)
    with torch.no_grad():
        m = module(features).map
        again = module.network(unscale(features, m))
    assert (m.mean_displacement() > 0.005).all()
    torch.testing.assert_close(again.state(), m.state(), atol=1e-8, rtol=0)


# Convergence.


@EACH_FAMILY
@pytest.mark.parametrize(("kind", "seed"), [("features", 0), ("images", 1)])
def test_the_default_solver_reaches_equilibrium_far_from_the_identity(kind: str, seed: int, family: str):
    """At least 95 % of a batch reach the default tolerance of 1e-4 within the default 20 steps, with random weights."""
    module = canonicalizer(192 if kind == "features" else 3, std=0.5, seed=seed, family=family, on_failure="identity")
    assert module.solver == Anderson(max_steps=20, tolerance=1e-4)
    inputs = noise(40, 192, 14, 14, seed=seed) if kind == "features" else noise(40, 3, 56, 56, seed=seed).sigmoid()
    with torch.no_grad():
        report = module(inputs)
    reached = (report.residual <= 1e-4) & (report.steps <= 20)
    assert reached.float().mean() >= 0.95
    assert torch.equal(report.converged, reached)
    if kind == "features" and family == "grid":
        assert report.map.mean_displacement().mean() > 0.01


def test_the_report_says_which_images_did_not_converge():
    std = 2.0
    features = noise(24, 192, 14, 14)
    module = canonicalizer(192, std=std)
    with torch.no_grad(), pytest.warns(ConvergenceWarning):
        report = module(features)
    assert 0 < int(report.converged.sum()) < 24, "some do and some do not"
    assert torch.equal(report.converged, report.residual <= 1e-4)
    assert (report.steps[~report.converged] == 20).all()
    assert torch.isfinite(report.map.state()).all()

    with torch.no_grad():
        safe = canonicalizer(192, std=std, on_failure="identity")(features)
    assert torch.equal(safe.residual, report.residual)
    one = identity_map(24, 6).state()
    assert torch.equal(safe.map.state()[~safe.converged], one[~safe.converged])
    assert not safe.map.displacement_field(9, 9)[~safe.converged].any()
    assert torch.equal(safe.map.state()[safe.converged], report.map.state()[safe.converged])

    with torch.no_grad(), pytest.raises(ConvergenceError):
        canonicalizer(192, std=std, on_failure="raise")(features)


WILD = {"temperature": 0.2, "max_steps": 8, "fixed_steps": True}


@EACH_UPDATE
@pytest.mark.parametrize(("std", "guard"), [(0.5, 0.5), (5.0, 0.1)])
def test_no_grid_map_folds_converged_or_not(update: str, std: float, guard: float):
    with torch.no_grad():
        report = canonicalizer(192, std=std, update=update, guard=guard, **WILD)(noise(12, 192, 14, 14))
    assert not report.converged.all()
    assert (report.map.min_determinant() >= guard - 1e-4).all()
    assert (report.map.mean_displacement() > 0.01).all()


@pytest.mark.parametrize(("update", "std"), [("direct", 0.5), ("compose", 0.5), ("descent", 5.0)])
def test_without_a_guard_some_maps_fold(update: str, std: float):
    with torch.no_grad():
        m = canonicalizer(192, std=std, update=update, guard=None, **WILD)(noise(12, 192, 14, 14)).map
    assert (m.min_determinant() < 0).any()


@EACH_UPDATE
@pytest.mark.parametrize("std", [0.5, 30.0])
def test_no_separable_map_folds_converged_or_not(update: str, std: float):
    """Even where Anderson mixes maps with negative weights, or raw parameters are unbounded."""
    module = canonicalizer(192, std=std, update=update, family="separable", channels=(16, 16), **WILD)
    with torch.no_grad():
        m = module(noise(12, 192, 14, 14)).map
    assert (m.min_determinant() > 0).all()


# Images of a batch are independent.


@EACH_UPDATE
@pytest.mark.parametrize(("family", "value"), [("grid", torch.nan), ("separable", torch.inf)])
def test_an_image_that_is_not_finite_gets_the_identity(update: str, family: str, value: float):
    features = noise(4, 3, 32, 32)
    broken = features.clone()
    broken[1, 2, 5, 5] = value
    module = canonicalizer(3, std=0.5, update=update, family=family, max_steps=5, fixed_steps=True)
    with torch.no_grad():
        clean, report = module(features), module(broken)
    others = [0, 2, 3]
    assert torch.equal(report.map.state()[others], clean.map.state()[others])
    assert torch.equal(report.residual[others], clean.residual[others])
    assert torch.equal(report.steps[others], clean.steps[others])
    assert torch.equal(report.map.state()[1], identity_map(1, 6, family=family).state()[0])
    assert not report.converged[1]
    assert report.residual[1] == torch.inf


@EACH_FAMILY
def test_a_batch_is_solved_image_by_image(family: str):
    features = noise(6, 192, 14, 14)
    module = canonicalizer(192, std=0.5, family=family)
    with torch.no_grad():
        together = module(features)
        alone = [module(features[i : i + 1]) for i in range(6)]
    assert len(set(together.steps.tolist())) > 1, "easy and hard, or nothing is tested"
    torch.testing.assert_close(together.map.state(), torch.cat([r.map.state() for r in alone]), atol=1e-5, rtol=0)
    torch.testing.assert_close(together.residual, torch.cat([r.residual for r in alone]), atol=1e-5, rtol=0)


# Precision.


@EACH_FAMILY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_are_solved_in_float32(dtype: torch.dtype, family: str):
    features = noise(3, 192, 14, 14).to(dtype)
    module = canonicalizer(192, std=0.5, family=family)
    with torch.no_grad():
        half, full = module(features), module(features.float())
        weights_too = module.to(dtype)(features)
    assert half.map.dtype == half.residual.dtype == torch.float32
    assert torch.equal(half.map.state(), full.map.state())
    assert weights_too.map.dtype == torch.float32
    assert weights_too.converged.all()
    torch.testing.assert_close(weights_too.map.state(), full.map.state(), atol=0.02, rtol=0)


@EACH_FAMILY
def test_float64_features_are_solved_in_float64(family: str):
    features = noise(3, 192, 14, 14, dtype=torch.float64)
    module = canonicalizer(192, std=0.5, family=family, tolerance=1e-6)
    with torch.no_grad():
        double, single = module(features), module(features.float())
    assert double.map.dtype == double.residual.dtype == torch.float64
    torch.testing.assert_close(double.map.state(), single.map.state().double(), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("update", "family"), [("direct", "grid"), ("compose", "separable"), ("descent", "grid")])
def test_autocast_leaves_the_solve_in_float32(update: str, family: str):
    features = noise(3, 192, 14, 14)
    module = canonicalizer(192, std=0.5, update=update, family=family, max_steps=5, fixed_steps=True, channels=(8, 8))
    plain = module(features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (features[0, :, 0] @ features[0, :, 0].T).dtype == torch.bfloat16, "autocast is on"
        cast = module(features)
    assert cast.map.dtype == torch.float32
    assert torch.equal(cast.map.state(), plain.map.state())
    assert torch.equal(cast.residual, plain.residual)


# The working copy.


@pytest.mark.parametrize(
    ("size", "resolution", "seen"),
    [
        ((112, 80), 56, (56, 40)),
        ((80, 112), 28, (20, 28)),
        ((56, 56), 56, (56, 56)),
        ((14, 14), 56, (14, 14)),
        ((300, 2), 30, (30, 1)),
        ((1, 1), 56, (1, 1)),
    ],
)
def test_the_network_sees_a_copy_of_at_most_the_resolution(
    size: tuple[int, int], resolution: int, seen: tuple[int, int]
):
    assert shown_to_the_network(noise(2, 3, *size), resolution=resolution).shape == (2, 3, *seen)


@pytest.mark.parametrize(("channels", "usual"), [(3, 56), (4, 56), (5, 28), (96, 28)])
def test_default_resolutions_of_images_and_features(channels: int, usual: int):
    features = noise(1, channels, 64, 32)
    assert shown_to_the_network(features).shape == (1, channels, usual, usual // 2)
    assert shown_to_the_network(features, resolution=40).shape == (1, channels, 40, 20)


def test_small_images_are_seen_as_they_are():
    images = noise(2, 3, 40, 30)
    assert torch.equal(shown_to_the_network(images), images)


@pytest.mark.parametrize(("channels", "normalised"), [(1, False), (3, False), (4, False), (5, True), (192, True)])
def test_features_are_normalised_across_channels_and_images_are_not(channels: int, normalised: bool):
    features = 3 * noise(2, channels, 14, 14) + 7
    seen = shown_to_the_network(features)
    if normalised:
        torch.testing.assert_close(seen.mean(dim=1), torch.zeros(2, 14, 14), atol=1e-4, rtol=0)
        torch.testing.assert_close(seen.var(dim=1, unbiased=False), torch.ones(2, 14, 14), atol=1e-3, rtol=0)
        assert not torch.allclose(seen, features)
    else:
        assert torch.equal(seen, features)


def test_the_map_does_not_depend_on_the_scale_of_features():
    features = noise(2, 192, 14, 14)
    module = canonicalizer(192, std=0.5)
    with torch.no_grad():
        once, thousandfold = module(features), module(1000 * features)
    torch.testing.assert_close(once.map.state(), thousandfold.map.state(), atol=1e-4, rtol=0)


# Errors.


@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (3, 8, 8), (2, 3, 8), (2, 8, 8, 3)])
def test_features_of_the_wrong_shape(shape: tuple[int, ...]):
    with pytest.raises(ShapeError) as error:
        canonicalizer(3)(torch.zeros(shape))
    assert str(error.value) == f"features have shape {shape}; expected (batch, 3, height, width)"


@EACH_FAMILY
@EACH_UPDATE
@pytest.mark.parametrize("fixed_steps", [False, True])
def test_a_lost_image_changes_no_bit_of_the_others(family: str, update: str, fixed_steps: bool):
    """Before convergence, Anderson amplifies rounding errors, so any other order of sums shows in the map."""
    solver = Anderson(max_steps=12, tolerance=1e-4, fixed_steps=fixed_steps)
    module = canonicalizer(16, std=0.2, family=family, update=update, solver=solver, on_failure="identity")
    features = noise(20, 16, 14, 14)
    lost = features.index_fill(0, torch.tensor([4]), torch.nan)
    others = torch.arange(20) != 4
    with torch.no_grad():
        clean, found = module(features), module(lost)
    assert not found.converged[4]
    assert torch.equal(found.map.state()[others], clean.map.state()[others])
    assert torch.equal(found.residual[others], clean.residual[others])


@EACH_FAMILY
@pytest.mark.parametrize(("update", "std"), [("direct", 1.0), ("compose", 1.0), ("descent", 0.01)])
@pytest.mark.parametrize("solver", [Anderson(60, 1e-4), Picard(60, 1e-4)])
def test_an_image_gets_the_same_map_alone_and_in_any_batch(
    family: str, update: str, std: float, solver: Anderson | Picard
):
    module = canonicalizer(3, std=std, family=family, update=update, solver=solver, on_failure="identity")
    images = smooth(10, 3, 28, dtype=torch.float32)
    with torch.no_grad():
        every = module(images)
        assert every.map.mean_displacement().max() > 1e-5
        for few in ([0], [3], [3, 9], list(range(9))):
            found = module(images[few])
            assert torch.equal(found.converged, every.converged[few])
            torch.testing.assert_close(found.map.state(), every.map.state()[few], atol=1e-5, rtol=0)
