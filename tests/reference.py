"""Slow, obvious oracles: float64, one map at a time, no code shared with the library."""

import itertools

import numpy as np
import torch
from scipy.interpolate import RegularGridInterpolator
from scipy.optimize import fsolve


def control_points(increments_x: np.ndarray, increments_y: np.ndarray) -> np.ndarray:
    """Running sums of ``(Ny, Nx − 1)`` row and ``(Nx, Ny − 1)`` column increments, as ``(2, Ny, Nx)``."""
    x = np.pad(np.cumsum(increments_x, axis=1), ((0, 0), (1, 0)))
    y = np.pad(np.cumsum(increments_y, axis=1), ((0, 0), (1, 0))).T
    return np.stack((x, y))


def evaluate(control: np.ndarray, points: np.ndarray) -> np.ndarray:
    """l(p) of the bilinear lattice map ``control`` ``(2, Ny, Nx)`` at ``points`` ``(P, 2)``."""
    _, rows, columns = control.shape
    axes = (np.linspace(0, 1, rows), np.linspace(0, 1, columns))
    return np.stack([RegularGridInterpolator(axes, channel)(points[:, ::-1]) for channel in control], axis=1)


def invert(control: np.ndarray, point: np.ndarray) -> list[np.ndarray]:
    """Return every p with l(p) = ``point``, by root finding in each cell."""
    _, rows, columns = control.shape
    found: list[np.ndarray] = []
    for i, j in itertools.product(range(rows - 1), range(columns - 1)):
        a, b, c, d = control[:, i, j], control[:, i, j + 1], control[:, i + 1, j], control[:, i + 1, j + 1]

        def miss(place, a=a, b=b, c=c, d=d):
            s, t = place
            return (1 - t) * ((1 - s) * a + s * b) + t * ((1 - s) * c + s * d) - point

        place, *_ = fsolve(miss, (0.5, 0.5), xtol=1e-13, full_output=True)
        if np.abs(miss(place)).max() < 1e-12 and place.min() > -1e-9 and place.max() < 1 + 1e-9:
            root = (place + np.array((j, i))) / (columns - 1, rows - 1)
            if all(np.abs(root - other).max() > 1e-9 for other in found):
                found.append(root)
    return found


def cell_determinants(control: np.ndarray, per_side: int = 9) -> np.ndarray:
    """det ∂l/∂p by central differences on ``per_side²`` places in each cell, ``(Ny − 1, Nx − 1, per_side²)``.

    The outermost places lie a ten-thousandth of a cell inside it; within a cell central differences of a bilinear
    function are exact.
    """
    _, rows, columns = control.shape
    place, step = np.linspace(1e-4, 1 - 1e-4, per_side), 5e-5
    i, j, t, s = np.meshgrid(np.arange(rows - 1), np.arange(columns - 1), place, place, indexing="ij")
    x, y = (j + s) / (columns - 1), (i + t) / (rows - 1)

    def derivative(dx: float, dy: float) -> np.ndarray:
        ahead = evaluate(control, np.stack((x + dx, y + dy), axis=-1).reshape(-1, 2))
        behind = evaluate(control, np.stack((x - dx, y - dy), axis=-1).reshape(-1, 2))
        return (ahead - behind) / (2 * (dx + dy))

    by_x, by_y = derivative(step / (columns - 1), 0), derivative(0, step / (rows - 1))
    return (by_x[:, 0] * by_y[:, 1] - by_x[:, 1] * by_y[:, 0]).reshape(rows - 1, columns - 1, per_side**2)


def bilinear(image: np.ndarray, x: float, y: float) -> np.ndarray:
    """``image`` ``(C, H, W)`` between its pixels: four neighbours, the border continued."""
    _, height, width = image.shape
    left, top = int(np.floor(x)), int(np.floor(y))
    value = np.zeros(image.shape[0])
    for row, column in itertools.product((top, top + 1), (left, left + 1)):
        weight = (1 - abs(x - column)) * (1 - abs(y - row))
        value += weight * image[:, min(max(row, 0), height - 1), min(max(column, 0), width - 1)]
    return value


def unscale(image: np.ndarray, control: np.ndarray) -> np.ndarray:
    """S⁻¹(x; l)(p) = x(l(p)) for one ``(C, H, W)`` image, pixel by pixel."""
    _, height, width = image.shape
    result = np.empty(image.shape)
    for i, j in itertools.product(range(height), range(width)):
        ((x, y),) = evaluate(control, np.array([[j / (width - 1), i / (height - 1)]]))
        result[:, i, j] = bilinear(image, x * (width - 1), y * (height - 1))
    return result


def autograd_jacobian(function, points: torch.Tensor) -> torch.Tensor:
    """∂f/∂p at ``points`` ``(B, P, 2)`` by automatic differentiation, ``(B, P, 2, 2)``."""
    points = points.clone().requires_grad_()
    moved = function(points)
    rows = [torch.autograd.grad(moved[..., k].sum(), points, retain_graph=True)[0] for k in (0, 1)]
    return torch.stack(rows, dim=-2)


def resampled_differences(scores: list[float], control: list[float], groups: list[int]) -> np.ndarray:
    """The difference of means for every way to draw as many groups as there are, with replacement; sorted."""
    members = [[i for i, group in enumerate(groups) if group == name] for name in sorted(set(groups))]
    found = []
    for drawn in itertools.product(members, repeat=len(members)):
        images = [i for group in drawn for i in group]
        found.append(np.mean([scores[i] for i in images]) - np.mean([control[i] for i in images]))
    return np.sort(found)


def cubic(u: float, a: float) -> float:
    """Keys' cubic convolution kernel."""
    u = abs(u)
    if u < 1:
        return (a + 2) * u**3 - (a + 3) * u**2 + 1
    return a * (u**3 - 5 * u**2 + 8 * u - 4) if u < 2 else 0.0


def filtered_cubic(x: np.ndarray, new: int) -> np.ndarray:
    """``new`` samples of ``x`` ``(N, C)``, filtered by Keys' cubic (a = −½) over pixels continued by odd reflection."""
    last, answers = len(x) - 1, []

    def pixel(index: int) -> np.ndarray:
        if last == 0:
            return x[0]
        if index < 0:
            return 2 * x[0] - pixel(-index)
        return 2 * x[last] - pixel(2 * last - index) if index > last else x[index]

    for output in range(new):
        centre = output * last / max(new - 1, 1)
        reach = max(last / max(new - 1, 1), 1)
        around = range(int(centre - 2 * reach) - 1, int(centre + 2 * reach) + 2)
        weights = {index: cubic((index - centre) / reach, -0.5) for index in around}
        total = sum(weights.values())
        tilt = sum(weight * (index - centre) for index, weight in weights.items()) / total
        value = sum(weight / total * pixel(index) for index, weight in weights.items())
        below = int(np.floor(centre))
        answers.append(value + tilt * (pixel(below) - pixel(below + 1)))
    return np.stack(answers)


def sampled_bicubic(x: np.ndarray, column: float, row: float) -> np.ndarray:
    """``x`` ``(C, H, W)`` at a position in pixels, by Keys' cubic (a = −¾) over 4×4 pixels clamped to the image."""
    _, height, width = x.shape
    left, top, value = int(np.floor(column)), int(np.floor(row)), 0.0
    for i, j in itertools.product(range(top - 1, top + 3), range(left - 1, left + 3)):
        weight = cubic(i - row, -0.75) * cubic(j - column, -0.75)
        value = value + weight * x[:, min(max(i, 0), height - 1), min(max(j, 0), width - 1)]
    return value
