"""``localscale app``: serve a local web page that scales a part of an image and shows what a model sees and answers."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg

__all__ = ["App"]


@dataclass(frozen=True)
class App:
    """Serve a local web page: scale a part of an image, see its canonical form and a model's answers (extra: app)."""

    model: Annotated[Positional[str], arg(metavar="MODEL")] = "small"
    """small (comes with the package), the folder of a finished run, or the name of a timm model."""
    control: Path | None = None
    """Folder of a finished run to compare the run with; by default, the run itself with its canonicalizers off."""
    pretrained: str = "timm"
    """Weights of a timm model: timm (downloaded), none (random), or the path of a safetensors file."""
    also: tuple[Path, ...] = ()
    """Folders of further finished runs that visitors can choose on the page."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines open the page and needs --password or --no-password."""
    password: str | None = None
    """Password that visitors must type, with any user name; other users of this machine can see the command line."""
    no_password: Annotated[bool, FlagCreatePairsOff] = False
    """Let everybody who reaches this machine open the page."""
    port: int = 7860
    """Port to listen on; 0 takes any free port."""
    max_megapixels: float = 40.0
    """Largest image that can be uploaded, in millions of pixels."""
    max_megabytes: float = 20.0
    """Largest file that can be uploaded, in megabytes."""
    max_waiting: int = 8
    """Number of requests that may wait while one is answered; further requests are refused."""

    def run(self) -> None:
        from localscale.lab.pages.app import Limits, open_page

        limits = Limits(self.max_megapixels, self.max_megabytes, self.max_waiting)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the temporary folder is deleted
        with (
            contextlib.suppress(KeyboardInterrupt),
            open_page(
                self.model,
                control=self.control,
                pretrained=self.pretrained,
                host=self.host,
                port=self.port,
                limits=limits,
                also=self.also,
                password=self.password,
                no_password=self.no_password,
            ) as address,
        ):
            print(f"{address} is open; press Ctrl-C to close it", flush=True)
            threading.Event().wait()
