"""The folder of real data and weights beside a developer's checkout; tests that need it are skipped without it."""

from pathlib import Path

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
