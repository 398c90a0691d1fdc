"""Measure frozen classifiers on locally scaled photographs: alone, with mirror images, and behind a canonicalizer."""

import argparse
import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.classifiers import find_classifier, load_classifier, title_of
from benchmarks.measurement import ResultTable
from benchmarks.photographs import BASE, PACKAGES, RESAMPLES, Build, adapted_to, frozen_answers, reduce_source
from benchmarks.photographs_data import SIDE, SOURCE, central_crop
from localscale.lab.data.imagenet import LocallyScaledImageNet
from localscale.lab.tasks.crops import read_in_order
from localscale.metrics import paired_difference

__all__ = ["PACKAGES", "add_options", "described", "measurements"]


@dataclass(frozen=True)
class Outcome:
    """Right answers of a method ``(N, scales)``, and the squared changes of its answers, mean over scales ``(N,)``."""

    right: Tensor
    change: Tensor


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option that only this suite has; --weights, --adapt, --batch-size and --limit are shared."""
    options = parser.add_argument_group("options of --suite photograph-scales, beside those of --suite photographs")
    options.add_argument("--scaled", type=Path, help="folder that localscale data imagenet wrote (required)")


def measurements(arguments: argparse.Namespace) -> tuple[Callable[[str, bool], ResultTable], ...]:
    """Return the measurements that the command line asks for."""
    if arguments.scaled is None or not arguments.weights:
        raise SystemExit("--suite photograph-scales needs --scaled DIR and --weights FILE …")
    builds = {name: functools.partial(adapted_to, config=name) for name in arguments.adapt}
    study = ScaleStudy(arguments.scaled, tuple(arguments.weights), builds, arguments.batch_size, arguments.limit)
    return study.scales, study.differences


def described(arguments: argparse.Namespace) -> list[str]:
    """Return the options of this suite that change its results, for the recorded command."""
    options = ["--scaled DIR", f"--weights {' '.join(title_of(path) + path.suffix for path in arguments.weights)}"]
    options += [f"--adapt {' '.join(arguments.adapt)}"] if arguments.adapt else []
    return options + ([f"--limit {arguments.limit}"] if arguments.limit else [])


@dataclass(frozen=True)
class ScaleStudy:
    """Classifiers on locally scaled photographs; the tables share one measurement."""

    scaled: Path
    weights: tuple[Path, ...]
    builds: Mapping[str, Build] = field(default_factory=dict)
    batch_size: int = 100
    limit: int | None = None
    found: dict[str, dict[tuple[str, str], Outcome]] = field(default_factory=dict)  # by device

    def scales(self, device: str, quick: bool) -> ResultTable:
        """Return the accuracy at every scale and InvE of every method."""
        rows, count, names = [], 0, [f"×{scale:g}" for scale in LocallyScaledImageNet(self.scaled).scales]
        for (classifier, method), outcome in self._measured(device, quick).items():
            accuracy, count = 100 * outcome.right.mean(0), len(outcome.right)
            rows.append(
                {
                    "weights": classifier,
                    "method": method,
                    **{name: f"{value:.2f}" for name, value in zip(names, accuracy.tolist(), strict=True)},
                    "mean": f"{float(accuracy.mean()):.2f}",
                    "deviation": f"{float(accuracy.std(correction=0)):.2f}",
                    "InvE 10⁻²": f"{100 * float(outcome.change.mean()):.2f}",
                }
            )
        note = (
            f"Top-1 accuracy in % on {count:,} photographs whose labelled object has seven sizes; deviation is the "
            "standard deviation over them, and InvE the mean squared distance of the softmax outputs to that at ×1. "
            f"Every method starts from the same crop at {SOURCE} px; the base takes it reduced to {SIDE} px. Mirror "
            "image and two passes: the mean of two softmax outputs."
        )
        return ResultTable("Frozen classifiers on locally scaled photographs", note, rows)

    def differences(self, device: str, quick: bool) -> ResultTable:
        """Return the difference of every method to the base, with its interval."""
        found, rows, original = self._measured(device, quick), [], self._original()
        for (classifier, method), outcome in found.items():
            if method == BASE:
                continue
            base = found[classifier, BASE]
            deviation = outcome.right.mean(0).std(correction=0) / base.right.mean(0).std(correction=0)
            rows.append(
                {
                    "weights": classifier,
                    "method": method,
                    "mean accuracy": _interval(100 * outcome.right.mean(1), 100 * base.right.mean(1)),
                    "accuracy at ×1": _interval(100 * outcome.right[:, original], 100 * base.right[:, original]),
                    "deviation": f"{float(deviation):.2f} ×",
                    "InvE": f"{float(outcome.change.mean() / base.change.mean()):.2f} ×",
                    "InvE 10⁻²": _interval(100 * outcome.change, 100 * base.change),
                }
            )
        note = (
            "Percentage points of accuracy and 10⁻² of InvE, with the 95 % interval of a paired bootstrap over "
            f"photographs ({RESAMPLES:,} resamples); deviation and InvE also relative to the base."
        )
        return ResultTable("Frozen classifiers on locally scaled photographs: difference to the base", note, rows)

    def _original(self) -> int:
        return LocallyScaledImageNet(self.scaled).scales.index(1.0)

    def _measured(self, device: str, quick: bool) -> dict[tuple[str, str], Outcome]:
        if device not in self.found:
            self.found[device] = self._measure(device, 10 if quick else self.limit)
        return self.found[device]

    @torch.no_grad()
    def _measure(self, device: str, limit: int | None) -> dict[tuple[str, str], Outcome]:
        found: dict[tuple[str, str], Outcome] = {}
        original = self._original()
        for path in self.weights:
            classifier, base = find_classifier(path), load_classifier(path).to(device).requires_grad_(False)
            adapted = {name: build(copy.deepcopy(base)).to(device).eval() for name, build in self.builds.items()}
            images = ScaledCrops(self.scaled, classifier.crop, limit)
            at_once = max(1, self.batch_size // len(images.dataset.scales))
            reader = read_in_order(images, batch_size=at_once, workers=4, progress=True, unit="photograph")
            parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
            for pixels, labels in reader:
                source = pixels.flatten(0, 1).to(device).float() / 255
                reduced, source = map(classifier.normalise, (reduce_source(source), source))
                for method, flat in frozen_answers(reduced, source, base, adapted).items():
                    answers = flat.cpu().unflatten(0, pixels.shape[:2])
                    others = torch.cat((answers[:, :original], answers[:, original + 1 :]), dim=1)
                    change = (others - answers[:, original, None]).square().sum(2).mean(1)
                    parts.setdefault(method, []).append(((answers.argmax(2) == labels[:, None]).double(), change))
            for method, pairs in parts.items():
                right, change = map(torch.cat, zip(*pairs, strict=True))
                found[title_of(path), method] = Outcome(right, change.double())
        return found


class ScaledCrops(Dataset[tuple[Tensor, int]]):
    """Photographs as the central crops of all their scales, ``(S, 3, 448, 448)``, and the label."""

    def __init__(self, root: Path, crop: float, limit: int | None) -> None:
        self.dataset = LocallyScaledImageNet(root, transform=central_crop(crop, SOURCE))
        self.groups = list(self.dataset.groups)[:limit]  # written in an order that spreads over the classes

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        group = self.dataset.read_group(self.groups[place])
        return group.images, int(group.label)


def _interval(scores: Tensor, control: Tensor) -> str:
    found = paired_difference(scores, control, resamples=RESAMPLES)
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
