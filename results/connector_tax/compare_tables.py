"""A comparison of two runs as text tables, with what it does not say."""

from __future__ import annotations

from collections import Counter

from results.connector_tax.compare import Comparison, LatencyChange, RateChange, TaxChange
from results.connector_tax.differences import Difference
from results.connector_tax.tax import TITLES
from results.measures.saturation import describe_rate
from results.report.content import ReportText
from results.report.table import NOT_MEASURED, Column, Table, make_table
from results.statistics.estimates import Estimate
from results.statistics.judgement import Verdict
from results.statistics.trials import MIN_PAIRED

PACKAGES = "packages"
MOST = 60
"""Differences shown; the rest is counted."""
_LATENCIES = {"ttft_p90_s": "TTFT p90", "tpot_p90_s": "TPOT p90"}


def describe_comparison(comparison: Comparison) -> ReportText:
    """Which run is which, how many latencies moved, the tables with rows, and what the numbers do not say."""
    counts = Counter(str(change.verdict or "no verdict") for change in comparison.latencies)
    moves = ", ".join(f"{counts[word]} {word}" for word in (*map(str, Verdict), "no verdict") if counts[word])
    first, second = comparison.first, comparison.second
    opening = (
        f"{first.experiment}: first = {first.run} on {first.label}, second = {second.run} on {second.label}. "
        f"{len(comparison.latencies)} latencies in both, in the second against the first: {moves}."
    )
    candidates = (
        make_table("Reference rates", RATE_COLUMNS, comparison.rates),
        make_table("Taxes", TAX_COLUMNS, comparison.taxes, "Differences in percentage points."),
        make_table("Latencies", LATENCY_COLUMNS, comparison.latencies),
        _difference_table(comparison),
        _unmatched_table(comparison),
    )
    return ReportText(opening, tuple(table for table in candidates if table.rows), _list_limits(comparison))


def _list_limits(comparison: Comparison) -> tuple[str, ...]:
    limits = [
        "A difference belongs to everything that differed between the two runs: what is listed, and what no file "
        "captured (temperature, neighbours on the host). One run on each side cannot tell which."
    ]
    if any(change.change.launches < MIN_PAIRED for change in comparison.latencies):
        limits.append(
            f"At least one side was measured in fewer than {MIN_PAIRED} launches per config. Its brackets hold the "
            "spread within the launch, not what two launches differ by: nothing measured so is called higher or lower. "
            f"Runs made with `--trials {MIN_PAIRED}` give verdicts."
        )
    return tuple(limits)


def _tax_rates(change: TaxChange) -> str:
    rates = (change.first_rate_per_s, change.second_rate_per_s)
    return " / ".join(dict.fromkeys(f"{rate:g}" for rate in rates if rate is not None))


def _judged_text(estimate: Estimate, change: LatencyChange | TaxChange, unit: str) -> str:
    """The estimate with its verdict, or why there is none."""
    if estimate.value is None:
        return f"{NOT_MEASURED} ({estimate.reason})"
    shown = estimate.percent().replace("%", unit)
    if change.verdict is not None:
        return f"{shown} {change.verdict}"
    few = estimate.launches < MIN_PAIRED
    return f"{shown} ({'spread: no verdict' if few else f'no verdict: {change.withheld}'})"


RATE_COLUMNS: tuple[Column[RateChange], ...] = (
    Column("", lambda row: row.reference),
    Column("first", lambda row: describe_rate(row.first_per_s)),
    Column("second", lambda row: describe_rate(row.second_per_s)),
    Column("limited by (first)", lambda row: row.first_reason),
    Column("limited by (second)", lambda row: row.second_reason),
)
TAX_COLUMNS: tuple[Column[TaxChange], ...] = (
    Column("reference", lambda row: row.reference),
    Column("req/s", _tax_rates),
    Column("shape", lambda row: str(row.shape)),
    Column("config", lambda row: row.config),
    Column("tax", lambda row: TITLES[row.metric]),
    Column("first", lambda row: row.first.percent()),
    Column("second", lambda row: row.second.percent()),
    Column("second - first", lambda row: _judged_text(row.difference, row, " pp")),
)
LATENCY_COLUMNS: tuple[Column[LatencyChange], ...] = (
    Column("req/s", lambda row: row.load.rate_per_s, form="g"),
    Column("shape", lambda row: str(row.load.shape)),
    Column("config", lambda row: row.config),
    Column("", lambda row: _LATENCIES[row.value]),
    Column("first", lambda row: row.first, "ms", scale=1e3),
    Column("second", lambda row: row.second, "ms", scale=1e3),
    Column("second / first - 1", lambda row: _judged_text(row.change, row, "%")),
)


def _difference_table(comparison: Comparison) -> Table:
    rows = sorted(comparison.differences, key=lambda row: row.where.startswith(PACKAGES))
    if not rows:
        rows = [Difference(NOT_MEASURED, "nothing that was captured", "", "")]
    rest = len(rows) - MOST
    note = f"And {rest} more, in the JSON." if rest > 0 else ""
    return make_table("What differed", DIFFERENCE_COLUMNS, rows[:MOST], note)


def _shorten(text: str | None) -> str:
    if text is None:
        return "(absent)"
    return text if len(text) <= 80 else text[:77] + "..."


DIFFERENCE_COLUMNS: tuple[Column[Difference], ...] = (
    Column("where", lambda row: row.where),
    Column("what", lambda row: row.what),
    Column("first", lambda row: _shorten(row.first)),
    Column("second", lambda row: _shorten(row.second)),
)


def _unmatched_table(comparison: Comparison) -> Table:
    sides = (("first", comparison.only_first), ("second", comparison.only_second))
    rows = tuple((side, "; ".join(cells)) for side, cells in sides if cells)
    return Table("Cells of one run only", ("run", "cells"), rows)
