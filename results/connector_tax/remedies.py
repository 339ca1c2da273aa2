"""What would decide a hypothesis that a run leaves open: more launches, with their duration, or a calmer host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from results.connector_tax.analyze import Analysis
from results.connector_tax.launch_noise import NAMED_TAX, LaunchNoise
from results.connector_tax.launches import describe_time
from results.connector_tax.summary import CellSummary
from results.records.estimate import figure
from results.records.percent import format_percent
from results.records.reference_rates import REF_SAFE
from results.statistics.blocks import MAX_PLANNED_LAUNCHES, TO_HALVE
from results.statistics.judgement import Judgement, Outcome
from results.statistics.trials import MIN_PAIRED

MOST_LAUNCHES = 40
"""Per config; above it a calmer host is the better remedy."""


def find_remedy(analysis: Analysis, judgement: Judgement) -> str:
    """What would decide a judgement that is open or undecided."""
    if judgement.outcome == Outcome.OPEN:
        return "a run that measures what each sentence names as missing"
    rows = [row for row in analysis.launch_noise if (row.phase, row.reference) == ("A", REF_SAFE)]
    if not rows:
        return "more launches per config (`--trials N`): what two launches of one config differ by is not known"
    needed = count_for_named(rows)
    launches = max(*(row.launches for row in rows), MIN_PAIRED)
    if needed is not None and needed <= launches:
        return _halve_intervals(rows, launches, analysis.cells)
    if needed is None or needed > MOST_LAUNCHES:
        return _describe_calm_host(rows, needed, analysis.cells)
    single = "" if judgement.name == "H1" else "single "
    return f"{name_launches(needed, analysis.cells)}, which detect a {single}tax of {format_percent(NAMED_TAX)}"


def count_for_named(rows: Iterable[LaunchNoise]) -> int | None:
    """Launches per config that detect NAMED_TAX in every latency; None = more than can be planned."""
    needed = [row.launches_for_named for row in rows]
    return None if None in needed else max(count or 0 for count in needed)


def name_launches(count: int, cells: Sequence[CellSummary]) -> str:
    """`12 launches per config (`--trials 12`, about 5 h)`."""
    return f"{count} launches per config (`--trials {count}`{describe_time(count, cells)})"


def _halve_intervals(rows: Sequence[LaunchNoise], launches: int, cells: Sequence[CellSummary]) -> str:
    more = name_launches(TO_HALVE * launches, cells)
    sigma = math.expm1(math.log1p(max(row.sigma for row in rows)) / 2)
    calmer = f"a host with half the noise (a sigma of {show_percent(sigma)})"
    first, second = (calmer, more) if TO_HALVE * launches > MOST_LAUNCHES else (more, calmer)
    return f"{first}, or {second}: either about halves its interval"


def _describe_calm_host(rows: Sequence[LaunchNoise], needed: int | None, cells: Sequence[CellSummary]) -> str:
    wanted = min((row.sigma_for_named for row in rows if row.sigma_for_named is not None), default=None)
    here = show_percent(max(row.sigma for row in rows))
    calmer = "a calmer host first" + ("" if wanted is None else f", with a sigma of at most {show_percent(wanted)}")
    count = max(min(row.launches for row in rows), MIN_PAIRED)
    more = f"more than {MAX_PLANNED_LAUNCHES} launches" if needed is None else name_launches(needed, cells)
    detects = f"there {count} launches per config detect a single tax of {format_percent(NAMED_TAX)}"
    return f"{calmer}: {detects}; at the sigma here, {here}, it takes {more}"


def show_percent(fraction: float) -> str:
    """With two significant digits: `0.95 %`, `12 %`."""
    return f"{figure(fraction * 100, 2)} %"
