"""Residuals at each solver step: they are those of the solve, and recording them leaves the model unchanged."""

import shutil
from pathlib import Path

import pytest
import torch
from dec_configs import dec_config

import localscale as ls
from localscale.cli import main
from localscale.errors import ConfigError
from localscale.lab.pictures import draw_residuals, residuals_of


def moving_model(**settings) -> ls.AdaptedModel:
    """Return a model of two sites with random last layers, so that the equilibria are not the identity."""
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 4, 3), torch.nn.Flatten())
    config = dec_config(sites=("input", "1"), knots=4, channels=(8,), resolution=16, **settings)
    model = ls.adapt(base, config, input_size=(3, 32, 32))
    for canonicalizer in model.canonicalizers.values():
        for head in (canonicalizer.network.to_x, canonicalizer.network.to_y):
            torch.nn.init.normal_(head.weight, std=0.5)
    return model


@pytest.mark.parametrize("solver", ["picard", "anderson"])
def test_the_best_so_far_is_what_a_shorter_solve_reports(solver: str, rng: torch.Generator):
    images = torch.rand(3, 3, 32, 32, generator=rng)
    found = residuals_of(moving_model(solver=solver), images, steps=6)
    assert {site: tuple(values.shape) for site, values in found.items()} == {"input": (3, 6), "1": (3, 6)}
    for steps in (1, 2, 6):
        short = moving_model(solver=solver, max_steps=steps, tolerance=0.0, fixed_steps=True)
        with torch.no_grad():
            _, report = short(images, return_report=True)
        best = found["input"][:, :steps].amin(1)
        assert torch.allclose(best, report["input"].residual, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("on_failure", ["warn", "identity"])
def test_recording_leaves_the_model_unchanged(on_failure: str, rng: torch.Generator):
    model = moving_model(max_steps=20, tolerance=1e-3, on_failure=on_failure)
    images = torch.rand(20, 3, 32, 32, generator=rng)  # more than a batch
    solvers = {site: canonicalizer.solver for site, canonicalizer in model.canonicalizers.items()}
    with torch.no_grad():
        before = model(images)
        assert residuals_of(model, images, steps=3)["1"].shape == (20, 3)
        assert torch.equal(model(images), before)
    assert {site: canonicalizer.solver for site, canonicalizer in model.canonicalizers.items()} == solvers


def test_solvers_are_restored_after_an_error():
    model = moving_model()
    solver = model.canonicalizers["input"].solver
    with pytest.raises(ls.errors.ShapeError):
        residuals_of(model, torch.rand(1, 5, 32, 32))
    assert model.canonicalizers["input"].solver is solver
    with pytest.raises(ConfigError, match="steps is 0; expected at least 1"):
        residuals_of(model, torch.rand(1, 3, 32, 32), steps=0)


def test_bands_are_percentiles_and_infinite_residuals_are_drawn():
    values = torch.logspace(-5, -1, 11)[:, None].repeat(1, 3)
    values[0, 1], values[-1, 2] = 0.0, torch.inf
    axis = draw_residuals({"input": values, "blocks.0": values}, tolerance=1e-3, max_steps=2).axes[0]
    assert axis.lines[0].get_ydata().tolist() == pytest.approx([1e-3] * 3, rel=1e-4)
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((float(values[1, 0]), float(values[9, 0])), rel=1e-4)
    names = [text.get_text() for text in axis.get_legend().get_texts()]
    assert names == ["input", "blocks.0", "tolerance 0.001", "stops after 2"]
    assert axis.lines[0].get_color() != axis.lines[1].get_color()


def test_an_untrained_model_has_residuals_of_zero():
    model = ls.adapt(torch.nn.Flatten(), ls.DECConfig.paper(), input_size=(3, 32, 32))
    found = residuals_of(model, torch.rand(2, 3, 32, 32), steps=2)
    assert found["input"].eq(0).all()
    assert draw_residuals(found, tolerance=1e-4).axes[0].lines[0].get_ydata().tolist() == [1e-8, 1e-8]


def test_residuals_of_a_run_from_the_command_line(numbers: Path, tmp_path: Path):
    out = tmp_path / "a.png"
    main(["figure", "residual", "--run", str(numbers / "dec"), "--images", "3", "--steps", "5", "--out", str(out)])
    assert out.stat().st_size > 5_000


def test_bad_input_is_refused_with_a_sentence(numbers: Path, tmp_path: Path):
    unfinished = shutil.copytree(numbers / "dec", tmp_path / "unfinished")
    (unfinished / "result.json").unlink()
    for folder, says in (
        (tmp_path / "gone", "there is no folder .*gone; name one that localscale train wrote"),
        (unfinished, "is not finished; finish it with localscale train"),
        (numbers / "aug", "has no equilibrium to solve; expected a run of a dec row"),
    ):
        with pytest.raises(SystemExit, match=f"localscale: .*{says}"):
            main(["figure", "residual", "--run", str(folder), "--out", str(tmp_path / "a.png")])
    with pytest.raises(SystemExit, match="images and steps are 0 and 20; expected at least 1"):
        main(["figure", "residual", "--run", str(numbers / "dec"), "--images", "0"])
    with pytest.raises(SystemExit, match=r"ends in \.txt; expected"):
        main(["figure", "residual", "--run", str(numbers / "dec"), "--images", "1", "--out", str(tmp_path / "a.txt")])
    with pytest.raises(SystemExit, match=r"no MNIST in .*elsewhere"):
        main(["figure", "residual", "--run", str(numbers / "dec"), "--data", str(tmp_path / "elsewhere")])
