"""The page: what stands where, and which move changes what. Everything it shows is made elsewhere."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from torch import Tensor
from torchvision.transforms.v2 import functional as T

from localscale.errors import DataError
from localscale.lab.pages.app import script
from localscale.lab.pages.app.curve import draw_curve
from localscale.lab.pages.app.drawing import strip
from localscale.lab.pages.app.examples import read_examples
from localscale.lab.pages.app.knots import Knots, even_knots, move_knot, random_knots
from localscale.lab.pages.app.limits import Limits, read_upload
from localscale.lab.pages.app.models import Models, Pair
from localscale.lab.pages.app.panels import answers_panel, knots_panels, look_panel, mark_panel, sites_panel
from localscale.lab.pages.app.scaling import LARGEST, SMALLEST, box_around, box_between
from localscale.lab.pages.app.sentences import in_a_sentence
from localscale.lab.pages.app.views import View, look, mark, open_view, show_to
from localscale.lab.pages.report.html import Html, element

__all__ = ["make_page"]

LEAD = "what a model says while a part of its image changes size"
MODES = ("box", "brush")
TOGETHER = ("one knot", "its row and column")
COUNT = 4  # knots a side, to begin with
TURN: dict[str, Any] = {"concurrency_id": "models", "concurrency_limit": 1, "api_visibility": "private"}
EACH: dict[str, Any] = {**TURN, "trigger_mode": "multiple", "show_progress": "hidden"}  # every one is answered
LAST: dict[str, Any] = {**EACH, "trigger_mode": "always_last"}  # of those that come while one is answered, the last


@dataclass(frozen=True)
class Parts:
    """Every component that a move can read or change."""

    view: gr.State
    knots: gr.State
    model: gr.Dropdown
    about: gr.HTML
    examples: gr.HTML
    upload: gr.UploadButton
    mode: gr.Radio
    pad: gr.HTML
    factor: gr.Slider
    scaled: gr.HTML
    answers: gr.HTML
    curve: gr.HTML
    sites: gr.HTML
    together: gr.Radio
    count: gr.Slider
    reset: gr.Button
    shuffle: gr.Button
    drag: gr.HTML
    back: gr.HTML


def make_page(models: Models, limits: Limits) -> gr.Blocks:
    """The page for ``models``, the first of them chosen."""
    with gr.Blocks(title="localscale", analytics_enabled=False) as blocks:
        parts = _lay_out(models.names)
        _wire_images(blocks, parts, models, limits)
        _wire_scaling(parts, models)
        _wire_knots(parts)
    return blocks


def _html(**given: Any) -> gr.HTML:
    return gr.HTML(apply_default_css=False, **given)


def _lay_out(names: list[str]) -> Parts:
    made: dict[str, Any] = {"view": gr.State(None), "knots": gr.State(even_knots(COUNT))}
    _html(value=element("div", element("h1", "localscale"), element("p", LEAD), class_="ls-head"))
    with gr.Row(equal_height=False):
        with gr.Column(scale=7, min_width=420):
            made["examples"] = _html(js_on_load=script.STRIP, elem_id="examples")
        with gr.Column(scale=1, min_width=120):
            made["upload"] = gr.UploadButton("Upload an image", size="sm", elem_id="upload")
        with gr.Column(scale=7, min_width=320):
            made["model"] = gr.Dropdown(
                names,
                value=names[0],
                allow_custom_value=True,
                label="Model: choose, or type a run's folder or a name of timm",
                elem_id="model",
            )
    made["about"] = _html(elem_id="about")
    with gr.Tabs():
        with gr.Tab("Scale a part"):
            _lay_out_scaling(made)
        with gr.Tab("Drag knots"):
            _lay_out_knots(made)
        with gr.Tab("Learned warps"):
            made["sites"] = _html(elem_id="sites")
    return Parts(**made)


def _lay_out_scaling(made: dict[str, Any]) -> None:
    with gr.Row(equal_height=False):
        with gr.Column(scale=3, min_width=220):
            made["pad"] = _html(js_on_load=script.MARK, elem_id="pad")
        with gr.Column(scale=3, min_width=220):
            made["scaled"] = _html(elem_id="scaled")
        with gr.Column(scale=4, min_width=360):
            made["answers"] = _html(elem_id="answers")
            made["factor"] = gr.Slider(
                SMALLEST, LARGEST, value=1.0, step=0.05, label="Scale of the marked part", elem_id="factor"
            )
            made["mode"] = gr.Radio(MODES, value="box", label="Mark it with a", elem_id="mode")
    made["curve"] = _html(elem_id="curve")


def _lay_out_knots(made: dict[str, Any]) -> None:
    with gr.Row(equal_height=False):
        with gr.Column(scale=1, min_width=300):
            made["drag"] = _html(js_on_load=script.KNOTS, elem_id="drag")
        with gr.Column(scale=2, min_width=460):
            made["back"] = _html(elem_id="back")
    with gr.Row():
        made["together"] = gr.Radio(TOGETHER, value=TOGETHER[0], label="What moves", scale=3, elem_id="together")
        made["count"] = gr.Slider(3, 7, value=COUNT, step=1, label="Knots a side", scale=3, elem_id="count")
        with gr.Column(scale=1, min_width=120):
            made["reset"] = gr.Button("Reset", size="sm", elem_id="reset")
            made["shuffle"] = gr.Button("Random map", size="sm", elem_id="shuffle")


def _wire_images(blocks: gr.Blocks, parts: Parts, models: Models, limits: Limits) -> None:
    """Examples, uploads and models: all that changes what is looked at."""
    examples = read_examples()
    pictures = [(example.name, example.image) for example in examples]

    def show(pair: Pair, view: View, knots: Knots, mode: str, chosen: int | None) -> list[Any]:
        about = element("p", pair.note, class_="ls-about")
        drag, back = knots_panels(_pixels(view), knots)
        return [strip(pictures, chosen), about, drag, back, 1.0, *_shown(pair, view, 1.0, mode)]

    @in_a_sentence
    def on_load(name: str, knots: Knots, mode: str) -> list[Any]:
        pair = models.get(name)
        return show(pair, show_to(pair, examples[0]), knots, mode, 0)

    @in_a_sentence
    def on_example(name: str, knots: Knots, mode: str, event: gr.EventData) -> list[Any]:
        pair, number = models.get(name), int(event.number)
        return show(pair, show_to(pair, examples[number]), knots, mode, number)

    @in_a_sentence
    def on_upload(name: str, knots: Knots, mode: str, file: str) -> list[Any]:
        pair, path = models.get(name), Path(file)
        try:
            image = read_upload(path, limits)
        finally:
            path.unlink(missing_ok=True)
        return show(pair, open_view(pair, image, path.name), knots, mode, None)

    outputs = [parts.examples, parts.about, parts.drag, parts.back, parts.factor, *_outputs(parts)]
    inputs = [parts.model, parts.knots, parts.mode]
    blocks.load(on_load, inputs, outputs, show_progress_on=[parts.about], **TURN)
    parts.examples.select(on_example, inputs, outputs, **EACH)
    parts.upload.upload(on_upload, [*inputs, parts.upload], outputs, show_progress_on=[parts.pad], **TURN)

    @in_a_sentence
    def on_model(view: View | None, name: str, factor: float, mode: str) -> list[Any]:
        pair = models.get(name)
        about = element("p", pair.note, class_="ls-about")
        return [about, *_shown(pair, show_to(pair, _kept(view).example), factor, mode)]

    def on_no_model(view: View | None) -> Any:
        return view.model if view is not None else gr.skip()

    chosen = parts.model.input(
        on_model,
        [parts.view, parts.model, parts.factor, parts.mode],
        [parts.about, *_outputs(parts)],
        show_progress_on=[parts.about],
        **TURN,
    )
    chosen.then(
        on_no_model, parts.view, parts.model, show_progress="hidden", **TURN
    )  # a name that was refused does not stay


def _wire_scaling(parts: Parts, models: Models) -> None:
    """The box, the brush and the slider."""

    @in_a_sentence
    def on_factor(view: View | None, factor: float) -> list[Any]:
        view = _kept(view)
        return _looked(models.get(view.model), view, factor)

    @in_a_sentence
    def on_mark(view: View | None, factor: float, mode: str, event: gr.EventData) -> list[Any]:
        view = _kept(view)
        pair = models.get(view.model)
        told = event._data
        box = box_around(told["stroke"], told["radius"]) if "stroke" in told else box_between(*told["corners"])
        return _shown(pair, mark(pair, view, box), factor, mode)

    @in_a_sentence
    def on_mode(view: View | None, mode: str) -> Html:
        return mark_panel(_kept(view), mode)

    parts.factor.input(on_factor, [parts.view, parts.factor], _outputs(parts)[2:], **LAST)
    parts.pad.select(on_mark, [parts.view, parts.factor, parts.mode], _outputs(parts), **EACH)
    parts.mode.change(on_mode, [parts.view, parts.mode], parts.pad, **LAST)


def _wire_knots(parts: Parts) -> None:
    """The knots and what sets them all."""

    def drawn(view: View | None, knots: Knots) -> list[Any]:
        return [knots, *knots_panels(_pixels(_kept(view)), knots)]

    @in_a_sentence
    def on_drag(view: View | None, knots: Knots, together: Any, event: gr.EventData) -> list[Any]:
        return drawn(view, move_knot(knots, int(event.row), int(event.column), (event.x, event.y), together))

    @in_a_sentence
    def on_reset(view: View | None, count: float) -> list[Any]:
        return drawn(view, even_knots(int(count)))

    @in_a_sentence
    def on_shuffle(view: View | None, count: float, together: Any) -> list[Any]:
        return drawn(view, random_knots(int(count), secrets.randbits(31), together))

    outputs = [parts.knots, parts.drag, parts.back]
    parts.drag.input(on_drag, [parts.view, parts.knots, parts.together], outputs, **EACH)
    parts.count.change(on_reset, [parts.view, parts.count], outputs, **LAST)
    parts.reset.click(on_reset, [parts.view, parts.count], outputs, **EACH)
    parts.shuffle.click(on_shuffle, [parts.view, parts.count, parts.together], outputs, **EACH)


def _kept(view: View | None) -> View:
    """What this browser looks at; nothing after the page was opened by another server, or by too many."""
    if view is None:
        raise DataError("the page has lost what it was showing; reload it")
    return view


def _outputs(parts: Parts) -> list[Any]:
    """What ``_shown`` fills."""
    return [parts.view, parts.pad, parts.scaled, parts.answers, parts.curve, parts.sites]


def _shown(pair: Pair, view: View, factor: float, mode: str) -> list[Any]:
    return [view, mark_panel(view, mode), *_looked(pair, view, factor)]


def _looked(pair: Pair, view: View, factor: float) -> list[Html]:
    found = look(pair, view, factor)
    return [
        look_panel(found),
        answers_panel(pair, found),
        draw_curve(pair, view, found.factor),
        sites_panel(pair, found),
    ]


def _pixels(view: View) -> Tensor:
    """The whole image, ``(1, 3, H, W)`` in [0,1]."""
    return T.pil_to_tensor(view.example.image)[None].float() / 255
