"""The page in headless Chromium: each test acts as a visitor does and checks what the browser shows."""

import re
from pathlib import Path

import pytest
from browsers import Visit, find_chromium, served
from PIL import Image

pytest.importorskip("gradio", reason="needs the extra app")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = find_chromium()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Google Chrome on PATH")]


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def address(folder: Path, temporary: Path):
    run = [str(folder / "model"), "--control", str(folder / "control"), "--pretrained", "none"]
    with served(temporary, *run, "--max-megapixels", "1", "--max-megabytes", "1") as (address, process):
        yield address
    assert process.returncode == 0
    assert not list(temporary.iterdir()), "uploads are deleted when the page closes"


@pytest.fixture(scope="module")
def browser():
    with (
        sync_api.sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as browser,
    ):
        yield browser


@pytest.fixture
def visit(browser, address: str):
    visit = Visit(browser, address)
    yield visit
    visit.page.close()
    assert not visit.errors
    assert not visit.outside, "the page needs no network"


def test_the_page_opens_with_an_example_and_a_click_chooses_another(visit: Visit):
    about = visit.text("#about")
    for words in ("87.5 % right, InvE 0.100", "Size equilibrium: ", "InvE, invariance error: "):
        assert words in about
    assert visit.captions() == ["The image\nmarked part ×1.00", "What the model sees\nmarked part ×1.00"]
    assert visit.page.locator("#curve polyline").count() == 2
    before, curve = visit.text("#answers .ls-tops"), visit.text("#curve figcaption")
    visit.page.locator('[data-example="1"]').click()
    visit.changed("#answers .ls-tops", before)
    visit.changed("#curve figcaption", curve)
    assert visit.page.locator('[data-example="1"]').get_attribute("aria-pressed") == "true"
    visit.page.get_by_role("tab", name="Learned warps").click()
    assert "input: the warp found for the image" in visit.text("#sites .ls-sites")


def test_the_slider_changes_picture_and_answers(visit: Visit):
    before, pictures, curve = visit.text("#answers .ls-tops"), visit.sources(), visit.html("#curve svg")
    visit.slide("#factor", 2)
    after = visit.changed("#answers .ls-tops", before)
    assert re.search(r"\d\.\d %", after)
    visit.page.get_by_text("marked part ×2.00").wait_for()
    assert len(pictures) == 2
    assert not set(pictures) & set(visit.sources()), "the image and its canonical form"
    assert re.findall("polyline[^>]*", visit.redrawn("#curve svg", curve)) == re.findall("polyline[^>]*", curve)


def test_after_many_quick_moves_the_last_is_shown(visit: Visit):
    for factor in (0.5, 0.8, 1.2, 1.5, 2.3):
        visit.slide("#factor", factor)
    visit.page.get_by_text("marked part ×2.30").wait_for()


def test_two_clicks_mark_a_box(visit: Visit):
    before, curve = visit.html("#pad svg"), visit.html("#curve svg")
    visit.page.mouse.click(*visit.at("#pad .ls-pad", 0.1, 0.2))
    visit.page.mouse.click(*visit.at("#pad .ls-pad", 0.4, 0.6))
    visit.redrawn("#curve svg", curve)
    after = visit.redrawn("#pad svg", before)
    sides = [float(re.search(rf'{side}="([\d.]+)"', after)[1]) for side in (" x", " y", "width", "height")]
    assert sides == pytest.approx([100, 200, 300, 400], abs=8)


def test_a_drag_and_a_brush_mark_a_box(visit: Visit):
    before = visit.html("#curve svg")
    visit.drag(visit.at("#pad .ls-pad", 0.3, 0.3), visit.at("#pad .ls-pad", 0.7, 0.8))
    before = visit.redrawn("#curve svg", before)
    visit.page.get_by_label("brush").check()
    visit.page.wait_for_selector('#pad [data-mode="brush"]')
    visit.drag(visit.at("#pad .ls-pad", 0.6, 0.5), visit.at("#pad .ls-pad", 0.8, 0.5))
    visit.redrawn("#curve svg", before)
    assert re.search(r'x="(5[5-9]\d)', visit.html("#pad svg")), "left end of the stroke, less the radius of the brush"


def test_knots_are_dragged_and_the_inverse_is_exact(visit: Visit):
    visit.page.get_by_role("tab", name="Drag knots").click()
    before = visit.text("#back .ls-facts")
    knot = '#drag [data-row="1"][data-column="1"]'
    visit.drag(visit.at(knot, 0.5, 0.5), visit.at("#drag .ls-frame", 0.45, 0.42))
    shown = visit.changed("#back .ls-facts", before)
    visit.page.wait_for_function(
        "knot => Math.abs(parseFloat(document.querySelector(knot).style.left) - 45) < 1.5", arg=knot
    )
    assert float(re.search(r"([\d.e-]+) pixels", shown)[1]) < 1e-6
    visit.page.locator(knot).focus()
    before = visit.text("#back .ls-facts")
    visit.page.keyboard.press("ArrowLeft")
    before = visit.changed("#back .ls-facts", before)
    visit.page.get_by_role("button", name="Random warp").click()
    before = visit.changed("#back .ls-facts", before)
    visit.page.get_by_role("button", name="Reset", exact=True).click()
    assert "1.00 to 1.00" in visit.changed("#back .ls-facts", before)


def test_a_refused_file_shows_a_notice_and_the_page_stays_usable(visit: Visit, tmp_path: Path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    visit.upload(tmp_path / "broken.png")
    assert "broken.png cannot be opened as an image" in visit.notice("broken.png")
    Image.new("1", (2000, 2000)).save(tmp_path / "large.png")
    visit.upload(tmp_path / "large.png")
    assert "2000×2000 pixels, 4 megapixels; at most 1" in visit.notice("large.png")
    (tmp_path / "heavy.png").write_bytes(b"0" * 1_200_000)
    visit.upload(tmp_path / "heavy.png")
    assert "maximum allowed size" in visit.notice("heavy.png")
    before = visit.text("#answers .ls-tops")
    visit.slide("#factor", 0.5)
    visit.changed("#answers .ls-tops", before)


def test_an_upload_is_shown_and_not_kept(visit: Visit, tmp_path: Path, temporary: Path):
    before, curve = visit.text("#answers .ls-tops"), visit.text("#curve figcaption")
    Image.effect_noise((300, 200), 90).convert("RGBA").save(tmp_path / "noise.png")
    visit.upload(tmp_path / "noise.png")
    visit.changed("#answers .ls-tops", before)
    assert "the model's answer at ×1" in visit.changed("#curve figcaption", curve)
    assert "reads three digits" in visit.notice("reads three digits")
    assert not list(temporary.rglob("noise.png"))


def test_a_model_can_be_typed_and_a_wrong_name_shows_a_notice(visit: Visit):
    field = visit.page.locator("#model input")
    field.fill("resnet81")
    field.press("Enter")
    assert "did you mean resnet18" in visit.notice("resnet81")
    visit.page.wait_for_function("document.querySelector('#model input').value !== 'resnet81'")
    about = visit.text("#about p:first-of-type")
    field.fill("test_resnet")
    field.press("Enter")
    assert "canonicalizer for photographs" in visit.changed("#about p:first-of-type", about)
    assert visit.page.locator("#pictures img").count() == 2
    visit.page.get_by_text("canonicalizer off").first.wait_for()


def test_a_narrow_page_does_not_scroll_sideways(browser, address: str):
    visit = Visit(browser, address, width=400)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 400
    visit.page.close()


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_image_canonical_form_slider_and_answers_are_in_view_together(browser, address: str, width: int, height: int):
    visit = Visit(browser, address, width=width, height=height)
    visit.page.locator("#pictures").evaluate("element => element.scrollIntoView()")
    parts = ("#pictures .ls-frame >> nth=0", "#pictures .ls-frame >> nth=1", "#factor", "#answers .ls-tops")
    boxes = [visit.page.locator(part).bounding_box() for part in parts]
    assert min(box["y"] for box in boxes) >= 0
    assert max(box["y"] + box["height"] for box in boxes) <= height
    assert boxes[0]["y"] == pytest.approx(boxes[1]["y"], abs=2)
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    visit.page.close()


def test_pictures_are_never_missing_while_the_slider_moves(visit: Visit):
    visit.page.evaluate(
        """() => {
          window.seen = [];
          const look = () => {
            const pictures = [...document.querySelectorAll('#pictures img')];
            window.seen.push(pictures.filter((picture) => picture.complete && picture.naturalWidth > 0).length);
            requestAnimationFrame(look);
          };
          requestAnimationFrame(look);
        }"""
    )
    for factor in (0.5, 1.5, 2.3):
        visit.slide("#factor", factor)
        visit.page.get_by_text(f"marked part ×{factor:.2f}").first.wait_for()
    seen = visit.page.evaluate("window.seen")
    assert len(seen) > 5
    assert set(seen) == {2}


def test_too_many_requests_at_once_show_a_notice(visit: Visit):
    clicks = 'for (let k = 0; k < 14; k++) document.querySelector(`[data-example="${k % 5}"]`).click()'
    visit.page.evaluate(clicks)
    assert "busy" in visit.notice("busy")
    visit.page.wait_for_function("document.querySelector('#curve figcaption').innerText.includes('653')")
