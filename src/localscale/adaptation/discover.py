"""Find the modules of a backbone that can be adapted, and the layout of their features."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import nn

from localscale.adaptation.wrapper import channels_last, leaves, split_feature
from localscale.canonicalizer import INPUT, Site
from localscale.errors import ConfigError, SiteError, near_misses
from localscale.layouts import same_aspect

__all__ = ["resolve_sites", "sites", "usual_input_size"]

MOST_PREFIX_TOKENS = 16
USUAL_STRIDES = (16, 14, 32, 8, 4, 2, 1)


def sites(model: nn.Module, input_size: tuple[int, int, int] | None = None) -> list[Site]:
    """List the modules of ``model`` that can be adapted, in order, with the shapes of their input features.

    The list holds blocks, stages and layers; ``adapt`` accepts the dotted path of any other module too. The shapes come
    from one forward pass on blank images.

    >>> import timm
    >>> found = sites(timm.create_model("vit_tiny_patch16_224"))
    >>> str(found[2]), found[2].layout, found[2].prefix, found[2].shape
    ('blocks.0', 'tokens', 1, (2, 197, 192))
    """
    size = _checked_size(input_size) or usual_input_size(model)
    shapes = _trial_run(model, _candidates(model), size)
    found = [Site(INPUT, "NCHW", channels=size[0], shape=(2, *size))]
    for path, shape in shapes.items():
        try:
            found.append(_describe(model, path, shape, size[1:]))
        except SiteError:
            continue  # not features of the whole image
    return found


def resolve_sites(
    model: nn.Module, wanted: tuple[str | Site, ...], input_size: tuple[int, int, int] | None
) -> tuple[list[Site], tuple[int, int, int]]:
    """Return the wanted sites with layout and channels filled in, and the input size that was used to find them."""
    given = [site if isinstance(site, Site) else Site(site) for site in wanted]
    _refuse_unknown(model, given)
    size = _checked_size(input_size) or usual_input_size(model)
    unknown = [site.path for site in given if not site.known and site.path != INPUT]
    shapes = _trial_run(model, unknown, size) if unknown else {}
    resolved = []
    for site in given:
        if site.path == INPUT:
            site = dataclasses.replace(site, layout="NCHW", channels=site.channels or size[0])
        elif not site.known:
            if site.path not in shapes:
                raise SiteError(
                    f"{site.path} was not called with a tensor when the model ran on a blank image; "
                    "choose a module that takes features (ls.sites lists them)"
                )
            site = _describe(model, site.path, shapes[site.path], size[1:], site)
        resolved.append(site)
    return resolved, size


def _checked_size(size: Any) -> tuple[int, int, int] | None:
    """Return an ``input_size``, or raise ``ConfigError`` if it is neither None nor three positive integers."""
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, tuple | list) else ()
    if len(sides) != 3 or not all(type(side) is int and side > 0 for side in sides):
        raise ConfigError(f"input_size is {size!r}; expected (channels, height, width), such as (3, 224, 224)")
    return sides


def usual_input_size(model: nn.Module) -> tuple[int, int, int]:
    """Return the (channels, height, width) that ``model`` declares; 224 × 224 if it declares no size."""
    side: Any = 224
    config, embed = getattr(model, "config", None), getattr(model, "patch_embed", None)
    pretrained = getattr(model, "pretrained_cfg", None)
    if getattr(embed, "img_size", None):
        side = embed.img_size  # type: ignore[union-attr]
    elif getattr(config, "image_size", None):
        side = config.image_size  # type: ignore[union-attr]
    elif isinstance(getattr(model, "image_size", None), int):
        side = model.image_size
    elif isinstance(pretrained, dict) and pretrained.get("input_size"):
        side = pretrained["input_size"][1:]
    height, width = (side, side) if isinstance(side, int) else side
    channels = getattr(model, "in_chans", None)  # in timm, where the first convolution may read a cosine transform
    if not isinstance(channels, int):
        channels = next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 3)
    return channels, height, width


def _candidates(model: nn.Module) -> list[str]:
    """Return direct children, and members of sequences and lists, that hold more than one layer."""
    found = []
    for path, module in model.named_modules():
        parent_path, _, _ = path.rpartition(".")
        if not path or len(leaves(module)) < 2:
            continue
        if not parent_path or isinstance(model.get_submodule(parent_path), nn.Sequential | nn.ModuleList):
            found.append(path)
    return found


def _refuse_unknown(model: nn.Module, wanted: list[Site]) -> None:
    modules = dict(model.named_modules())
    for site in wanted:
        if site.path == INPUT or (site.path and site.path in modules):
            continue
        parent = site.path.rpartition(".")[0]
        names = [name for name in modules if name]
        siblings = [name for name in names if name.rpartition(".")[0] == parent]
        hint = (
            f"{siblings[0]} … {siblings[-1]} exist"
            if parent and len(siblings) > 1
            else near_misses(site.path, [INPUT, *_candidates(model)])
        )
        raise SiteError(f'no module "{site.path}" in {type(model).__name__} ({hint})')


def _trial_run(model: nn.Module, paths: list[str], size: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    """Run two blank images through ``model``; return the shape of the first tensor that each named module gets."""
    shapes: dict[str, tuple[int, ...]] = {}
    wanted = dict(model.named_modules())

    def note(path: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            feature = split_feature(args, kwargs)
            if feature is not None:
                shapes.setdefault(path, tuple(feature[1].shape))

        return hook

    handles = [wanted[path].register_forward_pre_hook(note(path), with_kwargs=True) for path in paths]
    training = {module: module.training for module in model.modules()}
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    try:
        model.eval()
        with torch.no_grad():
            model(torch.zeros(2, *size, dtype=weight.dtype, device=weight.device))
    except Exception as error:
        raise SiteError(
            f"{type(model).__name__} did not run on a blank {size[0]}×{size[1]}×{size[2]} image ({error}); "
            "pass input_size=(channels, height, width), or give each Site its layout and channels"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
        for module, was_training in training.items():
            module.training = was_training
    return shapes


def _describe(
    model: nn.Module,
    path: str,
    shape: tuple[int, ...],
    image_size: tuple[int, int],
    given: Site | None = None,
) -> Site:
    """Return the site of a feature of ``shape`` at ``path``; fields that ``given`` sets are kept."""
    given = given or Site(path)
    layout = given.layout or _guess_layout(model, path, shape, image_size)
    if layout == "tokens":
        prefix, stride = (given.prefix, given.stride) if given.stride else _token_grid(model, path, shape, image_size)
        return dataclasses.replace(given, layout=layout, channels=shape[-1], prefix=prefix, stride=stride, shape=shape)
    return dataclasses.replace(given, layout=layout, channels=shape[1 if layout == "NCHW" else 3], shape=shape)


def _guess_layout(model: nn.Module, path: str, shape: tuple[int, ...], image_size: tuple[int, int]) -> Any:
    if shape[0] == 2 and len(shape) == 3:
        return "tokens"
    if shape[0] == 2 and len(shape) == 4:
        first = same_aspect(shape[2:], image_size)
        last = same_aspect(shape[1:3], image_size)
        if first and last:  # as many channels as pixels: decide by the first layer
            return "NHWC" if channels_last(leaves(model.get_submodule(path))[:1]) else "NCHW"
        if first or last:
            return "NCHW" if first else "NHWC"
    raise SiteError(
        f"{path} takes a tensor of shape {shape} for two {image_size[0]}×{image_size[1]} images, which is neither "
        f'NCHW, NHWC nor tokens; give Site("{path}", layout=…) if it is'
    )


def _token_grid(
    model: nn.Module, path: str, shape: tuple[int, ...], image_size: tuple[int, int]
) -> tuple[int, tuple[int, int]]:
    """Return the number of prefix tokens and the stride of the patches.

    The patch size is that of the first convolution whose kernel is as wide as its stride.
    """
    patch = next(
        (m.stride for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == m.stride != (1, 1)), None
    )
    strides = [(patch[0] * k, patch[1] * k) for k in (1, 2, 4, 8)] if patch else [(s, s) for s in USUAL_STRIDES]
    for stride in strides:
        most = MOST_PREFIX_TOKENS if stride == strides[0] else 0
        padded, cut = (
            math.prod((n + rounding * (s - 1)) // s for n, s in zip(image_size, stride, strict=True))
            for rounding in (1, 0)
        )
        for patches in (padded, cut):  # a padded image has more patches, so it leaves fewer prefix tokens
            if 0 <= shape[1] - patches <= most:
                return shape[1] - patches, (int(stride[0]), int(stride[1]))
    raise SiteError(
        f"{path} takes {shape[1]} tokens for {image_size[0]}×{image_size[1]} images, which fits no patch size; "
        f'give Site("{path}", layout="tokens", prefix=…, stride=(…, …))'
    )
