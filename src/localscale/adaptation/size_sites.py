"""The sites of an adapted model that estimate sizes, what they see, and the losses that teach them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from localscale.adaptation.arguments import call_base, find_images
from localscale.adaptation.channel import Pass
from localscale.adaptation.preprocessing import Preprocessing
from localscale.canonicalizer import INPUT, Canonicalizer
from localscale.canonicalizer.size_loss import SizeLoss
from localscale.canonicalizer.sizes import SizeEstimator
from localscale.canonicalizer.things import Things
from localscale.conventions import resize_cubic
from localscale.errors import ConfigError

if TYPE_CHECKING:
    from localscale.adaptation.model import AdaptedModel

__all__ = ["features_at", "set_normalisation", "size_canonicalizers", "size_losses"]


def size_canonicalizers(model: AdaptedModel) -> dict[str, Canonicalizer]:
    """Return the canonicalizers that have a ``SizeNetwork``, by the path of their site; raise if there is none."""
    canonicalizers = getattr(model, "canonicalizers", None)
    if canonicalizers is None:
        raise ConfigError(
            f"a {type(model).__name__} learns no sizes; expected the model that ls.adapt returns: "
            "model = ls.adapt(base)"
        )
    found = {path: c for path, c in canonicalizers.items() if isinstance(c.network, SizeEstimator)}
    if not found:
        raise ConfigError(
            "no site has a SizeNetwork, which learns sizes; adapt the model with DECConfig(), the default"
        )
    return found


def size_losses(model: AdaptedModel, images: Tensor, things: Things | None = None) -> dict[str, SizeLoss]:
    """Return the size loss of every site with a ``SizeNetwork``, by the path of the site; ``things`` are known ones."""
    canonicalizers = size_canonicalizers(model)
    seen = features_at(model, images, list(canonicalizers))
    return {path: c.size_loss(seen[path], things=things) for path, c in canonicalizers.items()}


def set_normalisation(canonicalizers: Iterable[Canonicalizer], preprocessing: Preprocessing | None) -> None:
    """Tell the trunks of size networks how their images are normalised; raise if it is not known."""
    for canonicalizer in canonicalizers:
        if not isinstance(canonicalizer.network, SizeEstimator) or canonicalizer.network.trunk is None:
            continue
        if preprocessing is None:
            raise ConfigError(
                "the size network's trunk must know how images are normalised, and the model does not declare it; call "
                "ls.adapt(…, preprocessing=ls.Preprocessing(mean=…, std=…, input_size=(3, height, width)))"
            )
        canonicalizer.network.trunk.set_normalisation(preprocessing.mean, preprocessing.std)


def features_at(model: AdaptedModel, images: Tensor, paths: list[str]) -> dict[str, Tensor]:
    """Return what the canonicalizers at ``paths`` see, ``(B, C, H, W)``: the images, or the base model's features.

    The features are those of the images as they are, which the model's ``source_size`` resizes to the base model's
    input. The base model runs once, in evaluation mode and without gradients, and only if a site needs its features.
    """
    at_image = model.dec_config.source == "image"
    seen = {path: images for path in paths if path == INPUT or at_image}
    if len(seen) == len(paths):
        return seen
    channel = model.channel
    if model.source_size is not None:
        images = resize_cubic(images, *model.input_size[1:])
    find_images(model.base, model.input_name, model.input_size[0], (images,), {})  # raises if the base takes no such
    outer, channel.current, channel.recorded = channel.current, Pass(images, (images.shape[-2], images.shape[-1])), {}
    try:
        with torch.no_grad(), _evaluating(model.base):
            call_base(model.base, (images,), {}, channel.current.image_size, model.input_size[1:])
        return seen | {path: channel.recorded[path] for path in paths if path not in seen}
    finally:
        channel.current, channel.recorded = outer, None


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Return a context in which all modules of ``model`` are in evaluation mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
