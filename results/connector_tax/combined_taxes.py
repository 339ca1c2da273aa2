"""What the taxes say together: shares of the cost, additivity, amplification by load, trends along lengths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from results.connector_tax.measurements import Load, Measurements
from results.connector_tax.tax import RATIOS, Metric, list_connectors, list_references, measure_tax, subtract
from results.measures.saturation import REF_LOAD, REF_SAFE, ReferenceRates
from results.measures.summary import Shape
from results.statistics.estimates import LEVEL, Estimate, Samples, unknown
from results.statistics.judgement import Verdict, decisive, judged, withheld
from results.statistics.trials import Measured, combine, estimate, share, unmeasured

FRAMEWORK = "noop_connector"
"""Every hook does nothing: what is left is the engine's own connector framework."""
MOONCAKE, NIXL, LMCACHE, MULTI = "mooncake_both", "nixl_both", "lmcache_only", "multi_mooncake_lmcache"
ADDITIVE_WITHIN = 0.30
"""H4: |tax(multi) - sum| / tax(multi) up to this is linear."""


@dataclass(frozen=True, slots=True)
class Decomposition:
    """One config's tax at ref_safe (Phase A shape) split in two: total = framework + implementation."""

    config: str
    metric: Metric
    """A latency tax."""
    total: Estimate
    framework: Estimate
    """The tax of noop_connector."""
    implementation: Estimate
    """total - framework."""
    framework_share: Estimate
    """framework / total; no interval where the total is not distinguishable from zero."""


class Additive(StrEnum):
    """Whether two connectors together cost the sum of both."""

    LINEAR = "linear"
    SUPER = "super-additive"
    SUB = "sub-additive"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Additivity:
    """multi_mooncake_lmcache against mooncake_both and lmcache_only, at ref_safe (Phase A shape)."""

    metric: Metric
    mooncake: Estimate
    lmcache: Estimate
    total: Estimate
    """mooncake + lmcache."""
    multi: Estimate
    excess: Estimate
    """multi - total."""
    relative_excess: Estimate
    """excess / multi, signed; the specification's ratio is its absolute value."""
    verdict: Additive
    reason: str
    """Why it is undecided; empty when it is not."""


@dataclass(frozen=True, slots=True)
class Amplification:
    """What queueing adds to one config's tax: tax(ref_load) - tax(ref_safe), at the same shape."""

    config: str
    shape: Shape
    phases: tuple[str, str]
    """Whose cells stand for ref_safe and ref_load: A and A, or B and Bp."""
    metric: Metric
    safe: Estimate
    load: Estimate
    amplification: Estimate
    """load - safe; unknown where both are the same rate."""
    verdict: Verdict | None
    withheld: str
    """Why there is no verdict; empty where there is one."""


@dataclass(frozen=True, slots=True)
class Trend:
    """One config's tax along one length, at ref_safe (Phase B)."""

    config: str
    metric: Metric
    along: str
    """`input_tokens` or `output_tokens`."""
    at: int | None
    """The other length in tokens; None = the mean over all of them."""
    lengths: tuple[int, ...]
    """Rising, in tokens."""
    taxes: tuple[Estimate, ...]
    steps: tuple[Estimate, ...]
    """Successive differences; their intervals hold together (Bonferroni)."""
    slope: Estimate
    """Least squares: tax per doubling of the length."""


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
        for metric in RATIOS
    )


def _decompose(measurements: Measurements, rates: ReferenceRates, config: str, metric: Metric) -> Decomposition:
    total, framework = (tax_at(measurements, rates, REF_SAFE, name, metric) for name in (config, FRAMEWORK))
    return Decomposition(
        config=config,
        metric=metric,
        total=estimate(total),
        framework=estimate(framework),
        implementation=estimate(combine(subtract, total, framework)),
        framework_share=share(framework, total, f"the tax of {config}"),
    )


def nixl_gap(measurements: Measurements, rates: ReferenceRates, metric: Metric) -> Estimate:
    """tax(mooncake_both) - tax(nixl_both) at ref_safe: 0.07 = 7 pp."""
    ours = (tax_at(measurements, rates, REF_SAFE, config, metric) for config in (MOONCAKE, NIXL))
    return estimate(combine(subtract, *ours))


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
    excess = combine(subtract, multi, total)
    relative = share(excess, multi, f"the tax of {MULTI}")
    verdict, reason = judge_sum(relative)
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
    )


def judge_sum(relative_excess: Estimate) -> tuple[Additive, str]:
    """What the interval of (multi - sum) / multi says, and why it is undecided where it is."""
    bounds = decisive(relative_excess)
    low, high = bounds.low, bounds.high
    if low is None or high is None:
        return Additive.UNDECIDED, bounds.reason or "there is no interval"
    if low > ADDITIVE_WITHIN:
        return Additive.SUPER, ""
    if high < -ADDITIVE_WITHIN:
        return Additive.SUB, ""
    if max(-low, high) <= ADDITIVE_WITHIN:
        return Additive.LINEAR, ""
    limits = [f"{limit:+.0%}" for limit in (-ADDITIVE_WITHIN, ADDITIVE_WITHIN) if low < limit < high]
    return Additive.UNDECIDED, f"the interval straddles {' and '.join(limits)}"


def amplify_taxes(measurements: Measurements, rates: ReferenceRates) -> tuple[Amplification, ...]:
    """tax(ref_load) - tax(ref_safe) of every config: in Phase A, and for each shape of Phase B'."""
    return tuple(
        _amplify(measurements, config, safe, load, metric)
        for safe, load, phase in _pair_loads(measurements, rates)
        for config in list_connectors(measurements, phase)
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


def _amplify(measurements: Measurements, config: str, safe: Load, load: Load, metric: Metric) -> Amplification:
    taxes = [measure_tax(measurements, at, config, metric) for at in (safe, load)]
    same = f"ref_load equals ref_safe ({safe.rate_per_s:g} req/s)"
    added = estimate(combine(subtract, taxes[1], taxes[0])) if safe != load else unknown(same)
    return Amplification(
        config=config,
        shape=safe.shape,
        phases=(safe.phase, load.phase),
        metric=metric,
        safe=estimate(taxes[0]),
        load=estimate(taxes[1]),
        amplification=added,
        verdict=judged(added),
        withheld=withheld(added),
    )


ALONG = (("input_tokens", "output_tokens", Metric.TTFT_P90), ("output_tokens", "input_tokens", Metric.TPOT_P90))
"""H5 and H6: along which length, at which other length, which tax."""


def follow_trends(measurements: Measurements) -> tuple[Trend, ...]:
    """Every config's TTFT tax along the input length and TPOT tax along the output length, in Phase B.

    One trend at each other length, and one of their mean; empty where Phase B has no two lengths.
    """
    loads = [load for load in measurements.loads if load.phase == "B"]
    rows: list[Trend] = []
    for along, across, metric in ALONG:
        lengths = sorted({getattr(load.shape, along) for load in loads})
        if len(lengths) < 2:
            continue
        for config in list_connectors(measurements, "B"):
            rows.extend(_follow_lines(_Line(config, metric, along, across, tuple(lengths)), measurements, loads))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class _Line:
    config: str
    metric: Metric
    along: str
    across: str
    lengths: tuple[int, ...]

    def trend(self, at: int | None, taxes: Sequence[Measured]) -> Trend:
        steps = [combine(subtract, after, before) for before, after in pairwise(taxes)]
        together = 1 - (1 - LEVEL) / len(steps)
        return Trend(
            config=self.config,
            metric=self.metric,
            along=self.along,
            at=at,
            lengths=self.lengths,
            taxes=tuple(estimate(measured) for measured in taxes),
            steps=tuple(estimate(measured, together) for measured in steps),
            slope=estimate(combine(_fit_slope(self.lengths), *taxes)),
        )


def _follow_lines(line: _Line, measurements: Measurements, loads: Sequence[Load]) -> Iterator[Trend]:
    rows: dict[int, list[Measured]] = {}
    for at in sorted({getattr(load.shape, line.across) for load in loads}):
        there = {getattr(load.shape, line.along): load for load in loads if getattr(load.shape, line.across) == at}
        rows[at] = [
            measure_tax(measurements, there[length], line.config, line.metric)
            if length in there
            else unmeasured(f"{line.along} {length} was not measured at {line.across} {at}")
            for length in line.lengths
        ]
    for at, taxes in rows.items():
        yield line.trend(at, taxes)
    yield line.trend(None, [combine(_average, *column) for column in zip(*rows.values(), strict=True)])


def _average(*parts: Samples) -> Samples:
    return np.asarray(np.mean(np.stack(parts), axis=0), dtype=np.float64)


def _fit_slope(lengths: Sequence[int]) -> Callable[..., Samples]:
    """The least-squares slope of taxes over log2 of these lengths."""
    x = np.array([math.log2(length) for length in lengths])
    weights = (x - x.mean()) / np.square(x - x.mean()).sum()

    def slope(*taxes: Samples) -> Samples:
        return np.asarray(weights @ np.stack(taxes), dtype=np.float64)

    return slope
