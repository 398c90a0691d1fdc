"""Compare the finished runs of a table with those of its controls, image by image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from localscale.lab.runs.run import Run
from localscale.lab.tasks.outcomes import Outcomes
from localscale.metrics import paired_difference

__all__ = ["compare_runs"]

Folders = Mapping[tuple[str, str], Sequence[Path]]  # of all seeds, by backbone and line


def compare_runs(folders: Folders, controls: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Return the difference of each line to its controls where both have outcomes on the same images.

    Accuracy and InvE are fractions, as in result.json, and each is a list of the difference and the ends of its 95 %
    interval (``paired_difference``, over images; seeds and the versions of an image are averaged first).

    Args:
        folders: the runs' folders.
        controls: the names of each line's controls.
    """
    known = {key: [each for each in map(_outcomes, runs) if each is not None] for key, runs in folders.items()}
    found = []
    for (backbone, line), ours in known.items():
        for control in controls.get(line, ()):
            before = known.get((backbone, control), [])
            if not ours or not before or len({each.images for each in (*ours, *before)}) > 1:
                continue
            accuracy = [torch.stack([each.right.double().mean(dim=1) for each in runs]) for runs in (ours, before)]
            error = [torch.stack([each.invariance_error for each in runs]) for runs in (ours, before)]
            found.append(
                {
                    "backbone": backbone,
                    "row": line,
                    "control": control,
                    "images": len(ours[0].right),
                    "seeds": [len(ours), len(before)],
                    "accuracy": list(paired_difference(*accuracy)),
                    "invariance_error": list(paired_difference(*error)),
                }
            )
    return found


def _outcomes(folder: Path) -> Outcomes | None:
    run = Run(folder)
    return Outcomes.read(run.outcomes) if run.result_file.exists() and run.outcomes.exists() else None
