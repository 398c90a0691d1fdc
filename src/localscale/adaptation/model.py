"""``adapt``: put deep equilibrium canonicalizers into a pretrained network."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from localscale.adaptation.answers import has_boxes, scale_answer
from localscale.adaptation.arguments import call_base, find_images, first_weight, unscale_arguments
from localscale.adaptation.averaging import average_answers
from localscale.adaptation.channel import Channel, Pass
from localscale.adaptation.discover import resolve_sites
from localscale.adaptation.preprocessing import Preprocessing
from localscale.adaptation.saving import SavedModel
from localscale.adaptation.size_sites import set_normalisation
from localscale.adaptation.source import as_batch, canonical_size, checked_batch, choose_source_size, size_of_images
from localscale.adaptation.state import allow_no_description, checksums, plain_state
from localscale.adaptation.teaching import known_things
from localscale.adaptation.wrapper import AdaptedSite, replace_feature
from localscale.canonicalizer import INPUT, Canonicalizer, DECConfig, Site, SiteReport
from localscale.canonicalizer.shipped import SHIPPED, load_shipped, shipped_config
from localscale.canonicalizer.sizes import SizeEstimator
from localscale.canonicalizer.things import IGNORED
from localscale.conventions import compute_dtype, resize_cubic
from localscale.errors import ConfigError, SiteError
from localscale.maps.base import Map
from localscale.maps.build import identity_map
from localscale.warp import unscale

__all__ = ["AdaptedModel", "adapt"]


def adapt(
    model: nn.Module,
    config: DECConfig | dict[str, Any] | str | Path | None = None,
    *,
    input_size: tuple[int, int, int] | None = None,
    source_size: int | tuple[int, int] | None = None,
    mode: str | None = None,
    preprocessing: Preprocessing | None = None,
) -> AdaptedModel:
    """Make ``model`` canonicalize the features at ``config.sites``; before training its outputs do not change.

    The modules at the sites are replaced, inside ``model`` itself, by modules that hold them;
    ``AdaptedModel.unwrap`` puts them back. If an error is raised, ``model`` is unchanged.

    Args:
        model: any network whose first argument is a batch of images: timm, transformers, torchvision, or your own.
        config: the sites and settings, as a ``DECConfig``, a dictionary of its fields, or the path of a JSON file; by
            default the size equilibrium at the input. ``"photographs"`` is a trained canonicalizer that comes with the
            package: it magnifies small things in photographs before any classifier, and needs no training.
        input_size: (channels, height, width) of the trial run that finds feature shapes; by default the size that
            ``model`` declares, else 224 × 224.
        source_size: the size of the images, if it is larger than the input: (height, width), or the longer side at the
            aspect ratio of the input. The canonicalizer at ``"input"`` then looks at the large image, and samples a
            canonical form of the input's size from it. Images of any size are accepted; smaller ones than the input
            are enlarged. For ``"photographs"`` it is twice the input by default.
        mode: replaces the ``mode`` of ``config``; ``"averaged"`` averages a classifier's answers to the image and to
            its canonical form.
        preprocessing: mean and std of the images, if ``model`` does not declare them and the canonicalizer has a trunk
            that needs them.

    Convention: the identity map gives ``localscale.conventions.resize_cubic(images, *input_size[1:])``, corners on
    corners.

    >>> import timm
    >>> model = adapt(timm.create_model("vit_tiny_patch16_224"))
    >>> logits, report = model(torch.rand(2, 3, 224, 224), return_report=True)
    >>> report["input"].map.knots, report["input"].converged
    ((14, 14), tensor([True, True]))
    >>> model = adapt(timm.create_model("resnet18"), "photographs")
    >>> model.source_size, model.size_canonicalizer().network.trust
    ((448, 448), tensor(1.))
    """
    name = config if isinstance(config, str) and config in SHIPPED else None
    config = DECConfig.of(config) if name is None else shipped_config(name)
    if mode is not None:
        config = dataclasses.replace(config, mode=mode)
    if not isinstance(model, nn.Module):
        raise SiteError(f"cannot adapt a {type(model).__name__}; expected a torch.nn.Module")
    if any(isinstance(module, AdaptedModel | AdaptedSite) for module in model.modules()):
        raise SiteError(f"this {type(model).__name__} is already adapted; call unwrap() first")
    sites, size = resolve_sites(model, config.sites, input_size)
    if name is not None and source_size is None:
        source_size = (2 * size[1], 2 * size[2])
    adapted = AdaptedModel(model, config, sites, size, choose_source_size(source_size, size, sites), preprocessing)
    if name is not None:
        load_shipped(name, adapted.size_canonicalizer().network)
    return adapted


class AdaptedModel(SavedModel):
    """A base model with canonicalizers at its sites, as ``adapt`` returns it.

    ``base`` is the model given to ``adapt``, ``dec_config`` the configuration, and ``canonicalizers`` maps each site's
    path to its canonicalizer. Other attributes are those of ``base``, for example ``config`` and ``device`` of a
    transformers model, ``num_classes`` and ``forward_features`` of a timm model.

    ``preprocessing`` says how images become the model's input, where the base declares it. ``source_size`` is the
    (height, width) of large images that it was adapted for, or None; then images of any size are accepted.

    >>> import timm
    >>> model = adapt(timm.create_model("resnet18", num_classes=37))
    >>> model.num_classes, model.dec_config.mode
    (37, 'invariant')
    """

    def __init__(
        self,
        base: nn.Module,
        config: DECConfig,
        sites: list[Site],
        input_size: tuple[int, int, int],
        source_size: tuple[int, int] | None = None,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__()
        self.dec_config, self.sites, self.input_size, self.source_size = config, sites, input_size, source_size
        self.input_names = tuple(inspect.signature(base.forward).parameters)
        self.input_name = self.input_names[0] if self.input_names else ""
        size = size_of_images(self)
        known = preprocessing and dataclasses.replace(preprocessing, input_size=size)
        self._preprocessing = known or Preprocessing.of(base, input_size=size)
        self.channel = Channel()
        self.base_checksums = checksums(base)
        self.base = base
        self.input_canonicalizer: Canonicalizer | None = None
        self.adapted: dict[str, AdaptedSite] = {}  # not a ModuleDict: these modules belong to the base
        self.training = base.training
        self.register_load_state_dict_pre_hook(allow_no_description)
        device = first_weight(base).device
        made = [(site, self._canonicalizer(index, site).to(device)) for index, site in enumerate(sites)]
        set_normalisation((canonicalizer for _, canonicalizer in made), self._preprocessing)
        for site, canonicalizer in sorted(made, key=lambda pair: -pair[0].path.count(".")):  # inner modules first
            if site.path == INPUT:
                self.input_canonicalizer = canonicalizer
            else:
                wrapped = base.get_submodule(site.path)
                self.adapted[site.path] = AdaptedSite(wrapped, canonicalizer, site, self.channel, input_size[1:])
                _replace(base, site.path, self.adapted[site.path])

    @property
    def preprocessing(self) -> Preprocessing | None:
        """Image size, mean and std of the model's input, or None; trunks of size networks use mean and std."""
        return self._preprocessing

    @preprocessing.setter
    def preprocessing(self, value: Preprocessing | None) -> None:
        set_normalisation(self.canonicalizers.values(), value)
        self._preprocessing = value

    def __getattr__(self, name: str) -> Any:
        """Look up attributes that this class lacks in the base model."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            base = self.__dict__.get("_modules", {}).get("base")
            if base is None or name.startswith("__"):  # special methods of the base, such as __deepcopy__, are its own
                raise
        try:
            return getattr(base, name)
        except AttributeError as error:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}, nor has its base {type(base).__name__!r}"
            ) from error

    def _canonicalizer(self, index: int, site: Site) -> Canonicalizer:
        at_image = site.path == INPUT or self.dec_config.source == "image"
        channels = self.input_size[0] if at_image else site.channels
        assert channels is not None
        detached = site.path in self.dec_config.detached
        return Canonicalizer(channels, self.dec_config.knots_at(index), self.dec_config, detached=detached)

    @property
    def canonicalizers(self) -> dict[str, Canonicalizer]:
        """The canonicalizers, by the path of their site."""
        found = {path: adapted.canonicalizer for path, adapted in self.adapted.items()}
        if self.input_canonicalizer is not None:
            found[INPUT] = self.input_canonicalizer
        return {site.path: found[site.path] for site in self.sites if site.path in found}

    def forward(
        self, *args: Any, pixel_values: Any = None, labels: Any = None, return_report: bool = False, **kwargs: Any
    ) -> Any:
        """Return the base model's output on canonicalized features.

        The arguments are those of the base model. The images are its first argument, or ``pixel_values``: a tensor
        ``(B, C, H, W)``, or for detectors a list of tensors ``(C, H, W)`` of any sizes.

        With the site ``"input"`` in mode ``"equivariant"``, the output is scaled back from the canonical forms to the
        images, and ``labels`` that are maps of pixels, or ``targets`` with boxes, are brought to the canonical forms,
        so that the base model's own loss compares like with like. With a ``source_size``, maps of pixels of the
        canonical form's size come back at the size of the images, and boxes in their pixels.

        With ``return_report=True`` also return a dictionary from site path to ``SiteReport``.
        """
        if self.input_canonicalizer is None and not self.adapted:
            raise SiteError("this adapted model was unwrapped; call adapt on its base again")
        if pixel_values is not None and "pixel_values" in self.input_names:
            kwargs["pixel_values"] = pixel_values
        elif pixel_values is not None:
            args = (pixel_values, *args)
        if labels is not None:
            kwargs["labels"] = labels
        key, images = find_images(self.base, self.input_name, self.input_size[0], args, kwargs)
        report: dict[str, SiteReport] = {}
        if self.channel.disabled and self.source_size is None:
            output = self.base(*args, **kwargs)
        else:
            output, report = self._canonical_forward(key, images, args, kwargs)
        return (output, report) if return_report else output

    def _canonical_forward(
        self, key: int | str, images: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, SiteReport]]:
        batched, size = isinstance(images, Tensor), canonical_size(self)
        image = images if batched else self._as_batch(images)
        current = Pass(image, size or (image.shape[-2], image.shape[-1]))
        outer, self.channel.current = self.channel.current, current
        try:
            if self.input_canonicalizer is None:
                return call_base(self.base, args, kwargs, current.image_size, self.input_size[1:]), current.report
            m = self._input_map(current)
            averaged = self.dec_config.mode == "averaged" and not self.channel.disabled
            if averaged:
                own = self._own_answer(key, images, args, kwargs)
            if batched:
                canonical = unscale(images, m, size=size)
            else:
                canonical = type(images)(unscale(one[None], m[index], size=size)[0] for index, one in enumerate(images))
            args, kwargs = replace_feature(args, kwargs, key, canonical)
            if self.dec_config.mode == "equivariant" or not self.channel.disabled:
                mode = self.dec_config.mode
                args, kwargs = unscale_arguments(self.input_names, args, kwargs, m, images, mode, size)
            output = call_base(self.base, args, kwargs, current.image_size, self.input_size[1:])
        finally:
            self.channel.current = outer
        if averaged:
            output = average_answers(own, output, kwargs.get("labels"))
        if self.dec_config.mode == "equivariant":
            output = scale_answer(output, m, images, size)
        elif has_boxes(output) and not self.channel.disabled:
            warnings.warn(
                'with mode="invariant" the boxes are places in the canonical forms, not in the images; adapt the model '
                'with DECConfig(mode="equivariant")',
                stacklevel=5,  # where the model was called
            )
        return output, current.report

    def _own_answer(self, key: int | str, images: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the base model's answer to the images themselves, at the size of its input."""
        if not isinstance(images, Tensor):
            raise SiteError(
                f'mode="averaged" averages the answers of classifiers, and the images are a {type(images).__name__}; '
                "expected a tensor (batch, channels, height, width)"
            )
        size = canonical_size(self) or (images.shape[-2], images.shape[-1])
        args, kwargs = replace_feature(args, kwargs, key, resize_cubic(images, *size))
        return call_base(self.base, args, kwargs, size, self.input_size[1:])

    def _input_map(self, current: Pass) -> Map:
        """Return the maps of the images, reported in ``current``; while the model is disabled, the identity."""
        if self.channel.disabled:
            image = current.image
            return identity_map(len(image), dtype=compute_dtype(image.dtype), device=image.device)
        assert self.input_canonicalizer is not None
        current.report[INPUT] = self.input_canonicalizer(current.image)
        return current.report[INPUT].applied

    def _as_batch(self, images: Sequence[Tensor]) -> Tensor:
        """Return images of any sizes as a batch in which canonicalizers find maps; a map is for all sizes."""
        if self.dec_config.source == "image" and self.adapted:
            raise SiteError(
                'source="image" needs images of one size at latent sites, because a detector pads them to one batch; '
                f'use source="latent" at {next(iter(self.adapted))}'
            )
        return as_batch(images, size_of_images(self)[1:])

    def size_loss(
        self,
        images: Tensor | Sequence[Tensor],
        *,
        masks: Tensor | None = None,
        boxes: Sequence[Tensor] | Tensor | None = None,
        ignore_index: int = IGNORED,
    ) -> Tensor:
        """Return the loss that teaches every ``SizeNetwork`` the sizes of things in ``images``.

        Add it to the task's loss in your own loop. ``ls.learn_sizes`` minimises this loss alone, and describes
        ``masks`` and ``boxes``; without them the loss needs no labels. A list of images of different sizes is resized
        to the size that the model was adapted for. The networks of latent sites learn from the base model's features,
        which get no gradient from it.

        >>> import timm
        >>> model = adapt(timm.create_model("resnet18"))
        >>> model.size_loss(torch.rand(4, 3, 64, 64)).backward()
        """
        from localscale.adaptation.size_sites import size_losses

        batch = checked_batch(images, size_of_images(self))
        things = known_things(masks, boxes, ignore_index, batch.device)
        return torch.stack([found.loss for found in size_losses(self, batch, things).values()]).sum()

    def size_canonicalizer(self) -> Canonicalizer:
        """Return the canonicalizer at the input; raise unless it has a ``SizeNetwork``."""
        if self.input_canonicalizer is None or not isinstance(self.input_canonicalizer.network, SizeEstimator):
            raise ConfigError('the site "input" has no SizeNetwork; adapt the model with DECConfig(), the default')
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

    def freeze_base(self) -> None:
        """Freeze the parameters of the base model, not those of the canonicalizers; ``unfreeze_base`` undoes it.

        To train the head all the same, call ``model.base.get_classifier().requires_grad_(True)`` afterwards. In
        training mode, batch norms of the base still update their statistics; ``model.base.eval()`` stops that.

        >>> import timm
        >>> model = adapt(timm.create_model("resnet18"))
        >>> model.freeze_base()
        >>> model.print_trainable_parameters()
        trainable parameters: 204,737 of 11,894,249 (1.72 %)
        """
        self._train_base(False)

    def unfreeze_base(self) -> None:
        """Make all floating-point parameters of the base model trainable."""
        self._train_base(True)

    def _train_base(self, trainable: bool) -> None:
        own = {id(parameter) for c in self.canonicalizers.values() for parameter in c.parameters()}
        for parameter in self.base.parameters():  # canonicalizers of latent sites are inside the base
            if id(parameter) not in own and parameter.is_floating_point():
                parameter.requires_grad_(trainable)

    def print_trainable_parameters(self) -> None:
        """Print how many parameters are trainable, of how many."""
        counts = [(parameter.numel(), parameter.requires_grad) for parameter in self.parameters()]
        total, trainable = sum(n for n, _ in counts), sum(n for n, trains in counts if trains)
        print(f"trainable parameters: {trainable:,} of {total:,} ({100 * trainable / max(total, 1):.2f} %)")

    def base_state(self) -> dict[str, Tensor]:
        """Return the base model's parameters and buffers under their original names."""
        return plain_state(self.base)


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
