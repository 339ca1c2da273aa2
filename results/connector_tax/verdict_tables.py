"""The tables of a report that conclude: verdicts, criteria, what the taxes say together, drift."""

from __future__ import annotations

from results.connector_tax.analyse import Analysis
from results.connector_tax.combined_taxes import FRAMEWORK, MOONCAKE, Additivity, Amplification, Decomposition, Trend
from results.connector_tax.tax import Metric
from results.measures.drift import Drift
from results.report.judgements import judgement_table, rules_table
from results.report.table import NOT_MEASURED, Table
from results.statistics.estimates import Estimate

_LATENCY = {Metric.TTFT_P90: "TTFT p90", Metric.TPOT_P90: "TPOT p90"}


def verdicts(analysis: Analysis) -> Table:
    """H1 to H6."""
    note = "A spread within the launch does not hold what two launches differ by: no verdict rests on one."
    return judgement_table("Hypotheses", "hypothesis", analysis.verdicts, note)


def criteria(analysis: Analysis) -> Table:
    """The success criteria."""
    return judgement_table("Success criteria", "criterion", analysis.criteria)


def rules(analysis: Analysis) -> Table:
    """How each verdict and criterion is decided."""
    return rules_table((*analysis.verdicts, *analysis.criteria))


def decomposition(analysis: Analysis) -> Table:
    """Framework and implementation cost per config."""
    note = f"Framework = the tax of {FRAMEWORK}; implementation = the config's tax - the framework's."
    columns = ("config", "tax of", "total", "framework", "implementation", "framework / total")
    return Table("Decomposition at ref_safe", columns, tuple(map(_decomposition, analysis.decomposition)), note)


def _decomposition(row: Decomposition) -> tuple[str, ...]:
    parts = (row.total.percent(), row.framework.percent(), row.implementation.points())
    return (row.config, _LATENCY[row.metric], *parts, _with_reason(row.framework_share))


def additivity(analysis: Analysis) -> Table:
    """Whether stacked connectors cost the sum of both."""
    columns = ("tax of", "mooncake_both", "lmcache_only", "sum", "multi", "(multi - sum) / multi", "verdict")
    return Table("Additivity at ref_safe", columns, tuple(map(_additivity, analysis.additivity)))


def _additivity(row: Additivity) -> tuple[str, ...]:
    parts = (row.mooncake, row.lmcache, row.total, row.multi, row.relative_excess)
    verdict = f"{row.verdict}: {row.reason}" if row.reason else str(row.verdict)
    return (_LATENCY[row.metric], *(part.percent() for part in parts), verdict)


def amplification(analysis: Analysis) -> Table:
    """What queueing adds to each tax."""
    note = "Difference = tax(ref_load) - tax(ref_safe): what queueing adds to the cost of the steps themselves."
    columns = ("config", "shape", "tax of", "at ref_safe", "at ref_load", "difference")
    return Table("Amplification by load", columns, tuple(map(_amplification, analysis.amplification)), note)


def _amplification(row: Amplification) -> tuple[str, ...]:
    difference = f"{row.amplification.points()} {row.verdict or f'(no verdict: {row.withheld})'}"
    return (row.config, str(row.shape), _LATENCY[row.metric], row.safe.percent(), row.load.percent(), difference)


def trends(analysis: Analysis) -> Table:
    """Taxes along the lengths: every line of mooncake_both, the mean of the others."""
    shown = [row for row in analysis.trends if row.at is None or row.config == MOONCAKE]
    note = "Slope: least squares over log2 of the length. Steps: from one length to the next, their bounds jointly."
    columns = ("config", "tax of", "along", "at", "per doubling", "taxes", "steps")
    return Table("Taxes along the lengths (Phase B)", columns, tuple(map(_trend, shown)), note)


def _trend(row: Trend) -> tuple[str, ...]:
    across = "output" if row.along == "input_tokens" else "input"
    return (
        row.config,
        _LATENCY[row.metric],
        row.along,
        f"mean over {across} lengths" if row.at is None else f"{across} {row.at}",
        row.slope.points(),
        ", ".join(f"{length}: {_value(tax)}" for length, tax in zip(row.lengths, row.taxes, strict=True)),
        "; ".join(step.points() for step in row.steps),
    )


def drift(analysis: Analysis) -> Table:
    """Whether latencies moved over the run."""
    rows = tuple(_drift(row) for row in analysis.drift) if analysis.cells else ()
    note = "A config against itself under the same load at another time: what moved is not the config's."
    return Table("Drift over the run", ("median of", "change per hour", "over", "verdict", "why"), rows, note)


def _drift(row: Drift) -> tuple[str, ...]:
    series = {"ttft_p50_s": "TTFT", "tpot_p50_s": "TPOT"}[row.series]
    span = NOT_MEASURED if row.span_h is None else f"{row.span_h:.2f} h"
    return (series, row.slope_per_h.percent(), span, str(row.verdict), row.reason)


def _with_reason(found: Estimate) -> str:
    """The estimate, or why there is none."""
    without = found.low is None or found.high is None
    return f"{found.percent()} ({found.reason})" if without and found.reason else found.percent()


def _value(found: Estimate) -> str:
    return NOT_MEASURED if found.value is None else f"{found.value:+.1%}"
