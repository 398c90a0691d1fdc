"""Adapt a timm model, learn sizes without labels, train it for a few steps, save it and load it again.

Run from the repository root: ``.venv/bin/python examples/adapt_timm_model.py``
It writes the folder ``adapted_vit`` into the current directory.
"""

import copy
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import localscale as ls

FOLDER = Path("adapted_vit")


def make_base() -> nn.Module:
    """Return a small ViT with random weights, so that nothing has to be downloaded."""
    # For a real model: timm.create_model("vit_tiny_patch16_224", pretrained=True, num_classes=10)
    return timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3, num_classes=2)


def make_images(count: int) -> tuple[Tensor, Tensor]:
    """Return images ``(count, 3, 64, 64)`` of a ring or a disc of random size, and their labels."""
    labels = torch.randint(2, (count,))
    radius = 0.08 + 0.22 * torch.rand(count, 1, 1)
    x, y = torch.linspace(-0.5, 0.5, 64), torch.linspace(-0.5, 0.5, 64)[:, None]
    distance = (x.square() + y.square()).sqrt() / radius
    hole = (distance < 0.6) & (labels == 0)[:, None, None]
    return ((distance < 1) & ~hole).float()[:, None].repeat(1, 3, 1, 1), labels


def describe(site: ls.SiteReport) -> str:
    """Return a line with the displacement of the maps, the residual, and the enlargement in the middle of the image."""
    middle = torch.tensor([[[0.5, 0.5]]]).expand(site.map.batch, -1, -1)
    factors = 1 / site.map.local_scale(middle)
    return (
        f"points move by {100 * site.map.mean_displacement().mean():.1f} % of the side, "
        f"residual ≤ {site.residual.max():.1e}, things are scaled by {factors.min():.2f} to {factors.max():.2f}"
    )


def main() -> None:
    """Adapt the model, learn sizes, train it, save it and load it again."""
    torch.manual_seed(0)
    base = make_base()
    untouched = copy.deepcopy(base)  # adapt() changes base; from_pretrained needs the original
    images, labels = make_images(256)

    model = ls.adapt(base)
    found = ls.learn_sizes(model, images, steps=100, batch_size=32, progress=False)
    print(f"sizes: mean error {found.error:.2f} in log size, {found.spread:.2f} of the spread is left")
    model.size_canonicalizer().requires_grad_(False)  # frozen while the backbone is trained

    optimizer = torch.optim.AdamW(model.base.parameters(), lr=3e-4)
    for step in range(8):
        logits, report = model(images[:32], return_report=True)
        loss = F.cross_entropy(logits, labels[:32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")
    print(describe(report["input"]))

    model.eval().save_pretrained(FOLDER)
    for file in sorted(FOLDER.iterdir()):
        print(f"  {file}: {file.stat().st_size:,} bytes")
    again = ls.AdaptedModel.from_pretrained(FOLDER, untouched).eval()
    with torch.no_grad():
        print(f"logits of the saved and the loaded model differ by {(again(images) - model(images)).abs().max():.1e}")


if __name__ == "__main__":
    main()
