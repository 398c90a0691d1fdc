"""Figures of finished runs and results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from localscale.cli.figures.output import named_runs, save
from localscale.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from localscale.maps.base import Map

__all__ = ["Canonical", "Growth", "Learned", "Masks", "PerScale", "Residual"]


@dataclass(frozen=True)
class PerScale:
    """Accuracy against local scale, one line per row of a table: mean and standard deviation over seeds."""

    result: Path
    """File that localscale reproduce wrote, such as results/mnist_tiny.json."""
    rows: tuple[str, ...] = ()
    """Rows to draw, by their labels in the table; all by default."""
    out: Path = Path("per_scale.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_per_scale
        from localscale.lab.pictures.curves import read_per_scale

        scales, lines = read_per_scale(self.result, self.rows)
        save(draw_per_scale(scales, lines, ylabel="accuracy %"), self.out)


@dataclass(frozen=True)
class Learned:
    """Test images of a run at several local sizes, with their learned maps and canonical forms."""

    run_folder: Annotated[Path, tyro.conf.arg(name="run")]
    """Finished run with a canonicalizer at the input, such as runs/mnist-deit_tiny-sizes/seed0."""
    numbers: int = 2
    """Number of test images."""
    sizes: int = 4
    """Images for each test image: itself, and random draws of its local sizes."""
    data: Path | None = None
    """Folder of the test images, if it differs from the recipe's."""
    out: Path = Path("learned.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures.learned import draw_learned

        save(draw_learned(*self.maps()), self.out)

    def maps(self) -> tuple[Tensor, Map, list[str]]:
        """Return the images, their maps and their labels."""
        from localscale.lab.pictures.learned import learned_maps

        if min(self.numbers, self.sizes) < 1:
            raise ConfigError(f"--numbers {self.numbers} and --sizes {self.sizes}; expected at least 1 each")
        return learned_maps(self.run_folder, numbers=self.numbers, sizes=self.sizes, data=self.data)


@dataclass(frozen=True)
class Canonical(Learned):
    """Test images of a run at several local sizes, and below each row the canonical forms."""

    numbers: int = 8
    """Number of test images."""
    sizes: int = 3
    """Images for each test image: itself, and random draws of its local sizes."""
    out: Path = Path("canonical.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures.learned import draw_canonical

        images, m, _ = self.maps()
        save(draw_canonical(images, m, self.sizes), self.out)


@dataclass(frozen=True)
class Residual:
    """Residual at each solver step, one line per site of a run: median and 10th to 90th percentile of test images."""

    run_folder: Annotated[Path, tyro.conf.arg(name="run")]
    """Finished run of a dec row, such as runs/mnist-deit_tiny-dec/seed0."""
    images: int = 64
    """Number of test images, or scenes."""
    steps: int = 20
    """Solver steps to record, past the tolerance and the largest number of steps of the run."""
    data: Path | None = None
    """Folder of the test images, if it differs from data.root or data.test-root of the recipe."""
    out: Path = Path("residual.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures.residuals import draw_run_residuals

        save(draw_run_residuals(self.run_folder, images=self.images, steps=self.steps, data=self.data), self.out)


@dataclass(frozen=True)
class Growth:
    """Time and memory of a solve against batch, resolution, knots, sites and steps."""

    result: Path
    """File that python -m benchmarks --suite speed wrote, such as results/speed_cpu.json."""
    out: Path = Path("growth.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_growth
        from localscale.lab.pictures.growth import read_growth

        save(draw_growth(read_growth(self.result)), self.out)


@dataclass(frozen=True)
class Masks:
    """One scene of locally scaled objects at its scales: images, true masks, and the masks of trained models."""

    data: Path
    """Folder that localscale data objects wrote."""
    runs: tuple[str, ...]
    """Finished runs as NAME=FOLDER: Aug=runs/objects-deit_tiny-aug/seed0 DEC=…"""
    scene: int = 0
    """Number of the scene in the dataset."""
    out: Path = Path("masks.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures.masks import draw_scene

        save(draw_scene(named_runs(self.runs), self.data, self.scene), self.out)
