"""``localscale figure``: pictures from finished runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import OmitSubcommandPrefixes, subcommand

from localscale.errors import ConfigError

__all__ = ["Figure"]


def named_runs(given: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Return names and folders from arguments of the form NAME=FOLDER."""
    if not given:
        raise ConfigError("--runs is empty; expected NAME=FOLDER, such as Aug=runs/mnist-deit_tiny-aug/seed0")
    found = []
    for one in given:
        name, equals, folder = one.partition("=")
        if not (name and equals and folder):
            raise ConfigError(f"--runs {one}: expected NAME=FOLDER, such as Aug=runs/mnist-deit_tiny-aug/seed0")
        found.append((name, Path(folder)))
    return found


@dataclass(frozen=True)
class Masks:
    """One scene of locally scaled objects at its scales: images, truth, and the masks of trained models."""

    data: Path
    """Folder that ``localscale data objects`` wrote."""
    runs: tuple[str, ...]
    """Finished runs, each with the name to show: Aug=runs/objects-deit_tiny-aug/seed0 DEC=…"""
    scene: int = 0
    """Which scene of the dataset."""
    out: Path = Path("masks.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import save_figure
        from localscale.lab.pictures.masks import draw_scene

        save_figure(draw_scene(dict(named_runs(self.runs)), self.data, self.scene), self.out)
        print(self.out)


@dataclass(frozen=True)
class Warp:
    """An image and a grid over it, before and after a random local scaling."""

    image: Path
    """Any image file."""
    knots: int = 6
    """Control points along an axis."""
    strength: float = 2.0
    """How strong the scaling is; 0 is the identity."""
    family: Literal["grid", "separable"] = "grid"
    """Which maps."""
    seed: int = 0
    """Which of them."""
    out: Path = Path("warp.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        import torch
        from torchvision.transforms.v2 import functional as T

        import localscale as ls
        from localscale.lab.data.images import read_image
        from localscale.lab.pictures import draw_warp, save_figure

        picture = T.to_dtype(T.pil_to_tensor(read_image(self.image).convert("RGB")), torch.float32, scale=True)
        rng = torch.Generator().manual_seed(self.seed)
        m = ls.random_map(1, self.knots, strength=self.strength, family=self.family, generator=rng)
        save_figure(draw_warp(picture, m), self.out)
        print(self.out)


@dataclass(frozen=True)
class Functions:
    """Global against local scaling, of places and of a signal of one variable."""

    out: Path = Path("functions.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_functions, save_figure

        save_figure(draw_functions(), self.out)
        print(self.out)


@dataclass(frozen=True)
class PerScale:
    """Accuracy against local scale, a line for each row of a table, mean and standard deviation over seeds."""

    result: Path
    """A file that ``localscale reproduce`` wrote, such as results/mnist_tiny.json."""
    rows: tuple[str, ...] = ()
    """Which rows, by their labels in the table; all by default."""
    out: Path = Path("per_scale.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_per_scale, save_figure
        from localscale.lab.pictures.tables import per_scale_of

        scales, lines = per_scale_of(self.result, self.rows)
        save_figure(draw_per_scale(scales, lines, ylabel="accuracy %"), self.out)
        print(self.out)


@dataclass(frozen=True)
class Probability:
    """Probability of the correct class against local scale, a line for each run: mean and deviation over images."""

    runs: tuple[str, ...]
    """Finished runs, each with the name to show: control=runs/mnist-deit_tiny-aug_long/seed0 DEC=…"""
    images: int = 128
    """Test images, each asked about at every scale."""
    scales: tuple[float, ...] = ()
    """Sizes of all digits of an image, for MNIST; 0.4 to 3 by default. ImageNet's are its dataset's."""
    data: Path | None = None
    """Folder of the test images (data.root or data.test-root), where it is not the one that the recipes name."""
    quiet: bool = False
    """No progress bars."""
    out: Path = Path("probability.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_per_scale, save_figure
        from localscale.lab.pictures.probability import run_probabilities

        scales, lines = None, {}
        for name, folder in named_runs(self.runs):
            at, lines[name] = run_probabilities(
                folder, images=self.images, scales=self.scales, data=self.data, progress=not self.quiet
            )
            scales = at if scales is None else scales
            if at != scales:
                raise ConfigError(f"{folder} was asked about scales {at}, the others about {scales}; draw them apart")
        save_figure(draw_per_scale(scales or [], lines, ylabel="probability of the correct class"), self.out)
        print(self.out)


@dataclass(frozen=True)
class Learned:
    """Test numbers of a run on MNIST, each at several draws of its digits' sizes: learned maps and canonical forms."""

    run_folder: Annotated[Path, tyro.conf.arg(name="run")]
    """A finished run of a dec row, such as runs/mnist-deit_tiny-dec_compose_joint/seed0."""
    numbers: int = 2
    """Different numbers."""
    sizes: int = 4
    """Draws of the digits' sizes of each."""
    data: Path | None = None
    """Folder with MNIST, if it is no longer where the run had it."""
    out: Path = Path("learned.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import save_figure
        from localscale.lab.pictures.learned import draw_learned, learned_maps

        if min(self.numbers, self.sizes) < 1:
            raise ConfigError(f"--numbers {self.numbers} and --sizes {self.sizes}; expected at least 1 each")
        found = learned_maps(self.run_folder, numbers=self.numbers, sizes=self.sizes, data=self.data)
        save_figure(draw_learned(*found), self.out)
        print(self.out)


@dataclass(frozen=True)
class Pipeline:
    """From an image to its answer: the equilibrium at the input, the backbone, and a second one at a feature."""

    out: Path = Path("pipeline.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_pipeline, save_figure

        save_figure(draw_pipeline(), self.out)
        print(self.out)


@dataclass(frozen=True)
class Residual:
    """The solver's residual at each evaluation, a line for each site of a run: median and 10 to 90 % of test images."""

    run_folder: Annotated[Path, tyro.conf.arg(name="run")]
    """A finished run of a dec row, such as runs/mnist-deit_tiny-dec/seed0."""
    images: int = 64
    """Test images, or scenes, to solve for."""
    steps: int = 20
    """Evaluations to watch, past the run's own tolerance and most steps."""
    data: Path | None = None
    """Folder of the test images (data.root or data.test-root), where it is not the one that the recipe names."""
    out: Path = Path("residual.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_residuals, save_figure
        from localscale.lab.pictures.residuals import run_residuals

        found = run_residuals(self.run_folder, images=self.images, steps=self.steps, data=self.data)
        figure = draw_residuals(found.residuals, tolerance=found.tolerance, max_steps=found.max_steps)
        save_figure(figure, self.out)
        print(self.out)


@dataclass(frozen=True)
class Growth:
    """Time and memory of a solve against batch, resolution, knots, sites and steps."""

    result: Path
    """A file that ``python -m benchmarks --suite speed`` wrote, such as results/speed_cpu.json."""
    out: Path = Path("growth.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_growth, save_figure
        from localscale.lab.pictures.growth import growth_of

        save_figure(draw_growth(growth_of(self.result)), self.out)
        print(self.out)


@dataclass(frozen=True)
class Samples:
    """Samples of datasets: one group of images per row, which differ in scale only, with their scale factors below."""

    data: tuple[str, ...]
    """Folders that ``localscale data mnist|objects|imagenet`` wrote; NAME=FOLDER shows one under a name of yours."""
    groups: int = 2
    """Number of groups of each dataset."""
    columns: int = 4
    """Largest number of images of each group."""
    out: Path = Path("samples.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_samples, save_figure
        from localscale.lab.pictures.samples import read_samples

        read = [read_samples(given, groups=self.groups, columns=self.columns) for given in self.data]
        save_figure(draw_samples(read), self.out)
        print(self.out)


@dataclass(frozen=True)
class Figure:
    """Draw a figure from data, finished runs or results."""

    which: OmitSubcommandPrefixes[
        Annotated[Pipeline, subcommand("pipeline")]
        | Annotated[Functions, subcommand("functions")]
        | Annotated[Warp, subcommand("warp")]
        | Annotated[PerScale, subcommand("per-scale")]
        | Annotated[Probability, subcommand("probability")]
        | Annotated[Learned, subcommand("learned")]
        | Annotated[Samples, subcommand("samples")]
        | Annotated[Residual, subcommand("residual")]
        | Annotated[Growth, subcommand("growth")]
        | Annotated[Masks, subcommand("masks")]
    ]

    def run(self) -> None:
        self.which.run()
