"""Serve the page from this machine, with one temporary folder that is deleted when the page closes."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from localscale.errors import ConfigError, ConvergenceWarning, OutputError
from localscale.extras import require
from localscale.lab.pages.app.access import OnlyThePage, check_password, password_check
from localscale.lab.pages.app.models import SMALL, Models, open_pair
from localscale.lab.pages.app.uploads import Limits, swept

__all__ = ["open_page"]

VISITORS = 64  # browser tabs whose image is kept in memory
NO_TELEMETRY = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}


@contextlib.contextmanager
def open_page(
    model: str = SMALL,
    *,
    control: Path | None = None,
    pretrained: str = "timm",
    host: str = "127.0.0.1",
    port: int = 7860,
    limits: Limits | None = None,
    also: Sequence[Path] = (),
    password: str | None = None,
    no_password: bool = False,
) -> Iterator[str]:
    """Serve the page inside a ``with`` block, which receives its address.

    Args:
        model: the model that is selected at first: ``"small"``, the folder of a finished run, or the name of a timm
            model.
        control: the folder of a finished run that ``model``, a run, is compared with.
        pretrained: the weights of a timm model: ``"timm"`` (downloaded), ``"none"`` (random) or a safetensors file.
        host: host name or address to listen on; the default is reachable from this machine only.
        port: port to listen on; 0 takes any free port.
        limits: the largest upload, and the number of requests that may wait.
        also: folders of further finished runs that a visitor can choose.
        password: the password that a visitor must type, with any user name.
        no_password: whether other machines may open the page without a password.

    >>> with open_page("resnet18", pretrained="none") as address:  # doctest: +SKIP
    ...     print(address)
    http://127.0.0.1:7860/
    """
    limits = limits or Limits()
    check_password(host, password, no_password=no_password)
    # Gradio creates its temporary folder on import, so the environment is set first.
    with tempfile.TemporaryDirectory(prefix="localscale-app-") as folder, _environment(folder):
        gr = require("gradio", "app")
        port = _check_port(host, port)
        models = Models(open_pair(model, control=control, pretrained=pretrained), pretrained, also)
        from starlette.middleware import Middleware

        from localscale.lab.pages.app.notices import wait_for_handler
        from localscale.lab.pages.app.page import make_page
        from localscale.lab.pages.app.style import STYLE

        torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))  # one core is left to the browser
        warnings.simplefilter("ignore", ConvergenceWarning)  # the page shows it for every image
        blocks = make_page(models, limits, Path(folder))
        try:
            _, address, _ = blocks.queue(max_size=limits.waiting).launch(
                server_name=host,
                server_port=port,
                share=False,
                quiet=True,
                prevent_thread_lock=True,
                max_file_size=limits.bytes,
                state_session_capacity=VISITORS,
                footer_links=[],
                run_history=False,
                ssr_mode=False,
                theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
                css=STYLE,
                auth=None if password is None else password_check(password),
                auth_message="Type the password; the user name may be any.",
                app_kwargs={"middleware": [Middleware(OnlyThePage)]},
            )
            with swept(Path(folder), limits):
                yield address
        finally:
            blocks.close(verbose=False)
            wait_for_handler()


def _check_port(host: str, port: int) -> int:
    """Return ``port``, or a free port if it is 0; raise before any model is loaded if the port cannot be used."""
    if not 0 <= port < 2**16:
        raise ConfigError(f"--port is {port}; expected 1 to 65535, or 0 for any free port")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
            return tried.getsockname()[1]
    except socket.gaierror as error:
        raise ConfigError(
            f"host {host!r} is unknown ({error.strerror}); give --host a host name or an address"
        ) from error
    except OSError as error:
        raise OutputError(
            f"cannot listen on port {port} of {host} ({error.strerror}); choose another port with --port"
        ) from error


@contextlib.contextmanager
def _environment(folder: str) -> Iterator[None]:
    """Set the variables that Gradio reads, and restore them afterwards."""
    given = {**NO_TELEMETRY, "GRADIO_TEMP_DIR": folder}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
