"""Serving the page from this machine: one port, one temporary folder that goes with it, nothing sent elsewhere."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from localscale.errors import ConfigError, ConvergenceWarning, OutputError
from localscale.extras import require
from localscale.lab.pages.app.limits import Limits
from localscale.lab.pages.app.models import SMALL, Models, open_pair

__all__ = ["open_page"]

SESSIONS = 64  # browsers whose image is remembered
PRIVATE = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}


@contextlib.contextmanager
def open_page(
    model: str = SMALL,
    *,
    control: Path | None = None,
    pretrained: str = "timm",
    host: str = "127.0.0.1",
    port: int = 7860,
    limits: Limits | None = None,
) -> Iterator[str]:
    """Within it the page is open, at the address it gives.

    Args:
        model: ``"small"``, the folder of a finished run, or a model of timm: the first choice on the page.
        control: a finished run to stand for the base of a run.
        pretrained: where a timm model's weights come from: ``"timm"``, ``"none"`` or a safetensors file.
        host: name or address to listen on; by default only this machine can reach it.
        port: 0 takes any that is free.
        limits: what may be uploaded, and how many requests may wait.

    >>> with open_page("resnet18", pretrained="none") as address:  # doctest: +SKIP
    ...     print(address)
    http://127.0.0.1:7860/
    """
    limits = limits or Limits()
    limits.check()
    # Gradio makes its folder when it is imported, so the environment comes first.
    with tempfile.TemporaryDirectory(prefix="localscale-app-") as folder, _environment(folder):
        gr = require("gradio", "app")
        port = _free_port(host, port)
        models = Models(open_pair(model, control=control, pretrained=pretrained), pretrained)
        from localscale.lab.pages.app.page import make_page
        from localscale.lab.pages.app.sentences import finish
        from localscale.lab.pages.app.style import STYLE

        torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))  # the browser runs here too
        warnings.simplefilter("ignore", ConvergenceWarning)  # the page says it of every image
        blocks = make_page(models, limits)
        try:
            _, address, _ = blocks.queue(max_size=limits.waiting).launch(
                server_name=host,
                server_port=port,
                share=False,
                quiet=True,
                prevent_thread_lock=True,
                max_file_size=limits.bytes,
                state_session_capacity=SESSIONS,
                footer_links=[],
                run_history=False,
                ssr_mode=False,
                theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
                css=STYLE,
            )
            yield address
        finally:
            blocks.close(verbose=False)
            finish()


def _free_port(host: str, port: int) -> int:
    """``port`` if it can be listened on, any if it is 0; the kernel's word is taken before anything is loaded."""
    if not 0 <= port < 2**16:
        raise ConfigError(f"port is {port}; expected 0, for any that is free, to 65535")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
            return tried.getsockname()[1]
    except socket.gaierror as error:
        raise ConfigError(f"there is no host {host!r} ({error.strerror}); give --host a name or address") from error
    except OSError as error:
        raise OutputError(
            f"port {port} of {host} cannot be listened on ({error.strerror}); choose another with --port"
        ) from error


@contextlib.contextmanager
def _environment(folder: str) -> Iterator[None]:
    """What Gradio reads from the environment, put back afterwards."""
    given = {**PRIVATE, "GRADIO_TEMP_DIR": folder}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
