"""The figure of learned maps: each map over its own image, and errors for runs without maps."""

from pathlib import Path

import numpy as np
import pytest
import torch

import localscale as ls
from localscale.cli import main
from localscale.errors import ShapeError
from localscale.lab.pictures.learned import draw_canonical, draw_learned, learned_maps


def test_canonical_forms_stand_below_their_images():
    images = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    m = ls.random_map(3, 4, generator=torch.Generator().manual_seed(1))
    axes = draw_learned(images, m, ["a", "b", "c"]).axes
    shown = [np.asarray(axis.images[0].get_array())[..., 0] for axis in axes]
    for n in range(3):
        assert shown[n] == pytest.approx(images[n, 0].numpy())
        assert shown[3 + n] == pytest.approx(ls.unscale(images, m)[n, 0].numpy(), abs=1e-6)
        assert axes[n].get_title() == "abc"[n]
        points = np.stack(axes[n].lines[0].get_data(), -1) / 11
        even = torch.stack((torch.linspace(0, 1, len(points)), torch.zeros(len(points))), -1)
        assert points == pytest.approx(m(even.expand(3, -1, -1))[n].numpy(), abs=1e-6)
    with pytest.raises(ShapeError, match="there are 3 maps; expected"):
        draw_learned(images[:2], m)


def test_images_of_a_run_at_several_sizes(numbers: Path, tmp_path: Path):
    images, m, captions = learned_maps(numbers / "dec", numbers=2, sizes=3)
    assert (len(images), m.batch, captions) == (6, 6, [captions[0]] * 3 + [captions[3]] * 3)
    assert not torch.equal(images[0], images[1]), "another draw of its sizes"
    main(["figure", "learned", "--run", str(numbers / "dec"), "--numbers", "1", "--out", str(tmp_path / "a.png")])
    assert (tmp_path / "a.png").stat().st_size > 5_000


def test_canonical_forms_of_each_draw_stand_in_one_row(numbers: Path, tmp_path: Path):
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    m = ls.random_map(6, 4, generator=torch.Generator().manual_seed(1))
    axes = draw_canonical(images, m, sizes=2).axes
    shown = [np.asarray(axis.images[0].get_array())[..., 0] for axis in axes]
    forms = ls.unscale(images, m)
    for image in range(3):
        for draw in range(2):
            assert shown[6 * draw + image] == pytest.approx(images[2 * image + draw, 0].numpy())
            assert shown[6 * draw + 3 + image] == pytest.approx(forms[2 * image + draw, 0].numpy(), abs=1e-6)
    with pytest.raises(ShapeError, match="expected a multiple of 4"):
        draw_canonical(images, m, sizes=4)
    run = ["figure", "canonical", "--run", str(numbers / "dec"), "--numbers", "2", "--sizes", "2"]
    main([*run, "--out", str(tmp_path / "a.png")])
    assert (tmp_path / "a.png").stat().st_size > 5_000


def test_runs_that_predict_masks_have_no_captions(scenes: Path):
    images, m, captions = learned_maps(scenes / "dec", numbers=1, sizes=2)
    assert (len(images), m.batch, captions) == (2, 2, [])


def test_runs_without_a_canonicalizer_are_refused(numbers: Path, tmp_path: Path):
    with pytest.raises(SystemExit, match="has no canonicalizer at the input; expected a run of a sizes or dec row"):
        main(["figure", "learned", "--run", str(numbers / "aug"), "--out", str(tmp_path / "a.png")])
    with pytest.raises(SystemExit, match="--numbers 0 and --sizes 4; expected at least 1"):
        main(["figure", "learned", "--run", str(numbers / "dec"), "--numbers", "0"])
