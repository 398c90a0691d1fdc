"""``DECConfig``: the settings of deep equilibrium canonicalizers."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from localscale.canonicalizer.interfaces import NetworkSettings, Update
from localscale.canonicalizer.network import ConvNetwork
from localscale.canonicalizer.networks import NETWORKS
from localscale.canonicalizer.site import INPUT, Site
from localscale.canonicalizer.sizes import SizeNetwork
from localscale.canonicalizer.updates import UPDATES, Compose, Direct
from localscale.equilibrium import GRADIENTS, POLICIES, SOLVERS, Anderson, Gradient, Implicit, Picard, Solver
from localscale.errors import ConfigError, near_misses
from localscale.maps.base import knot_pair
from localscale.maps.build import FAMILIES, LEAST_TEMPERATURE
from localscale.registry import check_types, choose, describe, refuse_unknown

if TYPE_CHECKING:
    AnySite = str | Site
else:
    AnySite = str  # tyro builds command-line options from annotations; on a command line, a site is a path

__all__ = ["DECConfig"]

SOURCES = ("latent", "image")
MODES = ("invariant", "equivariant", "averaged")
REGISTRIES: dict[str, dict[str, type[Any]]] = {
    "update": UPDATES,
    "network": NETWORKS,
    "solver": SOLVERS,
    "gradient": GRADIENTS,
}


@dataclass(frozen=True)
class DECConfig:
    """The sites of canonicalizers in a network, and all their settings.

    The defaults are the size equilibrium, which scales the things in an image to one size; ``DECConfig.paper()`` is
    the paper's DEC. ``update``, ``network``, ``solver`` and ``gradient`` are values such as ``Anderson(max_steps=8)``;
    the registered name of a value, such as ``"anderson"``, stands for the value with its defaults.

    Args:
        sites: dotted module paths (or ``Site`` objects); ``"input"`` is the image itself.
        knots: control points along an axis, for all sites; or a tuple with one entry per site, each an integer or a
            pair (along x, along y).
        family: ``"grid"`` (App. A2.2) or ``"separable"``.
        update: ``Compose()`` (l ∘ δ, equivariant), ``Direct()`` (the paper's DEC) or ``Descent(step_size)``
            (Eq. deq_cano); also ``"compose"``, ``"direct"`` or ``"descent"``. A ``SizeNetwork`` needs ``Compose()``.
        source: where a site's map comes from, its own feature (``"latent"``) or the image (``"image"``).
        mode: ``"invariant"`` M(S⁻¹(F)); ``"equivariant"`` S(M(S⁻¹(F))); or ``"averaged"``, for classifiers and the
            site ``"input"`` alone: the log of the mean of the probabilities for F and for S⁻¹(F).
        network: ``SizeNetwork(…)``, which learns the sizes of things without labels, or ``ConvNetwork(…)``, the
            paper's, which learns from the task; also ``"sizes"`` or ``"conv"``.
        temperature: divides the bounded raw parameters of a ``ConvNetwork``; lower means stronger warps are possible.
        guard: smallest Jacobian determinant of a ``grid`` map; ``None`` lets maps fold.
        solver: ``Picard(…)`` or ``Anderson(…)``; the residual is measured on the map's coordinates. The default takes
            six steps, without host synchronisation and warnings; the report says which images converged.
        gradient: ``Implicit()``, ``Phantom(k)`` or ``Unrolled()``; also ``"implicit"``, ``"phantom(3)"`` or
            ``"unrolled"``.
        on_failure: ``"warn"``, ``"raise"`` or ``"identity"`` when the solver does not converge for an image. A solver
            with ``fixed_steps=True`` never warns or raises.
        detached: sites where features are moved by maps without a gradient. Their canonicalizers learn only from
            losses on the reported maps (equivariance supervision), not from the task.

    >>> DECConfig().update, DECConfig().solver.max_steps
    (Compose(), 6)
    >>> config = DECConfig(knots=10, network=SizeNetwork(target=0.3))
    >>> DECConfig.from_json(config.to_json()) == config
    True
    """

    sites: tuple[AnySite, ...] = ("input",)
    knots: int | tuple[int | tuple[int, int], ...] = 14
    family: str = "grid"
    update: Update = Compose()  # noqa: RUF009 (frozen values)
    source: str = "latent"
    mode: str = "invariant"
    network: NetworkSettings = SizeNetwork()  # noqa: RUF009
    temperature: float = 1.0
    guard: float | None = 0.03
    solver: Solver = Picard(max_steps=6, tolerance=1e-3, fixed_steps=True)  # noqa: RUF009
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
        if isinstance(self.detached, str):
            object.__setattr__(self, "detached", (self.detached,))
        check_types(self, but=("sites",))
        if not isinstance(self.knots, int) and len(self.knots) != len(self.sites):
            raise ConfigError(
                f"knots has {len(self.knots)} entries for {len(self.sites)} sites; "
                "expected one per site, or a single integer for all"
            )
        for index in range(len(self.sites)):
            self.knots_at(index)
        for path in self.detached:
            _choose("a detached site", path, map(str, self.sites))
        _choose("family", self.family, FAMILIES)
        _choose("source", self.source, SOURCES)
        _choose("mode", self.mode, MODES)
        if self.mode == "averaged" and tuple(map(str, self.sites)) != (INPUT,):
            raise ConfigError(
                f'mode is "averaged" and sites are {", ".join(map(str, self.sites))}; it averages the answers to an '
                'image and to its canonical form, so use sites=("input",)'
            )
        _choose("on_failure", self.on_failure, POLICIES)
        if not LEAST_TEMPERATURE <= self.temperature < math.inf:
            raise ConfigError(
                f"temperature is {self.temperature}; expected a finite number, at least {LEAST_TEMPERATURE}"
            )
        if self.guard is not None and not 0 < self.guard < 1:
            raise ConfigError(f"guard is {self.guard}; expected a determinant strictly between 0 and 1, or None")
        if self.on_failure == "raise" and self.solver.fixed_steps:
            raise ConfigError(
                'on_failure="raise" reads the result on the host, which a solver with fixed_steps=True never does; '
                'use "warn" or "identity", or a solver without it, such as solver=Picard(max_steps=6, tolerance=1e-3)'
            )
        if isinstance(self.network, SizeNetwork):
            self._check_sizes()

    @classmethod
    def paper(cls, **changes: Any) -> DECConfig:
        """Return the paper's DEC, with the fields in ``changes`` replaced.

        Its network predicts the next map from the look through the current one, and learns from the task alone.

        >>> DECConfig.paper(sites=("input", "blocks.0"), knots=(6, 4)).update
        Direct()
        """
        values: dict[str, Any] = {
            "knots": 6,
            "update": Direct(),
            "network": ConvNetwork(),
            "guard": 0.1,
            "solver": Anderson(max_steps=20, tolerance=1e-4),
        }
        return cls(**values | changes)

    def _check_sizes(self) -> None:
        """Raise ``ConfigError`` if a ``SizeNetwork`` cannot serve the update or the family."""
        if not isinstance(self.update, Compose):
            kind = describe(self.update, UPDATES)["kind"]
            raise ConfigError(
                f"update is {self.update}, and the network is a SizeNetwork, which corrects a map step by step; use "
                f'update="compose", or the paper\'s network: DECConfig.paper(update="{kind}")'
            )
        if self.family != "grid":
            raise ConfigError(
                f"family is {self.family!r}, and the network is a SizeNetwork, which makes grid maps; use "
                f'family="grid", or the paper\'s network: DECConfig.paper(family="{self.family}")'
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
                f"a configuration is {type(values).__name__}; expected a dictionary of DECConfig's fields, or "
                "the path of a JSON file"
            )
        refuse_unknown("DECConfig", values, _names())
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"a configuration value has the wrong type: {error}") from error

    @classmethod
    def of(cls, settings: DECConfig | dict[str, Any] | str | Path | None) -> DECConfig:
        """Return the settings given as a ``DECConfig``, a dictionary or the path of a JSON file; None: the defaults.

        >>> DECConfig.of({"knots": 10}) == DECConfig(knots=10)
        True
        """
        if isinstance(settings, DECConfig):
            return settings
        if not isinstance(settings, str | Path):
            return cls() if settings is None else cls.from_dict(settings)
        try:
            text = Path(settings).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"no configuration can be read from {settings} ({getattr(error, 'strerror', None) or error}); "
                "expected a DECConfig, a dictionary, the path of a JSON file that DECConfig.to_json wrote, or, in "
                'ls.adapt, the name of a canonicalizer that comes with the package: "photographs"'
            ) from error
        try:
            return cls.from_json(text)
        except ConfigError as error:
            raise ConfigError(f"{settings}: {error}") from error

    def to_json(self) -> str:
        """Return the settings as a JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> DECConfig:
        """Read the settings that ``to_json`` returned."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:  # also numbers too long and brackets too deep
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
    if not isinstance(sites, tuple | list):
        raise ConfigError(f"sites is {sites!r}; expected a tuple of dotted module paths or Site objects")
    read = [Site.from_json(site) for site in sites]
    if not read:
        raise ConfigError('sites is empty; name at least one, for example sites=("input",)')
    paths = [site.path for site in read]
    twice = {path for path in paths if paths.count(path) > 1}
    if twice:
        raise ConfigError(f"sites names {', '.join(sorted(twice))} more than once; name each site once")
    return tuple(site.to_json() if isinstance(site.to_json(), str) else site for site in read)  # type: ignore[misc]
