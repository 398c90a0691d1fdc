"""Show errors as notices in the browser, so that a failed request leaves the page as it was."""

from __future__ import annotations

import functools
import html
import logging
import threading
from collections.abc import Callable
from typing import Any

import gradio as gr

from localscale.errors import LocalScaleError

__all__ = ["errors_as_notices", "wait_for_handler"]

logger = logging.getLogger(__name__)

HANDLING = threading.Lock()  # one request at a time
UNEXPECTED = "The server could not do this; its terminal shows the error. The page is unchanged."


def errors_as_notices(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a handler so that an error becomes a notice in the browser and changes nothing else on the page."""

    @functools.wraps(handler)
    def wrapped(*inputs: Any) -> Any:
        try:
            with HANDLING:
                return handler(*inputs)
        except LocalScaleError as error:
            sentence = str(error)
        except Exception:  # the server must survive any request
            logger.exception("%s failed", handler.__name__)
            sentence = UNEXPECTED
        gr.Warning(html.escape(sentence))
        return gr.skip()

    return wrapped


def wait_for_handler(seconds: float = 10.0) -> None:
    """Wait until no handler runs: a process that exits while a handler computes is aborted."""
    if HANDLING.acquire(timeout=seconds):
        HANDLING.release()
