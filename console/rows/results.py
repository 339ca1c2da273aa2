"""Taxes, verdicts and reference rates as rows. Import only where there is an analysis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from console import format as say
from console.glyphs import Glyphs
from console.rows.sections import Section, ToneOf, blank_row, heading_row, text_row, wrap_text, wrapped_rows
from console.widgets.table import Cell, Column, Row, cell
from results.connector_tax.analyse import Analysis
from results.connector_tax.tax import RATIOS, Metric, TaxRow
from results.measures.saturation import REF_LOAD, REF_SAFE, ConfigSaturation
from results.measures.saturation_criteria import GROWTH, QUEUE, THROUGHPUT, CellSaturation, Criterion
from results.statistics.estimates import Estimate
from results.statistics.judgement import Outcome, Verdict
from results.statistics.trials import SPREAD

CONFIG = 22
"""Characters of the longest config's name."""
BESIDE = 117
"""From this width on, both taxes are beside each other."""
_NAMES = {Metric.TTFT_P90: "TTFT p90", Metric.TPOT_P90: "TPOT p90"}
_VERDICT_TONES = {Verdict.HIGHER: "warn", Verdict.LOWER: "good", Verdict.NOT_DISTINGUISHABLE: "dim"}
_OUTCOME_TONES: dict[str, tuple[str, str]] = {
    Outcome.HOLDS: ("done", "good"),
    Outcome.FAILS: ("failed", "warn"),
}
NO_VERDICT = "no verdict"
_CRITERIA = {THROUGHPUT: "throughput / rate", QUEUE: "waiting p50", GROWTH: "TTFT p90 growth"}

_Load = tuple[str, str, float, str]
"""Phase, reference, rate, shape."""


def tax_section(analysis: Analysis, width: int, tone: ToneOf) -> Section:
    """TTFT and TPOT p90 of every config against plain: at both reference rates, then per shape."""
    ratios = [row for row in analysis.taxes if row.metric in RATIOS]
    loads = [(load, list(rows)) for load, rows in groupby(sorted(ratios, key=_order), key=load_of)]
    bases = " or ".join(dict.fromkeys(row.estimate.basis for row in ratios if row.verdict and row.estimate.basis))
    note = (
        f"p90 over plain's at the same load; brackets: {_brackets(ratios)}{f', {bases}' if bases else ''}. "
        "sat.: saturated there, the tax includes its queue. enter: all numbers."
    )
    both = width >= BESIDE
    groups = [tuple(RATIOS)] if both else [(metric,) for metric in RATIOS]
    columns = _tax_columns(groups[0], "interval" if any(row.verdict for row in ratios) else "spread")
    rows: list[Row] = []
    for load, members in loads:
        for metrics in groups:
            what = "" if both else f"{_NAMES[metrics[0]]} over plain"
            rows += [
                *([blank_row(f"blank {load} {metrics}", len(columns))] if rows else []),
                heading_row(f"head {load} {metrics}", _load_name(load), len(columns), what),
                *_tax_rows(analysis, members, metrics, tone),
            ]
    for name in (REF_SAFE, REF_LOAD):
        if analysis.rates.rate(name) is None:
            rows.append(heading_row(f"none {name}", name, len(columns), f"none: {analysis.rates.reason_for(name)}"))
    return Section(columns, tuple(rows), note, "no tax yet: it needs plain and another config at one load")


def _brackets(rows: Sequence[TaxRow]) -> str:
    """What the brackets hold; without a verdict, why, and what would give one."""
    if any(row.verdict for row in rows):
        return "95 % intervals"
    why = next((row.withheld for row in rows if row.estimate.value is not None and row.withheld), "")
    return f"95 % {SPREAD}{f'. No verdict: {why}' if why else ''}"


def load_of(row: TaxRow) -> _Load:
    """The load a tax was measured at."""
    return row.phase, row.reference, row.rate_per_s, str(row.shape)


def tax_key(load: _Load, config: str) -> str:
    """The key of a config's row at one load."""
    return f"tax {load[0]} {load[1]} {load[2]:g} {load[3]} {config}"


def _order(row: TaxRow) -> tuple[object, ...]:
    phases = ("A", "B", "Bp")
    return (phases.index(row.phase), row.reference != REF_SAFE, row.rate_per_s, row.shape.input_tokens,
            row.shape.output_tokens)  # fmt: skip


def _load_name(load: _Load) -> str:
    phase, reference, rate, shape = load
    return f"{reference}  {rate:g} req/s  {shape} tokens" + ("" if phase == "A" else f"  phase {phase}")


def _tax_columns(metrics: Sequence[Metric], bounds: str) -> tuple[Column, ...]:
    columns = [Column("config", "config", CONFIG, left=True)]
    for metric in metrics:
        beside = len(metrics) > 1
        name, unit = _NAMES[metric].split() if beside else ("tax", "")
        columns += [
            Column(metric, name, 7, unit),
            Column(
                f"{metric} interval",
                "95 %" if beside else f"{bounds}, %",
                16,
                f"{bounds}, %" if beside else "",
                left=True,
            ),
            Column(f"{metric} verdict", "verdict", 19, left=True),
        ]
    return (*columns, Column("saturated", "", 4, left=True))


def _tax_rows(analysis: Analysis, rows: Sequence[TaxRow], metrics: Sequence[Metric], tone: ToneOf) -> Iterator[Row]:
    for config in dict.fromkeys(row.config for row in rows):
        own = {row.metric: row for row in rows if row.config == config}
        some = next(iter(own.values()))
        cells: list[Cell] = [cell(config, tone(config))]
        for metric in metrics:
            cells += tax_cells(own[metric]) if metric in own else (cell(say.NOT_MEASURED, "dim"), (), ())
        cells.append(cell("sat." if _saturated(analysis, some) else "", "warn"))
        key = tax_key(load_of(some), config)
        yield Row(key if len(metrics) > 1 else f"{key}#{metrics[0]}", tuple(cells))


def tax_cells(row: TaxRow) -> tuple[Cell, Cell, Cell]:
    """The tax, its bounds and its verdict; a word where there is none."""
    tax = row.estimate
    if tax.value is None:
        return cell(say.NOT_MEASURED, "dim"), cell(tax.reason or "", "dim"), ()
    if tax.low is None or tax.high is None:
        return cell(signed_percent(tax.value)), cell(f"n = {tax.n}: too few", "dim"), cell(NO_VERDICT, "dim")
    verdict = cell(str(row.verdict), _VERDICT_TONES[row.verdict]) if row.verdict else cell(NO_VERDICT, "dim")
    return cell(signed_percent(tax.value), "bold"), cell(interval_text(tax)), verdict


def signed_percent(fraction: float) -> str:
    """`+45.1%`; from 1000 % on without decimals."""
    return f"{_signed(fraction)}%"


def interval_text(estimate: Estimate) -> str:
    """`[+40.2, +50.0]`, in percent."""
    low, high = (_signed(bound) if bound is not None else "?" for bound in (estimate.low, estimate.high))
    return f"[{low}, {high}]"


def _signed(fraction: float) -> str:
    return f"{fraction * 100:+.1f}" if abs(fraction) < 9.9995 else f"{fraction * 100:+.0f}"


def _saturated(analysis: Analysis, row: TaxRow) -> bool:
    return any(
        bool(analysis.saturation[each.path].saturated)
        for each in analysis.cells
        if (each.phase, each.config, each.rate_per_s) == (row.phase, row.config, row.rate_per_s)
    )


# -- verdicts -------------------------------------------------------------------------------------------------------


def verdict_section(analysis: Analysis, width: int, glyphs: Glyphs) -> Section:
    """H1 to H6 and the success criteria: outcome, claim, and the number that decides."""
    columns = (
        Column("name", "", 4, left=True),
        Column("outcome", "outcome", 12, left=True),
        Column("text", "hypothesis, then what decides", 20, left=True, flex=True),
    )
    rows: list[Row] = []
    for verdict in analysis.verdicts:
        claim = verdict.claim.rstrip(".")
        rows += _judged(verdict.name, verdict.outcome, claim, verdict.reason, glyphs, width)
    if analysis.criteria:
        rows += [blank_row("blank", len(columns)), heading_row("criteria", "Success criteria", len(columns))]
    for criterion in analysis.criteria:
        rows += _judged(criterion.name, criterion.outcome, criterion.claim, criterion.reason, glyphs, width)
    note = "The interval over launches decides: undecided where it crosses the limit. enter: rule, numbers and prior."
    return Section(columns, tuple(rows), note, "no verdict yet")


def outcome_tone(outcome: str) -> tuple[str, str]:
    """The sign of a verdict's outcome and its tone."""
    return _OUTCOME_TONES.get(outcome, ("pending", "dim"))


def _judged(name: str, outcome: str, title: str, reason: str, glyphs: Glyphs, width: int) -> Iterator[Row]:
    sign, tone = outcome_tone(outcome)
    first, *more = wrap_text(title, width - 18)
    yield Row(f"verdict {name}", (cell(name, "bold"), cell(f"{glyphs.sign(sign)} {outcome}", tone), cell(first)))
    yield from wrapped_rows(f"claim {name}", " ".join(more), 18, width, 3, tone="")
    yield from wrapped_rows(f"verdict {name}", reason, 18, width, 3)


# -- rates ----------------------------------------------------------------------------------------------------------


def rate_section(analysis: Analysis, width: int, tone: ToneOf) -> Section:
    """The reference rates with what limited them, then where each config saturates and by which criterion."""
    grid = analysis.rates.rates_per_s
    fixed = CONFIG + 1 + 11
    room = max(3, min(8, (width - fixed) // max(1, len(grid)) - 1))
    columns = (
        Column("config", "config", CONFIG, left=True),
        Column("knee", "saturates", 11, "req/s", left=True),
        *(Column(f"rate {rate:g}", f"{rate:g}", room, "req/s" if room >= 5 else "") for rate in grid),
        Column("rest", "", 0, left=True, flex=True),
    )
    rows: list[Row] = []
    for name in (REF_SAFE, REF_LOAD):
        rate = analysis.rates.rate(name)
        text = "none" if rate is None else f"{rate:g} req/s"
        rows.append(text_row(f"reference {name}", ((f"{name}  ", "bold"), (text, "live")), len(columns)))
        rows += wrapped_rows(f"reference {name}", analysis.rates.reason_for(name), 10, width, len(columns))
    rows.append(blank_row("blank", len(columns)))
    for scan in analysis.rates.configs:
        rows += _saturation_rows(analysis, scan, grid, width, tone)
    limit = analysis.rates.thresholds
    note = (
        f"Under each rate the criteria that fired: 1 throughput / rate < {limit.throughput_ratio:g}, "
        f"2 p50 of requests waiting > {limit.waiting_p50:g}, 3 TTFT p90 over that at half the rate > "
        f"{limit.ttft_p90_growth:g}; ok none, ? not known, {say.NOT_MEASURED} not measured."
    )
    return Section(columns, tuple(rows) if grid else (), note, "no cell of Phase A is measured yet")


def _saturation_rows(
    analysis: Analysis, scan: ConfigSaturation, grid: Sequence[float], width: int, tone: ToneOf
) -> Iterator[Row]:
    phase_a = {each.path for each in analysis.cells if each.phase == "A"}
    own = [judged for path, judged in analysis.saturation.items() if path in phase_a and judged.config == scan.config]
    knee = scan.saturation_rate_per_s
    states = (_state([judged for judged in own if judged.rate_per_s == rate]) for rate in grid)
    text = "above grid" if knee is None else f"at {knee:g}"
    yield Row(f"rates {scan.config}", (cell(scan.config, tone(scan.config)), cell(text), *states, ()))
    at_knee = [judged for judged in own if judged.rate_per_s == knee]
    why = [*(_fired(criterion) for judged in at_knee for criterion in judged.criteria if criterion.fired)]
    text = "; ".join(dict.fromkeys([*why, *([scan.reason] if scan.reason else [])]))
    yield from wrapped_rows(f"rates {scan.config}", text, 2, width, 3 + len(grid))


def _state(judged: Sequence[CellSaturation]) -> Cell:
    fired = sorted({number for each in judged for number in each.fired})
    if fired:
        return cell(",".join(map(str, fired)), "warn")
    if not judged:
        return cell(say.NOT_MEASURED, "dim")
    return cell("ok", "good") if all(each.saturated is False for each in judged) else cell("?", "dim")


def _fired(criterion: Criterion) -> str:
    sign = "<" if criterion.number == THROUGHPUT else ">"
    value = "" if criterion.measured is None else f" {criterion.measured:.3g}"
    return f"{_CRITERIA.get(criterion.number, criterion.name)}{value} {sign} {criterion.threshold:g}"
