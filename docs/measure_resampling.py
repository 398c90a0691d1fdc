"""Measure what re-fitting a composition of two grid maps on their own lattice costs; print a markdown table.

Run from the repository root: ``.venv/bin/python docs/measure_resampling.py``
"""

import torch

import localscale as ls

PAIRS = 200
SPAN = 224 - 1  # pixel positions of a 224 px image lie 1/223 apart


def measure(knots: int, strength: float) -> tuple[float, float, float]:
    """Mean displacement, and median and largest error over random pairs, as fractions of the image side."""
    generator = torch.Generator().manual_seed(0)
    a, b = (ls.random_map(PAIRS, knots, strength=strength, generator=generator, dtype=torch.float64) for _ in range(2))
    error = ls.maps.resampling_error(a @ b, knots)
    return float((a @ b).displacement().mean()), float(error.quantile(0.5)), float(error.max())


def main() -> None:
    """Print one row per lattice and strength."""
    print("| knots | strength | `a @ b` moves | error, median | error, max | median, px at 224 | max, px at 224 |")
    print("|---|---|---|---|---|---|---|")
    for knots in (4, 8, 16):
        for strength in (0.25, 0.5, 1.0):
            moved, median, largest = measure(knots, strength)
            cells = (knots, strength, f"{moved:.4f}", f"{median:.4f}", f"{largest:.4f}")
            pixels = (f"{median * SPAN:.1f}", f"{largest * SPAN:.1f}")
            print("|", " | ".join(map(str, cells + pixels)), "|")


if __name__ == "__main__":
    main()
