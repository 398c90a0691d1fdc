"""Open ``localscale app`` in headless Chromium: write docs/app_*.png and print the latency of the slider.

Run from the repository root: ``.venv/bin/python docs/make_app_screenshots.py [WIDTH] [FOLDER]`` (extra: dev)
"""

import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from localscale.lab.pages.app import open_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HEIGHT = 960
MOVES = [0.5 + 0.1 * k for k in range(20)]
# The time from a move of the slider to the new picture in the page, in milliseconds.
MOVE = """(factor) => new Promise((done) => {
  const caption = () => document.querySelector('#pictures figcaption').innerText;
  const started = performance.now(), told = `×${factor.toFixed(2)}`;
  const check = () => caption().includes(told) ? done(performance.now() - started) : setTimeout(check, 1);
  const range = document.querySelector('#factor input[type=range]');
  range.value = factor;
  range.dispatchEvent(new Event('input', { bubbles: true }));
  check();
})"""


def drag(page: Any, knot: str, x: float, y: float) -> None:
    """Drag a knot to a position, given as fractions of the frame."""
    start, frame = page.locator(knot).bounding_box(), page.locator("#drag .ls-frame").bounding_box()
    page.mouse.move(start["x"] + start["width"] / 2, start["y"] + start["height"] / 2)
    page.mouse.down()
    page.mouse.move(frame["x"] + x * frame["width"], frame["y"] + y * frame["height"], steps=5)
    page.mouse.up()
    page.wait_for_timeout(600)


def shoot(page: Any, path: Path) -> None:
    """Write a screenshot of the page, cut where its content ends."""
    page.mouse.move(1, 1)
    page.wait_for_timeout(500)
    tab, size = page.locator(".tabitem:visible").bounding_box(), page.viewport_size
    clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], tab["y"] + tab["height"] + 16)}
    page.screenshot(path=path, clip=clip, animations="disabled")


def visit(page: Any, folder: Path) -> list[float]:
    """Write three screenshots; return the times of twenty moves of the slider in milliseconds."""
    page.wait_for_selector("#answers .ls-top")
    page.locator("[data-example='3']").click()
    page.wait_for_timeout(2500)
    times = [page.evaluate(MOVE, round(factor, 2)) for factor in MOVES]
    page.evaluate(MOVE, 1.8)
    shoot(page, folder / "app_scale.png")
    page.get_by_role("tab", name="Learned warps").click()
    shoot(page, folder / "app_sites.png")
    page.get_by_role("tab", name="Drag knots").click()
    page.get_by_role("button", name="landscape").click()
    page.wait_for_timeout(2500)
    drag(page, '#drag [data-row="1"][data-column="1"]', 0.24, 0.22)
    drag(page, '#drag [data-row="2"][data-column="2"]', 0.60, 0.76)
    shoot(page, folder / "app_knots.png")
    return times


def main() -> None:
    """Open the page, write the screenshots and print the latency."""
    width = int(sys.argv[1]) if len(sys.argv) > 1 else 1280
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent
    chromium = next((path for path in map(shutil.which, BROWSERS) if path), None)
    with open_page(port=0) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": HEIGHT})
        page.goto(address)
        times = visit(page, folder)
        browser.close()
    print(f"latency of the slider: median {statistics.median(times):.0f} ms, slowest {max(times):.0f} of {len(times)}")


if __name__ == "__main__":
    main()
