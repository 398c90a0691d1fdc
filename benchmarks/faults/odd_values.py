"""Odd values for fuzzed calls: tensors, sizes, numbers and maps, drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor

import localscale as ls
from localscale.maps import FAMILIES, FamilyMap, Map

__all__ = ["Odd"]

T = TypeVar("T")
FLOATS = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)
OTHERS = (torch.int64, torch.uint8, torch.bool, torch.int32, torch.complex64)
LARGE = 1e6  # values up to which no intermediate result of float32 overflows


class Odd:
    """Draws values that are right most of the time, so that one odd value meets code behind the first check.

    ``finite`` says whether all tensors so far are finite and of usual size, so that no result may be NaN;
    ``mistyped`` whether a plain value has a wrong Python type, for which a ``TypeError`` is an answer, too.
    """

    def __init__(self, draw: Random) -> None:
        self.draw, self.finite, self.mistyped = draw, True, False
        self.rng = torch.Generator().manual_seed(draw.getrandbits(32))
        self.rate = draw.choice((0.0, 0.05, 0.2, 0.5))  # how many values are odd

    def odd(self) -> bool:
        """Return whether the next value is odd."""
        return self.draw.random() < self.rate

    def pick(self, usual: Sequence[T], odd: Sequence[Any] = ()) -> T:
        """Return one of the usual values, or an odd one; an odd one of no usual type may raise a ``TypeError``."""
        if not odd or not self.odd():
            return self.draw.choice(usual)
        value = self.draw.choice(odd)
        self.mistyped |= type(value) not in {type(one) for one in usual} | {int, float}
        return value

    def side(self) -> int:
        """Return a small number of pixels, knots or points."""
        return self.draw.choice((1, 2, 2, 3, 4, 5, 7))

    def shape(self, *sides: int) -> tuple[int, ...]:
        """Return ``sides``, or an odd shape."""
        if not self.odd():
            return sides
        changed = list(sides)
        kind = self.draw.randrange(4)
        if kind == 0 and changed:
            changed[self.draw.randrange(len(changed))] = self.draw.choice((0, 1, 2, 6))
        elif kind == 1 and changed:
            changed.pop(self.draw.randrange(len(changed)))
        elif kind == 2:
            changed.insert(self.draw.randint(0, len(changed)), self.draw.choice((0, 1, 2)))
        else:
            changed = [self.draw.choice((0, 1, 2, 3)) for _ in range(self.draw.randrange(6))]
        return tuple(changed)

    def tensor(self, *sides: int, dtype: torch.dtype | None = None, integers: int = 0) -> Tensor:
        """Return a tensor of about this shape: in [0, 1], or whole numbers below ``integers``."""
        shape = self.shape(*sides)
        if integers:
            x = torch.randint(0, integers, shape, generator=self.rng)
            if self.odd():
                x = x + self.draw.choice((-1, 1, -300, 2**40))
            return self._moved(x.to(self.draw.choice((*OTHERS[:2], torch.float32))) if self.odd() else x)
        wanted = dtype or self.draw.choice((torch.float32, torch.float32, torch.float32, torch.float64, *HALVES))
        x = torch.rand(shape, generator=self.rng)
        if self.odd():
            x = self._filled(x)
        if self.odd():
            wanted = self.draw.choice((*FLOATS, *HALVES, *OTHERS))
        return self._moved(x.to(wanted))

    def _filled(self, x: Tensor) -> Tensor:
        kind = self.draw.choice(("nan", "inf", "huge", "negative", "zero", "large", "tiny", "one"))
        if kind in ("nan", "inf", "huge"):
            self.finite = False
            value = {"nan": math.nan, "inf": self.draw.choice((math.inf, -math.inf)), "huge": 3e38}[kind]
            return torch.where(torch.rand(x.shape, generator=self.rng) < self.draw.choice((0.2, 1.0)), value, x)
        factor = {"negative": -3.0, "zero": 0.0, "large": LARGE, "tiny": 1e-30}
        return torch.ones_like(x) if kind == "one" else x * factor[kind]

    def _moved(self, x: Tensor) -> Tensor:
        """Return ``x``, or a view of another tensor with its values, or a tensor without values on another device."""
        if x.is_floating_point() and not x.isfinite().all():  # 1e6 is infinite in float16
            self.finite = False
        if self.draw.random() < 0.2 and x.dim() > 1:
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        elif self.draw.random() < 0.1 and x.dim():
            x = torch.stack((x, x), dim=-1)[..., 0]
        if x.is_floating_point() and self.draw.random() < 0.1:
            x = x.requires_grad_()
        return x.to("meta") if self.draw.random() < self.rate / 4 else x

    def size(self) -> Any:
        """Return (height, width), an odd value, or None."""
        odd = ((0, 3), (-1, 2), (3,), (2, 3, 4), (2.5, 3), "ab", 7, ("a", "b"), [2, 3], (True, 2), (math.nan, 1))
        return self.pick((None, (self.side(), self.side())), odd)

    def knots(self) -> Any:
        """Return knots along both axes, or an odd value."""
        odd = (0, 1, -3, (3,), (3, 4, 5), 2.5, "4", (2, True), None, (2, 1), [3, 4])
        return self.pick((self.draw.choice((2, 3, 5)), (self.draw.choice((2, 4)), self.draw.choice((2, 3)))), odd)

    def number(self, *usual: float) -> Any:
        """Return one of the usual numbers, or an odd value."""
        return self.pick(usual, (0, -1, 1e-12, 1e-40, 1e30, math.inf, -math.inf, math.nan, "x", None, True, (1,), [2]))

    def name(self, *usual: Any) -> Any:
        """Return one of the usual names, or an odd value."""
        return self.pick(usual, ("", "nope", None, 3, ("grid",), b"grid", usual[0] * 2 if usual[0] else "x"))

    def map(self, batch: int) -> Map:
        """Return maps of one of the kinds there are, in float32 or float64, of ``batch`` images or another number."""
        batch = self.draw.choice((1, 2, 3)) if self.odd() else self.draw.choice((1, batch))
        m: Map = self.family_map(batch)
        kind = self.draw.randrange(6)
        if kind == 0:
            m = m.inverse(self.draw.choice(("exact", "rowwise")))
        elif kind == 1:
            m = m @ self.family_map(batch).to(dtype=m.dtype)
        return m.to("meta") if self.draw.random() < self.rate / 4 else m

    def family_map(self, batch: int) -> FamilyMap:
        """Return random maps of a family."""
        return ls.random_map(
            batch,
            (self.draw.choice((2, 3, 5)), self.draw.choice((2, 4))),
            strength=self.draw.choice((0.0, 0.5, 2.0)),
            family=self.draw.choice(list(FAMILIES)),
            generator=self.rng,
            dtype=self.draw.choice((torch.float32, torch.float32, torch.float64)),
        )
