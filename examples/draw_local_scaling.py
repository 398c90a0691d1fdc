"""Scale parts of an image, undo it, and draw both with their grids into ``local_scaling.png``.

Run from the repository root: ``.venv/bin/python examples/draw_local_scaling.py``
"""

import torch
from torch import Tensor

import localscale as ls

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError as error:
    raise SystemExit("this example draws with matplotlib: pip install 'localscale[figures]'") from error

SIZE, LINES, SAMPLES = 192, 11, 120


def discs() -> Tensor:
    """Return an image of three soft discs of different colours, ``(1, 3, 192, 192)``."""
    axis = torch.linspace(0, 1, SIZE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    image = torch.ones(1, 3, SIZE, SIZE)
    places = ((0.3, 0.3, 0.16), (0.7, 0.4, 0.12), (0.45, 0.74, 0.18))
    colours = ((0.0, 0.45, 0.70), (0.84, 0.37, 0.0), (0.0, 0.62, 0.45))
    for (centre_x, centre_y, radius), colour in zip(places, colours, strict=True):
        inside = torch.sigmoid((radius - torch.hypot(x - centre_x, y - centre_y)) * 150)
        image = image * (1 - inside) + torch.tensor(colour).view(1, 3, 1, 1) * inside
    return image.clamp(0, 1)


def even_lines() -> Tensor:
    """Return points on even vertical and horizontal lines, ``(2 · LINES, SAMPLES, 2)`` in (x, y) order."""
    at, along = torch.linspace(0, 1, LINES), torch.linspace(0, 1, SAMPLES)
    vertical = torch.stack((at[:, None].expand(-1, SAMPLES), along.expand(LINES, -1)), dim=-1)
    return torch.cat((vertical, vertical.flip(-1)))


def main() -> None:
    """Scale the image, unscale it, draw all three."""
    x, lines = discs(), even_lines()
    m = ls.random_map(1, knots=5, strength=0.9, generator=torch.Generator().manual_seed(1))
    moved = m(lines.view(1, -1, 2))  # content at p moves to l(p)
    returned = m.inverse()(moved)
    scaled = ls.scale(x, m)
    back = ls.unscale(scaled, m)

    figure, axes = plt.subplots(1, 3, figsize=(10, 3.7), layout="constrained")
    panels = (("x", x, lines), ("scale(x, m)", scaled, moved), ("unscale(scale(x, m), m)", back, returned))
    for place, (title, image, grid) in zip(axes, panels, strict=True):
        place.imshow(image[0].permute(1, 2, 0).clamp(0, 1).numpy(), extent=(0, 1, 1, 0))
        for line in grid.view_as(lines):
            place.plot(*line.T.numpy(), color="black", linewidth=0.7, alpha=0.6)
        place.set(title=title, xticks=[], yticks=[], xlim=(0, 1), ylim=(1, 0))
    figure.savefig("local_scaling.png", dpi=120)

    factors = m.local_scale(torch.rand(1, 1000, 2, generator=torch.Generator().manual_seed(0)))
    print(f"local scale between {factors.min():.2f} and {factors.max():.2f}; ", end="")
    print(f"smallest determinant {m.min_determinant().item():.2f}, so the map does not fold")
    error = (returned - lines.view(1, -1, 2)).abs().max() * (SIZE - 1)
    print(f"the inverse returns points with an error of {error:.1e} px")
    print(f"pixel values differ by {(back - x).abs().mean():.4f} on average, because each warp interpolates")
    print("wrote local_scaling.png")


if __name__ == "__main__":
    main()
