"""``localscale report``: one page about a finished run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """One self-contained HTML file about a finished run: scores, curves, learned warps, examples, solver health."""

    folder: Positional[Path]
    """Folder of a finished run."""
    control: Path | None = None
    """Folder of a finished run of the same task, shown beside it."""
    out: Path | None = None
    """File to write; by default report.html in the run's folder."""
    images: int = 64
    """Test images, or scenes, to look at for examples and solver health."""
    data: Path | None = None
    """Folder of the test images (data.root or data.test-root), where it is not the one that the recipe names."""
    quiet: bool = False
    """No progress bars."""

    def run(self) -> None:
        from localscale.lab.pages.report import write_report

        print(
            write_report(
                self.folder,
                control=self.control,
                out=self.out,
                images=self.images,
                data=self.data,
                progress=not self.quiet,
            )
        )
