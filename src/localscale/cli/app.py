"""``localscale app``: a page to scale parts of an image and watch a model's answers."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

__all__ = ["App"]


@dataclass(frozen=True)
class App:
    """Open a page to scale a part of an image, drag the knots of a map, and see learned warps (extra: app)."""

    model: str = "small"
    """small (shipped with the package), the folder of a finished run, or the name of a model in timm."""
    control: Path | None = None
    """Folder of a finished run of the same task, shown as the base of a run."""
    pretrained: str = "timm"
    """Where the weights of a timm model come from: timm (downloaded), none (random), or a safetensors file."""
    host: str = "127.0.0.1"
    """Address to listen on; with 0.0.0.0 other machines can open the page, which asks for no password."""
    port: int = 7860
    """Port to listen on; 0 takes any that is free."""
    max_megapixels: float = 40.0
    """Largest image that may be uploaded, in millions of pixels."""
    max_megabytes: float = 20.0
    """Largest file that may be uploaded."""
    max_waiting: int = 8
    """Requests that may wait while another is answered; more are refused."""

    def run(self) -> None:
        from localscale.lab.pages.app import Limits, open_page

        limits = Limits(self.max_megapixels, self.max_megabytes, self.max_waiting)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the temporary folder goes
        with (
            contextlib.suppress(KeyboardInterrupt),
            open_page(
                self.model,
                control=self.control,
                pretrained=self.pretrained,
                host=self.host,
                port=self.port,
                limits=limits,
            ) as address,
        ):
            print(f"{address} is open; close it with Ctrl-C", flush=True)
            threading.Event().wait()
