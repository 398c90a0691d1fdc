"""Measure frozen classifiers on photographs, alone and behind a canonicalizer that reads a source of twice the size."""

import argparse
import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

import localscale as ls
from benchmarks.classifiers import Classifier, find_classifier, load_classifier, title_of
from benchmarks.measurement import ResultTable
from benchmarks.photograph_evidence import magnified
from benchmarks.photographs_data import SCENES, SIDE, SOURCE, TEXTURES, Photographs, read_photographs
from localscale.metrics import paired_difference

Build = Callable[[nn.Module], nn.Module]  # a classifier to its adapted model
Outcomes = dict[str, dict[str, Tensor]]  # by classifier and method: 1 for a right answer, 0 for a wrong one, (N,)

BASE, DIRECT, FLIPPED = "base", "base, resized directly", "base, with its mirror image"
BINS = {"below 0.1": (0.0, 0.1), "0.1 to 0.3": (0.1, 0.3), "0.3 to 0.6": (0.3, 0.6), "above 0.6": (0.6, 9.0)}
GROUPS = {"all": (0.0, 9.0), **BINS, "small, below 0.3": (0.0, 0.3)}
RESAMPLES = 2000
PACKAGES = ("localscale", "torch", "torchvision", "timm")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this suite."""
    options = parser.add_argument_group("options of --suite photographs")
    options.add_argument("--data", type=Path, help="folder with val/, class_index.json and boxes.csv (required)")
    options.add_argument(
        "--weights",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="safetensors files, or folders of ImageNet runs without canonicalizers; their names start with that of a "
        "classifier: deit_tiny.safetensors, runs/imagenet/deit_tiny-base/seed0 (required)",
    )
    options.add_argument(
        "--adapt",
        nargs="+",
        default=[],
        metavar="CONFIG",
        help="also measure ls.adapt(base, CONFIG) with each of these (default: the base alone)",
    )
    options.add_argument(
        "--adapted-side",
        type=int,
        choices=(SIDE, SOURCE),
        default=SOURCE,
        help="side of the images that adapted models take (default: %(default)s)",
    )
    options.add_argument(
        "--evidence",
        nargs="+",
        type=float,
        default=[],
        metavar="ZOOM",
        help="also magnify what the classifier's own answer rests on by each of these factors (default: none)",
    )
    options.add_argument("--batch-size", type=int, default=100, help="images at a time (default: %(default)s)")
    options.add_argument("--limit", type=int, help="measure only so many images (default: all)")


@dataclass(frozen=True)
class Study:
    """Classifiers on photographs; the tables share one measurement, which the first of them makes."""

    data: Path
    weights: tuple[Path, ...]
    builds: Mapping[str, Build] = field(default_factory=dict)
    zooms: tuple[float, ...] = ()
    side: int = SOURCE
    batch_size: int = 100
    limit: int | None = None
    found: dict[str, tuple[Outcomes, Photographs]] = field(default_factory=dict)  # by device

    def accuracies(self, device: str, quick: bool) -> ResultTable:
        """Return the accuracy of every method by the share of the crop that the largest object fills."""
        outcomes, photographs = self._measured(device, quick)
        groups = grouped(photographs.shares)
        rows = []
        for title, methods in with_mean(outcomes).items():
            for method, right in methods.items():
                cells = {name: f"{100 * float(right[..., inside].mean()):.2f}" for name, inside in groups.items()}
                rows.append({"classifier": title, "method": method, **cells})
        note = (
            "Top-1 accuracy in %. Columns: the share of the visible crop that the largest labelled box fills, and the "
            f"number of images. Every method but “{DIRECT}” starts from the same crop at {SOURCE} px; the base takes "
            f"it reduced to {SIDE} px. Mirror image and two passes: the mean of two softmax outputs, for two passes "
            f"that of the base and of one pass. Own evidence: the first pass finds what its answer rests on, by a "
            f"gradient, and the second sees that magnified; {SIDE} px of it are sampled from {SOURCE} px."
        )
        return ResultTable("Frozen classifiers on photographs", note, rows)

    def differences(self, device: str, quick: bool) -> ResultTable:
        """Return the difference of every method to the base, with its interval."""
        outcomes, photographs = self._measured(device, quick)
        rows = _differences(with_mean(outcomes), grouped(photographs.shares))
        note = (
            f"Percentage points, with the 95 % interval of a paired bootstrap over images ({RESAMPLES:,} resamples). "
            "The mean over classifiers is taken image by image."
        )
        return ResultTable("Frozen classifiers on photographs: difference to the base", note, rows)

    def kinds(self, device: str, quick: bool) -> ResultTable:
        """Return the difference of every method to the base for photographs of several things, scenes and textures."""
        outcomes, photographs = self._measured(device, quick)
        groups = {f"{name} ({int(inside.sum())})": inside for name, inside in photographs.kinds.items() if inside.any()}
        together = dict(list(with_mean(outcomes).items())[-1:])
        note = (
            "Percentage points, the mean over the classifiers, with the 95 % interval of a paired bootstrap over "
            f"images ({RESAMPLES:,} resamples). Things are labelled boxes. Scenes are {', '.join(SCENES)}; textures "
            f"are {', '.join(TEXTURES)}."
        )
        title = "Frozen classifiers on photographs: difference to the base by kind"
        return ResultTable(title, note, _differences(together, groups))

    def _measured(self, device: str, quick: bool) -> tuple[Outcomes, Photographs]:
        if device not in self.found:
            crops = [find_classifier(path).crop for path in self.weights]
            photographs = read_photographs(self.data, crops, limit=20 if quick else self.limit)
            outcomes = measure(
                photographs,
                self.weights,
                self.builds,
                zooms=self.zooms,
                side=self.side,
                device=device,
                batch_size=self.batch_size,
            )
            self.found[device] = outcomes, photographs
        return self.found[device]


def measurements(arguments: argparse.Namespace) -> tuple[Callable[[str, bool], ResultTable], ...]:
    """Return the measurements that the command line asks for."""
    if arguments.data is None or not arguments.weights:
        raise SystemExit("--suite photographs needs --data DIR and --weights FILE …")
    builds = {name: functools.partial(adapted_to, config=name) for name in arguments.adapt}
    study = Study(
        arguments.data,
        tuple(arguments.weights),
        builds,
        tuple(arguments.evidence),
        side=arguments.adapted_side,
        batch_size=arguments.batch_size,
        limit=arguments.limit,
    )
    return study.accuracies, study.differences, study.kinds


def described(arguments: argparse.Namespace) -> list[str]:
    """Return the options of this suite that change its results, for the recorded command."""
    options = ["--data DIR", f"--weights {' '.join(title_of(path) + path.suffix for path in arguments.weights)}"]
    options += [f"--adapt {' '.join(arguments.adapt)}"] if arguments.adapt else []
    options += [f"--adapted-side {arguments.adapted_side}"] if arguments.adapt else []
    options += [f"--evidence {' '.join(map(str, arguments.evidence))}"] if arguments.evidence else []
    return options + ([f"--limit {arguments.limit}"] if arguments.limit else [])


@torch.no_grad()
def measure(
    photographs: Photographs,
    weights: tuple[Path, ...],
    builds: Mapping[str, Build],
    *,
    zooms: tuple[float, ...] = (),
    side: int = SOURCE,
    device: str = "cpu",
    batch_size: int = 100,
) -> Outcomes:
    """Return which answers of each classifier are right, alone, adapted by each of ``builds``, and with its evidence.

    A build gets its own copy of the classifier, and its model gets normalised crops of ``side`` pixels. Each of
    ``zooms`` magnifies what the classifier's own answer rests on.
    """
    found: Outcomes = {}
    for path in tqdm(weights, desc="classifiers", unit="model", leave=False):
        classifier, base = find_classifier(path), load_classifier(path).to(device).requires_grad_(False)
        adapted = {name: build(copy.deepcopy(base)).to(device).eval() for name, build in builds.items()}
        parts: dict[str, list[Tensor]] = {}
        for start in range(0, len(photographs), batch_size):
            numbers = slice(start, start + batch_size)
            answers = _answers(photographs, numbers, classifier, base, adapted, zooms=zooms, side=side, device=device)
            labels = photographs.labels[numbers].to(device)
            for method, probabilities in answers.items():
                parts.setdefault(method, []).append((probabilities.argmax(1) == labels).double())
        found[classifier.title] = {method: torch.cat(right).cpu() for method, right in parts.items()}
    return found


def _answers(
    photographs: Photographs,
    numbers: slice,
    classifier: Classifier,
    base: nn.Module,
    adapted: Mapping[str, nn.Module],
    *,
    zooms: tuple[float, ...],
    side: int,
    device: str,
) -> dict[str, Tensor]:
    """Return the probabilities of each method for some photographs, ``(B, classes)``."""
    direct, source = (
        photographs.crops[classifier.crop, size][numbers].to(device, non_blocking=True).float() / 255
        for size in (SIDE, SOURCE)
    )
    direct, source, reduced = map(classifier.normalise, (direct, source, reduce_source(source)))
    found = frozen_answers(reduced, source if side == SOURCE else reduced, base, adapted)
    answers = {BASE: found[BASE], DIRECT: base(direct).softmax(1), **found}
    for zoom, form in magnified(base, reduced, source, zooms).items():
        canonical = base(form).softmax(1)
        answers[f"own evidence {zoom:g} ×, second pass alone"] = canonical
        answers[f"own evidence {zoom:g} ×, two passes"] = (answers[BASE] + canonical) / 2
    return answers


def reduce_source(source: Tensor) -> Tensor:
    """Return images ``(B, 3, 448, 448)`` of numbers in [0, 1] at the side that classifiers take."""
    return F.interpolate(source, (SIDE, SIDE), mode="bicubic", antialias=True).clamp(0, 1)


def frozen_answers(
    reduced: Tensor, source: Tensor, base: nn.Module, adapted: Mapping[str, nn.Module]
) -> dict[str, Tensor]:
    """Return the probabilities of a classifier, alone, with its mirror image, and adapted, with one pass and two."""
    alone = base(reduced).softmax(1)
    answers = {BASE: alone, FLIPPED: (alone + base(reduced.flip(3)).softmax(1)) / 2}
    for name, model in adapted.items():
        canonical = model(source).softmax(1)
        answers[f"{name}, one pass"] = canonical
        answers[f"{name}, two passes"] = (alone + canonical) / 2
    return answers


def grouped(shares: Tensor) -> dict[str, Tensor]:
    """Return which photographs ``(N,)`` belong to each group that is not empty, by its title."""
    members = {name: (shares >= low) & (shares < high) for name, (low, high) in GROUPS.items()}
    return {f"{name} ({int(inside.sum())})": inside for name, inside in members.items() if inside.any()}


def with_mean(outcomes: Outcomes) -> Outcomes:
    """Return the outcomes with those of all classifiers together, ``(classifiers, N)``, if there are several."""
    if len(outcomes) < 2:
        return outcomes
    methods = next(iter(outcomes.values()))
    stacked = {method: torch.stack([each[method] for each in outcomes.values()]) for method in methods}
    return {**outcomes, "mean": stacked}


def _differences(outcomes: Outcomes, groups: dict[str, Tensor]) -> list[dict[str, Any]]:
    return [
        {
            "classifier": title,
            "method": method,
            **{name: _cell(right, methods[BASE], inside) for name, inside in groups.items()},
        }
        for title, methods in outcomes.items()
        for method, right in methods.items()
        if method != BASE
    ]


def _cell(right: Tensor, base: Tensor, inside: Tensor) -> str:
    found = paired_difference(100 * right[..., inside], 100 * base[..., inside], resamples=RESAMPLES)
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def adapted_to(base: nn.Module, *, config: str) -> Any:
    """Return the classifier behind the canonicalizer called ``config``."""
    return ls.adapt(base, config)
