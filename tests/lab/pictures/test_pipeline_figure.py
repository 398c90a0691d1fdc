"""The drawing of the whole way: real images, real maps, and files of every kind."""

from pathlib import Path

import numpy as np
import pytest
import torch

from localscale.cli import main
from localscale.lab.pictures import draw_pipeline
from localscale.lab.pictures.pipeline import make_pieces


def test_both_images_have_the_canonical_form_that_is_drawn():
    pieces = make_pieces()
    one, other = pieces.canonical
    apart = (pieces.images[0] - pieces.images[1]).abs().mean()
    assert (one - other).abs().mean() < 0.1 * apart, "the same up to interpolation"
    assert pieces.halfway.mean_displacement() > 0.01
    drawn = [np.asarray(image.get_array()) for image in draw_pipeline().axes[0].images]
    for image in (*pieces.images, *pieces.canonical):
        assert any(picture.shape == (224, 224) and np.array_equal(picture, image[0, 0]) for picture in drawn)


def test_nothing_is_drawn_outside_the_page():
    figure = draw_pipeline()
    figure.canvas.draw()
    page = figure.bbox
    for text in figure.axes[0].texts:
        if text.get_text():
            box = text.get_window_extent()
            assert page.x0 <= box.x0, text.get_text()
            assert page.y0 <= box.y0, text.get_text()
            assert box.x1 <= page.x1, text.get_text()
            assert box.y1 <= page.y1, text.get_text()


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_pipeline_from_the_command_line(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pieces = make_pieces()  # its digits are parsed once
    monkeypatch.setattr("localscale.lab.pictures.pipeline.make_pieces", lambda: pieces)
    main(["figure", "pipeline", "--out", str(tmp_path / f"a.{form}")])
    assert (tmp_path / f"a.{form}").stat().st_size > 10_000


def test_an_unknown_ending_is_told(tmp_path: Path):
    with pytest.raises(SystemExit, match=r"ends in \.gif; expected \.png, \.pdf, \.svg"):
        main(["figure", "pipeline", "--out", str(tmp_path / "a.gif")])
    assert not (tmp_path / "a.gif").exists()


def test_the_drawing_is_the_same_every_time():
    torch.manual_seed(1)
    first = make_pieces()
    torch.manual_seed(2)
    assert torch.equal(first.images[1], make_pieces().images[1])
