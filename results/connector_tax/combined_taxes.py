"""Numbers from several taxes: decomposition, additivity, amplification by load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from results.connector_tax.measurements import Load, Measurements
from results.connector_tax.summary import Shape
from results.connector_tax.tax import (
    RATIOS,
    Metric,
    explain_unjudged,
    list_connectors,
    list_references,
    measure_tax,
    name_saturated,
)
from results.records.estimate import Estimate, unknown
from results.records.percent import format_percent
from results.records.reference_rates import REF_LOAD, REF_SAFE, ReferenceRates
from results.statistics.estimates import LEVEL
from results.statistics.judgement import TRIALS_REMEDY, Verdict, judged, withheld, withhold_bounds
from results.statistics.trials import MIN_PAIRED, Measured, combine, estimate, p_value, share, unmeasured

FRAMEWORK = "noop_connector"
"""Every hook does nothing: its tax is that of the engine's connector framework."""
MOONCAKE, NIXL, LMCACHE, MULTI = "mooncake_both", "nixl_both", "lmcache_only", "multi_mooncake_lmcache"
ADDITIVE_WITHIN = 0.30
"""H4: |tax(multi) - sum| / tax(multi) up to this is linear."""
FRAMEWORK_BELOW = 0.50
"""H3: tax of noop_connector over that of mooncake_both; from here on the framework dominates."""


@dataclass(frozen=True, slots=True)
class Decomposition:
    """One config's tax at ref_safe (Phase A shape) split in two: total = framework + implementation."""

    config: str
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


def find_tax(
    measurements: Measurements, rates: ReferenceRates, reference: str, config: str, metric: Metric
) -> Measured:
    """The config's tax at a reference rate, in the shape of Phase A."""
    load = find_reference_load(measurements, rates, reference)
    return unmeasured(load) if isinstance(load, str) else measure_tax(measurements, load, config, metric)


def find_reference_load(measurements: Measurements, rates: ReferenceRates, reference: str) -> Load | str:
    """Phase A's load at `ref_safe` or `ref_load`, or why there is none."""
    matches = [load for load in measurements.loads if load.phase == "A" and reference in list_references(load, rates)]
    if matches:
        return matches[0]
    rate = rates.rate(reference)
    if rate is None:
        return f"there is no {reference}: {rates.explain_rate(reference)}"
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
    total, framework = (find_tax(measurements, rates, REF_SAFE, name, metric) for name in (config, FRAMEWORK))
    return Decomposition(
        config=config,
        metric=metric,
        total=estimate(total),
        framework=estimate(framework),
        implementation=estimate(combine(np.subtract, total, framework)),
        framework_share=share(framework, total, f"the tax of {config}"),
        p_half=compute_p_of_share(framework, total, FRAMEWORK_BELOW),
    )


def compute_p_of_share(part: Measured, whole: Measured, share: float) -> float | None:
    """Two-sided, of part / whole being this share: of part - share x whole being zero."""
    return p_value(combine(lambda top, bottom: top - share * bottom, part, whole))


def measure_nixl_gap(measurements: Measurements, rates: ReferenceRates, metric: Metric) -> Measured:
    """tax(mooncake_both) - tax(nixl_both) at ref_safe: 0.07 = 7 pp."""
    taxes = (find_tax(measurements, rates, REF_SAFE, config, metric) for config in (MOONCAKE, NIXL))
    return combine(np.subtract, *taxes)


def add_up_taxes(measurements: Measurements, rates: ReferenceRates) -> tuple[Additivity, ...]:
    """Whether the stacked connectors cost the sum of both; empty where none of the three was measured."""
    if not {MOONCAKE, LMCACHE, MULTI}.intersection(measurements.configs("A")):
        return ()
    return tuple(_add_up(measurements, rates, metric) for metric in RATIOS)


def _add_up(measurements: Measurements, rates: ReferenceRates, metric: Metric) -> Additivity:
    mooncake, lmcache, multi = (
        find_tax(measurements, rates, REF_SAFE, config, metric) for config in (MOONCAKE, LMCACHE, MULTI)
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
        p_limits=(
            compute_p_of_share(excess, multi, -ADDITIVE_WITHIN),
            compute_p_of_share(excess, multi, ADDITIVE_WITHIN),
        ),
    )


def judge_sum(relative_excess: Estimate, remedy: str = TRIALS_REMEDY) -> tuple[Additive, str]:
    """The verdict by the interval of (multi - sum) / multi; where it is undecided, the reason."""
    bounds = withhold_bounds(relative_excess, remedy)
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
    safe, load = (find_reference_load(measurements, rates, name) for name in (REF_SAFE, REF_LOAD))
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
    why = explain_unjudged(name_saturated(measurements, load, config)) if added.value is not None else ""
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
