"""Start ``localscale app`` and visit it with headless Chromium."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = 60
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    return next((found for found in map(shutil.which, NAMES) if found), None)


@contextlib.contextmanager
def served(temporary: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run ``localscale app`` with its temporary files in ``temporary``; yield its address and the process."""
    cache = str(temporary.parent / "inductor")  # PyTorch creates this folder on import
    environment = {**os.environ, "TMPDIR": str(temporary), "TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "localscale", "app", "--port", "0", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=temporary
    )
    with process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)  # if it does not end when it is asked to
        stack.callback(process.communicate, timeout=SECONDS)
        stack.callback(process.terminate)
        printed = []
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            if found := re.search(r"(http://\S+) is open", line):
                yield found[1], process
                break
        else:
            raise AssertionError("".join(printed))


class Visit:
    """One visitor; ``outside`` lists the requests to other servers."""

    def __init__(self, browser: Any, address: str, *, width: int = 1280, height: int = 900) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": height})
        self.page.set_default_timeout(1000 * SECONDS)
        self.outside: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self._note(request.url, address))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(address)
        self.page.wait_for_selector("#answers .ls-top")

    def _note(self, url: str, address: str) -> None:
        if not url.startswith((address, "data:", "blob:")):
            self.outside.append(url)

    def text(self, part: str) -> str:
        return self.page.locator(part).inner_text()

    def html(self, part: str) -> str:
        return self.page.locator(part).inner_html()

    def captions(self) -> list[str]:
        """Return the captions of the image and of its canonical form."""
        return self.page.locator("#pictures figcaption").all_inner_texts()

    def sources(self) -> list[str]:
        """Return the data URLs of the image and of its canonical form."""
        return [picture.get_attribute("src") for picture in self.page.locator("#pictures img").all()]

    def changed(self, part: str, before: str) -> str:
        """Wait until the text of ``part`` differs from ``before``, and return it."""
        self._wait("innerText", part, before)
        return self.text(part)

    def redrawn(self, part: str, before: str) -> str:
        """Wait until the HTML of ``part`` differs from ``before``, and return it."""
        self._wait("innerHTML", part, before)
        return self.html(part)

    def _wait(self, kind: str, part: str, before: str) -> None:
        script = f"([part, before]) => document.querySelector(part).{kind} !== before"
        self.page.wait_for_function(script, arg=[part, before])

    def slide(self, part: str, value: float) -> None:
        """Move a slider with the events of a mouse."""
        self.page.locator(f"{part} input[type=range]").evaluate(
            "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true})); }",
            value,
        )

    def at(self, part: str, x: float, y: float) -> tuple[float, float]:
        """Return the screen position of the fractions (x, y) of ``part``."""
        box = self.page.locator(part).bounding_box()
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.page.mouse.move(*start)
        self.page.mouse.down()
        self.page.mouse.move(*end, steps=6)
        self.page.mouse.up()

    def upload(self, path: Path) -> None:
        self.page.locator("#upload").locator("xpath=..").locator("input[type=file]").set_input_files(path)

    def notice(self, words: str) -> str:
        """Wait for the notice that contains ``words``, and return its text."""
        found = self.page.locator(".toast-wrap").get_by_text(words).first
        found.wait_for()
        return found.inner_text()
