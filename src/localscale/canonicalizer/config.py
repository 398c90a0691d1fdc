"""``DECConfig``: the settings of deep equilibrium canonicalizers."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from localscale.canonicalizer.interfaces import NetworkSettings, Update
from localscale.canonicalizer.network import ConvNetwork
from localscale.canonicalizer.networks import NETWORKS
from localscale.canonicalizer.site import Site
from localscale.canonicalizer.updates import UPDATES, Direct
from localscale.equilibrium import GRADIENTS, POLICIES, SOLVERS, Anderson, Gradient, Implicit, Solver
from localscale.errors import ConfigError, near_misses
from localscale.maps.base import knot_pair
from localscale.maps.build import FAMILIES
from localscale.registry import choose, describe, refuse_unknown

if TYPE_CHECKING:
    AnySite = str | Site
else:
    AnySite = str  # tyro builds command-line options from annotations; on a command line, a site is a path

__all__ = ["DECConfig"]

SOURCES = ("latent", "image")
MODES = ("invariant", "equivariant")
REGISTRIES: dict[str, dict[str, type[Any]]] = {
    "update": UPDATES,
    "network": NETWORKS,
    "solver": SOLVERS,
    "gradient": GRADIENTS,
}


@dataclass(frozen=True)
class DECConfig:
    """The sites of canonicalizers in a network, and all their settings.

    ``update``, ``network``, ``solver`` and ``gradient`` are values such as ``Anderson(max_steps=8)``; the registered
    name of a value, such as ``"anderson"``, stands for the value with its defaults.

    Args:
        sites: dotted module paths (or ``Site`` objects); ``"input"`` is the image itself.
        knots: control points along an axis, for all sites; or a tuple with one entry per site, each an integer or a
            pair (along x, along y).
        family: ``"grid"`` (App. A2.2) or ``"separable"``.
        update: ``Direct()`` (the paper's DEC), ``Compose()`` (l ∘ δ, equivariant) or ``Descent(step_size)``
            (Eq. deq_cano); also ``"direct"``, ``"compose"`` or ``"descent"``.
        source: where a site's map comes from, its own feature (``"latent"``) or the image (``"image"``).
        mode: ``"invariant"`` M(S⁻¹(F)), or ``"equivariant"`` S(M(S⁻¹(F))).
        network: ``ConvNetwork(channels, resolution)``.
        temperature: divides the bounded raw parameters; lower means stronger warps are possible.
        guard: smallest Jacobian determinant of a ``grid`` map; ``None`` lets maps fold.
        solver: ``Anderson(…)`` or ``Picard(…)``; the residual is measured on the map's coordinates.
        gradient: ``Implicit()``, ``Phantom(k)`` or ``Unrolled()``; also ``"implicit"``, ``"phantom(3)"`` or
            ``"unrolled"``.
        on_failure: ``"warn"``, ``"raise"`` or ``"identity"`` when the solver does not converge for an image.
        detached: sites where features are moved by maps without a gradient. Their canonicalizers learn only from
            losses on the reported maps (equivariance supervision), not from the task.

    >>> config = DECConfig(sites=("input", "blocks.0"), knots=(6, 4), update="compose")
    >>> config.update, config.solver.max_steps
    (Compose(), 20)
    >>> DECConfig.from_json(config.to_json()) == config
    True
    """

    sites: tuple[AnySite, ...] = ("input",)
    knots: int | tuple[int | tuple[int, int], ...] = 6
    family: str = "grid"
    update: Update = Direct()  # noqa: RUF009 (frozen values)
    source: str = "latent"
    mode: str = "invariant"
    network: NetworkSettings = ConvNetwork()  # noqa: RUF009
    temperature: float = 1.0
    guard: float | None = 0.1
    solver: Solver = Anderson(max_steps=20, tolerance=1e-4)  # noqa: RUF009
    gradient: Gradient = Implicit()  # noqa: RUF009
    on_failure: str = "warn"
    detached: tuple[str, ...] = ()

    def __new__(cls, *args: Any, **values: Any) -> Self:
        """Raise ``ConfigError`` with similar names for an unknown field, before ``__init__`` raises a ``TypeError``."""
        refuse_unknown("DECConfig", values, _names())
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, registry in REGISTRIES.items():
            object.__setattr__(self, name, choose(name, getattr(self, name), registry))
        object.__setattr__(self, "sites", _tuple_of_sites(self.sites))
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
        _choose("source", self.source, SOURCES)
        _choose("mode", self.mode, MODES)
        _choose("on_failure", self.on_failure, POLICIES)
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"temperature is {self.temperature}; expected a positive number")
        if self.guard is not None and not 0 < self.guard < 1:
            raise ConfigError(f"guard is {self.guard}; expected a determinant strictly between 0 and 1, or None")
        if self.on_failure == "raise" and self.solver.fixed_steps:
            raise ConfigError(
                'on_failure="raise" reads the result on the host, which a solver with fixed_steps=True never does; '
                'use "warn" or "identity"'
            )

    def knots_at(self, index: int) -> tuple[int, int]:
        """Return the knots along x and y at the site number ``index``."""
        knots = self.knots if isinstance(self.knots, int) else self.knots[index]
        return knot_pair(knots)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values; ``"kind"`` is the registered name of each nested value."""
        values = {name: describe(getattr(self, name), *REGISTRIES.values()) for name in _names()}
        values["sites"] = [site.to_json() if isinstance(site, Site) else site for site in self.sites]
        return json.loads(json.dumps(values))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DECConfig:
        """Read the settings that ``to_dict`` returned; unknown keys raise."""
        if not isinstance(values, dict):
            raise ConfigError(
                f"a configuration is {type(values).__name__}; expected a dictionary of DECConfig's fields"
            )
        refuse_unknown("DECConfig", values, _names())
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"a configuration value has the wrong type: {error}") from error

    def to_json(self) -> str:
        """Return the settings as a JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> DECConfig:
        """Read the settings that ``to_json`` returned."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"the configuration is not JSON: {error}") from error
        return cls.from_dict(values)


def _names() -> list[str]:
    return [field.name for field in dataclasses.fields(DECConfig)]


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
        raise ConfigError(f"sites names {', '.join(sorted(twice))} more than once; name each site once")
    return tuple(site.to_json() if isinstance(site.to_json(), str) else site for site in read)  # type: ignore[misc]
