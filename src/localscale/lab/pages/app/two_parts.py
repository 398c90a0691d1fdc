"""The answers of a run and of its control to an image, and to the same image with two parts scaled differently."""

from __future__ import annotations

from pathlib import Path

from localscale.adaptation.source import canonical_size
from localscale.canonicalizer import INPUT
from localscale.errors import ConfigError
from localscale.lab.data.boxes import Box
from localscale.lab.data.images import read_image
from localscale.lab.pages.app.models import open_run
from localscale.lab.pages.app.scaling import box_maps, fit_factor
from localscale.lab.pages.app.views import likeliest, predict
from localscale.lab.pictures.teaser import Answers
from localscale.warp import scale, unscale

__all__ = ["scale_two_parts"]

SHOWN = 3  # likeliest classes


def scale_two_parts(
    run: Path, image: Path, *, boxes: tuple[Box, Box], factors: tuple[float, float], control: Path | None = None
) -> tuple[Answers, Answers]:
    """Return the answers to an image file as it is, and with each part scaled by its factor, or the nearest that fits.

    Args:
        run: folder of a finished run that classifies.
        image: an image file; the models see its central crop.
        boxes: the parts, as fractions of that crop; they must not overlap.
        factors: the scale of each part.
        control: folder of the run to compare with; ``None`` compares with the run without its canonicalizers.
    """
    if boxes[0].overlap(boxes[1]) > 0:
        raise ConfigError(f"the parts {boxes[0].edges} and {boxes[1].edges} overlap; mark parts that lie apart")
    pair = open_run(run, name=str(run), control=control)
    seen = pair.prepare(read_image(image))
    maps = [box_maps(box, [fit_factor(box, factor)]) for box, factor in zip(boxes, factors, strict=True)]
    corners = [seen.new_tensor([[[box.left, box.top], [box.right, box.bottom]]]) for box in boxes]
    found = []
    for m in (None, maps[0] @ maps[1]):
        shown = seen if m is None else scale(seen, m)
        moved = [ends if m is None else m(ends) for ends in corners]
        predictions = predict(pair, shown)
        canonical = None
        if INPUT in predictions.sites:
            canonical = unscale(shown, predictions.sites[INPUT].map, size=canonical_size(pair.model))[0]
        answers = {pair.label: predictions.model[0]}
        if predictions.control is not None:
            answers = {pair.control_label or "control": predictions.control[0], **answers}
        named = {
            name: [(pair.name_of(label), value) for label, value in likeliest(each, SHOWN)]
            for name, each in answers.items()
        }
        edges = tuple(tuple(ends.flatten().tolist()) for ends in moved)
        found.append(Answers(shown[0], edges, canonical, named))
    return found[0], found[1]
