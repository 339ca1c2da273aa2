"""Trends of taxes along the input and the output length, in Phase B."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from results.connector_tax.measurements import Load, Measurements, has_own_rate
from results.connector_tax.summary import Shape
from results.connector_tax.tax import Metric, average, list_connectors, measure_tax
from results.records.estimate import Estimate, unknown
from results.statistics.estimates import LEVEL, Samples
from results.statistics.trials import Measured, combine, estimate, p_value, unmeasured

FLAT_BELOW = 0.01
"""H5, H6: growth per doubling of the length is flat where its whole interval is below this; not specified."""


@dataclass(frozen=True, slots=True)
class Trend:
    """One config's tax along one length, at ref_safe or the lengths' own common rate (Phase B)."""

    config: str
    metric: Metric
    """What is taxed."""
    along: str
    """`input_tokens` or `output_tokens`."""
    at: int | None
    """The other length in tokens; None = the mean over all of them."""
    lengths: tuple[int, ...]
    """Rising, in tokens."""
    taxes: tuple[Estimate, ...]
    """At each of `lengths`."""
    steps: tuple[Estimate, ...]
    """Successive differences; their intervals hold together (Bonferroni)."""
    slope: Estimate
    """Least squares: tax per doubling of the length, each length weighted by the precision of log(1 + tax)."""
    left_out: tuple[str, ...] = ()
    """Shapes that take no part, with the reason: the config or plain is saturated there, or it has another rate."""
    p_zero: float | None = None
    """Two-sided, of the slope being 0."""
    p_flat: float | None = None
    """Two-sided, of the slope being FLAT_BELOW."""
    p_fall: float | None = None
    """p of no step falling, corrected for the number of steps (Bonferroni)."""
    p_rise: float | None = None
    """p of some step not rising, with the same correction; None where a step does not rise."""
    own_rates: tuple[str, ...] = ()
    """Shapes of the trend that were measured at a rate of their own, e.g. `32768x64 at 0.1 req/s`."""
    rates_per_s: tuple[float, ...] = ()
    """Rates of the shapes of the trend, rising: several where it is the mean over trends at different rates."""
    absent: tuple[int, ...] = ()
    """Lengths of Phase B of which no shape takes part, in tokens."""


ALONG = (("input_tokens", "output_tokens", Metric.TTFT_P90), ("output_tokens", "input_tokens", Metric.TPOT_P90))
"""H5 and H6: the length of the trend, the other length, the tax."""


def follow_trends(measurements: Measurements) -> tuple[Trend, ...]:
    """Every config's TTFT tax along the input length and TPOT tax along the output length, in Phase B.

    One trend at each other length, and one of their mean; empty where Phase B has fewer than two lengths.
    """
    loads = {load.shape: load for load in measurements.loads if load.phase == "B"}
    rows: list[Trend] = []
    for along, across, metric in ALONG:
        lengths = sorted({getattr(shape, along) for shape in loads})
        if len(lengths) < 2:
            continue
        for config in list_connectors(measurements, "B"):
            rows.extend(_Surface(measurements, loads, config, metric, along, across).trends())
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class _Surface:
    """One config's tax at every shape of Phase B."""

    measurements: Measurements
    loads: Mapping[Shape, Load]
    config: str
    metric: Metric
    along: str
    across: str

    def trends(self) -> Iterator[Trend]:
        """At each other length, then of their mean; shapes left out exclude as few others as possible."""
        lengths = sorted({getattr(shape, self.along) for shape in self.loads})
        others = sorted({getattr(shape, self.across) for shape in self.loads})
        for other in others:
            clear = [length for length in lengths if not self.why_left_out(length, other)]
            yield self._make_trend(other, clear, [self.tax(length, other) for length in clear], [other], [other])
        clear = [length for length in lengths if any(not self.why_left_out(length, other) for other in others)]
        whole = [other for other in others if not any(self.why_left_out(length, other) for length in clear)]
        means = [combine(average, *(self.tax(length, other) for other in whole)) for length in clear if whole]
        yield self._make_trend(None, clear if whole else [], means, others, whole)

    def shape(self, length: int, other: int) -> Shape:
        return Shape(**{self.along: length, self.across: other})

    def tax(self, length: int, other: int) -> Measured:
        shape = self.shape(length, other)
        if shape not in self.loads:
            return unmeasured(f"{self.along} {length} was not measured at {self.across} {other}")
        return measure_tax(self.measurements, self.loads[shape], self.config, self.metric)

    def why_left_out(self, length: int, other: int) -> str:
        """Why the shape takes no part: it is saturated, or has another rate than most lengths at this other one.

        With the rate the load changes too, so a trend over lengths at several rates would be one over load.
        """
        load = self.loads.get(self.shape(length, other))
        if load is None:
            return ""
        common_per_s = self._find_common_rate(other)
        apart = f"at {load.rate_per_s:g} req/s, other lengths at {common_per_s:g}"
        return self.measurements.why_left_out(load, self.config) or (apart if load.rate_per_s != common_per_s else "")

    def _find_common_rate(self, other: int) -> float:
        """The rate of most lengths at this other length; of equally many ref_safe, else the highest."""
        loads = [load for shape, load in self.loads.items() if getattr(shape, self.across) == other]
        counts = Counter(load.rate_per_s for load in loads)
        own = {load.rate_per_s for load in loads if has_own_rate(load, self.measurements.ref_safe_per_s)}
        return max(counts, key=lambda rate: (counts[rate], rate not in own, rate))

    def _list_left_out(self, others: Sequence[int]) -> tuple[str, ...]:
        lengths = sorted({getattr(shape, self.along) for shape in self.loads})
        whys = ((self.shape(length, other), self.why_left_out(length, other)) for other in others for length in lengths)
        return tuple(f"{shape}: {why}" for shape, why in whys if why)

    def _list_loads(self, lengths: Sequence[int], others: Sequence[int]) -> list[Load]:
        """Those that take part."""
        pairs = ((length, other) for other in others for length in lengths if not self.why_left_out(length, other))
        return [self.loads[shape] for pair in pairs if (shape := self.shape(*pair)) in self.loads]

    def _make_trend(
        self,
        at: int | None,
        lengths: Sequence[int],
        taxes: Sequence[Measured],
        others: Sequence[int],
        averaged: Sequence[int],
    ) -> Trend:
        """others: every other length of the trend; averaged: those of them whose taxes are in `taxes`."""
        left_out = self._list_left_out(others)
        taxes_known = tuple(estimate(measured) for measured in taxes)
        absent = tuple(sorted({getattr(shape, self.along) for shape in self.loads} - set(lengths)))
        row = Trend(
            self.config, self.metric, self.along, at, tuple(lengths), taxes_known, (), unknown(""), left_out,
            absent=absent,
        )  # fmt: skip
        if len(lengths) < 2:
            why = "; ".join(left_out)
            return replace(row, slope=unknown(f"fewer than two lengths are left without saturation at one rate: {why}"))
        steps = [combine(np.subtract, after, before) for before, after in pairwise(taxes)]
        slope = combine(_fit_slope(lengths, _weigh_taxes(taxes)), *taxes)
        known_steps = tuple(estimate(step, 1 - (1 - LEVEL) / len(steps)) for step in steps)
        p_steps = [None if (p := p_value(step)) is None else min(1.0, p * len(steps)) for step in steps]
        signed = [(step.value or 0.0, p) for step, p in zip(known_steps, p_steps, strict=True) if p is not None]
        rises = len(signed) == len(steps) and all(value > 0 for value, _ in signed)
        loads = self._list_loads(lengths, averaged)
        own = [load for load in loads if has_own_rate(load, self.measurements.ref_safe_per_s)]
        return replace(
            row,
            steps=known_steps,
            slope=estimate(slope),
            p_zero=p_value(slope),
            p_flat=p_value(slope, FLAT_BELOW),
            p_fall=min((p for value, p in signed if value < 0), default=None),
            p_rise=max(p for _, p in signed) if rises else None,
            own_rates=tuple(f"{load.shape} at {load.rate_per_s:g} req/s" for load in own),
            rates_per_s=tuple(sorted({load.rate_per_s for load in loads})),
        )


def _weigh_taxes(taxes: Sequence[Measured]) -> Samples:
    """The precision of each tax: 1 over the square of its interval; equal for all where one has no interval.

    The interval is that of log(1 + tax): that of the tax grows with it, and would give large taxes less weight.
    """
    estimates = [estimate(measured) for measured in taxes]
    bounds = [(one.low, one.high) for one in estimates if one.low is not None and one.high is not None]
    widths = [math.log1p(high) - math.log1p(low) for low, high in bounds if low > -1]
    if len(widths) < len(estimates) or min(widths) <= 0:
        return np.ones(len(estimates))
    return np.asarray(1 / np.square(widths), dtype=np.float64)


def _fit_slope(lengths: Sequence[int], precision: Samples) -> Callable[..., Samples]:
    """The least-squares slope of taxes over log2 of these lengths, weighted by the taxes' precision."""
    x = np.array([math.log2(length) for length in lengths])
    x = x - np.average(x, weights=precision)
    weights = precision * x / (precision * np.square(x)).sum()

    def slope(*taxes: Samples) -> Samples:
        return np.asarray(weights @ np.stack(taxes), dtype=np.float64)

    return slope
