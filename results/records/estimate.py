"""A number with its interval: what tables show and rules read. `results.statistics.estimates` makes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval."""

    value: float | None
    """None = not measured or not known, and `reason` says why."""
    low: float | None = None
    """Lower bound of the interval; None = no interval."""
    high: float | None = None
    """Upper bound of the interval; None = no interval."""
    n: int = 0
    """Values that it comes from."""
    reason: str | None = None
    """Why value or interval are missing."""
    basis: str | None = None
    """What the bounds of a comparison hold: `spread within the launch`, `paired over 4 trials`."""
    launches: int = 1
    """Launches per config or policy that it comes from; of fewer than three the bounds are a spread."""

    def transform(self, compute: Callable[[float], float]) -> Estimate:
        """Value and bounds through an increasing function, e.g. from a logarithm to its ratio."""
        value, low, high = (None if one is None else compute(one) for one in (self.value, self.low, self.high))
        return replace(self, value=value, low=low, high=high)

    def excludes(self, value: float) -> bool:
        """Whether its interval lies on one side of this value; False without an interval."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high

    def text(self, digits: int = 4, scale: float = 1.0) -> str:
        """`0.123 [0.110, 0.140]`; an unknown bound is `?`, an unknown value `-`, no bounds no brackets."""
        if self.value is None:
            return "-"
        if self.low is None and self.high is None:
            return figure(self.value * scale, digits)
        low, high = (figure(bound * scale, digits) if bound is not None else "?" for bound in (self.low, self.high))
        return f"{figure(self.value * scale, digits)} [{low}, {high}]"

    def percent(self) -> str:
        """A fraction as `+45.1 % [+40.2, +50.0]`; `-` where it is unknown, no brackets without an interval."""
        return self._show_hundredths("%")

    def points(self) -> str:
        """A difference of fractions as `+7.0 pp [+5.1, +9.0]`; see percent."""
        return self._show_hundredths("pp")

    def _show_hundredths(self, unit: str) -> str:
        if self.value is None:
            return "-"
        if self.low is None or self.high is None:
            return f"{self.value * 100:+.1f} {unit}"
        return f"{self.value * 100:+.1f} {unit} [{self.low * 100:+.1f}, {self.high * 100:+.1f}]"


def figure(value: float, digits: int = 4) -> str:
    """`value` with this many significant digits, never with an exponent: 16120, 398.0, 0.0123."""
    size = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{min(max(digits - 1 - size, 0), 9)}f}"


def unknown(reason: str, n: int = 0) -> Estimate:
    return Estimate(value=None, n=n, reason=reason)
