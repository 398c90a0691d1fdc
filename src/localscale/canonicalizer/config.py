"""``DECConfig``: everything about a deep equilibrium canonicalizer that is chosen and not learned."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from localscale.canonicalizer.site import Site
from localscale.canonicalizer.updates import UPDATES
from localscale.equilibrium import POLICIES, SOLVERS, Anderson, Picard, gradient_rule
from localscale.errors import ConfigError, near_misses
from localscale.maps.base import knot_pair
from localscale.maps.build import FAMILIES

__all__ = ["DECConfig"]

SOURCES = ("latent", "image")
MODES = ("invariant", "equivariant")


@dataclass(frozen=True)
class DECConfig:
    """How to canonicalize, and where.

    Args:
        sites: dotted module paths (or ``Site`` objects); ``"input"`` is the image itself.
        knots: control points along an axis, for all sites; or a tuple with one entry per site, each an integer or a
            pair (along x, along y).
        family: ``"grid"`` (App. A2.2) or ``"separable"``.
        update: ``"direct"`` (the paper's DEC), ``"gradient"`` (Eq. deq_cano) or ``"compose"`` (l ∘ δ, equivariant).
        source: the map comes from the site's own feature (``"latent"``) or from the image (``"image"``).
        mode: ``"invariant"`` M(S⁻¹(F)), or ``"equivariant"`` S(M(S⁻¹(F))).
        channels: output channels of each convolution; as many layers as entries (App. A1: 64 and 128). On a GPU two
            layers of 16, 32, 64 or 128 channels are fastest.
        resolution: longest side of the copy of its input that a canonicalizer works on; ``None`` is 56 for images,
            of up to 4 channels, and 28 for features, of more.
        temperature: divides the bounded raw parameters; lower means stronger warps are possible.
        guard: smallest Jacobian determinant of a ``grid`` map; ``None`` lets maps fold.
        step_size: η of the ``gradient`` update.
        solver: ``"anderson"`` or ``"picard"``.
        max_steps: most evaluations per solve.
        tolerance: relative residual, on the map's coordinates, at which a sample is done.
        history: points mixed by Anderson.
        damping: fraction of each step taken.
        fixed_steps: always take ``max_steps``, without data-dependent control flow.
        gradient: ``"implicit"``, ``"phantom(k)"`` or ``"unrolled"``.
        on_failure: ``"warn"``, ``"raise"`` or ``"identity"`` when an image's equilibrium is not reached.
        detached: sites whose features are moved by maps without a gradient, so that their canonicalizers learn from
            what is asked of the reported maps alone (equivariance supervision), and not from the task.

    >>> config = DECConfig(sites=("input", "blocks.0"), knots=(6, 4))
    >>> DECConfig.from_json(config.to_json()) == config
    True
    """

    sites: tuple[str | Site, ...] = ("input",)
    knots: int | tuple[int | tuple[int, int], ...] = 6
    family: str = "grid"
    update: str = "direct"
    source: str = "latent"
    mode: str = "invariant"
    channels: tuple[int, ...] = (64, 128)
    resolution: int | None = None
    temperature: float = 1.0
    guard: float | None = 0.1
    step_size: float = 1.0
    solver: str = "anderson"
    max_steps: int = 20
    tolerance: float = 1e-4
    history: int = 5
    damping: float = 1.0
    fixed_steps: bool = False
    gradient: str = "implicit"
    on_failure: str = "warn"
    detached: tuple[str, ...] = ()

    def __new__(cls, *args: Any, **values: Any) -> Self:
        """Refuse unknown names with the near misses, before Python refuses them without."""
        _refuse_unknown(values)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sites", _tuple_of_sites(self.sites))
        object.__setattr__(self, "channels", tuple(self.channels))
        if not isinstance(self.knots, int):
            object.__setattr__(self, "knots", tuple(k if isinstance(k, int) else tuple(k) for k in self.knots))
            if len(self.knots) != len(self.sites):
                raise ConfigError(
                    f"knots has {len(self.knots)} entries for {len(self.sites)} sites; "
                    "expected one per site, or a single integer for all"
                )
        for index in range(len(self.sites)):
            self.knots_at(index)
        object.__setattr__(
            self, "detached", (self.detached,) if isinstance(self.detached, str) else tuple(self.detached)
        )
        for path in self.detached:
            _choose("a detached site", path, map(str, self.sites))
        _choose("family", self.family, FAMILIES)
        _choose("update", self.update, UPDATES)
        _choose("source", self.source, SOURCES)
        _choose("mode", self.mode, MODES)
        _choose("on_failure", self.on_failure, POLICIES)
        _choose("solver", self.solver, SOLVERS)
        gradient_rule(self.gradient)
        self.make_solver()
        if not self.channels or min(self.channels) < 1:
            raise ConfigError(f"channels is {self.channels}; expected at least one positive width")
        if self.resolution is not None and self.resolution < 2:
            raise ConfigError(f"resolution is {self.resolution}; expected at least 2 pixels")
        if not 0 <= self.step_size < math.inf:
            raise ConfigError(f"step_size is {self.step_size}; expected a finite number, 0 or more")
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"temperature is {self.temperature}; expected a positive number")
        if self.guard is not None and not 0 < self.guard < 1:
            raise ConfigError(f"guard is {self.guard}; expected a determinant strictly between 0 and 1, or None")
        if self.on_failure == "raise" and self.fixed_steps:
            raise ConfigError('on_failure="raise" needs to look at the data, which fixed_steps=True never does')

    def knots_at(self, index: int) -> tuple[int, int]:
        """Knots along x and y of the site number ``index``."""
        knots = self.knots if isinstance(self.knots, int) else self.knots[index]
        return knot_pair(knots)

    def make_solver(self) -> Anderson | Picard:
        """The solver these settings describe."""
        settings = {
            "max_steps": self.max_steps,
            "tolerance": self.tolerance,
            "history": self.history,
            "damping": self.damping,
            "fixed_steps": self.fixed_steps,
        }
        solver = SOLVERS[self.solver]
        known = {f.name for f in dataclasses.fields(solver)}
        return solver(**{name: value for name, value in settings.items() if name in known})  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Picard values only, as JSON has them."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["sites"] = [site.to_json() if isinstance(site, Site) else site for site in self.sites]
        return json.loads(json.dumps(values))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DECConfig:
        """The inverse of ``to_dict``; unknown keys raise."""
        if not isinstance(values, dict):
            raise ConfigError(
                f"a configuration is {type(values).__name__}; expected a dictionary of DECConfig's fields"
            )
        _refuse_unknown(values)
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"a configuration value has the wrong type: {error}") from error

    def to_json(self) -> str:
        """The configuration as a JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> DECConfig:
        """The inverse of ``to_json``."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"the configuration is not JSON: {error}") from error
        return cls.from_dict(values)


def _refuse_unknown(values: dict[str, Any]) -> None:
    names = [f.name for f in dataclasses.fields(DECConfig)]
    for key in values:
        if key not in names:
            raise ConfigError(f"DECConfig has no field {key!r}: {near_misses(str(key), names)}")


def _choose(name: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise ConfigError(f"{name} is {value!r}: {near_misses(str(value), known)}")


def _tuple_of_sites(sites: Any) -> tuple[str | Site, ...]:
    if isinstance(sites, str | Site):
        sites = (sites,)
    read = [Site.from_json(site) for site in sites]
    if not read:
        raise ConfigError('sites is empty; name at least one, for example sites=("input",)')
    paths = [site.path for site in read]
    twice = {path for path in paths if paths.count(path) > 1}
    if twice:
        raise ConfigError(f"sites names {', '.join(sorted(twice))} more than once")
    return tuple(site.to_json() if isinstance(site.to_json(), str) else site for site in read)  # type: ignore[misc]
