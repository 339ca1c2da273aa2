"""A comparison of two runs as text tables, with what it does not say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from results.connector_tax.compare import Comparison, LatencyChange, TaxChange
from results.connector_tax.tax import Metric
from results.report.table import NOT_MEASURED, Table
from results.statistics.estimates import Estimate
from results.statistics.judgement import Verdict
from results.statistics.trials import MIN_PAIRED

PACKAGES = "packages"
MOST = 60
"""Differences shown; the rest is counted."""


def comparison_tables(found: Comparison) -> tuple[Table, ...]:
    """Every table that has rows, in reading order."""
    made = (_reference_rates(found), _taxes(found), _latencies(found), _differences(found), _unmatched(found))
    return tuple(table for table in made if table.rows)


def comparison_limits(found: Comparison) -> tuple[str, ...]:
    """What the numbers do not say: part of every comparison."""
    lines = [
        "A difference belongs to everything that differed between the two runs: what is listed, and what no file "
        "captured (temperature, neighbours on the host). One run on each side cannot tell which."
    ]
    once = [change for change in found.latencies if change.change.launches < MIN_PAIRED]
    if once:
        lines.append(
            f"At least one side was measured in fewer than {MIN_PAIRED} launches per config. Its brackets hold the "
            "spread within the launch, not what two launches differ by: nothing measured so is called higher or lower. "
            f"Runs made with `--trials {MIN_PAIRED}` give verdicts."
        )
    return tuple(lines)


def headline(found: Comparison) -> str:
    """Which run is which, and how many latencies moved."""
    counts = Counter(str(change.verdict or "no verdict") for change in found.latencies)
    said = ", ".join(f"{counts[word]} {word}" for word in (*map(str, Verdict), "no verdict") if counts[word])
    return (
        f"{found.first.experiment}: first = {found.first.run} on {found.first.label}, second = {found.second.run} "
        f"on {found.second.label}. {len(found.latencies)} latencies in both, in the second against the first: {said}."
    )


def _reference_rates(found: Comparison) -> Table:
    rows = tuple(
        (rate.reference, _rate(rate.first_per_s), _rate(rate.second_per_s), rate.first_reason, rate.second_reason)
        for rate in found.rates
    )
    return Table("Reference rates", ("", "first", "second", "limited by (first)", "limited by (second)"), rows)


def _taxes(found: Comparison) -> Table:
    columns = ("reference", "req/s", "shape", "config", "tax", "first", "second", "second - first")
    return Table(
        "Taxes", columns, tuple(_tax_row(change) for change in found.taxes), "Differences in percentage points."
    )


def _tax_row(change: TaxChange) -> tuple[str, ...]:
    rates = dict.fromkeys(
        _rate(rate) for rate in (change.first_rate_per_s, change.second_rate_per_s) if rate is not None
    )
    return (
        change.reference,
        " / ".join(rates).replace(" req/s", ""),
        str(change.shape),
        change.config,
        "TTFT p90" if change.metric == Metric.TTFT_P90 else "TPOT p90",
        change.first.percent(),
        change.second.percent(),
        _judged(change.difference, change, "pp"),
    )


def _latencies(found: Comparison) -> Table:
    columns = ("req/s", "shape", "config", "", "first ms", "second ms", "second / first - 1")
    return Table("Latencies", columns, tuple(_latency_row(change) for change in found.latencies))


def _latency_row(change: LatencyChange) -> tuple[str, ...]:
    return (
        f"{change.load.rate_per_s:g}",
        str(change.load.shape),
        change.config,
        "TTFT p90" if change.value == "ttft_p90_s" else "TPOT p90",
        change.first.text(scale=1e3),
        change.second.text(scale=1e3),
        _judged(change.change, change, "%"),
    )


def _judged(estimate: Estimate, change: LatencyChange | TaxChange, unit: str) -> str:
    """The estimate with its verdict, or why there is none."""
    if estimate.value is None:
        return f"{NOT_MEASURED} ({estimate.reason})"
    shown = estimate.percent().replace("%", " pp") if unit == "pp" else estimate.percent()
    if change.verdict is not None:
        return f"{shown} {change.verdict}"
    few = estimate.launches < MIN_PAIRED
    return f"{shown} ({'spread: no verdict' if few else f'no verdict: {change.withheld}'})"


def _differences(found: Comparison) -> Table:
    rows = [
        (of.where, of.what, _shown(of.first), _shown(of.second))
        for of in sorted(found.differences, key=lambda of: of.where.startswith(PACKAGES))
    ]
    if not rows:
        rows = [("-", "nothing that was captured", "", "")]
    rest = len(rows) - MOST
    note = f"And {rest} more, in the JSON." if rest > 0 else ""
    return Table("What differed", ("where", "what", "first", "second"), tuple(rows[:MOST]), note)


def _unmatched(found: Comparison) -> Table:
    rows = [("first", _list(found.only_first)), ("second", _list(found.only_second))]
    return Table("Cells of one run only", ("run", "cells"), tuple(row for row in rows if row[1]))


def _list(cells: Sequence[str]) -> str:
    return "; ".join(cells)


def _shown(text: str | None) -> str:
    if text is None:
        return "(absent)"
    return text if len(text) <= 80 else text[:77] + "..."


def _rate(value: float | None) -> str:
    return "none" if value is None else f"{value:g} req/s"
