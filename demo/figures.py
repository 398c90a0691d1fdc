"""The demo's two pictures."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

import localscale as ls
from localscale.conventions import lattice

COLOURS = {"start": "#999999", "control": "#E69F00", "DEC": "#0072B2"}  # Okabe and Ito: safe for colour-blind eyes
MARKERS = {"start": "o", "control": "s", "DEC": "D"}


def draw_warps(path: Path, images: Tensor, m: ls.maps.Map, titles: list[str]) -> None:
    """Top: what came in, with the lattice the learned map reads at. Bottom: the canonical form it makes."""
    count, canonical = len(images), ls.unscale(images, m)
    mean = float(m.mean_displacement().mean()) * images.shape[-1]
    gain = max(1, min(20, round(2.0 / max(mean, 1e-6))))
    figure, axes = plt.subplots(2, count, figsize=(1.7 * count, 3.9), layout="constrained")
    for column in range(count):
        top, bottom = axes[0, column], axes[1, column]
        for axis, picture in ((top, images[column]), (bottom, canonical[column])):
            axis.imshow(picture[0], cmap="gray", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
        draw_lattice(top, m, column, images.shape[-1], gain)
        top.set_title(titles[column], fontsize=9)
    axes[0, 0].set_ylabel("input and map", fontsize=9)
    axes[1, 0].set_ylabel("canonical form", fontsize=9)
    drawn = "as it is" if gain == 1 else f"{gain}× enlarged"
    figure.suptitle(f"Learned maps at the input: mean displacement {mean:.2f} px of {images.shape[-1]}, drawn {drawn}")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_lattice(axis: Axes, m: ls.maps.Map, index: int, side: int, gain: float, lines: int = 9) -> None:
    """The even lattice and where the map sends it, in pixels."""
    even = lattice(lines, lines, dtype=m.dtype)
    moved = ((even + gain * m.displacement_field(lines, lines)[index]) * (side - 1)).numpy()
    for k in range(lines):
        axis.plot(moved[k, :, 0], moved[k, :, 1], color="#56B4E9", linewidth=0.8)
        axis.plot(moved[:, k, 0], moved[:, k, 1], color="#56B4E9", linewidth=0.8)
    axis.set_xlim(-0.5, side - 0.5)
    axis.set_ylim(side - 0.5, -0.5)


def draw_accuracy_per_scale(path: Path, accuracies: dict[str, dict[float, float]]) -> None:
    """Accuracy against the local scale both digits share, one line per model."""
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
