"""The tables of a report that conclude: verdicts, criteria, what the taxes say together, drift."""

from __future__ import annotations

from results.connector_tax.analyse import Analysis
from results.connector_tax.combined_taxes import FRAMEWORK, MOONCAKE, Additivity, Amplification, Decomposition, Trend
from results.connector_tax.tax import TITLES
from results.measures.drift import Drift
from results.report.judgements import judgement_table
from results.report.table import NOT_MEASURED, Column, Table, make_table
from results.statistics.estimates import Estimate


def judgement_tables(analysis: Analysis) -> tuple[Table, ...]:
    note = "A spread within the launch does not hold what two launches differ by: no verdict rests on one."
    return (
        judgement_table("Hypotheses", "hypothesis", analysis.verdicts, note),
        judgement_table("Success criteria", "criterion", analysis.criteria),
    )


def contrast_tables(analysis: Analysis) -> tuple[Table, ...]:
    """What the taxes at the reference rates say together."""
    parts = f"Framework = the tax of {FRAMEWORK}; implementation = the config's tax - the framework's."
    queueing = "Difference = tax(ref_load) - tax(ref_safe): what queueing adds to the cost of the steps themselves."
    return (
        make_table("Decomposition at ref_safe", DECOMPOSITION_COLUMNS, analysis.decomposition, parts),
        make_table("Additivity at ref_safe", ADDITIVITY_COLUMNS, analysis.additivity),
        make_table("Amplification by load", AMPLIFICATION_COLUMNS, analysis.amplification, queueing),
    )


def trend_tables(analysis: Analysis) -> tuple[Table, ...]:
    """Taxes along the lengths (every line of mooncake_both, the mean of the others), and drift over the run."""
    shown = [row for row in analysis.trends if row.at is None or row.config == MOONCAKE]
    slope = "Slope: least squares over log2 of the length. Steps: from one length to the next, their bounds jointly."
    drift = "A config against itself under the same load at another time: what moved is not the config's."
    return (
        make_table("Taxes along the lengths (Phase B)", TREND_COLUMNS, shown, slope),
        make_table("Drift over the run", DRIFT_COLUMNS, analysis.drift if analysis.cells else (), drift),
    )


DECOMPOSITION_COLUMNS: tuple[Column[Decomposition], ...] = (
    Column("config", lambda row: row.config),
    Column("tax of", lambda row: TITLES[row.metric]),
    Column("total", lambda row: row.total.percent()),
    Column("framework", lambda row: row.framework.percent()),
    Column("implementation", lambda row: row.implementation.points()),
    Column("framework / total", lambda row: _with_reason(row.framework_share)),
)
ADDITIVITY_COLUMNS: tuple[Column[Additivity], ...] = (
    Column("tax of", lambda row: TITLES[row.metric]),
    Column("mooncake_both", lambda row: row.mooncake.percent()),
    Column("lmcache_only", lambda row: row.lmcache.percent()),
    Column("sum", lambda row: row.total.percent()),
    Column("multi", lambda row: row.multi.percent()),
    Column("(multi - sum) / multi", lambda row: row.relative_excess.percent()),
    Column("verdict", lambda row: f"{row.verdict}: {row.reason}" if row.reason else str(row.verdict)),
)
AMPLIFICATION_COLUMNS: tuple[Column[Amplification], ...] = (
    Column("config", lambda row: row.config),
    Column("shape", lambda row: str(row.shape)),
    Column("tax of", lambda row: TITLES[row.metric]),
    Column("at ref_safe", lambda row: row.safe.percent()),
    Column("at ref_load", lambda row: row.load.percent()),
    Column(
        "difference", lambda row: f"{row.amplification.points()} {row.verdict or f'(no verdict: {row.withheld})'}"
    ),
)


def _line_name(row: Trend) -> str:
    across = "output" if row.along == "input_tokens" else "input"
    return f"mean over {across} lengths" if row.at is None else f"{across} {row.at}"


def _line_taxes(row: Trend) -> str:
    taxes = (NOT_MEASURED if tax.value is None else f"{tax.value:+.1%}" for tax in row.taxes)
    return ", ".join(f"{length}: {tax}" for length, tax in zip(row.lengths, taxes, strict=True))


TREND_COLUMNS: tuple[Column[Trend], ...] = (
    Column("config", lambda row: row.config),
    Column("tax of", lambda row: TITLES[row.metric]),
    Column("along", lambda row: row.along),
    Column("at", _line_name),
    Column("per doubling", lambda row: row.slope.points()),
    Column("taxes", _line_taxes),
    Column("steps", lambda row: "; ".join(step.points() for step in row.steps)),
)
DRIFT_COLUMNS: tuple[Column[Drift], ...] = (
    Column("median of", lambda row: {"ttft_p50_s": "TTFT", "tpot_p50_s": "TPOT"}[row.series]),
    Column("change per hour", lambda row: row.slope_per_h.percent()),
    Column("over", lambda row: None if row.span_h is None else f"{row.span_h:.2f} h"),
    Column("verdict", lambda row: str(row.verdict)),
    Column("why", lambda row: row.reason),
)


def _with_reason(estimate: Estimate) -> str:
    """The estimate, or why there is none."""
    without = estimate.low is None or estimate.high is None
    return f"{estimate.percent()} ({estimate.reason})" if without and estimate.reason else estimate.percent()
