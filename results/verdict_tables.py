"""The tables of a report that conclude: verdicts, criteria, what the taxes say together, drift."""

from __future__ import annotations

from results.contrasts import FRAMEWORK, MOONCAKE, Additivity, Amplification, Decomposition, Trend
from results.drift import Drift
from results.findings import Analysis
from results.statistics import Estimate
from results.table import NOT_MEASURED, Table
from results.tax import Metric

_LATENCY = {Metric.TTFT_P90: "TTFT p90", Metric.TPOT_P90: "TPOT p90"}


def verdicts(analysis: Analysis) -> Table:
    """H1 to H6."""
    rows = tuple(
        (
            verdict.name,
            verdict.claim,
            f"{verdict.outcome}{': ' if verdict.label else ''}{verdict.label}",
            verdict.reason,
            verdict.prior or NOT_MEASURED,
            verdict.measured.basis or NOT_MEASURED,
        )
        for verdict in analysis.verdicts
    )
    note = (
        "The interval decides; the rules stand at the end. An interval within one launch does not hold what varies "
        "between launches: a verdict that rests on one may change when the run is repeated with trials."
    )
    return Table("Hypotheses", ("", "hypothesis", "verdict", "why", "prior", "interval"), rows, note)


def criteria(analysis: Analysis) -> Table:
    """The success criteria."""
    rows = tuple(
        (str(criterion.number), criterion.title, str(criterion.outcome), criterion.reason)
        for criterion in analysis.criteria
    )
    return Table("Success criteria", ("", "criterion", "outcome", "why"), rows)


def rules(analysis: Analysis) -> Table:
    """How each verdict and criterion is decided."""
    judged = [(verdict.name, verdict.quantity, verdict.rule) for verdict in analysis.verdicts]
    judged += [(f"criterion {criterion.number}", NOT_MEASURED, criterion.rule) for criterion in analysis.criteria]
    return Table("Rules", ("", "about", "rule"), tuple(judged))


def decomposition(analysis: Analysis) -> Table:
    """Framework and implementation cost per config."""
    note = f"Framework = the tax of {FRAMEWORK}; implementation = the config's tax - the framework's."
    columns = ("config", "tax of", "total", "framework", "implementation", "framework / total")
    return Table("Decomposition at ref_safe", columns, tuple(map(_decomposition, analysis.decomposition)), note)


def _decomposition(row: Decomposition) -> tuple[str, ...]:
    parts = (row.total.percent(), row.framework.percent(), row.implementation.points(), _told(row.framework_share))
    return (row.config, _LATENCY[row.metric], *parts)


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
    told = f"{row.amplification.points()} {row.verdict or f'({row.amplification.reason})'}"
    return (row.config, str(row.shape), _LATENCY[row.metric], row.safe.percent(), row.load.percent(), told)


def trends(analysis: Analysis) -> Table:
    """Taxes along the lengths: every line of mooncake_both, the mean of the others."""
    shown = [row for row in analysis.trends if row.at is None or row.config == MOONCAKE]
    note = "Slope: least squares over log2 of the length. Steps: from one length to the next, their intervals jointly."
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


def _told(found: Estimate) -> str:
    """The estimate, or why there is none."""
    without = found.low is None or found.high is None
    return f"{found.percent()} ({found.reason})" if without and found.reason else found.percent()


def _value(found: Estimate) -> str:
    return NOT_MEASURED if found.value is None else f"{found.value:+.1%}"
