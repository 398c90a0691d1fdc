"""Put one bad image among good ones; no bit of the others' answers may change."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import timm
import torch
from torch import Tensor, nn

import localscale as ls
from benchmarks.faults.campaign import Campaign
from localscale.maps import FAMILIES

__all__ = ["OneBadImage"]

IMAGES, SIDE, KNOTS = 64, 32, 4
UPDATES = ("direct", "compose", "descent", "sizes")


class Rows(nn.Module):
    """A transformer without timm: patches of 8 pixels, one layer, no class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, kernel_size=8, stride=8)
        self.layer = nn.TransformerEncoderLayer(16, nhead=2, dim_feedforward=32, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 7)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(B, 7)``."""
        return self.head(self.layer(self.patches(x).flatten(2).transpose(1, 2)).mean(dim=1))


BACKBONES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "vit": (lambda: timm.create_model("test_vit", num_classes=7, img_size=SIDE, patch_size=8), "blocks.1"),
    "resnet": (lambda: timm.create_model("test_resnet", num_classes=7), "layer2"),
    "convnext": (lambda: timm.create_model("test_convnext", num_classes=7), "stages.1"),
    "efficientnet": (lambda: timm.create_model("test_efficientnet", num_classes=7), "blocks.1"),
    "rows": (Rows, "layer"),
}


def _fill(value: float) -> Callable[[Tensor, Random], Tensor]:
    return lambda image, draw: torch.full_like(image, value)


def _pixel(value: float) -> Callable[[Tensor, Random], Tensor]:
    def change(image: Tensor, draw: Random) -> Tensor:
        bad = image.clone()
        bad[draw.randrange(3), draw.randrange(SIDE), draw.randrange(SIDE)] = value
        return bad

    return change


BAD: dict[str, Callable[[Tensor, Random], Tensor]] = {
    "NaN everywhere": _fill(math.nan),
    "a NaN pixel": _pixel(math.nan),
    "infinity everywhere": _fill(math.inf),
    "an infinite pixel": _pixel(-math.inf),
    "huge values": lambda image, draw: 1e30 * image,
    "tiny values": lambda image, draw: 1e-30 * image,
    "one colour": _fill(0.5),
    "black": _fill(0.0),
}


@dataclass(frozen=True)
class Case:
    """The settings of one trial."""

    backbone: str
    update: str
    family: str
    solver: str
    fixed_steps: bool
    at_input: bool
    mode: str
    source: str

    @classmethod
    def draw(cls, draw: Random) -> Case:
        update, at_input = draw.choice(UPDATES), draw.random() < 0.5
        return cls(
            backbone=draw.choice(list(BACKBONES)),
            update=update,
            family="grid" if update == "sizes" else draw.choice(list(FAMILIES)),
            solver=draw.choice(("anderson", "picard")),
            fixed_steps=draw.random() < 0.5,
            at_input=at_input,
            mode="invariant" if at_input else draw.choice(("invariant", "equivariant")),
            source=draw.choice(("latent", "image")),
        )

    def model(self, base: nn.Module, scale: float) -> ls.AdaptedModel:
        """Return ``base`` adapted, with last layers of the canonicalizer drawn from N(0, ``scale``²)."""
        solver = {"anderson": ls.Anderson, "picard": ls.Picard}[self.solver]
        sites = ("input",) if self.at_input else (BACKBONES[self.backbone][1],)
        settings: dict[str, Any] = {
            "sites": sites,
            "mode": self.mode,
            "source": self.source,
            "knots": KNOTS,
            "solver": solver(max_steps=8, tolerance=1e-3, fixed_steps=self.fixed_steps),
            "on_failure": "warn" if self.fixed_steps else "identity",
        }
        if self.update == "sizes":
            config = ls.DECConfig(**settings, network=ls.SizeNetwork(width=8, blocks=1, resolution=16))
        else:
            network = ls.ConvNetwork(channels=(8, 16), resolution=16)
            config = ls.DECConfig.paper(**settings, update=self.update, family=self.family, network=network)
        model = ls.adapt(base, config, input_size=(3, SIDE, SIDE)).eval()
        for canonicalizer in model.canonicalizers.values():
            for name, parameter in canonicalizer.network.named_parameters():
                if name.startswith(("to_", "head")):
                    nn.init.normal_(parameter, std=scale)
            if self.update == "sizes":
                canonicalizer.network.trust.fill_(1.0)
        return model


class OneBadImage(Campaign):
    """A bad and a harmless image at the same place of a batch; the other 63 answers must be equal bitwise."""

    name = "images"
    about = "one bad image among 64, every update × solver × family × 5 backbones"
    goal = 400
    share = 2.0
    bases: ClassVar[dict[str, nn.Module]] = {}

    def prepare(self, folder: Path) -> None:
        """Make the five backbones."""
        torch.set_num_threads(1)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.bases.update({name: make().eval() for name, (make, _) in BACKBONES.items()})

    def trial(self, draw: Random) -> str | None:
        case, kind, place = Case.draw(draw), draw.choice(list(BAD)), draw.randrange(IMAGES)
        rng = torch.Generator().manual_seed(draw.getrandbits(32))
        scale = 10 ** draw.uniform(-3, 0.3)
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(draw.getrandbits(32))
            model = case.model(copy.deepcopy(self.bases[case.backbone]), scale)
        images = torch.rand(IMAGES, 3, SIDE, SIDE, generator=rng)
        if draw.random() < 0.5:
            images = images.to(memory_format=torch.channels_last)
        bad = images.clone()
        bad[place] = BAD[kind](images[place], draw)
        others = [index for index in range(IMAGES) if index != place]
        with torch.set_grad_enabled(draw.random() < 0.2):
            clean, found = (_answers(model, batch, others) for batch in (images, bad))
        for name in clean:
            if not torch.equal(clean[name], found[name]):
                difference = float((clean[name] - found[name]).abs().max())
                return f"{kind} changed the {name} of other images by up to {difference:.1e} ({case})"
        if not clean["logits"].isfinite().all():
            return f"logits of finite images are not finite ({case})"
        return None


def _answers(model: ls.AdaptedModel, images: Tensor, others: list[int]) -> dict[str, Tensor]:
    logits, report = model(images, return_report=True)
    (site,) = report.values()
    found = {"logits": logits, "map": site.map.state(), "residual": site.residual, "steps": site.steps}
    return {name: value.detach()[others] for name, value in found.items()}
