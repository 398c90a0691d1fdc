"""Build maps: the identity, random maps, and maps from raw parameters; and the registry of families."""

import math

import torch
from torch import Tensor

from localscale.errors import MapError, near_misses
from localscale.maps.base import FamilyMap, Map, knot_pair
from localscale.maps.distributions import raw_parameters
from localscale.maps.grid import GridMap, resample_to_grid
from localscale.maps.separable import SeparableMap

__all__ = [
    "FAMILIES",
    "LEAST_TEMPERATURE",
    "family_of",
    "identity_map",
    "map_from_logits",
    "random_map",
    "resampling_error",
]

FAMILIES: dict[str, type[FamilyMap]] = {"grid": GridMap, "separable": SeparableMap}


LEAST_TEMPERATURE = 1e-3  # below it, increments of 0 and NaN take the place of small ones


def family_of(name: str) -> type[FamilyMap]:
    """Return the class of the family ``name``, or raise ``MapError`` with the near misses."""
    if name not in FAMILIES:
        raise MapError(f"no family {name!r}: {near_misses(str(name), FAMILIES)}")
    return FAMILIES[name]


def _check_batch_and_dtype(batch: int, dtype: torch.dtype) -> None:
    if not isinstance(batch, int | torch.SymInt) or isinstance(batch, bool) or batch < 1:  # tracing counts by SymInt
        raise MapError(f"batch is {batch!r}; expected an integer, at least 1")
    if dtype not in (torch.float32, torch.float64):
        raise MapError(f"dtype is {dtype}; expected float32 or float64, also for half-precision features")


def identity_map(
    batch: int = 1,
    knots: int | tuple[int, int] = 8,
    *,
    family: str = "grid",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> FamilyMap:
    """Return the identity.

    >>> identity_map(2, family="separable").mean_displacement()
    tensor([0., 0.])
    """
    _check_batch_and_dtype(batch, dtype)
    shape_x, shape_y = family_of(family).logit_shapes(knot_pair(knots))
    zeros = (torch.zeros(batch, *shape, dtype=dtype, device=device) for shape in (shape_x, shape_y))
    return family_of(family).from_logits(*zeros)


def random_map(
    batch: int = 1,
    knots: int | tuple[int, int] = 8,
    *,
    strength: float | None = None,
    family: str = "grid",
    distribution: str = "logits",
    generator: torch.Generator | None = None,
    guard: float | None = 0.1,
    temperature: float = 1.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> FamilyMap:
    """Return random maps: raw parameters uniform in [0, strength], or increments uniform on the simplex.

    Args:
        batch: the number of maps.
        knots: control points along an axis, or a pair (along x, along y).
        strength: multiplies the raw parameters; 0 is the identity. For ``"logits"`` the default is 0.5, and at 2
            neighbouring increments differ by up to e² ≈ 7. For ``"simplex"`` the default is 1, which alone is uniform.
        family: ``"grid"`` or ``"separable"``.
        distribution: ``"logits"`` draws raw parameters uniformly from [0, strength]; ``"simplex"`` draws the
            increments of each row uniformly from the simplex (Dirichlet with all ones), the paper's Ω. With 6 knots
            and ``"separable"`` the latter moves points by 18 % of the side on average. The guard shrinks ``"grid"``
            maps of such increments, nearly all of which fold, to 5 %.
        generator: the random number generator. Numbers are drawn on its device, so a seeded CPU generator gives the
            same maps on every device.
        guard: smallest Jacobian determinant to allow in a ``grid`` map; ``None`` lets it fold.
        temperature: divides the raw parameters before the softmax.

    >>> m = random_map(8, knots=(6, 4), generator=torch.Generator().manual_seed(0))
    >>> points = torch.rand(8, 100, 2)
    >>> torch.allclose(m.inverse()(m(points)), points, atol=1e-5)
    True
    """
    _check_batch_and_dtype(batch, dtype)
    if strength is None:
        strength = 0.5 if distribution == "logits" else 1.0
    if not 0 <= strength < math.inf:
        raise MapError(f"strength is {strength}; expected a finite number, 0 or more")
    shape_x, shape_y = family_of(family).logit_shapes(knot_pair(knots))
    source = generator.device if generator is not None else device
    logits_x, logits_y = (
        raw_parameters(torch.rand(batch, *shape, generator=generator, dtype=dtype, device=source), distribution)
        for shape in (shape_x, shape_y)
    )
    logits_x, logits_y = (strength * logits.to(device) for logits in (logits_x, logits_y))
    return map_from_logits(logits_x, logits_y, family=family, guard=guard, temperature=temperature)


def map_from_logits(
    logits_x: Tensor,
    logits_y: Tensor,
    *,
    family: str = "grid",
    guard: float | None = 0.1,
    temperature: float = 1.0,
) -> FamilyMap:
    """Return maps from raw parameters: a softmax along the last axis gives increments, their running sum coordinates.

    For ``"grid"`` the shapes are ``(B, Ny, Nx − 1)``, one row of the lattice each, and ``(B, Nx, Ny − 1)``, one column
    each; for ``"separable"`` they are ``(B, Nx − 1)`` and ``(B, Ny − 1)``.

    >>> map_from_logits(torch.randn(1, 5), torch.randn(1, 3), family="separable").min_determinant() > 0
    tensor([True])
    """
    if not LEAST_TEMPERATURE <= temperature < math.inf:
        raise MapError(f"temperature is {temperature}; expected a finite number, at least {LEAST_TEMPERATURE}")
    if guard is not None and not 0 < guard < 1:
        raise MapError(f"guard is {guard}; expected a determinant strictly between 0 and 1, or None for no guard")
    if {logits_x.dtype, logits_y.dtype} - {torch.float32, torch.float64}:
        raise MapError(f"logits have dtype {logits_x.dtype}; maps are float32 or float64: pass logits.float()")
    if logits_x.dtype != logits_y.dtype or logits_x.device != logits_y.device:
        raise MapError(
            f"logits along x are {logits_x.dtype} on {logits_x.device} and those along y {logits_y.dtype} on "
            f"{logits_y.device}; expected one dtype and one device: pass logits_y.to(logits_x)"
        )
    if 0 in (*logits_x.shape, *logits_y.shape):
        raise MapError(
            f"logits have shapes {tuple(logits_x.shape)} and {tuple(logits_y.shape)}; "
            "a map needs at least 2 control points, so 1 increment, along each axis"
        )
    return family_of(family).from_logits(logits_x, logits_y, temperature=temperature, guard=guard)


def resampling_error(m: Map, knots: int | tuple[int, int], *, size: int = 129) -> Tensor:
    """Return the largest distance between ``m`` and its re-sampled grid map over ``size²`` points, shape ``(B,)``.

    The composition of two grid maps is not a grid map. This is the error of re-sampling ``a @ b`` on a ``knots``
    lattice, as a fraction of the image side.
    """
    fitted = resample_to_grid(m, knot_pair(knots))
    return torch.linalg.vector_norm(
        m.displacement_field(size, size) - fitted.displacement_field(size, size), dim=-1
    ).amax(dim=(1, 2))
