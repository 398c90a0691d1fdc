"""What the page shows of a view: the numbers of its models, lines where the maps take them, nothing fetched."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_pairs import write_run

from localscale.lab.data.boxes import Box
from localscale.lab.methods import DEC
from localscale.lab.pages.app.answers import ask, best, trace
from localscale.lab.pages.app.curve import draw_curve
from localscale.lab.pages.app.drawing import grid, source_of, strip
from localscale.lab.pages.app.examples import FOLDER, read_examples
from localscale.lab.pages.app.knots import even_knots, move_knot
from localscale.lab.pages.app.models import Pair, open_pair
from localscale.lab.pages.app.panels import answers_panel, knots_panels, look_panel, mark_panel, sites_panel
from localscale.lab.pages.app.scaling import box_between, box_maps
from localscale.lab.pages.app.views import MIDDLE, View, look, mark, open_view, show_to
from localscale.maps import identity_map
from localscale.warp import scale, unscale


@pytest.fixture
def view(pair: Pair) -> View:
    return show_to(pair, read_examples()[0])


def test_examples_are_small_and_marked():
    examples = read_examples()
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 100_000
    assert [example.name for example in examples if example.label is None] == ["landscape"]
    for example in examples:
        box = example.box
        assert box_between((box.left, box.top), (box.right, box.bottom)) == box
        if example.label is not None:
            assert example.name == f"{example.label:03d}"
            marked = example.image.crop(tuple(round(223 * side) for side in (box.left, box.top, box.right, box.bottom)))
            assert max(high for _, high in marked.getextrema()) > 200, "a digit is in the box"


def test_a_curve_says_what_the_models_say(pair: Pair, view: View):
    curve = trace(pair, view.seen, view.box, label=5)
    for k in (0, 7, 14):
        answers = ask(pair, scale(view.seen, box_maps(view.box, [curve.factors[k]])))
        assert curve.base[k] == pytest.approx(answers.base[0, 5].item(), abs=1e-5)
        assert curve.dec[k] == pytest.approx(answers.dec[0, 5].item(), abs=1e-5)


def test_a_known_number_is_followed_else_the_first_answer(pair: Pair, view: View):
    assert view.drawn
    assert view.curve.label == read_examples()[0].label
    other = open_view(pair, Image.effect_noise((80, 60), 90).convert("RGB"), "noise.png")
    assert not other.drawn
    assert other.box == MIDDLE
    assert other.curve.label == ask(pair, other.seen).dec[0].argmax()


def test_a_photograph_model_does_not_follow_a_number():
    pair = open_pair("test_resnet", pretrained="none")
    assert not show_to(pair, read_examples()[0]).drawn


def test_looking_scales_the_marked_part(pair: Pair, view: View):
    found = look(pair, view, 2.0)
    assert found.factor == 2.0
    assert found.box.right - found.box.left == pytest.approx(2 * (view.box.right - view.box.left), rel=1e-4)
    assert torch.equal(look(pair, view, 1.0).image, view.seen)
    wide = mark(pair, view, Box(0.05, 0.3, 0.95, 0.6))
    assert "the largest that fits this box" in look_panel(look(pair, wide, 2.0))
    assert "the smallest that fits this box" in look_panel(look(pair, mark(pair, view, Box(0, 0.3, 1, 0.6)), 0.5))
    assert "that fits" not in look_panel(found)


def test_a_mark_changes_box_and_curve_and_nothing_else(pair: Pair, view: View):
    box = Box(0.1, 0.1, 0.4, 0.4)
    other = mark(pair, view, box)
    assert other.box == box
    assert other.curve != view.curve
    assert other.seen is view.seen
    assert 'x="100.0" y="100.0" width="300.0" height="300.0"' in mark_panel(other, "box")
    assert 'data-mode="brush"' in mark_panel(other, "brush")


def test_both_answers_stand_side_by_side(pair: Pair, view: View):
    found = look(pair, view, 1.3)
    tables = answers_panel(pair, found).split("<table")[1:]
    for table, label, probabilities in zip(
        tables, ("control", "DEC"), (found.answers.base, found.answers.dec), strict=True
    ):
        assert f"<caption>{label}</caption>" in table
        told = re.findall(r">(\d{3})</th>.*?>([\d.]+) %</td>", table)
        assert told == [(f"{number:03d}", f"{100 * share:.1f}") for number, share in best(probabilities[0])]


def test_the_curve_has_a_line_each_and_a_mark_where_the_slider_is(pair: Pair, view: View):
    at = {factor: draw_curve(pair, view, factor) for factor in (0.4, 2.5)}
    lines = [re.findall(r'<polyline class="(\w+)" points="([^"]+)"', drawn) for drawn in at.values()]
    assert lines[0] == lines[1]
    assert [(kind, len(points.split())) for kind, points in lines[0]] == [("base", 15), ("dec", 15)]
    starts = [re.search(r'class="ls-now" x1="([\d.]+)"', drawn)[1] for drawn in at.values()]
    assert starts == [lines[0][0][1].split(",")[0], lines[0][0][1].split()[-1].split(",")[0]]
    assert "what is drawn" in at[0.4]


def test_a_site_tells_residual_steps_and_whether_it_converged(pair: Pair, view: View):
    found = look(pair, view, 1.0)
    site = found.answers.sites["input"]
    text = sites_panel(pair, found)
    assert f"<td>{float(site.residual[0]):.1e}</td>" in text
    assert f"<td>{int(site.steps[0])}</td>" in text
    assert f"<td>{'yes' if site.converged[0] else 'no'}</td>" in text
    assert grid(site.map, 11) in text
    assert grid(identity_map(), 11) in text


@pytest.mark.parametrize("mode", ["invariant", "equivariant"])
def test_what_enters_a_site_was_moved_by_those_before_it(mode: str, tmp_path: Path):
    sites = ("input", "blocks.1") if mode == "invariant" else ("blocks.1", "blocks.3")
    run = write_run(tmp_path / "run", DEC(sites=sites, knots=(4,), channels=(8,), resolution=16, mode=mode))
    pair = open_pair(str(run))
    found = look(pair, show_to(pair, read_examples()[0]), 1.0)
    first, second = found.answers.sites.values()
    shown = unscale(found.image, first.map) if mode == "invariant" else found.image
    text = sites_panel(pair, found)
    assert source_of(shown[0]) in text.split('class="ls-site"')[2]
    assert source_of(unscale(shown, second.map)[0]) in text


def test_knots_are_where_the_map_takes_them():
    knots = move_knot(even_knots(4), 1, 2, (0.7, 0.4))
    drag, back = knots_panels(torch.rand(1, 3, 32, 48), knots)
    assert drag.count("<button") == 12, "corners cannot be moved"
    assert 'style="left: 70.00%; top: 40.00%" data-row="1" data-column="2"' in drag
    assert grid(knots.map(), 7) in drag
    assert grid(knots.map().inverse(), 7) in back
    assert "px at most" in back


def test_names_are_text_and_nothing_is_fetched(pair: Pair, view: View):
    text = strip([("<script>", view.example.image)], chosen=0) + answers_panel(pair, look(pair, view, 1.0))
    assert "<script" not in text
    assert "http" not in text + mark_panel(view, "box")
    assert 'aria-pressed="true"' in text
