"""The substrate tax: what a config costs against plain under the same load (specs/connector_tax, "Substrate tax").

Plain may be measured under two names; the reference is then the mean of both (of ratios, the geometric mean). From
three launches on, all configs at one load are compared together (results.statistics.blocks): the bounds of a tax hold
for every config of its load and metric at once. Ratios are compared as logarithms, microseconds as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from results.connector_tax.configs import BASELINE, REPEAT
from results.connector_tax.measurements import LOGARITHMIC, Load, Measurements, has_own_rate
from results.connector_tax.summary import Shape, is_at_rate
from results.measures.step_durations import CALLBACKS
from results.records.estimate import Estimate
from results.records.reference_rates import REF_LOAD, REF_SAFE, ReferenceRates
from results.statistics.blocks import BlockFit, Contrast
from results.statistics.estimates import LEVEL, Samples
from results.statistics.judgement import Verdict, judged, withheld
from results.statistics.trials import MIN_PAIRED, Joint, Measured, combine, estimate, unmeasured


class Metric(StrEnum):
    """What is taxed, with its unit: a ratio (0.45 = 45 % more than plain) or microseconds per step."""

    TTFT_P90 = "tax_ttft_p90"
    TPOT_P90 = "tax_tpot_p90"
    STEP_P50 = "tax_step_p50_us"
    """Tax on `step_duration_us`, as specified: schedule() alone, about 2 % of a step."""
    ENGINE_STEP_P50 = "tax_engine_step_p50_us"
    """Tax on the whole step, worker-side callbacks included: `engine_step_us`, or `period_us` where steps overlap."""
    CALLBACK_P50 = "tax_callback_p50_us"
    """`connector_total_us` of the config itself; plain has no callbacks."""
    REMAINDER_P50 = "tax_remainder_p50_us"
    """tax_step - tax_callback, as specified; negative where the callbacks run outside schedule()."""
    ENGINE_REMAINDER_P50 = "tax_engine_remainder_p50_us"
    """tax_engine_step - tax_callback: what of the whole step the callbacks do not explain."""


TITLES: Mapping[Metric, str] = {
    Metric.TTFT_P90: "TTFT p90",
    Metric.TPOT_P90: "TPOT p90",
    Metric.ENGINE_STEP_P50: "engine step p50",
}
"""What is taxed, as tables and figures name it."""
RATIOS: dict[Metric, str] = {Metric.TTFT_P90: "ttft_s", Metric.TPOT_P90: "tpot_s"}
DIFFERENCES = (Metric.STEP_P50, Metric.ENGINE_STEP_P50)
OWN_RATE = "own rate"
"""Name of the rate of a shape that the plan does not measure at ref_safe."""
REMAINDERS: Mapping[Metric, Metric] = {
    Metric.REMAINDER_P50: Metric.STEP_P50,
    Metric.ENGINE_REMAINDER_P50: Metric.ENGINE_STEP_P50,
}
"""For each remainder, the step tax that the callbacks are subtracted from."""


@dataclass(frozen=True)  # without slots: a record with two bases that have slots cannot be made
class TaxedRate:
    """The rate at which a tax is measured."""

    reference: str
    """`ref_safe` or `ref_load`; `own rate` of a shape that is measured at a rate of its own."""
    phase: str
    """Phase of its cells: `A`, `B` or `Bp`."""
    rate_per_s: float
    """Requested rate."""


@dataclass(frozen=True)  # without slots, as TaxedRate
class TaxedConfig(TaxedRate):
    """The config whose tax it is, at that rate."""

    shape: Shape
    """What each request asks for."""
    config: str
    metric: Metric
    """What is taxed."""


@dataclass(frozen=True, slots=True)
class TaxRow(TaxedConfig):
    """One tax of one config against plain at one load."""

    estimate: Estimate
    """Its `basis` says what the bounds hold: the spread within a launch, or an interval over trials."""
    verdict: Verdict | None
    """On which side of no tax the interval is; None where `withheld` says why."""
    withheld: str
    """Why there is no verdict; empty where there is one, or nothing to compare with."""
    p: float | None = None
    """Two-sided, corrected for all configs at this load; None where they were not compared together."""
    alone: Estimate | None = None
    """The same tax with bounds that hold for this config by itself; hypotheses and comparisons of runs use it."""
    own: Estimate | None = None
    """The same with bounds from the spread of this config's launches only."""
    degrees: int | None = None
    """Degrees of freedom of `alone`."""
    saturated: str = ""
    """`plain` where that is saturated at this load, else the config where it is; empty where neither is."""


def name_series(measurements: Measurements, metric: Metric) -> str | None:
    """The series that a tax compares with plain's; None where it follows from other taxes."""
    if metric == Metric.ENGINE_STEP_P50:
        return measurements.whole_step
    return "step_duration_us" if metric == Metric.STEP_P50 else RATIOS.get(metric)


def list_connectors(measurements: Measurements, phase: str) -> tuple[str, ...]:
    """The configs of a phase that have a tax: all but the baseline under either name."""
    return tuple(config for config in measurements.configs(phase) if config not in (BASELINE, REPEAT))


def noise_floor(measurements: Measurements, rates: ReferenceRates) -> tuple[TaxRow, ...]:
    """The difference of the baseline's two names, as taxes of the second; empty where it was not run."""
    return tuple(
        row
        for load in measurements.loads
        if REPEAT in measurements.configs(load.phase)
        for reference in list_references(load, rates)
        for row in _build_rows(measurements, reference, load, (REPEAT,))
        if row.metric in RATIOS or row.metric in DIFFERENCES
    )


def make_tax_rows(measurements: Measurements, rates: ReferenceRates) -> tuple[TaxRow, ...]:
    """Every tax of the run: Phase A at both reference rates (with the step taxes), Phase B and B' per shape.

    A config with a cell in a phase has a row at every load of that phase; where its cell or plain's is missing or
    degraded, the row gives the reason.
    """
    return tuple(
        row
        for load in measurements.loads
        for reference in list_references(load, rates)
        for row in _build_rows(measurements, reference, load, list_connectors(measurements, load.phase))
    )


def measure_tax(measurements: Measurements, load: Load, config: str, metric: Metric) -> Measured:
    """One tax of the config at this load, trial by trial: config and plain are compared inside a trial."""
    left_out = measurements.why_left_out(load, config)
    if left_out:
        return unmeasured(left_out)
    if metric == Metric.CALLBACK_P50:
        return measurements.get(load, config, CALLBACKS)
    if metric in REMAINDERS:
        whole = measure_tax(measurements, load, config, REMAINDERS[metric])
        return combine(np.subtract, whole, measurements.get(load, config, CALLBACKS))
    series = name_series(measurements, metric)
    assert series is not None
    fit = measurements.compare(load, series)
    measured, base = measurements.get(load, config, series), measurements.get(load, BASELINE, series)
    if config != REPEAT:
        base = _merge_baselines(base, measurements.get(load, REPEAT, series), metric)
    taxed = combine(relate, measured, base) if metric in RATIOS else combine(np.subtract, measured, base)
    if isinstance(fit, str):
        return replace(taxed, no_interval=fit)
    return replace(taxed, joint=_find_joint(fit, measurements.draws(load, series), config, series))


def _merge_baselines(first: Measured, again: Measured, metric: Metric) -> Measured:
    """Per trial the mean of plain under both its names (of ratios the geometric mean), or the one that was measured."""
    both = combine(_compute_geometric_mean if metric in RATIOS else average, first, again)
    trials = {**again.trials, **first.trials, **both.trials}
    return Measured(trials, first.reason if not trials else "")


def _find_joint(fit: BlockFit, draws: Mapping[str, Samples], config: str, series: str) -> Joint | None:
    """The tax in the comparison of all configs at this load; None where it has too few launches of the config."""
    contrast = fit.find(config)
    if contrast is None or contrast.launches < MIN_PAIRED:
        return None
    value, drawn = contrast.difference, draws[config]
    if series in LOGARITHMIC:
        return Joint(series, math.expm1(value), np.expm1(drawn))
    return Joint(series, value, drawn)


def list_references(load: Load, rates: ReferenceRates) -> tuple[str, ...]:
    """The names of this load's rate; Phase B was sent at ref_safe or its shape's own rate, B' at ref_load."""
    if load.phase == "B":
        return (OWN_RATE if has_own_rate(load, rates.ref_safe_per_s) else REF_SAFE,)
    if load.phase == "Bp":
        return (REF_LOAD,)
    return tuple(name for name in (REF_SAFE, REF_LOAD) if is_at_rate(load.rate_per_s, rates.rate(name)))


def name_rate(reference: str, rate_per_s: float) -> str:
    """The reference rate by its name; a shape's own rate with its value."""
    return f"{reference}, {rate_per_s:g} req/s" if reference == OWN_RATE else reference


def relate(measured: Samples, base: Samples) -> Samples:
    return measured / base - 1


def average(*parts: Samples) -> Samples:
    return np.asarray(np.mean(np.stack(parts), axis=0), dtype=np.float64)


def _compute_geometric_mean(first: Samples, second: Samples) -> Samples:
    return np.sqrt(first * second)


def _build_rows(measurements: Measurements, reference: str, load: Load, configs: tuple[str, ...]) -> Iterator[TaxRow]:
    for config in configs:
        for metric in tuple(Metric) if load.phase == "A" else tuple(RATIOS):
            cost = _estimate_cost(measure_tax(measurements, load, config, metric), metric, family=len(configs))
            row = TaxRow(
                reference, load.phase, load.rate_per_s, load.shape, config, metric, cost, None, "",
                saturated=name_saturated(measurements, load, config),
            )  # fmt: skip
            series = name_series(measurements, metric) if cost.value is not None else None
            contrast = _find_contrast(measurements.compare(load, series), config) if series else None
            if contrast is not None and contrast.launches >= MIN_PAIRED:
                row = _apply_contrast(row, contrast)
            if metric != Metric.CALLBACK_P50 and config != REPEAT:
                why = explain_unjudged(row.saturated) if cost.value is not None else ""
                few = withheld(row.estimate, remedy=measurements.remedy)
                row = replace(row, verdict=None if why else judged(row.estimate), withheld=why or few)
            yield _name_degraded(measurements, load, row)


def _name_degraded(measurements: Measurements, load: Load, row: TaxRow) -> TaxRow:
    """The row with a basis that counts the degraded launches of its config and of plain, which are left out."""
    sides = (row.config,) if row.metric == Metric.CALLBACK_P50 else (row.config, BASELINE, REPEAT)
    degraded = measurements.name_degraded(load, tuple(dict.fromkeys(sides)))
    if not degraded or row.estimate.basis is None:
        return row
    basis = f"{row.estimate.basis}; degraded, so left out: {degraded}"
    return replace(row, estimate=replace(row.estimate, basis=basis))


def _estimate_cost(measured: Measured, metric: Metric, family: int) -> Estimate:
    """A tax with bounds over its own launches; a comparison of all configs may replace them.

    Callbacks are not paired with plain's: plain has none. Remainders have verdicts, so their bounds hold for all
    configs together, as those of a tax do (Bonferroni; `family`: how many configs).
    """
    several = len(measured.trials) >= MIN_PAIRED
    corrected = several and metric in REMAINDERS
    cost = estimate(measured, 1 - (1 - LEVEL) / family if corrected else LEVEL)
    if not several or cost.low is None or not (corrected or metric == Metric.CALLBACK_P50):
        return cost
    holds = "all configs together" if corrected else "by itself"
    return replace(cost, basis=f"over {cost.launches} launches, {holds}")


def explain_unjudged(saturated: str) -> str:
    """Why a tax has no verdict, whatever its interval; empty where it may have one. `saturated`: as in TaxRow."""
    return f"{BASELINE} is saturated at this load: the reference is a queue" if saturated == BASELINE else ""


def name_saturated(measurements: Measurements, load: Load, config: str) -> str:
    """As TaxRow.saturated."""
    sides = ((BASELINE, BASELINE), (REPEAT, BASELINE), (config, config))
    return next((name for side, name in sides if measurements.is_saturated(load, side)), "")


def _find_contrast(fit: BlockFit | str, config: str) -> Contrast | None:
    if not isinstance(fit, BlockFit):
        return None
    return fit.repeat if config == REPEAT else fit.find(config)


def _apply_contrast(row: TaxRow, contrast: Contrast) -> TaxRow:
    """The row with the bounds of the comparison of all configs; plain against plain has bounds by itself only."""
    alone = convert_contrast(contrast, row.metric, row.estimate)
    own = _make_tax(row.metric, contrast, (contrast.own_low, contrast.own_high), alone, "its own spread")
    row = replace(row, alone=alone, own=own, degrees=contrast.degrees)
    if contrast.together is None:
        return replace(row, estimate=alone)
    bounds = contrast.together.low, contrast.together.high
    together = _make_tax(row.metric, contrast, bounds, alone, "all configs together")
    return replace(row, estimate=together, p=contrast.together.p)


def convert_contrast(contrast: Contrast, metric: Metric, cost: Estimate) -> Estimate:
    """The contrast by itself in the metric's unit: a fraction for a log ratio, microseconds as they are."""
    return _make_tax(metric, contrast, (contrast.low, contrast.high), cost, "by itself")


def _make_tax(
    metric: Metric, contrast: Contrast, bounds: tuple[float | None, float | None], cost: Estimate, holds: str
) -> Estimate:
    value, low, high = (
        None if part is None else math.expm1(part) if metric in RATIOS else part
        for part in (contrast.difference, *bounds)
    )
    basis = f"over {contrast.launches} launches, {holds}"
    return replace(cost, value=value, low=low, high=high, basis=basis, launches=contrast.launches)
