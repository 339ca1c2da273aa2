"""How two launches of one config differ, and the smallest tax that a run of this many launches detects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from results.connector_tax.measurements import Load, Measurements
from results.connector_tax.summary import Shape
from results.connector_tax.tax import RATIOS, Metric, TaxedRate, convert_contrast, list_references
from results.records.estimate import Estimate
from results.records.reference_rates import ReferenceRates
from results.statistics.blocks import BlockFit, detectable_effect, estimate_sigma_without, find_launches_for
from results.statistics.estimates import LEVEL, bound_sigma
from results.statistics.trials import MIN_PAIRED

NAMED_TAX = 0.10
"""The tax that launches are planned for: H1's limit, never the tax that was observed."""


@dataclass(frozen=True, slots=True)
class LaunchNoise(TaxedRate):
    """The noise of one latency tax at one load, by the launches of all configs. Every number is a fraction."""

    shape: Shape
    """What each request asks for."""
    metric: Metric
    """What is taxed."""
    launches: int
    """Launches of the config that has the fewest."""
    sigma: float
    """Standard deviation of one launch around its config and block."""
    sigma_low: float
    """Lower bound of sigma."""
    sigma_high: float
    """Bounds of sigma (chi-square)."""
    degrees: int
    """Degrees of freedom of sigma."""
    repeat: Estimate | None
    """Plain's second name against its first; None where plain was measured under one name."""
    detectable: float | None
    """The smallest tax that this many launches detect with a probability of 80 %; None = too few to judge."""
    launches_for_named: int | None
    """Launches per config that detect NAMED_TAX; None = more than can be planned."""
    sigma_for_named: float | None = None
    """The sigma at which this many launches, at least three, detect NAMED_TAX."""
    sigma_at_one_speed: float | None = None
    """Sigma without the host's speed: with the logarithm of `work_us` of host.csv as a covariate. Descriptive: no
    verdict uses it. None = the work was not timed beside every launch."""


def measure_launch_noise(
    measurements: Measurements, rates: ReferenceRates, work_us: Mapping[str, float]
) -> tuple[LaunchNoise, ...]:
    """One row for each latency at each load with several launches; empty where each config has one launch.

    `work_us`: by `CellSummary.cell`, the time of the fixed piece of work beside it.
    """
    speeds = {cell: math.log(work) for cell, work in work_us.items() if work > 0}
    return tuple(
        _describe_noise(
            reference, load, metric, fit, estimate_sigma_without(fit, measurements.group_by_launch(load, speeds))
        )
        for load in measurements.loads
        for reference in list_references(load, rates)
        for metric, series in RATIOS.items()
        if isinstance(fit := measurements.compare(load, series), BlockFit)
    )


def _describe_noise(
    reference: str, load: Load, metric: Metric, fit: BlockFit, at_one_speed: float | None
) -> LaunchNoise:
    """Noise of the configs that share sigma; configs apart have their own noise and their part of the error level."""
    configs, names = max(len(fit.contrasts), 1), 1 if fit.repeat is None else 2
    level = 1 - (1 - LEVEL) * configs / (configs + len(fit.apart))
    launches = min(contrast.launches for contrast in (*fit.contrasts.values(), *([fit.repeat] if fit.repeat else [])))
    low, high = bound_sigma(fit.sigma**2, fit.degrees)
    unit = detectable_effect(1.0, max(launches, MIN_PAIRED), configs, references=names, level=level)
    smallest: float | None = None
    if launches >= MIN_PAIRED:
        smallest = detectable_effect(fit.sigma, launches, configs, references=names, level=level)
    return LaunchNoise(
        reference=reference,
        phase=load.phase,
        rate_per_s=load.rate_per_s,
        shape=load.shape,
        metric=metric,
        launches=launches,
        sigma=math.expm1(fit.sigma),
        sigma_low=math.expm1(low),
        sigma_high=math.expm1(high),
        degrees=fit.degrees,
        repeat=None if fit.repeat is None else convert_contrast(fit.repeat, metric, Estimate(None)),
        detectable=None if smallest is None else math.expm1(smallest),
        launches_for_named=find_launches_for(math.log1p(NAMED_TAX), fit.sigma, configs, references=names, level=level),
        sigma_for_named=math.expm1(math.log1p(NAMED_TAX) / unit),
        sigma_at_one_speed=None if at_one_speed is None else math.expm1(at_one_speed),
    )
