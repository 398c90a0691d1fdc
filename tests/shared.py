"""Where real data and weights lie beside a developer's checkout; tests that need them skip where they are absent."""

from pathlib import Path

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
