"""The cost of a connector in capacity: the rate that a config sustains, its highest throughput, its goodput.

The sustained rate is one of the grid's: the true limit is between it and the next rate. The highest throughput is not
bound to the grid; configs are compared by it, launch by launch. It is measured where throughput or queue are saturated
at the highest rate; otherwise the throughput is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa

from results.connector_tax.configs import BASELINE, REPEAT
from results.connector_tax.read import read_cell_record, read_cell_requests
from results.connector_tax.saturation_criteria import LIMITS
from results.connector_tax.slo import Slo
from results.connector_tax.summary import CellSummary
from results.connector_tax.tax import relate
from results.measures.latency import TPOT, TTFT, compute_metric_values
from results.measures.requests import select_due_in_window
from results.records.estimate import Estimate, figure, unknown
from results.records.phase_names import CONFIRM
from results.records.reference_rates import CellSaturation
from results.records.schemas import RequestStatus
from results.report.table import NOT_MEASURED, Column, Table, make_table
from results.statistics.estimates import LEVEL
from results.statistics.judgement import Verdict, judged, name_remedy, withheld
from results.statistics.trials import MIN_PAIRED, Measured, Trial, combine, estimate, unmeasured

NO_SPREAD = "a throughput has no spread within a launch"
NO_COMMON_RATE = f"no launch has the goodput of both at one rate, of the config and of {BASELINE}"
Goodputs = Mapping[int, Mapping[float, Estimate]]
"""Of one config, by launch and rate."""


@dataclass(frozen=True, slots=True)
class Relative:
    """A rate against plain's: -0.1 = 10 % less."""

    change: Estimate
    """The relative change."""
    verdict: Verdict | None
    """On which side of no change the interval is."""
    withheld: str
    """Why there is no verdict; empty where there is one."""


@dataclass(frozen=True, slots=True)
class CapacityCost:
    """The capacity of one config, over the rates of Phase A."""

    config: str
    sustained_per_s: tuple[float | None, ...]
    """By launch: the highest rate below its first saturated one; None = not even the lowest rate."""
    next_per_s: tuple[float | None, ...]
    """By launch: the first saturated rate; None = it was not saturated at any rate."""
    peak_per_s: Estimate
    """Highest effective throughput. Where the highest rate of a launch fired none of LIMITS, `value` is None, and `low`
    the least it can be."""
    peak_change: Relative | None
    """None for plain; of its second name the noise floor, without a verdict."""
    goodput_per_s: Estimate | None
    """Highest over the rates; None where the plan has no SLO."""
    goodput_change: Relative | None
    """As `peak_change`, of the goodput."""


def measure_capacity(
    cells: Sequence[CellSummary],
    saturation: Mapping[str, CellSaturation],
    goodput_of: Callable[[CellSummary], Estimate] | None,
    planned: int = 0,
) -> tuple[CapacityCost, ...]:
    """One row for each config of Phase A, plain first. `saturation`: by `CellSummary.path`; `planned`: launches."""
    sent = [cell for cell in cells if cell.phase == "A"]
    swept = [cell for cell in sent if not cell.degraded]
    top_per_s = max((cell.rate_per_s for cell in sent), default=0.0)
    configs = sorted({cell.config for cell in swept}, key=lambda config: (config not in (BASELINE, REPEAT), config))
    launches = {config: _group_launches(swept, config) for config in configs}
    peaks = {config: _measure_peaks(launches[config], saturation, top_per_s) for config in configs}
    goodputs = {config: _read_goodputs(launches[config], goodput_of) for config in configs if goodput_of}
    launched = max(planned, len({cell.trial for cell in sent}))
    remedy = DESCRIPTIVE if any(cell.phase == CONFIRM for cell in cells) else name_remedy(launched)
    return tuple(_describe_config(config, launches[config], saturation, peaks, goodputs, remedy) for config in configs)


def _group_launches(cells: Sequence[CellSummary], config: str) -> dict[int, list[CellSummary]]:
    """The config's cells by trial, each by rising rate."""
    own = sorted((cell for cell in cells if cell.config == config), key=lambda cell: (cell.trial, cell.rate_per_s))
    return {trial: list(group) for trial, group in groupby(own, key=lambda cell: cell.trial)}


def _describe_config(
    config: str,
    launches: Mapping[int, Sequence[CellSummary]],
    saturation: Mapping[str, CellSaturation],
    peaks: Mapping[str, Measured],
    goodputs: Mapping[str, Goodputs],
    remedy: str,
) -> CapacityCost:
    """`remedy`: what gives a verdict where there are too few launches."""
    limits = [_find_limits(cells, saturation) for cells in launches.values()]
    is_plain = config == BASELINE
    goodput = goodputs.get(config)
    peak = estimate(peaks[config])
    return CapacityCost(
        config=config,
        sustained_per_s=tuple(sustained for sustained, _ in limits),
        next_per_s=tuple(saturated for _, saturated in limits),
        peak_per_s=peak if peak.value is not None else replace(peak, low=_bound_peak(launches)),
        peak_change=None if is_plain else _relate(peaks, config, remedy),
        goodput_per_s=None if goodput is None else estimate(_measure_goodputs(goodput)),
        goodput_change=None if is_plain or goodput is None else _relate_goodputs(goodputs, config, remedy),
    )


def _find_limits(
    cells: Sequence[CellSummary], saturation: Mapping[str, CellSaturation]
) -> tuple[float | None, float | None]:
    """The highest clear rate below the first saturated one, and that one."""
    sustained = None
    for cell in cells:
        state = saturation[cell.path].saturated
        if state:
            return sustained, cell.rate_per_s
        if state is False:
            sustained = cell.rate_per_s
    return sustained, None


def _measure_peaks(
    launches: Mapping[int, Sequence[CellSummary]], saturation: Mapping[str, CellSaturation], top_per_s: float
) -> Measured:
    """The highest throughput of each launch; unmeasured unless the highest rate of each saturated throughput or queue.

    Otherwise the throughput is that of the client, a lower bound: `_bound_peak`. `top_per_s`: the sweep's highest rate.
    """
    trials = {}
    below: list[float] = []
    lacking: dict[int, str] = {}
    for number, cells in launches.items():
        known = _list_throughputs(cells)
        if known and LIMITS.intersection(saturation[cells[-1].path].fired):
            trials[number] = _make_trial(max(known), len(cells))
        elif known:
            below.append(cells[-1].rate_per_s)
        else:
            lacking[number] = cells[-1].estimate("effective_throughput_per_s").reason or "not measured"
    if not below:
        why = "; ".join(dict.fromkeys(lacking.values()))
        if not trials:
            return unmeasured(f"no cell has a throughput: {why}")
        return Measured(trials, f"{len(lacking)} of {len(launches)} launches have no throughput: {why}" if why else "")
    short = sum(rate < top_per_s for rate in below)
    beyond = "; higher ones were not measured, or are degraded" if short else ""
    if any(saturation[cell.path].saturated for cells in launches.values() for cell in cells):
        highest = f"the highest rate ({max(below):g} req/s){_count_launches(len(below), launches)}"
        return unmeasured(f"a lower bound: criteria 1 and 2 did not fire at {highest}{beyond}")
    highest = "the highest rate measured"
    if short:
        highest = f"{min(below):g} req/s, {highest}{_count_launches(short, launches)}"
    return unmeasured(f"nothing saturated up to {highest}{beyond}")


def _count_launches(count: int, launches: Mapping[int, object]) -> str:
    """` in 2 of 3 launches`; empty where there is one launch."""
    return "" if len(launches) == 1 else f" in {count} of {len(launches)} launches"


def _bound_peak(launches: Mapping[int, Sequence[CellSummary]]) -> float | None:
    """The least that the highest throughput can be: the mean over the launches of the highest of each."""
    highest = [max(known) for cells in launches.values() if (known := _list_throughputs(cells))]
    return math.fsum(highest) / len(highest) if highest else None


def _list_throughputs(cells: Sequence[CellSummary]) -> list[float]:
    rates = (cell.value("effective_throughput_per_s") for cell in cells)
    return [rate for rate in rates if rate is not None]


def measure_goodput(cell_json: Path, slo: Slo) -> Estimate:
    """The requests due in the window that completed within the SLO, per second of it.

    A request of one token has no TPOT. Raises ArtifactError where the cell's record cannot be read.
    """
    record = read_cell_record(cell_json)
    frame, gaps = read_cell_requests(cell_json, record)
    if frame is None:
        return unknown("; ".join(gap.reason for gap in gaps))
    due = select_due_in_window(frame, record)
    completed = due[due["status"] == RequestStatus.OK.value]
    values = compute_metric_values(pa.Table.from_pandas(completed, preserve_index=False))
    met = np.ones(len(completed), dtype=np.bool_)
    if slo.ttft_s is not None:
        met &= values[TTFT.name] <= slo.ttft_s
    if slo.tpot_s is not None:
        met &= np.isnan(values[TPOT.name]) | (values[TPOT.name] <= slo.tpot_s)
    window_s = (record.t_window_end_ns - record.t_window_start_ns) / 1e9
    return Estimate(float(met.sum()) / window_s, n=len(due))


def _read_goodputs(
    launches: Mapping[int, Sequence[CellSummary]], goodput_of: Callable[[CellSummary], Estimate]
) -> Goodputs:
    return {number: {cell.rate_per_s: goodput_of(cell) for cell in cells} for number, cells in launches.items()}


def _measure_goodputs(goodputs: Goodputs) -> Measured:
    """The highest of each launch over its rates."""
    trials = {}
    why: dict[str, None] = {}
    for number, by_rate in goodputs.items():
        known = [one.value for one in by_rate.values() if one.value is not None]
        why |= dict.fromkeys(one.reason for one in by_rate.values() if one.reason)
        if known:
            trials[number] = _make_trial(max(known), len(by_rate))
    return Measured(trials, "; ".join(why)) if trials else unmeasured("; ".join(why) or "no cell has requests")


def _relate_goodputs(goodputs: Mapping[str, Goodputs], config: str, remedy: str) -> Relative:
    """Over the rates of each launch at which both have one: where the config's cell is degraded or missing at plain's
    best rate, its own best one may be lower for that alone."""
    highest = {name: _measure_goodputs(own) for name, own in goodputs.items()}
    if BASELINE in highest and highest[config].trials and highest[BASELINE].trials:
        ours, plains = goodputs[config], goodputs[BASELINE]
        pairs = ((config, ours, plains), (BASELINE, plains, ours))
        shared = {name: _measure_goodputs(_select_shared(own, other)) for name, own, other in pairs}
        highest |= shared if shared[config].trials else {config: unmeasured(NO_COMMON_RATE)}
    return _relate(highest, config, remedy)


def _select_shared(own: Goodputs, other: Goodputs) -> Goodputs:
    """Those at the rates of each launch at which both are known."""
    known = {(number, rate) for number, rates in other.items() for rate, one in rates.items() if one.value is not None}
    return {
        number: {rate: one for rate, one in rates.items() if one.value is not None and (number, rate) in known}
        for number, rates in own.items()
    }


def _make_trial(value: float, n: int) -> Trial:
    return Trial(value, n, lambda: NO_SPREAD)


def _relate(rates: Mapping[str, Measured], config: str, remedy: str) -> Relative:
    """The config's rate against plain's; the intervals of all configs hold together (Bonferroni).

    That of plain under its second name is the noise floor, at the same level.
    """
    family = max(sum(name not in (BASELINE, REPEAT) for name in rates), 1)
    if BASELINE not in rates:
        change = unknown(f"{BASELINE} was not measured")
    elif zero := sum(trial.value == 0 for trial in rates[BASELINE].trials.values()):
        change = unknown(f"that of {BASELINE} is 0{_count_launches(zero, rates[BASELINE].trials)}: no ratio to it")
    else:
        change = estimate(combine(relate, rates[config], rates[BASELINE]), 1 - (1 - LEVEL) / family)
    if config == REPEAT:
        return Relative(change, None, NOISE_FLOOR)
    return Relative(change, judged(change), withheld(change, remedy=remedy))


def make_capacity_table(rows: Sequence[CapacityCost], slo: Slo) -> Table:
    """With goodput where the plan has an SLO."""
    goodput = (
        f"Goodput: requests with {slo}, per second, at the best rate; over plain: over the rates that both measured."
    )
    objective = goodput if str(slo) else NO_SLO
    note = (
        "Sustained: the highest rate of the grid below the first saturated one (by launch); the limit is between the "
        "two. Highest throughput: a lower bound (>=) unless criterion 1 or 2 fired at the highest rate of every "
        "launch. From the sweep: descriptive where each config is launched once in it. Changes hold for all configs "
        f"together (Bonferroni). {objective}"
    )
    columns = CAPACITY_COLUMNS if str(slo) else CAPACITY_COLUMNS[:4]
    return make_table("Capacity", columns, rows, note)


DESCRIPTIVE = (
    "the sweep before a confirm stage is descriptive, whatever `--trials` says: `--set confirm=false --trials "
    f"{MIN_PAIRED}` sweeps in every launch"
)
NOISE_FLOOR = "the noise floor"
NO_SLO = "Goodput needs an SLO: `--set slo.ttft_s=0.5 --set slo.tpot_s=0.05`."


def list_sustained(row: CapacityCost) -> list[str]:
    """In req/s, with the first saturated rate; several where launches differ."""
    texts = []
    for sustained, saturated in dict.fromkeys(zip(row.sustained_per_s, row.next_per_s, strict=True)):
        low = "below the lowest rate" if sustained is None else f"{sustained:g}"
        if saturated is not None:
            texts.append(f"{low} (saturated at {saturated:g})")
        else:
            texts.append(NOT_MEASURED if sustained is None else f"at least {low}")
    return texts


def _show_peak(peak: Estimate) -> Estimate | str:
    if peak.value is not None or peak.low is None:
        return peak
    return f">= {figure(peak.low)} ({peak.reason})"


def _change_text(relative: Relative | None) -> str:
    if relative is None or relative.change.value is None:
        return NOT_MEASURED if relative is None else f"{NOT_MEASURED} ({relative.change.reason})"
    verdict = str(relative.verdict) if relative.verdict is not None else f"(no verdict: {relative.withheld})"
    return f"{relative.change.percent()} {verdict}"


CAPACITY_COLUMNS: tuple[Column[CapacityCost], ...] = (
    Column("config", lambda row: row.config),
    Column("sustained req/s", lambda row: "; ".join(list_sustained(row))),
    Column("highest throughput req/s", lambda row: _show_peak(row.peak_per_s)),
    Column("vs plain", lambda row: _change_text(row.peak_change)),
    Column("goodput req/s", lambda row: row.goodput_per_s),
    Column("goodput vs plain", lambda row: _change_text(row.goodput_change)),
)
