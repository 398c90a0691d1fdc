"""Adapt a network whose token layout the library cannot find out by itself, and check the layout.

Run from the repository root: ``.venv/bin/python examples/your_own_site.py``
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import localscale as ls

REGISTERS, PATCH, WIDTH, CLASSES = 3, 2, 16, 5


class PixelNet(nn.Module):
    """A pointwise segmenter: three register tokens, then one token per 2×2 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, WIDTH)
        self.registers = nn.Parameter(torch.randn(REGISTERS, WIDTH))
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.classify = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        patches = F.avg_pool2d(images, PATCH)
        tokens = self.embed(patches.flatten(2).transpose(1, 2))
        registers = self.registers.expand(len(images), -1, -1)
        tokens = self.block(torch.cat((registers, tokens), dim=1))
        return self.classify(tokens[:, REGISTERS:]).transpose(1, 2).unflatten(2, patches.shape[2:])


def smooth_images(size: int = 64) -> Tensor:
    """Return two images of slow waves, ``(2, 3, size, size)``, which interpolation hardly changes."""
    axis = torch.linspace(0, 1, size)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    waves = [torch.sin(3 * x + 2 * y), torch.cos(4 * y), torch.sin(2 * x - 5 * y)]
    return torch.stack((torch.stack(waves), torch.stack(waves[::-1])))


def adapted(base: nn.Module, mode: str) -> ls.AdaptedModel:
    """Adapt a copy of ``base`` at ``block``, and check that it gives the answers of ``base`` before training."""
    torch.manual_seed(0)  # for the canonicalizer's initial weights
    # Patches are not cut by a convolution here, so prefix and stride must be stated.
    site = ls.Site("block", layout="tokens", channels=WIDTH, prefix=REGISTERS, stride=(PATCH, PATCH))
    config = ls.DECConfig.paper(sites=(site,), knots=5, mode=mode, solver=ls.Anderson(max_steps=40))
    return ls.testing.assert_identity_at_init(base, config, smooth_images())


def main() -> None:
    """Adapt the network in both modes, give the maps random weights, and compare the modes."""
    torch.manual_seed(0)
    base, x = PixelNet().eval(), smooth_images()
    try:
        ls.adapt(base, ls.DECConfig(sites=("block",)), input_size=(3, 64, 64))
    except ls.errors.SiteError as error:
        print(f"without a Site: {error}\n")

    g = ls.random_map(2, knots=5, strength=1.0, generator=torch.Generator().manual_seed(1))
    for mode in ("equivariant", "invariant"):
        model = adapted(base, mode)
        network = model.canonicalizers["block"].network
        for head in (network.to_x, network.to_y):  # stands for training: the maps leave the identity
            nn.init.normal_(head.weight, std=1.0, generator=torch.Generator().manual_seed(2))
        report = model(x, return_report=True)[1]["block"]
        print(f"{mode}: points move by {100 * report.map.mean_displacement().mean():.1f} % of the side; ", end="")
        try:
            ls.testing.assert_equivariant(model, x, g, tolerance=0.01)
            print("model(S(x)) = S(model(x)) to 1 %")
        except AssertionError as error:
            print(error)


if __name__ == "__main__":
    main()
