"""Numbers from several taxes: decomposition, additivity, amplification by load, trends along lengths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np

from results.connector_tax.measurements import Load, Measurements
from results.connector_tax.summary import Shape
from results.connector_tax.tax import (
    RATIOS,
    Metric,
    average,
    list_connectors,
    list_references,
    measure_tax,
    name_saturated,
    why_unjudged,
)
from results.records.estimate import Estimate, unknown
from results.records.percent import format_percent
from results.records.reference_rates import REF_LOAD, REF_SAFE, ReferenceRates
from results.statistics.estimates import LEVEL, Samples
from results.statistics.judgement import TRIALS_REMEDY, Verdict, decisive, judged, withheld
from results.statistics.trials import MIN_PAIRED, Measured, combine, estimate, p_value, share, unmeasured

FRAMEWORK = "noop_connector"
"""Every hook does nothing: its tax is that of the engine's connector framework."""
MOONCAKE, NIXL, LMCACHE, MULTI = "mooncake_both", "nixl_both", "lmcache_only", "multi_mooncake_lmcache"
ADDITIVE_WITHIN = 0.30
"""H4: |tax(multi) - sum| / tax(multi) up to this is linear."""
FRAMEWORK_BELOW = 0.50
"""H3: tax of noop_connector over that of mooncake_both; from here on the framework dominates."""
FLAT_BELOW = 0.01
"""H5, H6: growth per doubling of the length is flat where its whole interval is below this; not specified."""


@dataclass(frozen=True, slots=True)
class Decomposition:
    """One config's tax at ref_safe (Phase A shape) split in two: total = framework + implementation."""

    config: str
    """The engine configuration."""
    metric: Metric
    """A latency tax, or that of the whole engine step (us)."""
    total: Estimate
    """The whole tax."""
    framework: Estimate
    """The tax of noop_connector."""
    implementation: Estimate
    """total - framework."""
    framework_share: Estimate
    """framework / total; no interval where the total is not distinguishable from zero."""
    p_half: float | None = None
    """Two-sided, of the share being FRAMEWORK_BELOW."""


class Additive(StrEnum):
    """Whether two stacked connectors cost the sum of both."""

    LINEAR = "linear"
    SUPER = "super-additive"
    SUB = "sub-additive"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Additivity:
    """multi_mooncake_lmcache against mooncake_both and lmcache_only, at ref_safe (Phase A shape)."""

    metric: Metric
    """What is taxed."""
    mooncake: Estimate
    """The tax of mooncake_both."""
    lmcache: Estimate
    """The tax of lmcache_only."""
    total: Estimate
    """mooncake + lmcache."""
    multi: Estimate
    """The tax of multi_mooncake_lmcache."""
    excess: Estimate
    """multi - total."""
    relative_excess: Estimate
    """excess / multi, signed; the specification's ratio is its absolute value."""
    verdict: Additive
    """Whether the two add up."""
    reason: str
    """Why the verdict is undecided; empty otherwise."""
    p_limits: tuple[float | None, float | None] = (None, None)
    """Two-sided, of the relative excess being -ADDITIVE_WITHIN, and being ADDITIVE_WITHIN."""


@dataclass(frozen=True, slots=True)
class TaxAmplification:
    """What queueing adds to one config's tax: tax(ref_load) - tax(ref_safe), at the same shape."""

    config: str
    """The engine configuration."""
    shape: Shape
    """What each request asks for."""
    phases: tuple[str, str]
    """Phases of the cells at ref_safe and at ref_load: A and A, or B and Bp."""
    metric: Metric
    """What is taxed."""
    safe: Estimate
    """The tax at ref_safe."""
    load: Estimate
    """The tax at ref_load."""
    amplification: Estimate
    """load - safe; unknown where both are the same rate."""
    verdict: Verdict | None
    """On which side of no amplification the interval is."""
    withheld: str
    """Why there is no verdict; empty where there is one."""


@dataclass(frozen=True, slots=True)
class Trend:
    """One config's tax along one length, at ref_safe or the lengths' own common rate (Phase B)."""

    config: str
    """The engine configuration."""
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
    absent: tuple[int, ...] = ()
    """Lengths of Phase B of which no shape takes part, in tokens."""


def tax_at(measurements: Measurements, rates: ReferenceRates, reference: str, config: str, metric: Metric) -> Measured:
    """The config's tax at a reference rate, in the shape of Phase A."""
    load = reference_load(measurements, rates, reference)
    return unmeasured(load) if isinstance(load, str) else measure_tax(measurements, load, config, metric)


def reference_load(measurements: Measurements, rates: ReferenceRates, reference: str) -> Load | str:
    """Phase A's load at `ref_safe` or `ref_load`, or why there is none."""
    matches = [load for load in measurements.loads if load.phase == "A" and reference in list_references(load, rates)]
    if matches:
        return matches[0]
    rate = rates.rate(reference)
    if rate is None:
        return f"there is no {reference}: {rates.reason_for(reference)}"
    return f"Phase A has no cell at {reference} ({rate:g} req/s)"


def decompose_taxes(measurements: Measurements, rates: ReferenceRates) -> tuple[Decomposition, ...]:
    """Framework and implementation cost of every config but plain and noop_connector itself."""
    return tuple(
        _decompose(measurements, rates, config, metric)
        for config in list_connectors(measurements, "A")
        if config != FRAMEWORK
        for metric in (*RATIOS, Metric.ENGINE_STEP_P50)
    )


def _decompose(measurements: Measurements, rates: ReferenceRates, config: str, metric: Metric) -> Decomposition:
    total, framework = (tax_at(measurements, rates, REF_SAFE, name, metric) for name in (config, FRAMEWORK))
    return Decomposition(
        config=config,
        metric=metric,
        total=estimate(total),
        framework=estimate(framework),
        implementation=estimate(combine(np.subtract, total, framework)),
        framework_share=share(framework, total, f"the tax of {config}"),
        p_half=p_of_share(framework, total, FRAMEWORK_BELOW),
    )


def p_of_share(part: Measured, whole: Measured, share: float) -> float | None:
    """Two-sided, of part / whole being this share: of part - share x whole being zero."""
    return p_value(combine(lambda top, bottom: top - share * bottom, part, whole))


def nixl_gap(measurements: Measurements, rates: ReferenceRates, metric: Metric) -> Measured:
    """tax(mooncake_both) - tax(nixl_both) at ref_safe: 0.07 = 7 pp."""
    taxes = (tax_at(measurements, rates, REF_SAFE, config, metric) for config in (MOONCAKE, NIXL))
    return combine(np.subtract, *taxes)


def add_up_taxes(measurements: Measurements, rates: ReferenceRates) -> tuple[Additivity, ...]:
    """Whether the stacked connectors cost the sum of both; empty where none of the three was measured."""
    if not {MOONCAKE, LMCACHE, MULTI}.intersection(measurements.configs("A")):
        return ()
    return tuple(_add_up(measurements, rates, metric) for metric in RATIOS)


def _add_up(measurements: Measurements, rates: ReferenceRates, metric: Metric) -> Additivity:
    mooncake, lmcache, multi = (
        tax_at(measurements, rates, REF_SAFE, config, metric) for config in (MOONCAKE, LMCACHE, MULTI)
    )
    total = combine(np.add, mooncake, lmcache)
    excess = combine(np.subtract, multi, total)
    relative = share(excess, multi, f"the tax of {MULTI}")
    verdict, reason = judge_sum(relative, measurements.remedy)
    return Additivity(
        metric=metric,
        mooncake=estimate(mooncake),
        lmcache=estimate(lmcache),
        total=estimate(total),
        multi=estimate(multi),
        excess=estimate(excess),
        relative_excess=relative,
        verdict=verdict,
        reason=reason,
        p_limits=(p_of_share(excess, multi, -ADDITIVE_WITHIN), p_of_share(excess, multi, ADDITIVE_WITHIN)),
    )


def judge_sum(relative_excess: Estimate, remedy: str = TRIALS_REMEDY) -> tuple[Additive, str]:
    """The verdict by the interval of (multi - sum) / multi; where it is undecided, the reason."""
    bounds = decisive(relative_excess, remedy)
    low, high = bounds.low, bounds.high
    if low is None or high is None:
        return Additive.UNDECIDED, bounds.reason or "there is no interval"
    if low > ADDITIVE_WITHIN:
        return Additive.SUPER, ""
    if high < -ADDITIVE_WITHIN:
        return Additive.SUB, ""
    if max(-low, high) <= ADDITIVE_WITHIN:
        return Additive.LINEAR, ""
    limits = [format_percent(limit, signed=True) for limit in (-ADDITIVE_WITHIN, ADDITIVE_WITHIN) if low < limit < high]
    return Additive.UNDECIDED, f"the interval straddles {' and '.join(limits)}"


def amplify_taxes(measurements: Measurements, rates: ReferenceRates) -> tuple[TaxAmplification, ...]:
    """tax(ref_load) - tax(ref_safe) of every config: in Phase A, and for each shape of Phase B'."""
    return tuple(
        _amplify(measurements, config, safe, load, metric, family=len(configs))
        for safe, load, phase in _pair_loads(measurements, rates)
        if (configs := list_connectors(measurements, phase))
        for config in configs
        for metric in RATIOS
    )


def _pair_loads(measurements: Measurements, rates: ReferenceRates) -> Iterator[tuple[Load, Load, str]]:
    """Loads of one shape at ref_safe and at ref_load, and the phase whose configs have both."""
    safe, load = (reference_load(measurements, rates, name) for name in (REF_SAFE, REF_LOAD))
    if isinstance(safe, Load) and isinstance(load, Load):
        yield safe, load, "A"
    primes = [load for load in measurements.loads if load.phase == "Bp"]
    shapes = {load.shape: load for load in measurements.loads if load.phase == "B"}
    yield from ((shapes[prime.shape], prime, "Bp") for prime in primes if prime.shape in shapes)


def _amplify(
    measurements: Measurements, config: str, safe: Load, load: Load, metric: Metric, *, family: int
) -> TaxAmplification:
    """`family`: how many configs have this difference; their intervals hold together (Bonferroni)."""
    taxes = [measure_tax(measurements, at, config, metric) for at in (safe, load)]
    same = f"ref_load equals ref_safe ({safe.rate_per_s:g} req/s)"
    difference = combine(np.subtract, taxes[1], taxes[0])
    is_spread = len(difference.trials) < MIN_PAIRED
    level = LEVEL if is_spread else 1 - (1 - LEVEL) / family
    added = estimate(difference, level) if safe != load else unknown(same)
    if added.launches >= MIN_PAIRED and added.basis is not None:
        added = replace(added, basis=f"over {added.launches} launches, all configs together")
    why = why_unjudged(name_saturated(measurements, load, config)) if added.value is not None else ""
    return TaxAmplification(
        config=config,
        shape=safe.shape,
        phases=(safe.phase, load.phase),
        metric=metric,
        safe=estimate(taxes[0]),
        load=estimate(taxes[1]),
        amplification=added,
        verdict=None if why else judged(added),
        withheld=why or withheld(added, remedy=measurements.remedy),
    )


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
            yield self._trend(other, clear, [self.tax(length, other) for length in clear], [other])
        clear = [length for length in lengths if any(not self.why_left_out(length, other) for other in others)]
        whole = [other for other in others if not any(self.why_left_out(length, other) for length in clear)]
        means = [combine(average, *(self.tax(length, other) for other in whole)) for length in clear if whole]
        yield self._trend(None, clear if whole else [], means, others)

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
        own = {load.rate_per_s for load in loads if self.measurements.has_own_rate(load)}
        return max(counts, key=lambda rate: (counts[rate], rate not in own, rate))

    def _list_left_out(self, others: Sequence[int]) -> tuple[str, ...]:
        lengths = sorted({getattr(shape, self.along) for shape in self.loads})
        whys = ((self.shape(length, other), self.why_left_out(length, other)) for other in others for length in lengths)
        return tuple(f"{shape}: {why}" for shape, why in whys if why)

    def _list_own_rates(self, lengths: Sequence[int], others: Sequence[int]) -> tuple[str, ...]:
        places = ((length, other) for other in others for length in lengths if not self.why_left_out(length, other))
        loads = [self.loads[shape] for place in places if (shape := self.shape(*place)) in self.loads]
        own = [load for load in loads if self.measurements.has_own_rate(load)]
        return tuple(f"{load.shape} at {load.rate_per_s:g} req/s" for load in own)

    def _trend(self, at: int | None, lengths: Sequence[int], taxes: Sequence[Measured], others: Sequence[int]) -> Trend:
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
        return replace(
            row,
            steps=known_steps,
            slope=estimate(slope),
            p_zero=p_value(slope),
            p_flat=p_value(slope, FLAT_BELOW),
            p_fall=min((p for value, p in signed if value < 0), default=None),
            p_rise=max(p for _, p in signed) if rises else None,
            own_rates=self._list_own_rates(lengths, others),
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
