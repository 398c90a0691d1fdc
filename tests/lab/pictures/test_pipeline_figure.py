"""The drawing of the method: its images and maps are computed, and everything fits on the page."""

from pathlib import Path

import numpy as np
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
            assert page.x0 <= box.x0 < box.x1 <= page.x1, text.get_text()
            assert page.y0 <= box.y0 < box.y1 <= page.y1, text.get_text()


def test_pipeline_from_the_command_line(tmp_path: Path):
    main(["figure", "pipeline", "--out", str(tmp_path / "a.png")])
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_the_drawing_is_the_same_every_time():
    torch.manual_seed(1)
    first = make_pieces()
    torch.manual_seed(2)
    assert torch.equal(first.images[1], make_pieces().images[1])
