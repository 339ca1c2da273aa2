"""Where each config saturates, and the two reference rates that follow from it.

A config's saturation rate is its lowest saturated rate of Phase A. Every higher rate counts as saturated too, even if
its cell is clear: a curve that is not monotone is not trusted upwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from results.connector_tax.configs import BASELINE
from results.connector_tax.read import collect_cells
from results.connector_tax.saturation_criteria import (
    CRITERIA,
    apply_specified_rules,
    judge,
    judge_launches,
    measure_growth_over_launches,
)
from results.connector_tax.summary import CellSummary, Shape, is_at_rate
from results.records.estimate import Estimate
from results.records.phase_names import CONFIRM
from results.records.reference_rates import (
    REF_LOAD,
    REF_SAFE,
    SPECIFIED,
    CellSaturation,
    ConfigSaturation,
    ReferenceRates,
    Thresholds,
)

ABOVE_GRID, UNKNOWN_KNEE = "above the grid", "not known"
"""Where a config saturates that is saturated at no rate of Phase A. Not known: its cells at the highest rate are
degraded, lack their numbers, or are missing."""


def choose_reference_rates(root: Path, thresholds: Mapping[str, float] | None = None) -> ReferenceRates:
    """The reference rates of the run folder `root`, from its Phase A cells; nothing is written.

    `thresholds`: throughput_ratio, waiting_p50, ttft_p90_growth; by default as specified.
    """
    return reference_rates(
        collect_cells(root, phases=("A",)).summaries, thresholds=msgspec.convert(dict(thresholds or {}), Thresholds)
    )


def reference_rates(
    summaries: Iterable[CellSummary], thresholds: Thresholds = SPECIFIED, *, specified: bool = False
) -> ReferenceRates:
    """The reference rates of these Phase A cells; cells of other phases are ignored.

    A config that did not complete Phase A has no vote and is named in the reason. A rate at which a voting config's
    state is not known is not chosen.
    `specified`: by the specification's own rules.
    """
    cells = judge_cells([summary for summary in summaries if summary.phase == "A"], thresholds)
    if specified:
        cells = tuple(apply_specified_rules(cell) for cell in cells)
    rates = tuple(sorted({cell.rate_per_s for cell in cells}))
    names = tuple(dict.fromkeys(cell.config for cell in cells))
    scanned = tuple(_scan_rates(name, [cell for cell in cells if cell.config == name], rates) for name in names)
    safe, safe_reason = _find_highest_clear(scanned, rates, "every config")
    load, load_reason = _find_highest_clear([scan for scan in scanned if scan.config == BASELINE], rates, BASELINE)
    return ReferenceRates(safe, load, safe_reason, load_reason, thresholds, rates, scanned, cells)


def fix_rates(rates: ReferenceRates, fixed: Mapping[str, float]) -> ReferenceRates:
    """The rates with those of the plan in place of those that Phase A gives, which the reasons state.

    `fixed`: ref_safe and ref_load in req/s.
    """
    reasons = {
        name: f"fixed by the plan; Phase A gives {describe_rate(rates.rate(name))}: {rates.explain_rate(name)}"
        for name in fixed
    }
    return replace(
        rates,
        ref_safe_per_s=fixed[REF_SAFE],
        ref_load_per_s=fixed[REF_LOAD],
        ref_safe_reason=reasons[REF_SAFE],
        ref_load_reason=reasons[REF_LOAD],
        fixed=True,
    )


def describe_rate(rate_per_s: float | None) -> str:
    return "none" if rate_per_s is None else f"{rate_per_s:g} req/s"


def describe_knee(rates: ReferenceRates, config: str) -> str:
    """Where the config saturates: above the grid only if its cells at the grid's highest rate show that it does not."""
    scan = next((one for one in rates.configs if one.config == config), None)
    if scan is None:
        return UNKNOWN_KNEE
    if scan.saturation_rate_per_s is not None:
        return describe_rate(scan.saturation_rate_per_s)
    return ABOVE_GRID if scan.clear_rates_per_s[-1:] == rates.rates_per_s[-1:] else UNKNOWN_KNEE


def judge_cells(summaries: Sequence[CellSummary], thresholds: Thresholds = SPECIFIED) -> tuple[CellSaturation, ...]:
    """Judge every cell; ordered by config and rate.

    A cell of Phase A is judged with the same config's cell at half the rate, one of the confirm stage with the launches
    of its load and those at half the rate.
    """
    ordered = sorted(summaries, key=lambda s: (s.config, s.phase, s.rate_per_s, s.shape.input_tokens, s.trial, s.cell))
    growths = _measure_confirmed_growths(ordered)
    return tuple(
        judge(summary, _find_half_rate(summary, ordered), thresholds, growths.get(summary.path)) for summary in ordered
    )


def _measure_confirmed_growths(cells: Iterable[CellSummary]) -> dict[str, Estimate]:
    """By `CellSummary.path`: the growth of TTFT p90 over the launches of the confirm stage, if it has half the rate."""
    loads: defaultdict[tuple[str, Shape, float], dict[int, CellSummary]] = defaultdict(dict)
    for cell in cells:
        if cell.phase == CONFIRM:
            loads[cell.config, cell.shape, cell.rate_per_s][cell.trial] = cell
    growths: dict[str, Estimate] = {}
    for (config, shape, rate_per_s), loaded in loads.items():
        rates = (rate for name, size, rate in loads if (name, size) == (config, shape))
        half_rate = next((rate for rate in rates if is_at_rate(rate, rate_per_s / 2)), None)
        if half_rate is not None:
            growth = measure_growth_over_launches(loaded, loads[config, shape, half_rate])
            growths |= {cell.path: growth for cell in loaded.values()}
    return growths


def _find_half_rate(summary: CellSummary, others: Sequence[CellSummary]) -> CellSummary | None:
    """The same config, shape and trial of Phase A at half the rate."""
    if summary.phase != "A":
        return None
    key = (summary.config, summary.phase, summary.shape, summary.trial)
    alike = (other for other in others if (other.config, other.phase, other.shape, other.trial) == key)
    return next((other for other in alike if is_at_rate(other.rate_per_s, summary.rate_per_s / 2)), None)


def _scan_rates(config: str, cells: Sequence[CellSaturation], rates: Sequence[float]) -> ConfigSaturation:
    by_rate: dict[float, list[CellSaturation]] = defaultdict(list)
    for cell in cells:
        by_rate[cell.rate_per_s].append(cell)
    clear: list[float] = []
    missing: list[float] = []
    for rate in rates:
        if rate not in by_rate:
            missing.append(rate)
            continue
        saturated = judge_launches(cell.saturated for cell in by_rate[rate])
        if saturated:
            fired = sorted({number for cell in by_rate[rate] for number in cell.fired})
            return ConfigSaturation(config, not missing, rate, tuple(fired), tuple(clear), _explain_incomplete(missing))
        if saturated is False:
            clear.append(rate)
    return ConfigSaturation(config, not missing, None, (), tuple(clear), _explain_incomplete(missing))


def _explain_incomplete(missing: Sequence[float]) -> str | None:
    return f"not measured at {', '.join(f'{rate:g}' for rate in missing)} req/s" if missing else None


def _find_highest_clear(
    scans: Sequence[ConfigSaturation], rates: Sequence[float], whom: str
) -> tuple[float | None, str]:
    voters = [scan for scan in scans if scan.completed]
    left_out = "".join(
        f"; {scan.config} has no vote: {scan.reason or 'it was not measured'}" for scan in scans if not scan.completed
    )
    if not voters:
        return None, f"{whom} did not complete Phase A{left_out}" if scans else f"{whom} was not measured in Phase A"
    clear = [rate for rate in rates if all(rate in voter.clear_rates_per_s for voter in voters)]
    limit = f"{_describe_limit(voters) or _describe_unsaturated(clear, rates)}{left_out}"
    return (clear[-1], limit) if clear else (None, f"no rate of Phase A is clear for {whom}: {limit}")


def _describe_unsaturated(clear: Sequence[float], rates: Sequence[float]) -> str:
    """Up to which of the rates nothing saturated; `clear`: those at which no config did."""
    unknown = "a cell is degraded or lacks its numbers"
    if not clear:
        return f"at every rate {unknown}"
    if clear[-1] < rates[-1]:
        return f"nothing saturated up to {clear[-1]:g} req/s; at each higher rate {unknown}"
    return "nothing saturated up to the highest rate measured"


def _describe_limit(voters: Sequence[ConfigSaturation]) -> str:
    """Which configs saturate first, and by which criterion; empty where none does."""
    limited = [voter for voter in voters if voter.saturation_rate_per_s is not None]
    if not limited:
        return ""
    lowest = min(voter.saturation_rate_per_s for voter in limited if voter.saturation_rate_per_s is not None)
    first = [voter for voter in limited if voter.saturation_rate_per_s == lowest]
    what = "; ".join(f"{voter.config} ({', '.join(CRITERIA[number] for number in voter.fired)})" for voter in first)
    return f"saturated at {lowest:g} req/s: {what}"
