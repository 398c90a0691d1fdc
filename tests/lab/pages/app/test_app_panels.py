"""The panels show the models' numbers and draw lines where the maps take them; nothing is fetched from elsewhere."""

import re
from pathlib import Path

import pytest
import torch
from dec_configs import dec_config
from PIL import Image
from tiny_pairs import SIZES, write_run

from localscale.lab.data.boxes import Box
from localscale.lab.methods import DEC, FineTune
from localscale.lab.pages.app import panels
from localscale.lab.pages.app.drawing import grid, strip
from localscale.lab.pages.app.examples import FOLDER, Example, read_examples
from localscale.lab.pages.app.knots import even_knots, move_knot
from localscale.lab.pages.app.models import Pair, open_pair
from localscale.lab.pages.app.scaling import box_between, box_maps
from localscale.lab.pages.app.views import MIDDLE, View, likeliest, mark_part, predict, scale_part, view_example
from localscale.lab.pages.html import data_url
from localscale.maps import identity_map
from localscale.warp import scale, unscale


@pytest.fixture
def view(pair: Pair) -> View:
    return view_example(pair, read_examples()[0])


def test_examples_are_small_and_their_boxes_hold_a_digit():
    examples = read_examples()
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 100_000
    assert [example.name for example in examples if example.label is None] == ["pug", "landscape"]
    for example in examples:
        box = example.box
        assert box_between((box.left, box.top), (box.right, box.bottom)) == box
        if example.label is not None:
            assert example.name == f"{example.label:03d}"
            marked = example.image.crop(tuple(round(223 * side) for side in box.edges))
            assert max(high for _, high in marked.getextrema()) > 200


def test_the_curve_holds_the_models_probabilities(pair: Pair, view: View):
    curve = view.curve
    for k in (0, 7, 14):
        predictions = predict(pair, scale(view.input, box_maps(view.box, [curve.factors[k]])))
        assert curve.control[k] == pytest.approx(predictions.control[0, curve.label].item(), abs=1e-5)
        assert curve.model[k] == pytest.approx(predictions.model[0, curve.label].item(), abs=1e-5)


def test_the_image_as_it_is_is_on_the_curve(pair: Pair, view: View):
    for box in (view.box, Box(0.1, 0.1, 0.9, 0.5)):
        marked = mark_part(pair, view, box)
        points = re.findall(r'<circle class="ls-model" cx="([\d.]+)"', panels.curve_panel(pair, marked, 1.0))
        now = re.search(r'class="ls-now" x1="([\d.]+)"', panels.curve_panel(pair, marked, 1.0))[1]
        assert now in points
        assert marked.curve.model[marked.curve.factors.index(1.0)] == pytest.approx(
            predict(pair, view.input).model[0, view.curve.label].item(), abs=1e-5
        )


def test_the_canonical_form_stands_beside_the_image(pair: Pair, view: View):
    scaled = scale_part(pair, view, 1.5)
    m = scaled.predictions.sites["input"].map
    text = panels.pictures_panel(scaled)
    assert text.index(data_url(scaled.image[0])) < text.index(data_url(unscale(scaled.image, m)[0]))
    assert "What the model sees" in text
    assert f"marked part ×{scaled.canonical.factor:.2f}" in text
    assert scale_part(pair, view, 1.0).canonical.factor == pytest.approx(1, abs=1e-5)


def test_the_border_of_the_part_is_drawn_where_the_canonical_form_has_it(pair: Pair, view: View):
    scaled = scale_part(pair, view, 1.5)
    back = scaled.predictions.sites["input"].map(scaled.canonical.border[None])[0]  # l takes it to the image
    x, y = back.unbind(-1)
    sides = [x - scaled.box.left, x - scaled.box.right, y - scaled.box.top, y - scaled.box.bottom]
    assert torch.stack(sides).abs().amin(dim=0).max() < 1e-5
    corner = [1000 * value for value in scaled.canonical.border[0].tolist()]
    assert f'points="{corner[0]:.1f},{corner[1]:.1f} ' in panels.pictures_panel(scaled)


def test_a_photograph_a_small_thing_and_what_the_model_sees():
    pair = open_pair("test_resnet", pretrained="none")
    view = view_example(pair, next(example for example in read_examples() if example.photograph))
    for factor in (0.5, 1.5):
        scaled = scale_part(pair, view, factor)
        assert scaled.canonical.image.shape[-2:] == (160, 160)
        assert panels.pictures_panel(scaled).count("<figure") == 2
    as_it_is = scale_part(pair, view, 1.0)
    box = view.box
    assert view.curve.size > ((box.right - box.left) * (box.bottom - box.top)) ** 0.5, "the animal is magnified"
    assert panels.answers_panel(pair, view, as_it_is).count("<table") == 2
    assert panels.curve_panel(pair, view, 1.0).count("<polyline") == 2
    assert "canonicalizer for photographs" in panels.about_panel(pair)


def test_a_canonicalizer_that_does_nothing_lets_the_part_grow(tmp_path: Path):
    run = write_run(tmp_path / "run", SIZES)
    pair = open_pair(str(run))
    pair.model.input_canonicalizer.network.trust.zero_()
    view = view_example(pair, read_examples()[0])
    assert scale_part(pair, view, 1.5).canonical.factor == pytest.approx(1.5, abs=1e-3)


def test_a_model_without_canonicalizers_shows_no_canonical_form(tmp_path: Path):
    latent = DEC(dec_config(sites=("blocks.1",), knots=4, channels=(8,), resolution=16, fixed_steps=True))
    for name, method, sides in (("plain", FineTune(), 1), ("latent", latent, 2)):
        pair = open_pair(str(write_run(tmp_path / name, method)))
        view = view_example(pair, read_examples()[0])
        scaled = scale_part(pair, view, 1.5)
        assert scaled.canonical is None
        assert panels.pictures_panel(scaled).count("<figure") == 1
        assert panels.answers_panel(pair, view, scaled).count("<table") == sides
        assert panels.curve_panel(pair, view, 1.5).count("<polyline") == sides
        assert ("no canonicalizers" in panels.sites_panel(pair, scaled)) == (name == "plain")


def test_the_curve_follows_the_known_number_or_else_the_predicted_class(pair: Pair, view: View):
    assert view.label_known
    assert view.curve.label == read_examples()[0].label
    other = view_example(pair, Example("noise", Image.effect_noise((80, 60), 90).convert("RGB"), MIDDLE))
    assert not other.label_known
    assert other.box == MIDDLE
    assert other.curve.label == predict(pair, other.input).model[0].argmax()
    photographs = open_pair("test_resnet", pretrained="none")
    assert not view_example(photographs, read_examples()[0]).label_known


def test_the_marked_part_is_scaled_by_the_factor_that_fits(pair: Pair, view: View):
    scaled = scale_part(pair, view, 2.0)
    assert scaled.factor == 2.0
    assert scaled.box.right - scaled.box.left == pytest.approx(2 * (view.box.right - view.box.left), rel=1e-4)
    assert torch.equal(scale_part(pair, view, 1.0).image, view.input)
    assert "that fits" not in panels.pictures_panel(scaled)
    for box, factor, limit in ((Box(0.05, 0.3, 0.95, 0.6), 2.0, "largest"), (Box(0, 0.3, 1, 0.6), 0.5, "smallest")):
        assert f"the {limit} that fits" in panels.pictures_panel(scale_part(pair, mark_part(pair, view, box), factor))


def test_another_mark_changes_only_box_and_curve(pair: Pair, view: View):
    box = Box(0.1, 0.1, 0.4, 0.4)
    other = mark_part(pair, view, box)
    assert other.box == box
    assert other.curve != view.curve
    assert other.input is view.input
    assert 'x="100.0" y="100.0" width="300.0" height="300.0"' in panels.mark_panel(other, "box")
    assert 'data-mode="brush"' in panels.mark_panel(other, "brush")


def test_both_models_answers_stand_side_by_side(pair: Pair, view: View):
    scaled = scale_part(pair, view, 1.3)
    tables = panels.answers_panel(pair, view, scaled).split("<table")[1:]
    both = (scaled.predictions.control, scaled.predictions.model)
    for table, label, probabilities in zip(tables, ("control", "size equilibrium"), both, strict=True):
        assert f"<caption>{label}</caption>" in table
        shown = re.findall(r">(\d{3})</th>.*?>([\d.]+) %</td>", table)
        assert shown == [(f"{number:03d}", f"{100 * share:.1f}") for number, share in likeliest(probabilities[0])]


def test_a_photograph_shown_to_a_model_that_reads_digits_is_pointed_out(pair: Pair, view: View):
    photograph = view_example(pair, Example("photograph", Image.new("RGB", (80, 60), "green"), MIDDLE))
    assert "reads three digits" in panels.answers_panel(pair, photograph, scale_part(pair, photograph, 1.0))
    assert "reads three digits" not in panels.answers_panel(pair, view, scale_part(pair, view, 1.0))


def test_the_curves_stay_and_a_line_marks_the_slider(pair: Pair, view: View):
    at = {factor: panels.curve_panel(pair, view, factor) for factor in (0.4, 2.5)}
    lines = [re.findall(r'<polyline class="([\w-]+)" points="([^"]+)"', drawn) for drawn in at.values()]
    assert lines[0] == lines[1]
    assert [(kind, len(points.split())) for kind, points in lines[0]] == [("ls-control", 15), ("ls-model", 15)]
    starts = [re.search(r'class="ls-now" x1="([\d.]+)"', drawn)[1] for drawn in at.values()]
    assert starts == [lines[0][0][1].split(",")[0], lines[0][0][1].split()[-1].split(",")[0]]
    assert "the number in the image" in at[0.4]


def test_a_site_shows_its_map_residual_steps_and_convergence(pair: Pair, view: View):
    scaled = scale_part(pair, view, 1.0)
    site = scaled.predictions.sites["input"]
    text = panels.sites_panel(pair, scaled)
    for value in (f"{float(site.residual[0]):.1e}", int(site.steps[0]), "yes" if site.converged[0] else "no"):
        assert f"<td>{value}</td>" in text
    assert grid(site.map, 11) in text
    assert grid(identity_map(), 11) in text


@pytest.mark.parametrize("mode", ["invariant", "equivariant"])
def test_each_site_shows_the_image_as_the_sites_before_it_left_it(mode: str, tmp_path: Path):
    sites = ("input", "blocks.1") if mode == "invariant" else ("blocks.1", "blocks.3")
    run = write_run(
        tmp_path / "run",
        DEC(dec_config(sites=sites, knots=4, channels=(8,), resolution=16, mode=mode, fixed_steps=True)),
    )
    pair = open_pair(str(run))
    scaled = scale_part(pair, view_example(pair, read_examples()[0]), 1.0)
    first, second = scaled.predictions.sites.values()
    entering = unscale(scaled.image, first.map) if mode == "invariant" else scaled.image
    text = panels.sites_panel(pair, scaled)
    assert data_url(entering[0]) in text.split('class="ls-site"')[2]
    assert data_url(unscale(entering, second.map)[0]) in text


def test_knots_are_drawn_where_the_map_takes_them():
    knots = move_knot(even_knots(4), 1, 2, (0.7, 0.4))
    drag, back = panels.knots_panels(torch.rand(1, 3, 32, 48), knots)
    assert drag.count("<button") == 12, "corners cannot be moved"
    assert 'style="left: 70.00%; top: 40.00%" data-row="1" data-column="2"' in drag
    assert grid(knots.map(), 7) in drag
    assert grid(knots.map().inverse(), 7) in back
    assert "pixels at most" in back


def test_names_are_escaped_and_nothing_is_fetched(pair: Pair, view: View):
    text = strip([("<script>", view.example.image)], chosen=0) + panels.answers_panel(
        pair, view, scale_part(pair, view, 1.0)
    )
    assert "<script" not in text
    assert "http" not in text + panels.mark_panel(view, "box")
    assert 'aria-pressed="true"' in text
