"""Adapt a timm model, train it for a few steps, read the report, save it and load it again.

Run from the repository root: ``.venv/bin/python examples/adapt_timm_model.py``
It writes the folder ``adapted_vit`` into the current directory.
"""

import copy
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from torch import nn

import localscale as ls

FOLDER = Path("adapted_vit")


def make_base() -> nn.Module:
    """Return a small ViT with random weights, so that nothing has to be downloaded."""
    # For a real model: timm.create_model("vit_tiny_patch16_224", pretrained=True, num_classes=10)
    return timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=10)


def describe(report: dict[str, ls.SiteReport]) -> str:
    """Return one line per site: the displacement of its maps, the residual, the steps and the convergence."""
    return "\n".join(
        f"  {path:9} moves points by {100 * site.map.mean_displacement().mean():.2f} % of the side, "
        f"residual ≤ {site.residual.max():.1e}, steps ≤ {site.steps.max()}, "
        f"{int(site.converged.sum())}/{len(site.converged)} converged"
        for path, site in report.items()
    )


def main() -> None:
    """Adapt the model, train it, save it and load it again."""
    torch.manual_seed(0)
    base = make_base()
    untouched = copy.deepcopy(base)  # adapt() changes base; from_pretrained needs the original
    base.requires_grad_(False)
    base.head.requires_grad_(True)

    model = ls.adapt(base, ls.DECConfig(sites=("input", "blocks.2"), knots=(6, 4)))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]  # canonicalizers and head
    print(f"training {sum(p.numel() for p in trained):,} of {sum(p.numel() for p in model.parameters()):,} weights")

    images, labels = torch.rand(16, 3, 64, 64), torch.randint(0, 10, (16,))
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for step in range(8):
        logits, report = model(images, return_report=True)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")
    print(describe(report))

    model.eval()
    with torch.no_grad():
        adapted = model(images)
        with model.disabled():
            plain = model(images)
    print(f"logits with and without canonicalizers differ by up to {(adapted - plain).abs().max():.3f}")

    model.save_pretrained(FOLDER)
    for file in sorted(FOLDER.iterdir()):
        print(f"  {file}: {file.stat().st_size:,} bytes")
    again = ls.AdaptedModel.from_pretrained(FOLDER, untouched).eval()
    with torch.no_grad():
        print(f"logits of the saved and the loaded model differ by {(again(images) - adapted).abs().max():.1e}")


if __name__ == "__main__":
    main()
