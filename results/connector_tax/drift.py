"""Whether the latencies of load cells moved over the run: each config's cells under one load repeat one another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from results.connector_tax.summary import CellSummary
from results.measures.drift import Drift, estimate_drift

SERIES = ("ttft_p50_s", "tpot_p50_s")
"""Medians, the least noisy percentiles: a drift moves the whole distribution."""
_ACROSS = "the same load in Phase A and in Phase B or B': what differs between the phases for another reason counts too"


def measure_drifts(summaries: Iterable[CellSummary]) -> tuple[Drift, ...]:
    """The drift of each of SERIES over these cells; the caller leaves out those that are degraded or saturated.

    A run with several trials is judged by its repeated cells, another by the loads that two phases share.
    """
    cells = list(summaries)
    return tuple(_measure_drift(name, cells) for name in SERIES)


def _measure_drift(series: str, cells: Sequence[CellSummary]) -> Drift:
    if len({cell.trial for cell in cells}) > 1:
        groups, what = _group_repeats(series, cells, lambda cell: cell.phase), "cells repeated in trials"
    else:
        groups, what = _group_repeats(series, cells, lambda cell: ""), _ACROSS
    timed = {
        config: [[(cell.t_start_unix_s, cell.value(series) or 0.0) for cell in cells] for cells in repeats]
        for config, repeats in groups.items()
    }
    return estimate_drift(series, timed, what, short="configs have a load that was measured twice")


def _group_repeats(
    series: str, cells: Sequence[CellSummary], kind: Callable[[CellSummary], str]
) -> dict[str, list[list[CellSummary]]]:
    """By config, the groups of cells that repeat one another, at least two in each."""
    by_load: dict[tuple[str, str, float, str], list[CellSummary]] = defaultdict(list)
    for cell in cells:
        value = cell.value(series)
        if value is not None and value > 0:
            by_load[cell.config, kind(cell), cell.rate_per_s, str(cell.shape)].append(cell)
    groups: dict[str, list[list[CellSummary]]] = defaultdict(list)
    for (config, *_), repeats in by_load.items():
        if len(repeats) > 1:
            groups[config].append(repeats)
    return groups
