"""What goes wrong in answering a browser becomes a sentence in it; the page stays as it was."""

from __future__ import annotations

import functools
import html
import logging
import threading
from collections.abc import Callable
from typing import Any

import gradio as gr

from localscale.errors import LocalScaleError

__all__ = ["finish", "in_a_sentence"]

logger = logging.getLogger(__name__)

ANSWERING = threading.Lock()  # one at a time
UNEXPECTED = "Something went wrong here; the terminal says more. The page is as it was."


def in_a_sentence(answer: Callable[..., Any]) -> Callable[..., Any]:
    """``answer`` with its errors told as a notice, and nothing changed on the page."""

    @functools.wraps(answer)
    def careful(*given: Any) -> Any:
        try:
            with ANSWERING:
                return answer(*given)
        except LocalScaleError as error:
            sentence = str(error)
        except Exception:  # a page for others must outlive anything
            logger.exception("an answer failed")
            sentence = UNEXPECTED
        gr.Warning(html.escape(sentence))
        return gr.skip()

    return careful


def finish(seconds: float = 10.0) -> None:
    """Wait for the answer that is being made; a process that ends in the middle of one is aborted."""
    if ANSWERING.acquire(timeout=seconds):
        ANSWERING.release()
