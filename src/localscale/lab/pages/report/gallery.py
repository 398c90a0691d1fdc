"""Sections with pictures: the groups whose answers change most and least, and learned maps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from localscale.adaptation.source import canonical_size
from localscale.canonicalizer import INPUT
from localscale.lab.pages.html import Html, element, section
from localscale.lab.pages.report.pictures import picture
from localscale.lab.pictures.grids import warp_grid
from localscale.lab.pictures.masks import coloured
from localscale.lab.runs.answers import Answer, TrainedModel
from localscale.lab.runs.groups import ImageGroup, ImageGroups
from localscale.maps.base import Map
from localscale.warp import unscale

__all__ = ["examples_section", "warps_section"]

SHOWN = 3  # examples under each heading
WARPS = 4


def examples_section(models: dict[str, TrainedModel], changes: dict[str, list[float]], groups: ImageGroups) -> Html:
    """Return the groups whose answers change most and least, with the answers of every model."""
    measured = {
        label: [k for k, change in enumerate(found) if not math.isnan(change)] for label, found in changes.items()
    }
    first = next(iter(changes))
    if not measured[first]:
        note = "No tested image shows its objects at two scales, so there is no change to rank by."
        return section("examples", "Examples", element("p", note, class_="note"))
    means = [f"{label} {_mean(changes[label], kept):.3g}" for label, kept in measured.items() if kept]
    parts = [element("p", _measure(groups), f" Mean over {len(measured[first])} examples: ", ", ".join(means), ".")]
    for title, numbers in _choose(changes, measured).items():
        if numbers:
            cards = [_card(groups.read(k), models, groups) for k in numbers]
            parts.append(element("div", element("h3", title), *cards))
    return section("examples", "Examples", *parts)


def _choose(changes: dict[str, list[float]], measured: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the numbers of the groups under each heading; no group appears twice."""
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


def _measure(groups: ImageGroups) -> str:
    if groups.read(0).masks is not None:
        return "Change is the standard deviation of IoU over the images of a scene, or over the scalings of an image."
    return (
        "Change is the image's share of InvE: the mean squared ℓ2 distance between the softmax output on the image "
        "(outlined) and on its locally scaled variants."
    )


def _mean(values: Sequence[float], kept: Sequence[int]) -> float:
    return sum(values[k] for k in kept) / len(kept)


def _card(group: ImageGroup, models: dict[str, TrainedModel], groups: ImageGroups) -> Html:
    answers = {label: model.ask(group) for label, model in models.items()}
    told = ", ".join(f"{label} {answer.change:.3g}" for label, answer in answers.items())
    cells = []
    for k, image in enumerate(group.images):
        lines: list[Html] = [picture(image, f"{group.name} at {group.captions[k]}")]
        lines.append(element("small", group.captions[k]))
        if group.masks is not None:
            lines += _masks_at(k, group, group.masks, answers)
        else:
            lines += [_class_at(k, group, label, answer, groups) for label, answer in answers.items()]
        chosen = "cell reference" if k == group.reference and group.masks is None else "cell"
        cells.append(element("div", *lines, class_=chosen))
    caption = element("figcaption", element("b", group.name), f" · change: {told}")
    return element("figure", caption, element("div", *cells, class_="strip", tabindex="0"), class_="card")


def _class_at(k: int, group: ImageGroup, label: str, answer: Answer, groups: ImageGroups) -> Html:
    found = int(answer.labels[k])
    right = found == group.label
    mark = element("span", "✓" if right else "✗", class_="right" if right else "wrong")
    return element("small", mark, f" {label}: {groups.name_of(found)}, {100 * answer.scores[k]:.0f} %")


def _masks_at(k: int, group: ImageGroup, masks: Tensor, answers: dict[str, Answer]) -> list[Html]:
    shown = [int(label) for label in masks.unique() if label > 0]
    lines = [picture(coloured(group.images[k], masks[k], shown), "true mask"), element("small", "truth")]
    for label, answer in answers.items():
        lines.append(picture(coloured(group.images[k], answer.labels[k], shown), f"mask of {label}"))
        overlap = "no object" if math.isnan(answer.scores[k]) else f"IoU {100 * answer.scores[k]:.0f} %"
        lines.append(element("small", f"{label}: {overlap}"))
    return lines


def warps_section(model: TrainedModel, groups: ImageGroups, label: str) -> Html:
    """Return some images with the warped grid of each site and their canonical forms."""
    cards: list[Html] = []
    maps: dict[str, Map] = {}
    for number in range(min(WARPS, groups.count)):
        group = groups.read(number)
        image = group.images[group.reference : group.reference + 1]
        maps = model.maps(image)
        if not maps:
            note = "The model of this run has no canonicalizer, so there is no map to draw."
            return section("warps", "Learned warps", element("p", note, class_="note"))
        cells = [_cell(picture(image[0], group.name), "image")]
        entering = image  # sites inside the backbone see the canonical form of the input
        for site, m in maps.items():
            grid = warp_grid(m, points=33)[0]
            moved = f"{100 * float(m.mean_displacement()):.2f} % of the side"
            cells.append(_cell(picture(entering[0], f"warp at {site}", grid=grid), f"{site}: displacement {moved}"))
            if site == INPUT:
                entering = unscale(image, m, size=canonical_size(model.network))
                cells.append(_cell(picture(entering[0], "canonical form"), "canonical form"))
        strip = element("div", *cells, class_="strip", tabindex="0")
        cards.append(element("figure", element("figcaption", element("b", group.name)), strip, class_="card"))
    note = (
        f"The grids of {label} show which places of the image the canonical form reads. Straight, even lines mean that "
        "the map is the identity."
    )
    kind = "cards" if len(maps) == 1 else ""  # several sites need the full width
    return section("warps", "Learned warps", element("p", note), element("div", *cards, class_=kind))


def _cell(shown: Html, caption: str) -> Html:
    return element("div", shown, element("small", caption), class_="cell")
