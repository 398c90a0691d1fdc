"""``adapt``: put deep equilibrium canonicalizers into a pretrained network."""

from __future__ import annotations

import contextlib
import inspect
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from localscale.adaptation.channel import Channel, Pass
from localscale.adaptation.discover import resolve_sites
from localscale.adaptation.wrapper import AdaptedSite, replace_feature, split_feature
from localscale.canonicalizer import INPUT, Canonicalizer, DECConfig, Site, SiteReport
from localscale.canonicalizer.sizes import SizeEstimator
from localscale.errors import ConfigError, LocalScaleError, ShapeError, SiteError
from localscale.warp import scale, unscale

__all__ = ["AdaptedModel", "adapt"]


def adapt(
    model: nn.Module, config: DECConfig | None = None, *, input_size: tuple[int, int, int] | None = None
) -> AdaptedModel:
    """Make ``model`` canonicalize the features at ``config.sites``; before training its outputs do not change.

    The modules at the sites are replaced, inside ``model`` itself, by modules that hold them;
    ``AdaptedModel.unwrap`` puts them back. If an error is raised, ``model`` is unchanged.

    Args:
        model: any network whose first argument is a batch of images: timm, transformers, torchvision, or your own.
        config: the sites and settings; by default the paper's DEC at the input.
        input_size: (channels, height, width) of the trial run that finds feature shapes; by default the size that
            ``model`` declares, else 224 × 224.

    >>> import timm
    >>> model = adapt(timm.create_model("vit_tiny_patch16_224"), DECConfig(sites=("input", "blocks.0"), knots=(6, 4)))
    >>> logits, report = model(torch.rand(2, 3, 224, 224), return_report=True)
    >>> report["blocks.0"].map.knots, report["input"].converged
    ((4, 4), tensor([True, True]))
    """
    config = config or DECConfig()
    if not isinstance(model, nn.Module):
        raise SiteError(f"cannot adapt a {type(model).__name__}; expected a torch.nn.Module")
    if any(isinstance(module, AdaptedModel | AdaptedSite) for module in model.modules()):
        raise SiteError(f"this {type(model).__name__} is already adapted; call unwrap() first")
    sites, size = resolve_sites(model, config.sites, input_size)
    return AdaptedModel(model, config, sites, size)


class AdaptedModel(nn.Module):
    """A base model with canonicalizers at its sites, as ``adapt`` returns it.

    ``base`` is the model given to ``adapt``; ``canonicalizers`` maps each site's path to its canonicalizer.
    """

    def __init__(self, base: nn.Module, config: DECConfig, sites: list[Site], input_size: tuple[int, int, int]) -> None:
        super().__init__()
        self.config, self.sites, self.input_size = config, sites, input_size
        self.input_name = next(iter(inspect.signature(base.forward).parameters), "")
        self.channel = Channel()
        self.base_checksums = checksums(base)
        self.base = base
        self.input_canonicalizer: Canonicalizer | None = None
        self.adapted: dict[str, AdaptedSite] = {}  # not a ModuleDict: these modules belong to the base
        self.training = base.training
        device = _first_weight(base).device
        made = [(site, self._canonicalizer(index, site).to(device)) for index, site in enumerate(sites)]
        for site, canonicalizer in sorted(made, key=lambda pair: -pair[0].path.count(".")):  # inner modules first
            if site.path == INPUT:
                self.input_canonicalizer = canonicalizer
            else:
                wrapped = base.get_submodule(site.path)
                self.adapted[site.path] = AdaptedSite(wrapped, canonicalizer, site, self.channel, input_size[1:])
                _replace(base, site.path, self.adapted[site.path])

    def _canonicalizer(self, index: int, site: Site) -> Canonicalizer:
        at_image = site.path == INPUT or self.config.source == "image"
        channels = self.input_size[0] if at_image else site.channels
        assert channels is not None
        detached = site.path in self.config.detached
        return Canonicalizer(channels, self.config.knots_at(index), self.config, detached=detached)

    @property
    def canonicalizers(self) -> dict[str, Canonicalizer]:
        """The canonicalizers, by the path of their site."""
        found = {path: adapted.canonicalizer for path, adapted in self.adapted.items()}
        if self.input_canonicalizer is not None:
            found[INPUT] = self.input_canonicalizer
        return {site.path: found[site.path] for site in self.sites if site.path in found}

    def forward(self, *args: Any, return_report: bool = False, **kwargs: Any) -> Any:
        """Return the base model's output on canonicalized features; the arguments are those of the base model.

        With ``return_report=True`` also return a dictionary from site path to ``SiteReport``.
        """
        if self.input_canonicalizer is None and not self.adapted:
            raise SiteError("this adapted model was unwrapped; call adapt on its base again")
        key, image = self._image(args, kwargs)
        report: dict[str, SiteReport] = {}
        if self.channel.disabled:
            output = self.base(*args, **kwargs)
        else:
            output, report = self._canonical_forward(key, image, args, kwargs)
        return (output, report) if return_report else output

    def _canonical_forward(
        self, key: int | str, image: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, SiteReport]]:
        current = Pass(image)
        outer, self.channel.current = self.channel.current, current
        try:
            if self.input_canonicalizer is not None:
                current.report[INPUT] = self.input_canonicalizer(image)
                canonical = unscale(image, current.report[INPUT].applied)
                args, kwargs = replace_feature(args, kwargs, key, canonical)
            output = self._call_base(current, args, kwargs)
        finally:
            self.channel.current = outer
        if self.input_canonicalizer is not None and self.config.mode == "equivariant":
            output = _scale_output_back(output, current.report[INPUT])
        return output, current.report

    def _call_base(self, current: Pass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling() or current.image_size == self.input_size[1:]:
            return self.base(*args, **kwargs)
        try:
            return self.base(*args, **kwargs)
        except (AssertionError, RuntimeError, ValueError) as error:
            if isinstance(error, LocalScaleError | torch.OutOfMemoryError):
                raise
            height, width = current.image_size
            raise ShapeError(
                f"{type(self.base).__name__} did not take {height}×{width} images ({error}); "
                f"it was adapted with {self.input_size[1]}×{self.input_size[2]}"
            ) from error

    def _image(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | str, Tensor]:
        named = {self.input_name: kwargs[self.input_name]} if self.input_name in kwargs else kwargs
        found = split_feature(args, named)
        if found is None:
            raise ShapeError(
                "the model was called without an image tensor; expected a (batch, channels, height, width) tensor"
            )
        key, image = found
        if image.dim() != 4 or image.shape[1] != self.input_size[0]:
            raise ShapeError(
                f"images have shape {tuple(image.shape)}; expected (batch, {self.input_size[0]}, height, width)"
            )
        if not image.is_floating_point():
            raise ShapeError(
                f"images have dtype {image.dtype}; expected floating-point images, normalised as for the backbone"
            )
        weight = _first_weight(self.base)
        if weight.numel() and weight.dtype != image.dtype and not torch.is_autocast_enabled(image.device.type):
            raise ShapeError(
                f"images are {image.dtype} and {type(self.base).__name__} is {weight.dtype}; "
                f"call it with images.to({weight.dtype}), or inside torch.autocast"
            )
        return key, image

    def size_loss(self, images: Tensor) -> Tensor:
        """Return the loss that teaches the input's ``SizeNetwork`` the sizes of things in ``images``, without labels.

        Add it to the task's loss in your own loop. ``ls.learn_sizes`` minimises this loss alone.

        >>> import timm
        >>> config = DECConfig(knots=8, update="compose", network="sizes")
        >>> model = adapt(timm.create_model("resnet18"), config)
        >>> model.size_loss(torch.rand(4, 3, 64, 64)).backward()
        """
        return self.size_canonicalizer().size_loss(images).loss

    def size_canonicalizer(self) -> Canonicalizer:
        """Return the canonicalizer at the input; raise unless it has a ``SizeNetwork``."""
        if self.input_canonicalizer is None or not isinstance(self.input_canonicalizer.network, SizeEstimator):
            raise ConfigError(
                'sizes are learned at the site "input" with a SizeNetwork; adapt the model with '
                'DECConfig(sites=("input",), knots=14, update="compose", network="sizes")'
            )
        return self.input_canonicalizer

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Return a context in which, in this thread, the model gives the base model's output.

        >>> import timm
        >>> model = adapt(timm.create_model("resnet18"), DECConfig(sites=("layer1",)))
        >>> with model.disabled():
        ...     logits = model(torch.rand(1, 3, 64, 64))
        """
        before, self.channel.disabled = self.channel.disabled, True
        try:
            yield
        finally:
            self.channel.disabled = before

    def unwrap(self) -> nn.Module:
        """Restore the modules of the base model and return it; this adapted model cannot be used afterwards."""
        for path, module in reversed(list(self.base.named_modules())):  # inner modules first
            if isinstance(module, AdaptedSite):
                _replace(self.base, path, module.wrapped)
        self.input_canonicalizer = None
        self.adapted.clear()
        return self.base

    def base_state(self) -> dict[str, Tensor]:
        """Return the base model's parameters and buffers under their original names."""
        return _plain_state(self.base)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``config.json``, ``model.safetensors`` and a model card.

        The weights are those of the canonicalizers, and all tensors of the base that changed since ``adapt``, for
        example those of a trained head.
        """
        from localscale.adaptation.storage import save

        save(self, Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path, base_model: nn.Module) -> AdaptedModel:
        """Adapt ``base_model`` with the configuration saved in ``folder``, and load the weights."""
        from localscale.adaptation.storage import load

        return load(Path(folder), base_model)


def _first_weight(model: nn.Module) -> Tensor:
    return next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _plain_state(base: nn.Module) -> dict[str, Tensor]:
    """Return ``base.state_dict()`` under the names without wrappers."""
    wrappers = [path for path, module in base.named_modules() if isinstance(module, AdaptedSite)]
    plain = {}
    for name, tensor in base.state_dict().items():
        for path in sorted(wrappers, key=len, reverse=True):  # inner modules first
            if name.startswith(f"{path}.canonicalizer."):
                break
            name = name.replace(f"{path}.wrapped.", f"{path}.", 1) if name.startswith(f"{path}.wrapped.") else name
        else:
            plain[name] = tensor
    return plain


def checksums(base: nn.Module) -> dict[str, int]:
    """Return a checksum of every parameter and buffer of ``base``."""
    return {name: checksum(tensor) for name, tensor in _plain_state(base).items()}


def checksum(tensor: Tensor) -> int:
    """Return the CRC-32 of a tensor's bytes."""
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(raw.numpy().data) if raw.numel() else 0


def _scale_output_back(output: Any, report: SiteReport) -> Any:
    if not isinstance(output, Tensor) or output.dim() != 4:
        kind = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise SiteError(
            f'mode="equivariant" at the input scales the output back, but the model returned {kind}; '
            'expected (batch, classes, height, width), or use mode="invariant"'
        )
    return scale(output, report.applied)
