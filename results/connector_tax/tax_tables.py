"""The tables of taxes: at a load, what they consist of, and along rate and lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from results.connector_tax.analyze import Analysis
from results.connector_tax.combined_taxes import MOONCAKE, Additivity, Decomposition, TaxAmplification
from results.connector_tax.tax import RATIOS, REMAINDERS, TITLES, Metric, TaxRow, name_rate
from results.connector_tax.trends import Trend
from results.records.estimate import Estimate
from results.records.percent import format_percent
from results.report.table import NOT_MEASURED, Column, Table, Value, make_table
from results.report.terms import term
from results.statistics.judgement import Verdict, describe_excluded, judged, list_some
from results.statistics.trials import MIN_PAIRED

STEP_METRICS = (Metric.STEP_P50, Metric.ENGINE_STEP_P50, Metric.CALLBACK_P50, Metric.REMAINDER_P50)
ABOUT_ZERO = {Verdict.HIGHER: "above zero", Verdict.LOWER: "below zero"}
"""Verdict on a remainder, which is the difference of two costs: it is not higher or lower than plain's."""


def make_noise_floor_table(analysis: Analysis) -> Table:
    rows = [row for row in analysis.noise_floor if row.metric in RATIOS]
    note = (
        "The same config measured twice, launch by launch: whatever differs here is noise. Taxes are taken against the "
        "mean of both."
    )
    return _make_tax_table("Noise floor: plain against plain", (REFERENCE, RATE, SHAPE), rows, LATENCIES, note)


def make_latency_tax_table(analysis: Analysis) -> Table:
    rows = [row for row in analysis.taxes if row.phase == "A" and row.metric in RATIOS]
    return _make_tax_table(
        "Substrate tax (Phase A shape)", (REFERENCE, RATE, CONFIG), rows, LATENCIES, _note_taxes(rows)
    )


def make_shape_tax_table(analysis: Analysis) -> Table:
    rows = [row for row in analysis.taxes if row.phase != "A" and row.metric in RATIOS]
    return _make_tax_table("Tax by shape", (REFERENCE, SHAPE, CONFIG), rows, LATENCIES, _note_taxes(rows))


def make_step_tax_table(analysis: Analysis) -> Table:
    rows = [row for row in analysis.taxes if row.phase == "A" and row.metric in STEP_METRICS]
    titles = ("tax_step", "tax_engine_step", "tax_callback", "remainder")
    note = (
        "p50 per engine step against plain, microseconds. Remainder = tax_step - tax_callback: below zero where "
        "callbacks run in the worker, outside schedule()."
    )
    note = f"{note} {_note_withheld(rows)}".strip()
    return _make_tax_table("Step tax", (REFERENCE, RATE, CONFIG), rows, zip(STEP_METRICS, titles, strict=True), note)


REFERENCE: Column[TaxRow] = Column("reference", lambda row: name_rate(row.reference, row.rate_per_s))
RATE: Column[TaxRow] = Column("req/s", lambda row: row.rate_per_s, form="g")
SHAPE: Column[TaxRow] = Column("shape", lambda row: str(row.shape))
CONFIG: Column[TaxRow] = Column("config", lambda row: _mark_config(row))
LATENCIES = tuple((metric, f"{TITLES[metric]} vs plain") for metric in RATIOS)


def _make_tax_table(
    title: str, keys: Sequence[Column[TaxRow]], rows: Iterable[TaxRow], metrics: Iterable[tuple[Metric, str]], note: str
) -> Table:
    """One line per value of the keys, one column per metric, and what the brackets hold."""
    lines: dict[tuple[str, ...], dict[Metric, TaxRow]] = {}
    for row in rows:
        lines.setdefault(tuple(key.show(row) for key in keys), {})[row.metric] = row
    shown, titles = zip(*metrics, strict=True)
    cells, values = list[tuple[str, ...]](), list[tuple[Value, ...]]()
    for key, taxes in lines.items():
        own, bases = [taxes.get(metric) for metric in shown], _list_bases(taxes.values())
        cells.append((*key, *(NOT_MEASURED if row is None else _show_tax(row) for row in own), bases))
        values.append((*key, *(None if row is None else row.estimate for row in own), bases))
    headings = (*(key.heading for key in keys), *titles, "brackets")
    return Table(title, headings, tuple(cells), note, values=tuple(values))


def _mark_config(row: TaxRow) -> str:
    if not row.saturated:
        return row.config
    return f"{row.config} ({'saturated' if row.saturated == row.config else f'{row.saturated} saturated'})"


def _list_bases(rows: Iterable[TaxRow]) -> str:
    return "; ".join(dict.fromkeys(row.estimate.basis or "" for row in rows)).strip("; ") or NOT_MEASURED


def _note_withheld(rows: Iterable[TaxRow]) -> str:
    """Why taxes that were measured have no verdict, each reason once."""
    why = dict.fromkeys(row.withheld for row in rows if row.withheld and row.estimate.value is not None)
    return f"No verdict: {'; '.join(why)}." if why else ""


def _note_taxes(rows: Sequence[TaxRow]) -> str:
    return " ".join(filter(None, (_note_withheld(rows), _compare_own_spread(rows))))


def _compare_own_spread(rows: Iterable[TaxRow]) -> str:
    """The taxes that the spread of their own launches judges otherwise than the residual of all configs; both hold for
    each tax by itself. Empty where none has both."""
    count, texts = 0, list[str]()
    for row in rows:
        if row.verdict is None or row.own is None or row.alone is None:
            continue
        own, pooled = judged(row.own), judged(row.alone)
        if own is None or pooled is None:
            continue
        count += 1
        if own != pooled:
            where = f"{row.config} {TITLES[row.metric]} ({name_rate(row.reference, row.rate_per_s)}, {row.shape})"
            texts.append(f"{where} {row.own.percent()} {_name_verdict(own)}, not {_name_verdict(pooled)}")
    if not count:
        return ""
    by = "By the spread of each config's own launches (`own_low`, `own_high`), each tax by itself,"
    same = f"{count - len(texts)} of {count} verdicts are those of the residual that the configs share"
    return f"{by} {same}{f'; {list_some(texts)}' if texts else ''}."


def _name_verdict(verdict: Verdict) -> str:
    return "undecided" if verdict == Verdict.NOT_DISTINGUISHABLE else str(verdict)


def _show_tax(row: TaxRow) -> str:
    """The tax with its bounds and its verdict; a latency without a verdict says so."""
    if row.estimate.value is None:
        return f"{NOT_MEASURED} ({row.estimate.reason})"
    shown = row.estimate.percent() if row.metric in RATIOS else row.estimate.text(digits=3)
    if row.verdict == Verdict.NOT_DISTINGUISHABLE and row.metric in RATIOS:
        return f"{shown} undecided; {describe_excluded(row.estimate)}"
    if row.verdict is not None:
        word = ABOUT_ZERO.get(row.verdict, row.verdict) if row.metric in REMAINDERS else row.verdict
        return f"{shown} {word}"
    if row.metric not in RATIOS:
        return shown
    if row.estimate.low is None and row.estimate.high is None:
        return f"{shown} (n = {row.estimate.n}: no {'interval' if row.estimate.launches >= MIN_PAIRED else 'spread'})"
    return f"{shown} no verdict"


def make_contrast_tables(analysis: Analysis) -> tuple[Table, ...]:
    """Decomposition, additivity and amplification of the taxes at the reference rates."""
    parts = f"Framework = {term('framework cost').meaning}; implementation = {term('implementation cost').meaning}."
    queueing = f"Difference = {term('amplification by load').meaning}."
    alone, difference = "", ""
    if any(row.alone is not None for row in analysis.taxes):  # below three launches all brackets are spreads
        alone = "Brackets hold for each number by itself; those of the substrate tax hold for all configs together."
        difference = "Brackets at a rate hold by themselves, those of a difference for all configs at a shape together."
    latencies = [split for split in analysis.decomposition if split.metric in RATIOS]
    return (
        make_table("Decomposition at ref_safe", DECOMPOSITION_COLUMNS, latencies, f"{parts} {alone}".strip()),
        make_table("Additivity at ref_safe", ADDITIVITY_COLUMNS, analysis.additivity, alone),
        make_table(
            "Amplification by load", AMPLIFICATION_COLUMNS, analysis.amplification, f"{queueing} {difference}".strip()
        ),
    )


def make_trend_table(analysis: Analysis) -> Table:
    """Taxes along the lengths: every trend of mooncake_both, the mean of the others."""
    shown = [row for row in analysis.trends if row.at is None or row.config == MOONCAKE]
    slope = (
        f"Slope: {term('slope of a tax').meaning}. Steps: from one length to the next, their bounds jointly. Left out "
        "are shapes at which the config or plain is saturated, and shapes at another rate than most lengths."
    )
    return make_table("Taxes along the lengths (Phase B)", TREND_COLUMNS, shown, slope)


DECOMPOSITION_COLUMNS: tuple[Column[Decomposition], ...] = (
    Column("config", lambda row: row.config),
    Column("tax of", lambda row: TITLES[row.metric]),
    Column("total", lambda row: row.total.percent()),
    Column("framework", lambda row: row.framework.percent()),
    Column("implementation", lambda row: row.implementation.points()),
    Column("framework / total", lambda row: _show_with_reason(row.framework_share)),
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
AMPLIFICATION_COLUMNS: tuple[Column[TaxAmplification], ...] = (
    Column("config", lambda row: row.config),
    Column("shape", lambda row: str(row.shape)),
    Column("tax of", lambda row: TITLES[row.metric]),
    Column("at ref_safe", lambda row: row.safe.percent()),
    Column("at ref_load", lambda row: row.load.percent()),
    Column("difference", lambda row: f"{row.amplification.points()} {row.verdict or f'(no verdict: {row.withheld})'}"),
)


def _name_line(row: Trend) -> str:
    across = "output" if row.along == "input_tokens" else "input"
    return f"mean over {across} lengths" if row.at is None else f"{across} {row.at}"


def _format_line_taxes(row: Trend) -> str:
    taxes = (NOT_MEASURED if tax.value is None else format_percent(tax.value, 1, signed=True) for tax in row.taxes)
    return ", ".join(f"{length}: {tax}" for length, tax in zip(row.lengths, taxes, strict=True))


TREND_COLUMNS: tuple[Column[Trend], ...] = (
    Column("config", lambda row: row.config),
    Column("tax of", lambda row: TITLES[row.metric]),
    Column("along", lambda row: row.along),
    Column("at", _name_line),
    Column("per doubling", lambda row: row.slope.points()),
    Column("taxes", _format_line_taxes),
    Column("steps", lambda row: "; ".join(step.points() for step in row.steps)),
    Column("left out", lambda row: "; ".join(row.left_out)),
)


def _show_with_reason(estimate: Estimate) -> str:
    """The estimate, or why there is none."""
    without = estimate.low is None or estimate.high is None
    return f"{estimate.percent()} ({estimate.reason})" if without and estimate.reason else estimate.percent()
