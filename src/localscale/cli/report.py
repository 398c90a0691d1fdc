"""``localscale report``: one HTML page about a finished run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML file about a finished run: scores, curves, learned maps, examples, solver."""

    folder: Positional[Path]
    """Folder of a finished run."""
    control: Path | None = None
    """Folder of a finished run of the same task to compare with."""
    out: Path | None = None
    """File to write; report.html in the run's folder by default."""
    images: int = 64
    """Number of test images, or scenes, for examples and solver statistics."""
    data: Path | None = None
    """Folder of the test images, if it differs from the recipe's."""
    quiet: bool = False
    """Show no progress bars."""

    def run(self) -> None:
        from localscale.lab.pages.report import write_report

        shown = write_report(
            self.folder,
            control=self.control,
            out=self.out,
            images=self.images,
            data=self.data,
            progress=not self.quiet,
        )
        print(shown)
