"""``AdaptedSite``, which wraps a module of a backbone and canonicalizes the features that enter it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from localscale.adaptation.channel import Channel
from localscale.canonicalizer import Canonicalizer, Site, SiteReport
from localscale.errors import SiteError
from localscale.layouts import Layout, Tokens, as_nchw, pixels_of, same_aspect
from localscale.maps.base import Map
from localscale.warp import scale, unscale

__all__ = ["AdaptedSite", "channels_last", "leaves", "replace_feature", "split_feature"]


def split_feature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | str, Tensor] | None:
    """Return the first tensor among a module's arguments, and its position or name."""
    for index, value in enumerate(args):
        if isinstance(value, Tensor):
            return index, value
    for name, value in kwargs.items():
        if isinstance(value, Tensor):
            return name, value
    return None


def replace_feature(
    args: tuple[Any, ...], kwargs: dict[str, Any], key: int | str, value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with ``value`` in place of the one at position or name ``key``."""
    if isinstance(key, int):
        return (*args[:key], value, *args[key + 1 :]), kwargs
    return args, {**kwargs, key: value}


class AdaptedSite(nn.Module):
    """A module M that sees canonical forms (paper, Eq. laten_canon).

    It returns M(S⁻¹(F; Φ)), or S(M(S⁻¹(F; Φ)); Φ) in mode ``"equivariant"``.
    """

    def __init__(
        self,
        wrapped: nn.Module,
        canonicalizer: Canonicalizer,
        site: Site,
        channel: Channel,
        usual_size: tuple[int, int],
    ) -> None:
        super().__init__()
        self.wrapped, self.canonicalizer = wrapped, canonicalizer
        self.site, self.channel, self.usual_size = site, channel, usual_size
        self.training = wrapped.training

    def __getattr__(self, name: str) -> Any:
        """Look up other attributes in the wrapped module; a backbone may read them, for example ``downsample``."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("wrapped"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.channel.disabled and self.channel.recorded is None:
            return self.wrapped(*args, **kwargs)
        found = split_feature(args, kwargs)
        if found is None:
            raise SiteError(
                f"{self.site} was called without a tensor; only modules that take a feature tensor can be adapted"
            )
        key, feature = found
        layout = self._layout(feature)
        if self.channel.recorded is not None:
            self.channel.recorded[self.site.path] = as_nchw(feature, layout)[0]
            return self.wrapped(*args, **kwargs)
        report = self._canonicalize(feature, layout)
        canonical = unscale(feature, report.applied, layout=layout)
        args, kwargs = replace_feature(args, kwargs, key, canonical)
        output = self.wrapped(*args, **kwargs)
        if self.canonicalizer.config.mode == "invariant":
            return output
        return self._scale_back(output, report.applied, layout, feature)

    def _layout(self, feature: Tensor) -> Layout:
        current = self.channel.current
        if current is not None:
            return self.site.layout_for(feature.shape[1], current.image_size)
        try:  # activation checkpointing recomputes without the image; assume the size that the model was adapted with
            return self.site.layout_for(feature.shape[1], self.usual_size)
        except SiteError as error:
            height, width = self.usual_size
            raise SiteError(
                f"{self.site} was called outside its adapted model, where it knows only {height}×{width} images; "
                "turn activation checkpointing off for other sizes"
            ) from error

    def _canonicalize(self, feature: Tensor, layout: Layout) -> SiteReport:
        current = self.channel.current
        if self.canonicalizer.config.source == "image":
            if current is None:
                raise SiteError(
                    f"{self.site} takes its map from the image but was called outside its adapted model; "
                    'turn activation checkpointing off, or use source="latent"'
                )
            report = self.canonicalizer(current.image)
        else:
            report = self.canonicalizer(as_nchw(feature, layout)[0])
        if current is not None:
            current.report[self.site.path] = report
        return report

    def _scale_back(self, output: Any, m: Map, layout: Layout, entered: Tensor) -> Any:
        """Apply S(·; Φ) to the module's output, or to the first entry of a tuple."""
        if isinstance(output, tuple):
            return (self._scale_back(output[0], m, layout, entered), *output[1:])
        if not isinstance(output, Tensor) or output.dim() not in (3, 4):
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise SiteError(
                f'{self.site} returned {shape}, which has no pixels to scale back; use mode="invariant" there'
            )
        return scale(output, m, layout=self._output_layout(layout, entered, output))

    def _output_layout(self, layout: Layout, entered: Tensor, output: Tensor) -> Layout:
        """Return the layout of the module's output, given the layout of its input ``entered``."""
        if isinstance(layout, Tokens) and output.dim() == 3:
            for step in (1, 2):  # a merging layer halves the number of patches per side
                after = Tokens(-(-layout.height // step), -(-layout.width // step), layout.prefix)
                if after.length == output.shape[1]:
                    return after
        elif not isinstance(layout, Tokens) and output.dim() == 4:
            pixels = pixels_of(entered, layout)
            both: tuple[Layout, Layout] = ("NCHW", "NHWC")  # a patch embedding may change the layout
            fitting = [one for one in both if same_aspect(pixels_of(output, one), pixels)]
            if len(fitting) == 2:  # as many channels as pixels: decide by the last layer
                return "NHWC" if channels_last(leaves(self.wrapped)[-1:]) else "NCHW"
            if fitting:
                return fitting[0]
        raise SiteError(
            f"{self.site} took {tuple(entered.shape)} and returned {tuple(output.shape)}; expected the same layout "
            'with the same pixels, or half as many per side, to scale back; use mode="invariant" there'
        )


def leaves(module: nn.Module) -> list[nn.Module]:
    """Return the layers of ``module`` that have parameters of their own, in order."""
    return [m for m in module.modules() if next(m.parameters(recurse=False), None) is not None]


def channels_last(layers: list[nn.Module]) -> bool:
    """Return whether these layers expect channels last, as linear layers do; 2d normalisations expect NCHW."""
    return all(isinstance(m, nn.LayerNorm | nn.Linear) and not type(m).__name__.endswith("2d") for m in layers)
