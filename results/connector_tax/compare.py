"""Two runs of the same experiment side by side: two days, two hosts, two versions of the engine.

The runs are independent, so the interval of a difference follows from the two intervals alone (MOVER; Zou and Donner,
Statistics in Medicine 27 (2008) 1693): for d = b - a with a in [l_a, u_a] and b in [l_b, u_b]
    low = d - sqrt((b - l_b)^2 + (u_a - a)^2),  high = d + sqrt((u_b - b)^2 + (a - l_a)^2).
A change of a latency is a ratio: the same on logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from results.connector_tax.analyse import Analysis, analyse
from results.connector_tax.differences import Difference, list_differences
from results.connector_tax.measurements import Load, Measurements
from results.connector_tax.tax import RATIOS, Metric, TaxRow
from results.measures.cells import request_samples
from results.measures.saturation import REF_LOAD, REF_SAFE, ReferenceRates
from results.measures.summary import CellSummary, Shape
from results.records.errors import ResultsError
from results.records.run_folder import RunFacts
from results.statistics.estimates import Estimate, Samples, unknown
from results.statistics.judgement import Verdict, judged, withheld
from results.statistics.trials import MIN_PAIRED, estimate

_OF_RUN = ("config in a run", f"runs made with `--trials {MIN_PAIRED}` give a verdict")
SERIES: Mapping[str, str] = {"ttft_p90_s": "ttft_s", "tpot_p90_s": "tpot_s"}


@dataclass(frozen=True, slots=True)
class LatencyChange:
    """One latency of one config at one load, in both runs."""

    config: str
    load: Load
    value: str
    """`ttft_p90_s` or `tpot_p90_s`."""
    first: Estimate
    second: Estimate
    change: Estimate
    """second / first - 1: 0.1 = 10 % slower in the second."""
    verdict: Verdict | None
    withheld: str
    """Why there is no verdict; empty where there is one."""


@dataclass(frozen=True, slots=True)
class TaxChange:
    """One tax in both runs, each at its own reference rate."""

    reference: str
    phase: str
    shape: Shape
    config: str
    metric: Metric
    first_rate_per_s: float | None
    second_rate_per_s: float | None
    first: Estimate
    second: Estimate
    difference: Estimate
    """second - first, in the metric's unit; unknown where the two rates differ."""
    verdict: Verdict | None
    withheld: str
    """Why there is no verdict; empty where there is one."""


@dataclass(frozen=True, slots=True)
class RateChange:
    """One reference rate in both runs."""

    reference: str
    first_per_s: float | None
    second_per_s: float | None
    first_reason: str
    second_reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    first: RunFacts
    second: RunFacts
    latencies: tuple[LatencyChange, ...]
    taxes: tuple[TaxChange, ...]
    rates: tuple[RateChange, ...]
    differences: tuple[Difference, ...]
    only_first: tuple[str, ...]
    """Cells that the second run does not have, as `config at load`."""
    only_second: tuple[str, ...]


def compare_runs(first: Path, second: Path) -> Comparison:
    """Analyse both run folders and compare them.

    Raises ResultsError where a folder is none, or where the runs are not of one experiment or share no cell.
    """
    ours, theirs = analyse(first), analyse(second)
    _require_same_experiment(ours.facts, theirs.facts)
    mine, other = (_read_percentiles(analysis, root) for analysis, root in ((ours, first), (theirs, second)))
    keys, other_keys = _list_cells(ours), _list_cells(theirs)
    common = [key for key in keys if key in other_keys]
    if not common:
        raise ResultsError(
            f"runs {first.name} and {second.name} have no cell in common: no config was sent the same load in both",
            remedy="compare runs of one profile and preset",
        )
    return Comparison(
        first=ours.facts,
        second=theirs.facts,
        latencies=tuple(
            _compare_latency(mine, other, config, load, value) for config, load in common for value in SERIES
        ),
        taxes=_compare_taxes(ours, theirs),
        rates=tuple(_compare_rate(ours.rates, theirs.rates, name) for name in (REF_SAFE, REF_LOAD)),
        differences=list_differences(first, second),
        only_first=tuple(_cell_text(*key) for key in keys if key not in other_keys),
        only_second=tuple(_cell_text(*key) for key in other_keys if key not in keys),
    )


def to_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as data; latencies in seconds, changes and taxes as fractions."""
    whole: dict[str, Any] = msgspec.to_builtins(comparison)
    for side in ("first", "second"):
        whole[side] = {
            name: whole[side][name] for name in ("run", "experiment", "profile", "preset", "seed", "versions")
        }
    return whole


def subtract_estimates(first: Estimate, second: Estimate) -> Estimate:
    """second - first of two independent estimates, with bounds where both have theirs; as few launches as the fewer."""
    if first.value is None or second.value is None:
        return unknown("; ".join(_list_reasons(first, second)) or "not measured in both runs")
    value, n = second.value - first.value, min(first.n, second.n)
    launches = min(first.launches, second.launches)
    if first.low is None or first.high is None or second.low is None or second.high is None:
        why = "; ".join(_list_reasons(first, second)) or "a run gives no interval"
        return Estimate(value, n=n, reason=why, launches=launches)
    low = value - math.hypot(second.value - second.low, first.high - first.value)
    high = value + math.hypot(second.high - second.value, first.value - first.low)
    return Estimate(value, low, high, n, launches=launches)


def compare_ratio(first: Estimate, second: Estimate) -> Estimate:
    """second / first - 1 of two independent positive estimates, with its interval where both have theirs."""
    ours, theirs = _take_logarithm(first), _take_logarithm(second)
    logs = subtract_estimates(ours, theirs)
    value, low, high = (None if part is None else math.expm1(part) for part in (logs.value, logs.low, logs.high))
    return replace(logs, value=value, low=low, high=high)


def _take_logarithm(of: Estimate) -> Estimate:
    if of.value is None or of.value <= 0:
        return unknown(of.reason or "the value is not positive", of.n)
    low, high = (math.log(bound) if bound is not None and bound > 0 else None for bound in (of.low, of.high))
    return replace(of, value=math.log(of.value), low=low, high=high)


def _list_reasons(first: Estimate, second: Estimate) -> list[str]:
    named = (("first", first), ("second", second))
    return [f"{which}: {one.reason}" for which, one in named if one.reason and None in (one.value, one.low, one.high)]


def _require_same_experiment(first: RunFacts, second: RunFacts) -> None:
    for facts in (first, second):
        if not facts.experiment:
            raise ResultsError(
                f"run {facts.run} does not say which experiment it is: plan.json is missing or damaged",
                remedy="restore plan.json from a copy of the run",
            )
    if first.experiment != second.experiment:
        raise ResultsError(
            f"run {first.run} is of {first.experiment}, run {second.run} of {second.experiment}",
            remedy="compare two runs of one experiment; `tracon list` shows what each run is",
        )


def _read_percentiles(analysis: Analysis, root: Path) -> Measurements:
    def samples_of(cell: CellSummary) -> Mapping[str, Samples]:
        return request_samples(root / cell.path)

    return Measurements(analysis.cells, samples_of)


def _list_cells(analysis: Analysis) -> dict[tuple[str, Load], None]:
    keys = {(cell.config, Load(cell.phase, cell.rate_per_s, cell.shape)) for cell in analysis.cells}
    return dict.fromkeys(sorted(keys, key=lambda key: (key[1].order, key[0])))


def _cell_text(config: str, load: Load) -> str:
    return f"{config} at {load.rate_per_s:g} req/s, {load.shape} ({load.phase})"


def _compare_latency(ours: Measurements, theirs: Measurements, config: str, load: Load, value: str) -> LatencyChange:
    first, second = (estimate(of.get(load, config, SERIES[value])) for of in (ours, theirs))
    moved = compare_ratio(first, second)
    return LatencyChange(config, load, value, first, second, moved, judged(moved), withheld(moved, *_OF_RUN))


def _compare_taxes(first: Analysis, second: Analysis) -> tuple[TaxChange, ...]:
    """The latency taxes of either run, by reference, phase, shape and config."""
    ours, theirs = (
        {(row.reference, row.phase, row.shape, row.config, row.metric): row for row in of.taxes if row.metric in RATIOS}
        for of in (first, second)
    )
    return tuple(_compare_tax(key, ours.get(key), theirs.get(key)) for key in dict.fromkeys((*ours, *theirs)))


def _compare_tax(key: tuple[str, str, Shape, str, Metric], first: TaxRow | None, second: TaxRow | None) -> TaxChange:
    absent = unknown("this run has no such tax")
    ours, theirs = (absent if row is None else row.alone or row.estimate for row in (first, second))
    rate, other_rate = (row.rate_per_s if row is not None else None for row in (first, second))
    if first is not None and second is not None and not math.isclose(first.rate_per_s, second.rate_per_s):
        moved = unknown(f"measured at {first.rate_per_s:g} and at {second.rate_per_s:g} req/s")
    else:
        moved = subtract_estimates(ours, theirs)
    return TaxChange(*key, rate, other_rate, ours, theirs, moved, judged(moved), withheld(moved, *_OF_RUN))


def _compare_rate(first: ReferenceRates, second: ReferenceRates, name: str) -> RateChange:
    return RateChange(name, first.rate(name), second.rate(name), first.reason_for(name), second.reason_for(name))
