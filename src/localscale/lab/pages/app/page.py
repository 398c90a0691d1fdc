"""The page: its layout, and the handlers that answer what a visitor does."""

from __future__ import annotations

import secrets
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import gradio as gr
from torch import Tensor
from torchvision.transforms.v2 import functional as T

from localscale.errors import DataError
from localscale.lab.pages.app import javascript, panels
from localscale.lab.pages.app.drawing import strip
from localscale.lab.pages.app.events import read_knot, read_mark, read_number, read_whole_number, read_word
from localscale.lab.pages.app.examples import Example, first_example, read_examples
from localscale.lab.pages.app.knots import Knots, Moving, even_knots, move_knot, random_knots
from localscale.lab.pages.app.models import Models, Pair
from localscale.lab.pages.app.notices import errors_as_notices
from localscale.lab.pages.app.scaling import LARGEST, SMALLEST
from localscale.lab.pages.app.uploads import Limits, take_upload
from localscale.lab.pages.app.views import MIDDLE, ScaledView, View, mark_part, scale_part, view_example
from localscale.lab.pages.html import Html, element

__all__ = ["make_page"]

TITLE = "Change the size of one part of an image: watch what the model sees and what it answers."
KNOTS = (
    "Drag a knot to warp the image around it. A knot stops before the image folds, so every warp can be undone "
    "exactly. No model is involved."
)
COUNT, FEWEST, MOST = 4, 3, 7  # knots per side at first, at least and at most
MARKS = ("box", "brush")
ONE_AT_A_TIME: dict[str, Any] = {"concurrency_id": "models", "concurrency_limit": 1, "api_visibility": "private"}
EVERY_EVENT: dict[str, Any] = {**ONE_AT_A_TIME, "trigger_mode": "multiple", "show_progress": "hidden"}
# Of the events that arrive while one is handled, only the last is handled.
LAST_EVENT: dict[str, Any] = {**EVERY_EVENT, "trigger_mode": "always_last"}


def make_page(models: Models, limits: Limits, uploads: Path) -> gr.Blocks:
    """Build the page, with the first of ``models`` selected; Gradio writes uploads to the folder ``uploads``."""
    with gr.Blocks(title="localscale", analytics_enabled=False) as blocks:
        parts = _lay_out(models.names)
        _handle_images(blocks, parts, models, limits, uploads)
        _handle_scaling(parts, models)
        _handle_knots(parts)
    return blocks


def _html(elem_id: str | None = None, **given: Any) -> gr.HTML:
    return gr.HTML(apply_default_css=False, elem_id=elem_id, **given)


def _paragraph(text: str) -> Html:
    return element("p", text, class_="ls-about")


def _lay_out(names: list[str]) -> SimpleNamespace:
    """Place every component; return those that a handler reads or changes."""
    parts = SimpleNamespace(view=gr.State(None), knots=gr.State(even_knots(COUNT)))
    _html(value=element("div", element("h1", "localscale"), element("p", TITLE), class_="ls-head"))
    with gr.Row(equal_height=False):
        with gr.Column(scale=7, min_width=420):
            parts.examples = _html("examples", js_on_load=javascript.CHOOSE_EXAMPLE)
        with gr.Column(scale=1, min_width=120):
            parts.upload = gr.UploadButton("Upload an image", size="sm", elem_id="upload")
        with gr.Column(scale=7, min_width=320):
            label = "Model: choose, or type the name of a timm model"
            parts.model = gr.Dropdown(names, value=names[0], allow_custom_value=True, label=label, elem_id="model")
    parts.about = _html("about")
    with gr.Tabs():
        with gr.Tab("Scale a part"):
            _lay_out_scaling(parts)
        with gr.Tab("Drag knots"):
            _lay_out_knots(parts)
        with gr.Tab("Learned warps") as parts.warps:
            parts.sites = _html("sites")
    return parts


def _lay_out_scaling(parts: SimpleNamespace) -> None:
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=220):
            parts.pad = _html("pad", js_on_load=javascript.MARK_PART)
            parts.mode = gr.Radio(MARKS, value="box", label="Mark with a", elem_id="mode", show_label=False)
        with gr.Column(scale=8, min_width=320):
            parts.pictures = _html("pictures")
            label = "Size of the marked part"
            parts.factor = gr.Slider(SMALLEST, LARGEST, value=1.0, step=0.05, label=label, elem_id="factor")
        with gr.Column(scale=5, min_width=320):
            parts.answers = _html("answers")
    parts.curve = _html("curve")


def _lay_out_knots(parts: SimpleNamespace) -> None:
    _html(value=_paragraph(KNOTS))
    with gr.Row(equal_height=False):
        with gr.Column(scale=1, min_width=300):
            parts.drag = _html("drag", js_on_load=javascript.DRAG_KNOTS)
        with gr.Column(scale=2, min_width=460):
            parts.back = _html("back")
    with gr.Row():
        moving = get_args(Moving)
        parts.moving = gr.Radio(moving, value=moving[0], label="A drag moves", scale=3, elem_id="moving")
        parts.count = gr.Slider(FEWEST, MOST, value=COUNT, step=1, label="Knots per side", scale=3, elem_id="count")
        with gr.Column(scale=1, min_width=120):
            parts.reset = gr.Button("Reset", size="sm", elem_id="reset")
            parts.shuffle = gr.Button("Random warp", size="sm", elem_id="shuffle")


def _handle_images(blocks: gr.Blocks, parts: SimpleNamespace, models: Models, limits: Limits, uploads: Path) -> None:
    """Handle opening the page, and the choice of an example, an upload or a model."""
    examples = read_examples()
    pictures = [(example.name, example.image) for example in examples]

    def show(pair: Pair, view: View, knots: Knots, mode: str, chosen: int | None) -> list[Any]:
        warped = panels.knots_panels(_pixels(view), knots)
        return [strip(pictures, chosen), panels.about_panel(pair), *warped, 1.0, *_show_view(pair, view, 1.0, mode)]

    @errors_as_notices
    def on_load(name: str, knots: Knots, mode: str) -> list[Any]:
        pair, mode = models.get(name), read_word(mode, "the mark", MARKS)
        number = first_example(examples, photograph=not pair.reads_digits)
        return show(pair, view_example(pair, examples[number]), knots, mode, number)

    @errors_as_notices
    def on_example(name: str, knots: Knots, mode: str, event: gr.EventData) -> list[Any]:
        pair, mode = models.get(name), read_word(mode, "the mark", MARKS)
        number = read_whole_number(_data(event).get("number"), "the example", 0, len(examples) - 1)
        return show(pair, view_example(pair, examples[number]), knots, mode, number)

    @errors_as_notices
    def on_upload(name: str, knots: Knots, mode: str, file: str) -> list[Any]:
        shown, image = take_upload(file, uploads, limits)
        pair, mode = models.get(name), read_word(mode, "the mark", MARKS)
        if pair.reads_digits:
            gr.Info(panels.READS_DIGITS)
        return show(pair, view_example(pair, Example(shown, image, MIDDLE)), knots, mode, None)

    @errors_as_notices
    def on_model(view: View | None, name: str, factor: float, mode: str) -> list[Any]:
        factor, mode = _factor(factor), read_word(mode, "the mark", MARKS)
        pair = models.get(name)
        view = view_example(pair, _require(view).example)
        return [panels.about_panel(pair), *_show_view(pair, view, factor, mode)]

    def restore_model(view: View | None) -> Any:
        """Reset the field to the name of the current model after another name was refused."""
        return view.model if view is not None else gr.skip()

    outputs = [parts.examples, parts.about, parts.drag, parts.back, parts.factor, *_view_outputs(parts)]
    inputs = [parts.model, parts.knots, parts.mode]
    blocks.load(on_load, inputs, outputs, show_progress_on=[parts.about], **ONE_AT_A_TIME)
    parts.examples.select(on_example, inputs, outputs, **EVERY_EVENT)
    parts.upload.upload(on_upload, [*inputs, parts.upload], outputs, show_progress_on=[parts.pad], **ONE_AT_A_TIME)
    inputs, outputs = [parts.view, parts.model, parts.factor, parts.mode], [parts.about, *_view_outputs(parts)]
    chosen = parts.model.input(on_model, inputs, outputs, show_progress_on=[parts.about], **ONE_AT_A_TIME)
    chosen.then(restore_model, parts.view, parts.model, show_progress="hidden", **ONE_AT_A_TIME)


def _handle_scaling(parts: SimpleNamespace, models: Models) -> None:
    """Handle the box, the brush and the slider."""

    @errors_as_notices
    def on_factor(view: View | None, factor: float) -> list[Any]:
        view = _require(view)
        pair = models.get(view.model)
        return _show_scaled(pair, view, scale_part(pair, view, _factor(factor)))

    @errors_as_notices
    def on_warps(view: View | None, factor: float) -> Html:
        view = _require(view)
        pair = models.get(view.model)
        return panels.sites_panel(pair, scale_part(pair, view, _factor(factor)))

    @errors_as_notices
    def on_mark(view: View | None, factor: float, mode: str, event: gr.EventData) -> list[Any]:
        view, box = _require(view), read_mark(event._data)
        factor, mode = _factor(factor), read_word(mode, "the mark", MARKS)
        pair = models.get(view.model)
        return _show_view(pair, mark_part(pair, view, box), factor, mode)

    @errors_as_notices
    def on_mode(view: View | None, mode: str) -> Html:
        return panels.mark_panel(_require(view), read_word(mode, "the mark", MARKS))

    # The slider leaves out the warps, which are in another tab; they are drawn when that tab is opened.
    parts.factor.input(on_factor, [parts.view, parts.factor], _view_outputs(parts)[2:-1], **LAST_EVENT)
    parts.warps.select(on_warps, [parts.view, parts.factor], parts.sites, **LAST_EVENT)
    parts.pad.select(on_mark, [parts.view, parts.factor, parts.mode], _view_outputs(parts), **EVERY_EVENT)
    parts.mode.change(on_mode, [parts.view, parts.mode], parts.pad, **LAST_EVENT)


def _handle_knots(parts: SimpleNamespace) -> None:
    """Handle drags of a knot, and the controls that set all knots."""

    def show(view: View | None, knots: Knots) -> list[Any]:
        return [knots, *panels.knots_panels(_pixels(_require(view)), knots)]

    @errors_as_notices
    def on_drag(view: View | None, knots: Knots, moving: Any, event: gr.EventData) -> list[Any]:
        return show(view, move_knot(knots, *read_knot(event._data), read_word(moving, "a drag", get_args(Moving))))

    @errors_as_notices
    def on_reset(view: View | None, count: float) -> list[Any]:
        return show(view, even_knots(_count(count)))

    @errors_as_notices
    def on_shuffle(view: View | None, count: float, moving: Any) -> list[Any]:
        moving = read_word(moving, "a drag", get_args(Moving))
        return show(view, random_knots(_count(count), secrets.randbits(31), moving))

    outputs = [parts.knots, parts.drag, parts.back]
    parts.drag.input(on_drag, [parts.view, parts.knots, parts.moving], outputs, **EVERY_EVENT)
    parts.count.change(on_reset, [parts.view, parts.count], outputs, **LAST_EVENT)
    parts.reset.click(on_reset, [parts.view, parts.count], outputs, **EVERY_EVENT)
    parts.shuffle.click(on_shuffle, [parts.view, parts.count, parts.moving], outputs, **EVERY_EVENT)


def _data(event: gr.EventData) -> dict[str, Any]:
    return event._data if isinstance(event._data, dict) else {}


def _factor(value: Any) -> float:
    return read_number(value, "the size of the marked part", SMALLEST, LARGEST)


def _count(value: Any) -> int:
    return read_whole_number(value, "the number of knots", FEWEST, MOST)


def _require(view: View | None) -> View:
    """Return the view, which is lost if the server was restarted or too many browser tabs are open."""
    if view is None:
        raise DataError("the server no longer has the image of this page; reload the page")
    return view


def _view_outputs(parts: SimpleNamespace) -> list[Any]:
    """Return the components that the values of ``_show_view`` fill, in the same order."""
    return [parts.view, parts.pad, parts.pictures, parts.answers, parts.curve, parts.sites]


def _show_view(pair: Pair, view: View, factor: float, mode: str) -> list[Any]:
    scaled = scale_part(pair, view, factor)
    shown = _show_scaled(pair, view, scaled)
    return [view, panels.mark_panel(view, mode), *shown, panels.sites_panel(pair, scaled)]


def _show_scaled(pair: Pair, view: View, scaled: ScaledView) -> list[Html]:
    curve = panels.curve_panel(pair, view, scaled.factor)
    return [panels.pictures_panel(scaled), panels.answers_panel(pair, view, scaled), curve]


def _pixels(view: View) -> Tensor:
    """Return the whole image, ``(1, 3, H, W)`` in [0,1]."""
    return T.pil_to_tensor(view.example.image)[None].float() / 255
