"""Sections with pictures: the examples whose answers change most and least, and learned maps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from localscale.canonicalizer import INPUT
from localscale.lab.pages.report.html import Html, element, section
from localscale.lab.pages.report.pictures import picture
from localscale.lab.pictures.grids import warp_grid
from localscale.lab.pictures.masks import coloured
from localscale.lab.runs.answers import Answer, TrainedModel
from localscale.lab.runs.examples import Example, Examples
from localscale.maps.base import Map
from localscale.warp import unscale

__all__ = ["examples_section", "warps_section"]

SHOWN = 3  # examples of each kind
WARPS = 4


def examples_section(models: dict[str, TrainedModel], changes: dict[str, list[float]], examples: Examples) -> Html:
    """Return the examples whose answers change most and least, with the answers of every model."""
    measured = {
        label: [k for k, change in enumerate(found) if not math.isnan(change)] for label, found in changes.items()
    }
    first = next(iter(changes))
    if not measured[first]:
        note = "No tested image shows its objects at two scales, so there is no change to rank by."
        return section("examples", "Examples", element("p", note, class_="note"))
    means = [f"{label} {_mean(changes[label], kept):.3g}" for label, kept in measured.items() if kept]
    parts = [element("p", _measure(examples), f" Mean over {len(measured[first])} examples: ", ", ".join(means), ".")]
    for title, numbers in _choose(changes, measured).items():
        if numbers:
            cards = [_card(examples.read(k), models, examples) for k in numbers]
            parts.append(element("div", element("h3", title), *cards))
    return section("examples", "Examples", *parts)


def _choose(changes: dict[str, list[float]], measured: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the numbers of the examples under each heading; no example appears twice."""
    found: dict[str, list[int]] = {}

    def take(title: str, label: str, sign: int) -> None:
        left = [k for k in measured[label] if not any(k in shown for shown in found.values())]
        found[title] = sorted(left, key=lambda k: sign * changes[label][k])[:SHOWN]

    first, *others = changes
    take(f"Changes most ({first})", first, -1)
    take(f"Changes least ({first})", first, +1)
    for label in others:
        take(f"Changes most ({label}), other than those above", label, -1)
    return found


def _measure(examples: Examples) -> str:
    if examples.read(0).masks is not None:
        return "Change is the standard deviation of IoU over the images of a scene."
    return (
        "Change is the image's share of InvE: the mean squared ℓ2 distance between the softmax output on the image "
        "(outlined) and on its locally scaled variants."
    )


def _mean(values: Sequence[float], kept: Sequence[int]) -> float:
    return sum(values[k] for k in kept) / len(kept)


def _card(example: Example, models: dict[str, TrainedModel], examples: Examples) -> Html:
    answers = {label: model.ask(example) for label, model in models.items()}
    told = ", ".join(f"{label} {answer.change:.3g}" for label, answer in answers.items())
    cells = []
    for k, image in enumerate(example.images):
        lines: list[Html] = [picture(image, f"{example.name} at {example.captions[k]}")]
        lines.append(element("small", example.captions[k]))
        if example.masks is not None:
            lines += _masks_at(k, example, example.masks, answers)
        else:
            lines += [_class_at(k, example, label, answer, examples) for label, answer in answers.items()]
        chosen = "cell reference" if k == example.reference and example.masks is None else "cell"
        cells.append(element("div", *lines, class_=chosen))
    caption = element("figcaption", element("b", example.name), f" · change: {told}")
    return element("figure", caption, element("div", *cells, class_="strip", tabindex="0"), class_="card")


def _class_at(k: int, example: Example, label: str, answer: Answer, examples: Examples) -> Html:
    found = int(answer.labels[k])
    right = found == example.label
    mark = element("span", "✓" if right else "✗", class_="right" if right else "wrong")
    return element("small", mark, f" {label}: {examples.name_of(found)}, {100 * answer.scores[k]:.0f} %")


def _masks_at(k: int, example: Example, masks: Tensor, answers: dict[str, Answer]) -> list[Html]:
    shown = [int(label) for label in masks.unique() if label > 0]
    lines = [picture(coloured(example.images[k], masks[k], shown), "true mask"), element("small", "truth")]
    for label, answer in answers.items():
        lines.append(picture(coloured(example.images[k], answer.labels[k], shown), f"mask of {label}"))
        overlap = "no object" if math.isnan(answer.scores[k]) else f"IoU {100 * answer.scores[k]:.0f} %"
        lines.append(element("small", f"{label}: {overlap}"))
    return lines


def warps_section(model: TrainedModel, examples: Examples, label: str) -> Html:
    """Return some images with the warped grid of each site and their canonical forms."""
    cards: list[Html] = []
    maps: dict[str, Map] = {}
    for number in range(min(WARPS, examples.count)):
        example = examples.read(number)
        image = example.images[example.reference : example.reference + 1]
        maps = model.maps(image)
        if not maps:
            note = "The model of this run has no canonicalizer, so there is no map to draw."
            return section("warps", "Learned warps", element("p", note, class_="note"))
        cells = [_cell(picture(image[0], example.name), "image")]
        entering = image  # sites inside the backbone see the canonical form of the input
        for site, m in maps.items():
            grid = warp_grid(m, points=33)[0]
            moved = f"{100 * float(m.mean_displacement()):.2f} % of the side"
            cells.append(_cell(picture(entering[0], f"warp at {site}", grid=grid), f"{site}: displacement {moved}"))
            if site == INPUT:
                entering = unscale(image, m)
                cells.append(_cell(picture(entering[0], "canonical form"), "canonical form"))
        strip = element("div", *cells, class_="strip", tabindex="0")
        cards.append(element("figure", element("figcaption", element("b", example.name)), strip, class_="card"))
    note = (
        f"The grids of {label} show which places of the image the canonical form reads. Straight, even lines mean that "
        "the map is the identity."
    )
    kind = "cards" if len(maps) == 1 else ""  # several sites need the full width
    return section("warps", "Learned warps", element("p", note), element("div", *cards, class_=kind))


def _cell(shown: Html, caption: str) -> Html:
    return element("div", shown, element("small", caption), class_="cell")
