"""Figures that explain the method and show its datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localscale.cli.figures.output import save

__all__ = ["Functions", "Pipeline", "Samples"]


@dataclass(frozen=True)
class Pipeline:
    """The whole method: canonicalizer at the image, backbone, canonicalizer at a feature, head."""

    out: Path = Path("pipeline.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_pipeline

        save(draw_pipeline(), self.out)


@dataclass(frozen=True)
class Functions:
    """Global against local scaling of a signal of one variable."""

    out: Path = Path("functions.png")
    """File to write: .png, .pdf or .svg."""

    def run(self) -> None:
        from localscale.lab.pictures import draw_functions

        save(draw_functions(), self.out)


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
