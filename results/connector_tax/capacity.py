"""What a connector costs in capacity: the rate that a config sustains, its highest throughput, its goodput.

The sustained rate is one of the grid's: the true limit is between it and the next rate. The highest throughput is
measured where the config is saturated and has no such steps; configs are compared by it, launch by launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from results.measures.goodput import Slo
from results.measures.saturation_criteria import CellSaturation
from results.measures.summary import CellSummary
from results.records.baseline import BASELINE, REPEAT
from results.records.phase_names import CONFIRM
from results.report.table import NOT_MEASURED, Column, Table, make_table
from results.statistics.estimates import LEVEL, Estimate, Samples
from results.statistics.judgement import TRIALS_REMEDY, Verdict, judged, withheld
from results.statistics.trials import Measured, Trial, combine, estimate, unmeasured

NO_SPREAD = "a throughput has no spread within a launch"


@dataclass(frozen=True, slots=True)
class Relative:
    """A rate against plain's: -0.1 = 10 % less."""

    change: Estimate
    verdict: Verdict | None
    withheld: str
    """Why there is no verdict; empty where there is one."""


@dataclass(frozen=True, slots=True)
class CapacityCost:
    """One config's, over the rates of Phase A."""

    config: str
    sustained_per_s: tuple[float | None, ...]
    """By launch: the highest rate below its first saturated one; None = not even the lowest rate."""
    next_per_s: tuple[float | None, ...]
    """By launch: the first saturated rate; None = it was not saturated at any rate."""
    peak_per_s: Estimate
    """Highest effective throughput, of launches that were saturated; unknown where none was."""
    peak_change: Relative | None
    """None for plain."""
    goodput_per_s: Estimate | None
    """Highest over the rates; None where the plan has no SLO."""
    goodput_change: Relative | None


def measure_capacity(
    cells: Sequence[CellSummary],
    saturation: Mapping[str, CellSaturation],
    goodput_of: Callable[[CellSummary], Estimate] | None,
) -> tuple[CapacityCost, ...]:
    """One row for each config of Phase A, plain first. `saturation`: by `CellSummary.path`."""
    swept = [cell for cell in cells if cell.phase == "A" and not cell.degraded]
    configs = sorted({cell.config for cell in swept}, key=lambda config: (config not in (BASELINE, REPEAT), config))
    peaks = {config: _measure_peaks(_group_launches(swept, config), saturation) for config in configs}
    goodputs = {
        config: _measure_goodputs(_group_launches(swept, config), goodput_of) for config in configs if goodput_of
    }
    remedy = DESCRIPTIVE if any(cell.phase == CONFIRM for cell in cells) else TRIALS_REMEDY
    return tuple(
        _describe(config, _group_launches(swept, config), saturation, peaks, goodputs, remedy) for config in configs
    )


def _group_launches(cells: Sequence[CellSummary], config: str) -> dict[int, list[CellSummary]]:
    """The config's cells by trial, each by rising rate."""
    own = sorted((cell for cell in cells if cell.config == config), key=lambda cell: (cell.trial, cell.rate_per_s))
    launches: dict[int, list[CellSummary]] = {}
    for cell in own:
        launches.setdefault(cell.trial, []).append(cell)
    return launches


def _describe(
    config: str,
    launches: Mapping[int, Sequence[CellSummary]],
    saturation: Mapping[str, CellSaturation],
    peaks: Mapping[str, Measured],
    goodputs: Mapping[str, Measured],
    remedy: str,
) -> CapacityCost:
    """`remedy`: what gives a verdict where there are too few launches."""
    limits = [_find_limits(cells, saturation) for cells in launches.values()]
    is_plain = config in (BASELINE, REPEAT)
    goodput = goodputs.get(config)
    return CapacityCost(
        config=config,
        sustained_per_s=tuple(sustained for sustained, _ in limits),
        next_per_s=tuple(saturated for _, saturated in limits),
        peak_per_s=estimate(peaks[config]),
        peak_change=None if is_plain else _relate(peaks, config, remedy),
        goodput_per_s=None if goodput is None else estimate(goodput),
        goodput_change=None if is_plain or goodput is None else _relate(goodputs, config, remedy),
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


def _measure_peaks(launches: Mapping[int, Sequence[CellSummary]], saturation: Mapping[str, CellSaturation]) -> Measured:
    trials = {}
    for number, cells in launches.items():
        rates = [cell.value("effective_throughput_per_s") for cell in cells]
        known = [rate for rate in rates if rate is not None]
        if known and any(saturation[cell.path].saturated for cell in cells):
            trials[number] = _make_trial(max(known), len(cells))
    return Measured(trials) if trials else unmeasured("nothing saturated up to the highest rate measured")


def _measure_goodputs(
    launches: Mapping[int, Sequence[CellSummary]], goodput_of: Callable[[CellSummary], Estimate]
) -> Measured:
    trials = {}
    why: dict[str, None] = {}
    for number, cells in launches.items():
        found = [goodput_of(cell) for cell in cells]
        known = [one.value for one in found if one.value is not None]
        why |= dict.fromkeys(one.reason for one in found if one.reason)
        if known:
            trials[number] = _make_trial(max(known), len(cells))
    return Measured(trials, "; ".join(why)) if trials else unmeasured("; ".join(why) or "no cell has requests")


def _make_trial(value: float, n: int) -> Trial:
    return Trial(value, n, lambda: NO_SPREAD)


def _relate(rates: Mapping[str, Measured], config: str, remedy: str) -> Relative:
    """Against plain's; the intervals of all configs hold together (Bonferroni)."""
    family = sum(name not in (BASELINE, REPEAT) for name in rates)
    if BASELINE not in rates:
        change = Estimate(None, reason=f"{BASELINE} was not measured")
    else:
        change = estimate(combine(_divide, rates[config], rates[BASELINE]), 1 - (1 - LEVEL) / family)
    return Relative(change, judged(change), withheld(change, remedy=remedy))


def _divide(ours: Samples, base: Samples) -> Samples:
    return np.asarray(ours / base - 1, dtype=np.float64)


def capacity_table(rows: Sequence[CapacityCost], slo: Slo) -> Table:
    """With goodput where the plan has an SLO."""
    objective = f"Goodput: requests with {slo}, per second, at the best rate." if str(slo) else NO_SLO
    note = (
        "Sustained: the highest rate of the grid below the first saturated one (by launch); the limit is between the "
        f"two. Highest throughput: of launches that were saturated. From the sweep: descriptive where each config is "
        f"launched once in it. Changes hold for all configs together (Bonferroni). {objective}"
    )
    columns = CAPACITY_COLUMNS if str(slo) else CAPACITY_COLUMNS[:4]
    return make_table("Capacity", columns, rows, note)


DESCRIPTIVE = "the sweep before a confirm stage is descriptive, whatever `--trials` says"
NO_SLO = "Goodput needs an SLO: `--set slo.ttft_s=0.5 --set slo.tpot_s=0.05`."


def _sustained_text(row: CapacityCost) -> str:
    texts = []
    for sustained, saturated in dict.fromkeys(zip(row.sustained_per_s, row.next_per_s, strict=True)):
        low = "below the lowest rate" if sustained is None else f"{sustained:g}"
        if saturated is not None:
            texts.append(f"{low} (saturated at {saturated:g})")
        else:
            texts.append(NOT_MEASURED if sustained is None else f"at least {low}")
    return "; ".join(texts)


def _change_text(relative: Relative | None) -> str:
    if relative is None or relative.change.value is None:
        return NOT_MEASURED if relative is None else f"{NOT_MEASURED} ({relative.change.reason})"
    said = str(relative.verdict) if relative.verdict is not None else f"(no verdict: {relative.withheld})"
    return f"{relative.change.percent()} {said}"


CAPACITY_COLUMNS: tuple[Column[CapacityCost], ...] = (
    Column("config", lambda row: row.config),
    Column("sustained req/s", _sustained_text),
    Column("highest throughput req/s", lambda row: row.peak_per_s),
    Column("vs plain", lambda row: _change_text(row.peak_change)),
    Column("goodput req/s", lambda row: row.goodput_per_s),
    Column("goodput vs plain", lambda row: _change_text(row.goodput_change)),
)
