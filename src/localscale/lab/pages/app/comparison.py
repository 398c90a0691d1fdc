"""Finished runs compared on one image: the probability of a class while a marked part of the image changes size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from localscale.errors import ConfigError
from localscale.lab.data.boxes import Box
from localscale.lab.data.images import read_image
from localscale.lab.pages.app.models import open_run
from localscale.lab.pages.app.views import MIDDLE, likeliest, predict, trace_curve

__all__ = ["Comparison", "compare_runs"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The probability of the class ``name`` at each factor, by the name of the run.

    ``image`` ``(3, H, W)`` in [0,1] is what the first run sees at factor 1, and ``box`` the marked part of it.
    """

    image: Tensor
    box: Box
    name: str
    factors: list[float]
    lines: dict[str, list[float]]


def compare_runs(runs: dict[str, Path], image: Path, *, box: Box | None = None, label: int | None = None) -> Comparison:
    """Scale a part of an image by each factor that the app tries, and record the answers of finished runs.

    A single run with canonicalizers is compared with itself without them.

    Args:
        runs: folders of finished runs that classify, by the names of their lines.
        image: an image file; the runs see its central crop.
        box: the part that is scaled, as fractions of that crop; ``None`` means the middle.
        label: the class; ``None`` means the answer of the first run at scale 1.
    """
    picture, box = read_image(image), box or MIDDLE
    found: Comparison | None = None
    crop = 1.0
    for line, folder in runs.items():
        pair = open_run(folder, name=line)
        seen = pair.prepare(picture)
        probabilities = predict(pair, seen).model[0]
        if label is None:
            label = likeliest(probabilities, count=1)[0][0]
        if not 0 <= label < len(probabilities):
            raise ConfigError(
                f"the label is {label}, and the run in {folder} has the classes 0 to {len(probabilities) - 1}"
            )
        name = pair.name_of(label)
        if found is None:
            crop = pair.crop
        elif (name, pair.crop) != (found.name, crop):
            raise ConfigError(
                f"the run in {folder} calls class {label} {name} and sees {pair.crop:g} of an image; the runs before "
                f"it call it {found.name} and see {crop:g}; compare runs on the same classes and crops"
            )
        curve = trace_curve(pair, seen, box, label)
        if found is None:
            found = Comparison(seen[0], box, name, curve.factors, {})
        found.lines[line] = curve.model
        if len(runs) == 1 and curve.control is not None:
            found.lines[pair.control_label or "control"] = curve.control
    if found is None:
        raise ConfigError("no run was named; expected at least one")
    return found
