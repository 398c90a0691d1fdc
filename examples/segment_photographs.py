"""Adapt a SegFormer of transformers, train it on photographs with masks, and compare it with an equal-budget control.

Run from the repository root: ``.venv/bin/python examples/segment_photographs.py FOLDER``
FOLDER holds NAME.jpg and NAME_trimap.png (255 animal, 128 border, 0 background), for example Oxford-IIIT Pets. Without
it the images are discs on noise. It writes ``segmentation.png``.
"""

import copy
import random
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import SegformerConfig, SegformerForSemanticSegmentation

import localscale as ls

SIDE, TRAIN, TEST, STEPS, BORDER = 64, 384, 96, 150, 255


def read_folder(folder: Path) -> tuple[Tensor, Tensor]:
    """Return photographs ``(N, 3, SIDE, SIDE)`` and labels: 1 animal, 0 background, 255 border."""
    masks = random.Random(0).sample(sorted(folder.rglob("*_trimap.png")), TRAIN + TEST)
    colour = [Image.open(str(path).replace("_trimap.png", ".jpg"), formats=["JPEG"]).convert("RGB") for path in masks]
    known = [Image.open(path, formats=["PNG"]).resize((SIDE, SIDE), Image.Resampling.NEAREST) for path in masks]
    pixels = np.stack([image.resize((SIDE, SIDE), Image.Resampling.BOX) for image in colour])
    labels = torch.from_numpy(np.where(np.stack(known) == 128, BORDER, np.stack(known) == 255)).long()
    return torch.from_numpy(pixels).movedim(3, 1) / 127.5 - 1, labels


def draw_discs() -> tuple[Tensor, Tensor]:
    """Return images of a disc of random size and place, and its labels."""
    x, y = torch.linspace(0, 1, SIDE), torch.linspace(0, 1, SIDE)[:, None]
    centre, radius = 0.2 + 0.6 * torch.rand(2, TRAIN + TEST, 1, 1), 0.05 + 0.2 * torch.rand(TRAIN + TEST, 1, 1)
    disc = (x - centre[0]).square() + (y - centre[1]).square() < radius.square()
    return disc[:, None] + 0.3 * torch.randn(TRAIN + TEST, 3, SIDE, SIDE), disc.long()


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Train what is trainable for STEPS steps, always on the same batches."""
    draws = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    for _ in range(STEPS):
        chosen = torch.randint(TRAIN, (16,), generator=draws)
        model(pixel_values=images[chosen], labels=labels[chosen]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def class_maps(model: nn.Module, images: Tensor) -> Tensor:
    """Return the class maps of a SegFormer, enlarged to the size of the images."""
    return nn.functional.interpolate(model(images).logits, size=(SIDE, SIDE), mode="bilinear", align_corners=True)


@torch.no_grad()
def measure(model: nn.Module, images: Tensor, labels: Tensor) -> str:
    """Return the IoU of the animal, and the share of pixels whose class does not follow a random local scaling."""
    g = ls.random_map(len(images), knots=4, strength=3.0, generator=torch.Generator().manual_seed(0))
    answer, of_scaled = class_maps(model.eval(), images), class_maps(model, ls.scale(images, g))
    moved = (ls.scale(answer, g).argmax(1) != of_scaled.argmax(1)).float().mean()
    found, animal = (answer.argmax(1) == 1) & (labels != BORDER), labels == 1
    iou = (found & animal).sum() / (found | animal).sum()
    return f"IoU {100 * iou:.1f} %, {100 * moved:.1f} % of the pixels do not follow a local scaling"


@torch.no_grad()
def draw(model: ls.AdaptedModel, images: Tensor) -> None:
    """Draw images, canonical forms, answers on the canonical forms, and answers scaled back."""
    m, share = model(images, return_report=True)[1]["input"].map, class_maps(model, images).softmax(1)[:, 1:]
    rows = ((images + 1) / 2, (ls.unscale(images, m) + 1) / 2, ls.unscale(share, m), share)
    figure, axes = plt.subplots(4, len(images), figsize=(len(images) * 1.2, 5), layout="constrained")
    for row, pictures, title in zip(axes, rows, ("image", "canonical", "answer there", "scaled back"), strict=True):
        for axis, picture in zip(row, pictures, strict=True):
            axis.imshow(picture.movedim(0, 2).clamp(0, 1), cmap="gray", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[], ylabel=title if axis is row[0] else "")
    figure.savefig("segmentation.png", dpi=100)


def main() -> None:
    """Train the control and the adapted segmenter, and compare them."""
    torch.manual_seed(0)
    images, labels = read_folder(Path(sys.argv[1])) if len(sys.argv) > 1 else draw_discs()
    settings = {"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1], "decoder_hidden_size": 64, "num_labels": 2}
    control = SegformerForSemanticSegmentation(SegformerConfig(**settings))  # yours: from_pretrained(…)
    config = ls.DECConfig(mode="equivariant", knots=8, network=ls.SizeNetwork(width=16, blocks=1, resolution=SIDE))
    model = ls.adapt(copy.deepcopy(control), config, input_size=(3, SIDE, SIDE))
    print(ls.learn_sizes(model, images[:TRAIN], steps=100, batch_size=16, progress=False))
    model.size_canonicalizer().requires_grad_(False)
    for name, one in {"control": control, "adapted": model}.items():
        train(one, images, labels)
        print(f"{name}: {measure(one, images[TRAIN:], labels[TRAIN:])}")
    draw(model, images[TRAIN : TRAIN + 8])


if __name__ == "__main__":
    main()
