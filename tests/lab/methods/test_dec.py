"""DEC and Optim: their reports, their losses, and the supervision of equivariance."""

import numpy as np
import pytest
import reference
import torch
from baseline_inputs import LABELS, cnn, cross_entropy, dec, draws, images, randomise, vit
from torch import Tensor, nn

from localscale.canonicalizer import DECConfig, SiteReport
from localscale.errors import ConfigError
from localscale.lab.methods import DEC, FineTune, RandomScaling
from localscale.lab.methods.dec import identity_prior, map_prior, separation_loss, site_scalars, supervision_error
from localscale.maps import GridMap, SeparableMap, identity_map, random_map
from localscale.maps.monotone import MonotoneMap
from localscale.warp import unscale

EACH_UPDATE = pytest.mark.parametrize("update", ["direct", "compose", "descent"])
EACH_FAMILY = pytest.mark.parametrize("family", ["grid", "separable"])


def grid_maps(count: int, knots: int = 4) -> list[GridMap]:
    rng = torch.Generator().manual_seed(0)
    return [random_map(2, knots, strength=1.5, generator=rng, dtype=torch.float64) for _ in range(count)]


# Supervision.


@EACH_FAMILY
def test_the_identity_for_every_image_scores_one(family: str, rng: torch.Generator):
    identity, u = identity_map(3, 5, family=family), random_map(3, 5, family=family, generator=rng)
    assert supervision_error(identity, identity, u).item() == pytest.approx(1.0, rel=1e-6)


@EACH_FAMILY
def test_a_canonicalizer_scores_zero(family: str, rng: torch.Generator):
    """The error is zero for h(S(I; g)) = g∘h(I) and for no other order of the maps."""
    settings = {"strength": 1.5, "family": family, "generator": rng, "dtype": torch.float64}
    found, g = random_map(3, 5, **settings), random_map(3, 6, **settings)
    assert supervision_error(found, g @ found, g.inverse()) < 1e-20
    assert supervision_error(found, found @ g, g.inverse()) > 0.01
    assert supervision_error(found, g.inverse() @ found, g.inverse()) > 1
    assert supervision_error(found, found, g.inverse()) > 0.1


def test_supervision_error_against_an_explicit_inverse():
    """‖g⁻¹∘h(S(I; g)) − h(I)‖² / ‖g⁻¹ − id‖², with g⁻¹ found by root finding at each point."""
    found, found_scaled, g = grid_maps(3, knots=3)
    place = np.linspace(0, 1, 16)
    points = np.stack(np.meshgrid(place, place), axis=-1).reshape(-1, 2)
    errors, sizes = [], []
    for n in range(2):
        h, scaled, control = (m.control_points[n].numpy() for m in (found, found_scaled, g))
        for p, hp, sp in zip(points, reference.evaluate(h, points), reference.evaluate(scaled, points), strict=True):
            errors.append(np.square(reference.invert(control, sp)[0] - hp).sum())
            sizes.append(np.square(reference.invert(control, p)[0] - p).sum())
    expected = np.mean(errors) / np.mean(sizes)
    assert supervision_error(found, found_scaled, g.inverse()).item() == pytest.approx(expected, rel=1e-9)


def test_supervision_error_is_small_change_for_maps_that_hardly_scale():
    """If g is the identity, the denominator is zero, and the error is still finite."""
    identity = identity_map(2)
    assert supervision_error(identity, identity, identity) == 0


class ReadsRamps(nn.Module):
    """A perfect canonicalizer for scaled ramps, in which each pixel's value is the position it came from.

    S(I; g)(p) = g⁻¹(p) for the ramp I(p) = p, so the image holds the inverse of the map that is to be found.
    """

    def working_copy(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> SiteReport:
        place = torch.linspace(0, 1, x.shape[-1], dtype=x.dtype).expand(len(x), -1)
        across, down = MonotoneMap(x[:, 0, 0], place), MonotoneMap(x[:, 1, :, 0], place)
        zeros = torch.zeros(len(x))
        return SiteReport(SeparableMap(across, down), zeros, zeros.long(), zeros == 0)


def test_supervision_finds_no_fault_in_a_canonicalizer_that_knows():
    """The loss scales each image by its own g and compares the two maps in the right order."""
    scaling = RandomScaling(strength=2.0, knots=6, family="separable")  # knots on every sixth of 31 pixels
    method = dec(supervision=0.5, supervised_scaling=scaling, family="separable")
    model = method.build(vit())
    model.input_canonicalizer = ReadsRamps()
    place = torch.linspace(0, 1, 31)
    ramp = torch.stack((place.expand(31, 31), place[:, None].expand(31, 31), torch.zeros(31, 31)))
    first = RandomScaling(strength=1.0, knots=6, family="separable").maps(draws(seed=7))
    pictures = unscale(ramp.expand(3, -1, -1, -1), first)
    model.base = cnn()  # takes any size
    found = method.losses(model, pictures, LABELS, cross_entropy, draws())
    assert found["supervision"] < 1e-3, "up to interpolation"
    assert found["input/displacement"] > 0.02


def test_supervision_starts_at_one():
    method = dec(update="compose", supervision=1.0)
    found = method.losses(method.build(vit()), images(), LABELS, cross_entropy, draws())
    assert found["supervision"].item() == pytest.approx(1.0, rel=1e-6)


# Prior and report.


def test_the_prior_is_about_the_mean_map():
    assert map_prior(identity_map(4)) == 0
    (m,) = grid_maps(1)
    shift = m.displacement_field(16, 16).mean(dim=0)
    torch.testing.assert_close(map_prior(m), (100 * shift).square().sum(-1).mean())
    opposite = GridMap(torch.cat((0.1 * m.displacements[:1], -0.1 * m.displacements[:1])))
    assert map_prior(opposite) < 1e-20
    assert map_prior(GridMap(opposite.displacements[:1])) > 0.01


@EACH_FAMILY
def test_the_identity_prior_is_about_every_map(family: str, rng: torch.Generator):
    """Unlike the prior on the mean map, it does not vanish for maps that cancel each other."""
    assert identity_prior(identity_map(2, (5, 4), family=family)) == 0
    m = random_map(2, (5, 4), family=family, strength=1.0, generator=rng)
    moved = m.state() - identity_map(1, (5, 4), family=family).state()
    torch.testing.assert_close(identity_prior(m), moved.square().mean())
    opposite = type(m).from_state(m.state() - 2 * torch.stack((0 * moved[0], moved[1])), m.knots)
    torch.testing.assert_close(identity_prior(opposite), identity_prior(m))


def test_every_site_reports_four_scalars():
    method = dec(sites=("input", "blocks.1"), knots=(4, 3))
    model = randomise(method.build(vit()))
    _, report = model(images(), return_report=True)
    scalars = site_scalars(report)
    assert set(scalars) == {
        f"{path}/{what}"
        for path in ("input", "blocks.1")
        for what in ("residual", "steps", "displacement", "variation")
    }
    for path, site in report.items():
        assert scalars[f"{path}/residual"] == site.residual.mean()
        assert scalars[f"{path}/steps"] == site.steps.float().mean()
        distance = site.map.displacement_field(16, 16).norm(dim=-1).mean()
        assert scalars[f"{path}/displacement"].item() == pytest.approx(distance.item(), rel=1e-5)
        assert distance > 1e-4
        field = site.map.detach().displacement_field(16, 16)
        assert scalars[f"{path}/variation"].item() == pytest.approx(float((field - field.mean(0)).norm(dim=-1).mean()))
        assert 0 < scalars[f"{path}/variation"] < scalars[f"{path}/displacement"]
    assert not any(scalar.requires_grad for scalar in scalars.values())


# The loss.


@EACH_FAMILY
@EACH_UPDATE
def test_at_first_the_loss_is_the_backbones_bitwise(update: str, family: str):
    method = dec(sites=("input", "blocks.0"), update=update, family=family, prior=0.1)
    found = method.losses(method.build(vit()), images(), LABELS, cross_entropy, draws())
    plain = FineTune().losses(vit(), images(), LABELS, cross_entropy, draws())
    assert torch.equal(found["loss"], plain["loss"])
    assert torch.equal(found["task"], plain["loss"])
    assert found["prior"] == found["input/displacement"] == found["blocks.0/displacement"] == 0


def test_the_loss_is_the_weighted_sum_of_its_parts():
    """Each part is computed by its definition, on a model whose maps are not the identity."""
    method = dec(prior=0.5, supervision=2.0, supervised_scaling=RandomScaling(knots=3))
    model, pictures = randomise(method.build(vit())), images()
    found = method.losses(model, pictures, LABELS, cross_entropy, draws())
    logits, report = model(pictures, return_report=True)
    torch.testing.assert_close(found["task"], cross_entropy(logits, LABELS))
    torch.testing.assert_close(found["prior"], map_prior(report["input"].map))
    u = RandomScaling(knots=3).maps(draws(), "supervision")
    canonicalizer = model.canonicalizers["input"]
    scaled = canonicalizer(unscale(canonicalizer.working_copy(pictures), u)).map
    torch.testing.assert_close(found["supervision"], supervision_error(report["input"].map, scaled, u))
    torch.testing.assert_close(found["loss"], found["task"] + 0.5 * found["prior"] + 2.0 * found["supervision"])
    assert min(float(found[name].detach()) for name in ("task", "prior", "supervision")) > 1e-4


def test_separation_is_the_squared_distance_of_control_points_up_to_its_cap():
    one, other = grid_maps(2)
    near = GridMap(one.displacements + 1e-3 * (other.displacements - one.displacements))
    distance = (one.displacements - near.displacements).square().flatten(1).sum(1)
    assert (distance < 0.01).all()
    torch.testing.assert_close(separation_loss(one, near), -distance.mean())
    assert separation_loss(one, other) == pytest.approx(-0.01), "maps that differ enough are pushed no further"


def test_separation_compares_every_site_on_an_image_and_its_scaled_copy():
    scaling = RandomScaling(strength=2.0, knots=5)
    method = dec(sites=("input", "blocks.1"), knots=(4, 3), separation=3.0, identity=0.2, supervised_scaling=scaling)
    model, pictures = randomise(method.build(vit())), images()
    found = method.losses(model, pictures, LABELS, cross_entropy, draws())
    logits, report = model(pictures, return_report=True)
    _, scaled = model(unscale(pictures, scaling.maps(draws(), "separation")), return_report=True)
    parts = [separation_loss(report[site].map, scaled[site].map) for site in report]
    assert all(part < -1e-9 for part in parts)
    torch.testing.assert_close(found["separation"], sum(parts), rtol=1e-3, atol=1e-8)
    torch.testing.assert_close(found["task"], cross_entropy(logits, LABELS))
    both = [identity_prior(each[site].map) for site in report for each in (report, scaled)]
    torch.testing.assert_close(found["identity"], sum(both) / 2, rtol=1e-3, atol=1e-8)
    torch.testing.assert_close(found["loss"], found["task"] + 3 * found["separation"] + 0.2 * found["identity"])
    found["separation"].backward()
    for canonicalizer in model.canonicalizers.values():
        assert canonicalizer.network.to_x.weight.grad.any()


def test_separation_alone_never_leaves_the_identity():
    """Its gradient is zero there, so without the task's gradient nothing would begin."""
    method = dec(separation=1.0)
    model = method.build(vit())
    method.losses(model, images(), LABELS, cross_entropy, draws())["separation"].backward()
    assert not any(p.grad is not None and p.grad.any() for p in model.canonicalizers["input"].parameters())


@EACH_UPDATE
@pytest.mark.parametrize("source", ["latent", "image"])
def test_gradients_reach_canonicalizers_and_backbone(update: str, source: str):
    method = dec(sites=("input", "blocks.1"), update=update, source=source)
    model = randomise(method.build(vit()))
    method.losses(model, images(), LABELS, cross_entropy, draws())["loss"].backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


def test_supervision_alone_trains_the_canonicalizer_and_not_the_backbone():
    method = dec(update="compose", supervision=1.0)
    model = method.build(vit())
    method.losses(model, images(), LABELS, cross_entropy, draws())["supervision"].backward()
    assert all(parameter.grad is None for parameter in model.base.parameters())
    assert model.canonicalizers["input"].network.to_x.weight.grad.any()


def slope_and_quotient(method: DEC, model: nn.Module, place: Tensor, step: float = 1e-6) -> tuple[float, float]:
    """Return the loss's derivative along a random direction of ``place``, by autograd and by central differences."""
    direction = torch.randn(place.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def loss() -> Tensor:
        return method.losses(model, images(dtype=torch.float64), LABELS, cross_entropy, draws())["loss"]

    (slope,) = torch.autograd.grad(loss(), place)
    ends = []
    with torch.no_grad():
        for shift in (step, -2 * step):
            place += shift * direction
            ends.append(float(loss()))
        place += step * direction
    return float((slope * direction).sum()), (ends[0] - ends[1]) / (2 * step)


@EACH_UPDATE
@pytest.mark.parametrize("supervision", [0.0, 3.0])
def test_gradients_of_the_whole_loss_are_those_of_finite_differences(update: str, supervision: float):
    """Every parameter of backbone and canonicalizer is tested, with unrolled gradients in float64."""
    method = dec(
        update=update, gradient="unrolled", solver="picard", prior=10.0, supervision=supervision, channels=(3, 4)
    )
    torch.manual_seed(0)  # bilinear sampling has kinks; with this seed no difference crosses one
    model = randomise(method.build(cnn()), std=1.0).double()
    for name, parameter in model.named_parameters():
        slope, quotient = slope_and_quotient(method, model, parameter)
        assert abs(quotient) > 1e-7, f"{name} matters"
        assert slope == pytest.approx(quotient, rel=1e-4, abs=1e-8), name


# Settings that cannot work.


def test_supervision_needs_the_input_site():
    dec(sites=("blocks.0", "input"), knots=(4, 4), supervision=1.0).check()
    with pytest.raises(ConfigError, match=r"blocks\.0, blocks\.1; add input to --method.config.sites"):
        dec(sites=("blocks.0", "blocks.1"), supervision=1.0).check()
    dec(sites=("blocks.0",), prior=0.1, separation=0.1).check()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"supervision": -1.0}, "--method.supervision is -1.0"),
        ({"prior": -0.5}, "--method.prior is -0.5; expected a finite number, 0 or more"),
        ({"prior": float("nan")}, "expected a finite number, 0 or more"),
        ({"separation": -1.0}, "--method.separation is -1.0"),
        ({"identity": -1.0}, "--method.identity is -1.0"),
        ({"supervised_scaling": RandomScaling(strength=-1.0)}, "strength is -1.0; expected a finite number"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict, text: str):
    dec().check()
    with pytest.raises(ConfigError) as error:
        dec(**settings).check()
    assert text in str(error.value)


def test_a_size_network_is_refused_because_the_task_does_not_train_it():
    with pytest.raises(ConfigError, match="use the method SizeEquilibrium"):
        DEC(DECConfig()).check()


# Detached.


def test_detached_canonicalizers_learn_from_supervision_alone():
    for supervision, learns in ((1.0, True), (0.0, False)):
        method = dec(
            update="compose", solver="picard", gradient="unrolled", supervision=supervision, detached=("input",)
        )
        model = randomise(method.build(cnn()))
        method.losses(model, images(), LABELS, cross_entropy, draws())["loss"].backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.base.parameters())
        heads = [p.grad for n, p in model.canonicalizers["input"].named_parameters() if n.endswith("to_x.weight")]
        assert (heads[0] is not None and heads[0].abs().max() > 0) == learns


def test_detached_changes_no_answer():
    settings = {"update": "compose", "solver": "picard", "supervision": 1.0}
    answers = []
    for cut in ((), ("input",)):
        torch.manual_seed(0)
        answers.append(randomise(dec(detached=cut, **settings).build(cnn()))(images()))
    assert torch.equal(*answers)


def test_other_sites_still_learn_from_the_task():
    settings = {"sites": ("input", "blocks.1"), "update": "compose", "solver": "picard", "gradient": "unrolled"}
    for cut, learns in (((), {"input", "blocks.1"}), (("input",), {"blocks.1"})):
        torch.manual_seed(0)
        model = randomise(dec(detached=cut, **settings).build(vit()))
        model(images())[:, 0].sum().backward()
        heads = {path: c.network.to_x.weight.grad for path, c in model.canonicalizers.items()}
        assert {path for path, grad in heads.items() if grad is not None and grad.abs().max() > 0} == learns


def test_detached_without_anything_to_learn_from_is_refused():
    for settings in (
        {"detached": ("input",)},
        {"sites": ("input", "blocks.0"), "detached": ("blocks.0",), "supervision": 1.0},
    ):
        with pytest.raises(ConfigError, match="nothing trains the canonicalizer at "):
            dec(**settings).check()
