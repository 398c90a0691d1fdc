"""The two figures of the demo."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from torch import Tensor

import localscale as ls
from localscale.lab.pictures.grids import draw_grid, warp_grid
from localscale.lab.pictures.palette import BLUE, SKY, VERMILION

COLOURS = {"control": VERMILION, "size equilibrium": BLUE}
MARKERS = {"control": "s", "size equilibrium": "D"}


def draw_warps(path: Path, images: Tensor, m: ls.maps.Map, titles: list[str]) -> None:
    """Draw each image under its learned map, and its canonical form below; small displacements are enlarged."""
    count, canonical = len(images), ls.unscale(images, m)
    side = images.shape[-1]
    mean = float(m.mean_displacement().mean()) * side
    gain = max(1, min(20, round(2.0 / max(mean, 1e-6))))
    even, moved = (warp_grid(grid, lines=9, points=9) for grid in (ls.identity_map(count, dtype=m.dtype), m))
    enlarged = even + gain * (moved - even)
    figure, axes = plt.subplots(2, count, figsize=(1.7 * count, 3.9), layout="constrained")
    for column in range(count):
        top, bottom = axes[0, column], axes[1, column]
        for axis, picture in ((top, images[column]), (bottom, canonical[column])):
            axis.imshow(picture[0], cmap="gray", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
        draw_grid(top, enlarged[column], (0, side - 1, side - 1, 0), colour=SKY, width=0.8)
        top.set(xlim=(-0.5, side - 0.5), ylim=(side - 0.5, -0.5))
        top.set_title(titles[column], fontsize=9)
    axes[0, 0].set_ylabel("input and map", fontsize=9)
    axes[1, 0].set_ylabel("canonical form", fontsize=9)
    drawn = "as it is" if gain == 1 else f"{gain}× enlarged"
    figure.suptitle(f"Learned maps at the input: mean displacement {mean:.2f} px of {side}, drawn {drawn}")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_accuracy_per_scale(path: Path, accuracies: dict[str, dict[float, float]]) -> None:
    """Draw accuracy against the local scale of both digits, one line per model."""
    figure, axis = plt.subplots(figsize=(5, 3.4), layout="constrained")
    for name, by_scale in accuracies.items():
        scales = list(by_scale)
        values = [by_scale[s] for s in scales]
        axis.plot(scales, values, marker=MARKERS[name], color=COLOURS[name], label=name, markersize=5)
    axis.set_xscale("log", base=2)
    axis.set_xticks(scales, [f"{s:g}×" for s in scales])
    axis.minorticks_off()
    axis.set_xlabel("local scale of both digits")
    axis.set_ylabel("accuracy (%)")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
