"""``Site``: a module of a network whose input is canonicalized."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from localscale.errors import ConfigError, SiteError, near_misses
from localscale.layouts import Layout, Tokens
from localscale.registry import check_types

__all__ = ["INPUT", "Site", "SiteLayout"]

INPUT = "input"
SiteLayout = Literal["NCHW", "NHWC", "tokens"]
LAYOUTS = ("NCHW", "NHWC", "tokens")


@dataclass(frozen=True)
class Site:
    """A module by its dotted path, and the layout of its input features.

    Args:
        path: the module's name in ``model.named_modules()``, or ``"input"`` for the image itself.
        layout: ``"NCHW"``, ``"NHWC"`` or ``"tokens"``; ``None`` to find it by a trial run.
        channels: feature channels; ``None`` to find them by a trial run.
        prefix: class, distillation and register tokens before the patches (``"tokens"`` only).
        stride: image pixels per patch along y and x (``"tokens"`` only); the patch grid follows from the image's size.
        shape: the feature shape in the trial run, for information; comparisons ignore it.

    >>> str(Site("blocks.0")), Site("stage.1", layout="NCHW", channels=64).layout
    ('blocks.0', 'NCHW')
    """

    path: str
    layout: SiteLayout | None = None
    channels: int | None = None
    prefix: int = 0
    stride: tuple[int, int] | None = None
    shape: tuple[int, ...] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_types(self, but=("layout", "stride"))
        if self.layout is not None and self.layout not in LAYOUTS:
            raise SiteError(f"site {self.path!r} has layout {self.layout!r}: {near_misses(str(self.layout), LAYOUTS)}")
        if self.prefix < 0:
            raise SiteError(f"site {self.path!r} has prefix {self.prefix}; expected 0 or more tokens")
        if self.stride is not None:
            sides = self.stride if isinstance(self.stride, tuple | list) else ()
            if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
                raise SiteError(f"site {self.path!r} has stride {self.stride}; expected image pixels per patch (y, x)")
            object.__setattr__(self, "stride", tuple(self.stride))

    def __str__(self) -> str:
        return self.path

    @property
    def known(self) -> bool:
        """Whether the site needs no trial run."""
        if self.path == INPUT:
            return self.channels is not None
        return self.layout is not None and self.channels is not None and (self.layout != "tokens" or bool(self.stride))

    def layout_for(self, length: int, image_size: tuple[int, int]) -> Layout:
        """Return the layout of features of ``length`` tokens, for an image of ``image_size`` (H, W) pixels."""
        if self.layout != "tokens":
            assert self.layout is not None
            return self.layout
        assert self.stride is not None
        tried = []
        for rounding in (0, 1):  # a backbone crops or pads sizes that are not multiples of the stride
            height, width = ((n + rounding * (s - 1)) // s for n, s in zip(image_size, self.stride, strict=True))
            if self.prefix + height * width == length:
                return Tokens(height, width, self.prefix)
            tried.append(f"{height}×{width}")
        raise SiteError(
            f"{self.path} got {length} tokens for a {image_size[0]}×{image_size[1]} image; with stride {self.stride} "
            f"and {self.prefix} prefix tokens expected {' or '.join(dict.fromkeys(tried))} patches. "
            f'Give Site("{self.path}", layout="tokens", prefix=…, stride=…) the true values'
        )

    def to_json(self) -> str | dict[str, Any]:
        """Return the path alone if all other fields have their defaults, else a dictionary of those that differ."""
        values = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name != "shape" and getattr(self, f.name) != f.default
        }
        return self.path if set(values) == {"path"} else values

    @classmethod
    def from_json(cls, value: str | dict[str, Any] | Site) -> Site:
        """Read a site that ``to_json`` returned; a ``Site`` is returned unchanged."""
        if isinstance(value, Site):
            return value
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, dict) or not isinstance(value.get("path"), str):
            raise ConfigError(f'a site is {value!r}; expected a dotted path, a Site, or {{"path": …}}')
        names = [f.name for f in dataclasses.fields(cls) if f.name != "shape"]
        for key in value:
            if key not in names:
                raise ConfigError(f"a site has no field {key!r}: {near_misses(str(key), names)}")
        return cls(**value)
