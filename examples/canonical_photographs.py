"""Draw what the shipped canonicalizer does to photographs: where it finds things, its grid, and the canonical form.

Run from the repository root: ``.venv/bin/python examples/canonical_photographs.py PHOTOGRAPHS``
PHOTOGRAPHS are JPEG files, or one folder; eight are taken from a folder at even distances. Nothing is trained. The
classifier has random weights, on which the maps do not depend. It writes ``canonical_photographs.png``.
"""

import argparse
import dataclasses
from pathlib import Path

import timm
import torch
from PIL import Image
from torch import Tensor

import localscale as ls
from localscale.lab.pictures.files import new_figure
from localscale.lab.pictures.grids import draw_grid, warp_grid
from localscale.lab.pictures.palette import INK, SKY, rgb
from localscale.maps import Map

SHOWN, CELL, TINT = 8, 1.4, 0.5  # photographs, inches, opacity of the tint where the weight is largest


def choose(given: list[Path]) -> list[Path]:
    """Return the files that were named, or SHOWN photographs of the folder that was named."""
    if len(given) > 1 or not given[0].is_dir():
        return given
    found = sorted(given[0].rglob("*.jpg"))
    return found[:: max(1, len(found) // SHOWN)][:SHOWN]


@torch.no_grad()
def canonicalize(model: ls.AdaptedModel, photographs: list[Image.Image]) -> tuple[Tensor, Tensor, Map]:
    """Return photographs ``(B, 3, H, W)`` in [0,1], the weights ``(B, 1, h, w)`` of their places, and their maps."""
    prepare = dataclasses.replace(model.preprocessing, crop=1.0)  # all of a square photograph
    inputs = torch.stack([prepare.transform()(photograph) for photograph in photographs])
    _, report = model(inputs, return_report=True)
    mean, std = torch.tensor(prepare.mean), torch.tensor(prepare.std)
    pictures = inputs * std[:, None, None] + mean[:, None, None]
    _, weight = report["input"].sizes_before
    return pictures.clamp(0, 1), weight[:, None], report["input"].map


def tint(pictures: Tensor, weight: Tensor) -> Tensor:
    """Return the pictures with the places that have weight in blue."""
    opacity = torch.nn.functional.interpolate(weight, pictures.shape[-2:], mode="bilinear").clamp(0, 1) * TINT
    return torch.lerp(pictures, torch.tensor(rgb(SKY))[:, None, None].expand_as(pictures), opacity)


def main() -> None:
    """Adapt a classifier, canonicalize the photographs, print what happened to each, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photographs", type=Path, nargs="+", help="JPEG files, or one folder of them")
    paths = choose(parser.parse_args().photographs)
    if not paths:
        parser.error("the folder holds no .jpg file; name a folder of photographs")

    model = ls.adapt(timm.create_model("resnet18").eval(), "photographs").eval()
    pictures, weight, m = canonicalize(model, [Image.open(path, formats=["JPEG"]).convert("RGB") for path in paths])
    forms, tinted, grids = ls.unscale(pictures, m).clamp(0, 1), tint(pictures, weight), warp_grid(m)
    largest = 1 / m.local_scale(warp_grid(ls.identity_map(len(paths))).flatten(1, 2)).amin(dim=1)

    rows = -(-len(paths) // 2)
    figure, axes = new_figure(rows, 4, width=4 * CELL, height=rows * CELL + 0.2)
    for axis in axes.flat:
        axis.set_axis_off()
    height, width = pictures.shape[-2:]
    for number, path in enumerate(paths):
        left, right = axes[number // 2, 2 * (number % 2) :][:2]
        left.imshow(tinted[number].movedim(0, 2))
        for colour, line in ((INK, 0.9), ("white", 0.45)):  # to be seen on snow and on black fur
            draw_grid(left, grids[number], (0, width - 1, height - 1, 0), colour=colour, width=line)
        right.imshow(forms[number].movedim(0, 2))
        found = f"weight up to {weight[number].max():.2f}"
        print(f"{path.name}: {found}, enlarged up to {largest[number]:.2f} times")
    for axis, title in zip(axes[0], 2 * ("photograph and map", "canonical form"), strict=True):
        axis.set_title(title, fontsize=8)
    figure.savefig("canonical_photographs.png", dpi=150)


if __name__ == "__main__":
    main()
