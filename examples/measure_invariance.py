"""Measure how much a model's answers change when parts of an image change size.

A small network learns to read the middle one of three digits, for half a minute, on images that are drawn during
training, without files or workers. Run from the repository root: ``.venv/bin/python examples/measure_invariance.py``
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import localscale as ls
from localscale.lab import data

STEPS, BATCH, SIZE = 100, 64, 96


def small_network() -> nn.Module:
    """Return a network of four strided convolutions and a linear head."""
    channels = (1, 24, 48, 96, 96)
    layers: list[nn.Module] = []
    for given, made in pairwise(channels):
        layers += [nn.Conv2d(given, made, 3, stride=2, padding=1), nn.BatchNorm2d(made), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(3), nn.Flatten(), nn.Linear(9 * channels[-1], 10))


def middle(labels: Tensor) -> Tensor:
    """Return the middle digit of each number."""
    return labels // 10 % 10


def main() -> None:
    """Train on drawn images, then compare the answers for other digit sizes."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # The digits are MNIST's if torchvision has downloaded them, else the 5,000 digits of the extra "data".
    train = data.LocallyScaledMNIST(train=True, image_size=SIZE)
    test = data.LocallyScaledMNIST(train=False, image_size=SIZE, count=500)
    print(f"three digits per image, from {train.digits.source}")

    model, draw = small_network().to(device), train.renderer(device)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for step in range(STEPS):
        images, labels = draw(torch.arange(BATCH) + BATCH * step)
        loss = F.cross_entropy(model(images), middle(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"step {step}: loss {loss:.2f}")

    model.eval()
    index = torch.arange(len(test))
    with torch.inference_mode():
        draw = test.renderer(device)
        answers = model(draw(index)[0]).softmax(-1)
        variants = torch.stack([model(draw(index, variant)[0]).softmax(-1) for variant in (1, 2, 3)], dim=1)
        error = ls.metrics.invariance_error(answers, variants)
        print(f"InvE (squared) between an image and 3 variants with other digit sizes: {100 * error:.1f} · 10⁻²")
        # The brackets of the paper's per-scale table have the same digits in the same places at other sizes.
        for low, high in ((0.4, 1.0), (1.0, 2.0), (2.0, 3.0)):
            other = data.LocallyScaledMNIST(
                train=False, image_size=SIZE, count=500, factors=(low, high), digits=test.digits
            )
            images, labels = other.renderer(device)(index)
            correct = (model(images).argmax(-1) == middle(labels).to(device)).float().mean()
            print(f"accuracy for digits at {low} to {high} times their size: {100 * correct:.1f} %")


if __name__ == "__main__":
    main()
