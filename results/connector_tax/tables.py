"""The tables of a connector-tax report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from results.connector_tax.analyze import Analysis
from results.connector_tax.attribution import attribution_table
from results.connector_tax.capacity import capacity_table
from results.connector_tax.children import children_table
from results.connector_tax.combined_taxes import MOONCAKE, Additivity, Decomposition, TaxAmplification, Trend
from results.connector_tax.engine_changes import engine_changes_table
from results.connector_tax.goodput import Slo
from results.connector_tax.launch_noise import NAMED_TAX, LaunchNoise
from results.connector_tax.launch_table import build_launch_table
from results.connector_tax.read import headline
from results.connector_tax.saturation import describe_rate, reference_rates
from results.connector_tax.saturation_criteria import FEWEST
from results.connector_tax.summary import CellSummary
from results.connector_tax.tax import RATIOS, REMAINDERS, TITLES, Metric, TaxRow, name_rate
from results.measures.drift import Drift
from results.records.estimate import Estimate
from results.records.manifest import ManifestRow
from results.records.percent import format_percent
from results.records.phase_names import CONFIRM
from results.records.reference_rates import REF_LOAD, REF_SAFE, CellSaturation, Criterion, ReferenceRates
from results.report.judgements import judgement_table, rules_table
from results.report.table import NOT_MEASURED, Column, Table, Value, format_or_reason, gap_table, make_table
from results.report.terms import term
from results.statistics.blocks import show_count
from results.statistics.estimates import samples_needed
from results.statistics.judgement import Verdict, excluded_text, judged, list_some
from results.statistics.trials import MIN_PAIRED

FIGURES_BEFORE = "Phase A"
"""Title of the first table of single cells, which the figures precede."""
STEP_METRICS = (Metric.STEP_P50, Metric.ENGINE_STEP_P50, Metric.CALLBACK_P50, Metric.REMAINDER_P50)
ABOUT_ZERO = {Verdict.HIGHER: "above zero", Verdict.LOWER: "below zero"}
"""Of a remainder, which is the difference of two costs: it is not higher or lower than plain's."""


def build_tables(analysis: Analysis) -> tuple[Table, ...]:
    """Every table that has rows, in reading order."""
    candidates = (
        _launch_noise_table(analysis),
        *judgement_tables(analysis),
        _reference_rates(analysis.rates, analysis.cells),
        _noise_floor(analysis),
        _latency_taxes(analysis),
        attribution_table(analysis.attribution),
        engine_changes_table(analysis.engine_changes),
        children_table(analysis.cells),
        capacity_table(analysis.capacity, Slo(**analysis.facts.slo)),
        *contrast_tables(analysis),
        _step_taxes(analysis),
        _shape_taxes(analysis),
        *trend_tables(analysis),
        build_launch_table(analysis.cells, analysis.saturation, analysis.facts.cells),
        _phase_table(analysis, "A", "Phase A: rate sweep"),
        _saturation_table(analysis),
        _phase_table(analysis, "B", "Phase B: shape sweep at ref_safe"),
        _phase_table(analysis, "Bp", "Phase B': shapes at ref_load"),
        make_table("Configs", MANIFEST_COLUMNS, analysis.manifest),
        make_table("Degraded cells", DEGRADED_COLUMNS, analysis.degraded, _DEGRADED_NOTE),
        gap_table(analysis.gaps),
        rules_table((*analysis.verdicts, *analysis.criteria)),
    )
    return tuple(table for table in candidates if table.rows)


def _phase_table(analysis: Analysis, phase: str, title: str) -> Table:
    """The title states what all cells share (the shape in Phase A, the rate in Phase B)."""
    cells = sorted(
        (cell for cell in analysis.cells if cell.phase == phase),
        key=lambda cell: (cell.rate_per_s, cell.shape, cell.config, cell.trial),
    )
    rates, shapes = {cell.rate_per_s for cell in cells}, {cell.shape for cell in cells}
    loads: list[Column[CellSummary]] = []
    shared = []
    if len(rates) == 1:
        shared.append(f"{cells[0].rate_per_s:g} req/s")
    else:
        loads.append(Column("req/s", lambda cell: cell.rate_per_s, form="g"))
    if len(shapes) == 1:
        shared.append(f"{cells[0].shape.input_tokens} tokens in, {cells[0].shape.output_tokens} out")
    else:
        loads.append(Column("shape", lambda cell: str(cell.shape)))
    columns = (*loads, *CELL_COLUMNS, Column("marks", lambda cell: _list_marks(analysis, cell)))
    swept = any(cell.phase == CONFIRM for cell in analysis.cells)
    note = "Descriptive: one launch per config and phase. No verdict rests on these cells; brackets are spreads."
    full_title = f"{title} ({', '.join(shared)})" if shared else title
    table = make_table(full_title, columns, cells, note if swept else "")
    return replace(table, facts=tuple(_cell_facts(cell) for cell in cells))


def _cell_facts(cell: CellSummary) -> tuple[tuple[str, str], ...]:
    """Every other number of a cell."""
    counts = ", ".join(f"{count} {name}" for name, count in cell.counts.items() if count is not None)
    values = ((name, format_or_reason(value, 4)) for name, value in cell.values.items())
    return (("cell", cell.cell), ("degraded", cell.degraded), ("requests", counts), *values)


CELL_COLUMNS: tuple[Column[CellSummary], ...] = (
    Column("config", lambda cell: cell.config),
    Column("TTFT p90", lambda cell: cell.estimate("ttft_p90_s"), "ms", scale=1e3),
    Column("TPOT p90", lambda cell: cell.estimate("tpot_p90_s"), "ms", scale=1e3),
    Column("E2E p90", lambda cell: cell.value("e2e_p90_s"), "s", form=".3g"),
    Column("throughput ratio", lambda cell: cell.value("throughput_ratio"), form=".3f"),
    Column("waiting p50", lambda cell: cell.value("waiting_p50"), form=".1f"),
    Column("step p50", lambda cell: headline(cell)["step_p50_us"], "us", form=".0f"),
    Column("n", lambda cell: cell.counts["completed"]),
)


def _list_marks(analysis: Analysis, cell: CellSummary) -> str:
    marks = []
    judgement = analysis.saturation[cell.path]
    if judgement.saturated:
        marks.append(f"saturated ({', '.join(map(str, judgement.fired))})")
    if cell.degraded:
        marks.append("DEGRADED")
    if cell.stop_reason != "complete":
        marks.append(cell.stop_reason)
    marks += [f"{cell.counts[name]} {name}" for name in ("failed", "dropped", "cut") if cell.counts[name]]
    if cell.value("prefix_cache_hit_tokens"):
        marks.append(f"{cell.value('prefix_cache_hit_tokens'):.0f} prefix-hit tokens")
    return ", ".join(marks)


def _saturation_table(analysis: Analysis) -> Table:
    knees = {scan.config: scan.saturation_rate_per_s for scan in analysis.rates.configs}
    phase_a = {cell.path for cell in analysis.cells if cell.phase == "A"}
    judged = sorted(
        (judgement for path, judgement in analysis.saturation.items() if path in phase_a),
        key=lambda judgement: (judgement.config, judgement.rate_per_s, judgement.trial),
    )
    limit = analysis.rates.thresholds

    def describe_knee(cell: CellSaturation) -> str:
        knee = knees.get(cell.config)
        return "above the grid" if knee is None else f"{knee:g} req/s"

    columns: tuple[Column[CellSaturation], ...] = (
        Column("config", lambda cell: cell.config),
        Column("req/s", lambda cell: cell.rate_per_s, form="g"),
        Column(f"1: cohort ratio < {limit.throughput_ratio:g}", lambda cell: _criterion_text(cell.criteria[0])),
        Column(f"2: waiting p50 > {limit.waiting_p50:g}", lambda cell: _criterion_text(cell.criteria[1])),
        Column(f"3: TTFT p90 growth > {limit.ttft_p90_growth:g}", lambda cell: _criterion_text(cell.criteria[2])),
        Column("fire by the point", lambda cell: _list_numbers(cell.fired_by_point)),
        Column("specification: throughput ratio", lambda cell: cell.criteria[0].specified, form=".3f"),
        Column("its criteria fire", lambda cell: _list_numbers(cell.specified_fired)),
        Column("saturated", lambda cell: {True: "yes", False: "no", None: f"not known: {cell.reason}"}[cell.saturated]),
        Column("config saturates at", describe_knee),
    )
    note = (
        f"A star marks the criterion that fired. Cohort ratio: {term('cohort ratio').meaning}. The specification "
        f"judges the throughput ratio instead: {term('throughput ratio').meaning}. 3: growth against half the rate. 1 "
        "and 3 fire where their whole spread (in brackets) is beyond the limit; by the point: where the number alone "
        f"is, as the specification goes. 2: n samples of the queue; of fewer than {samples_needed(0.5)} the brackets "
        f"hold the range, it is open where they hold the limit, and fewer than {FEWEST} never fire."
    )
    return make_table("Saturation", columns, judged, note)


def _list_numbers(criteria: Sequence[int]) -> str:
    return ", ".join(map(str, criteria)) or "none"


def _criterion_text(criterion: Criterion) -> str:
    if criterion.measured is None:
        return NOT_MEASURED
    shown = Estimate(criterion.measured, criterion.low, criterion.high).text(digits=3)
    if criterion.n is not None:
        shown += f" (n = {criterion.n})"
    return f"{shown}{' *' if criterion.fired else ''}{' ?' if criterion.fired is None else ''}"


def _reference_rates(rates: ReferenceRates, cells: Sequence[CellSummary]) -> Table:
    specified = reference_rates(cells, rates.thresholds, specified=True)
    columns: tuple[Column[str], ...] = (
        Column("", lambda name: name),
        Column("rate", lambda name: describe_rate(rates.rate(name))),
        Column("limited by", rates.reason_for),
        Column("by the specification's rules", lambda name: describe_rate(specified.rate(name))),
    )
    return make_table("Reference rates", columns, (REF_SAFE, REF_LOAD) if rates.rates_per_s else ())


def _noise_floor(analysis: Analysis) -> Table:
    rows = [row for row in analysis.noise_floor if row.metric in RATIOS]
    note = (
        "The same config measured twice, launch by launch: whatever differs here is noise. Taxes are taken against the "
        "mean of both."
    )
    return _tax_table("Noise floor: plain against plain", (REFERENCE, RATE, SHAPE), rows, LATENCIES, note)


def _launch_noise_table(analysis: Analysis) -> Table:
    note = (
        f"sigma: {term('sigma').meaning}, with its chi-square interval. A tax below the smallest detectable one (with "
        "a probability of 80 %) may exist and stay undecided. At one speed: sigma without what follows the host's "
        "speed, which is timed beside every cell by a fixed piece of work (`work_us` of host.csv); no verdict uses it."
    )
    return make_table("Noise between launches", LAUNCH_NOISE_COLUMNS, analysis.launch_noise, note)


LAUNCH_NOISE_COLUMNS: tuple[Column[LaunchNoise], ...] = (
    Column("reference", lambda row: row.reference),
    Column("phase", lambda row: row.phase),
    Column("req/s", lambda row: row.rate_per_s, form="g"),
    Column("shape", lambda row: str(row.shape)),
    Column("tax", lambda row: str(row.metric)),
    Column("launches", lambda row: row.launches),
    Column("sigma", lambda row: Estimate(row.sigma, row.sigma_low, row.sigma_high), "%", digits=3, scale=100.0),
    Column("at one speed", lambda row: row.sigma_at_one_speed, form=".1%"),
    Column("plain_again", lambda row: None if row.repeat is None else row.repeat.percent()),
    Column("smallest detectable tax", lambda row: row.detectable, form=".1%"),
    Column(f"launches for {format_percent(NAMED_TAX)}", lambda row: show_count(row.launches_for_named)),
)


def _latency_taxes(analysis: Analysis) -> Table:
    rows = [row for row in analysis.taxes if row.phase == "A" and row.metric in RATIOS]
    return _tax_table("Substrate tax (Phase A shape)", (REFERENCE, RATE, CONFIG), rows, LATENCIES, _note_taxes(rows))


def _shape_taxes(analysis: Analysis) -> Table:
    rows = [row for row in analysis.taxes if row.phase != "A" and row.metric in RATIOS]
    return _tax_table("Tax by shape", (REFERENCE, SHAPE, CONFIG), rows, LATENCIES, _note_taxes(rows))


def _step_taxes(analysis: Analysis) -> Table:
    rows = [row for row in analysis.taxes if row.phase == "A" and row.metric in STEP_METRICS]
    titles = ("tax_step", "tax_engine_step", "tax_callback", "remainder")
    note = (
        "p50 per engine step against plain, microseconds. Remainder = tax_step - tax_callback: below zero where "
        "callbacks run in the worker, outside schedule()."
    )
    note = f"{note} {_withheld_text(rows)}".strip()
    return _tax_table("Step tax", (REFERENCE, RATE, CONFIG), rows, zip(STEP_METRICS, titles, strict=True), note)


REFERENCE: Column[TaxRow] = Column("reference", lambda row: name_rate(row.reference, row.rate_per_s))
RATE: Column[TaxRow] = Column("req/s", lambda row: row.rate_per_s, form="g")
SHAPE: Column[TaxRow] = Column("shape", lambda row: str(row.shape))
CONFIG: Column[TaxRow] = Column("config", lambda row: _mark_config(row))
LATENCIES = tuple((metric, f"{TITLES[metric]} vs plain") for metric in RATIOS)


def _tax_table(
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


def _withheld_text(rows: Iterable[TaxRow]) -> str:
    """Why taxes that were measured have no verdict, each reason once."""
    why = dict.fromkeys(row.withheld for row in rows if row.withheld and row.estimate.value is not None)
    return f"No verdict: {'; '.join(why)}." if why else ""


def _note_taxes(rows: Sequence[TaxRow]) -> str:
    return " ".join(filter(None, (_withheld_text(rows), _compare_own_spread(rows))))


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
        return f"{shown} undecided; {excluded_text(row.estimate)}"
    if row.verdict is not None:
        word = ABOUT_ZERO.get(row.verdict, row.verdict) if row.metric in REMAINDERS else row.verdict
        return f"{shown} {word}"
    if row.metric not in RATIOS:
        return shown
    if row.estimate.low is None and row.estimate.high is None:
        return f"{shown} (n = {row.estimate.n}: no {'interval' if row.estimate.launches >= MIN_PAIRED else 'spread'})"
    return f"{shown} no verdict"


def _connector_versions(row: ManifestRow) -> str:
    versions = (row.mooncake_version, row.nixl_version, row.lmcache_version)
    return " / ".join(version or NOT_MEASURED for version in versions)


def _cell_counts(row: ManifestRow) -> str:
    counts = (row.cells_done, row.cells_failed, row.cells_dropped)
    return " / ".join(NOT_MEASURED if count is None else str(count) for count in counts)


def _step_timing(row: ManifestRow) -> str | None:
    return {True: "yes", False: f"no: {row.step_timing_reason}", None: None}[row.step_timing_available]


def _engine_version(row: ManifestRow) -> str:
    commit = "" if row.vllm_sha.startswith("unknown") else row.vllm_sha[:12]
    return f"{row.vllm_version} {commit}".strip()


MANIFEST_COLUMNS: tuple[Column[ManifestRow], ...] = (
    Column("config", lambda row: row.config),
    Column("status", lambda row: row.status),
    Column("why", lambda row: row.skip_reason),
    Column("vLLM", _engine_version),
    Column("Mooncake / NIXL / LMCache", _connector_versions),
    Column("step timing", _step_timing),
    Column("cells done / failed / not tried", _cell_counts),
)
DEGRADED_COLUMNS: tuple[Column[CellSummary], ...] = (
    Column("cell", lambda cell: cell.cell),
    Column("why", lambda cell: cell.degraded),
)
_DEGRADED_NOTE = "No verdict uses these cells: the client fell behind, or completions had other lengths than asked for."


def judgement_tables(analysis: Analysis) -> tuple[Table, ...]:
    note = "A spread within the launch does not hold what two launches differ by: no verdict rests on one."
    return (
        judgement_table("Hypotheses", "hypothesis", analysis.verdicts, note),
        judgement_table("Success criteria", "criterion", analysis.criteria),
    )


def contrast_tables(analysis: Analysis) -> tuple[Table, ...]:
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


def trend_tables(analysis: Analysis) -> tuple[Table, ...]:
    """Taxes along the lengths (every trend of mooncake_both, the mean of the others), and drift over the run."""
    shown = [row for row in analysis.trends if row.at is None or row.config == MOONCAKE]
    slope = (
        f"Slope: {term('slope of a tax').meaning}. Steps: from one length to the next, their bounds jointly. Left out "
        "are shapes at which the config or plain is saturated, and shapes at another rate than most lengths."
    )
    drift = (
        "A config against itself under the same load at another time: what moved is not the config's. A round of "
        "launches in which the host was slow for all configs counts as drift too: the change need not be steady."
    )
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
AMPLIFICATION_COLUMNS: tuple[Column[TaxAmplification], ...] = (
    Column("config", lambda row: row.config),
    Column("shape", lambda row: str(row.shape)),
    Column("tax of", lambda row: TITLES[row.metric]),
    Column("at ref_safe", lambda row: row.safe.percent()),
    Column("at ref_load", lambda row: row.load.percent()),
    Column("difference", lambda row: f"{row.amplification.points()} {row.verdict or f'(no verdict: {row.withheld})'}"),
)


def _line_name(row: Trend) -> str:
    across = "output" if row.along == "input_tokens" else "input"
    return f"mean over {across} lengths" if row.at is None else f"{across} {row.at}"


def _line_taxes(row: Trend) -> str:
    taxes = (NOT_MEASURED if tax.value is None else format_percent(tax.value, 1, signed=True) for tax in row.taxes)
    return ", ".join(f"{length}: {tax}" for length, tax in zip(row.lengths, taxes, strict=True))


TREND_COLUMNS: tuple[Column[Trend], ...] = (
    Column("config", lambda row: row.config),
    Column("tax of", lambda row: TITLES[row.metric]),
    Column("along", lambda row: row.along),
    Column("at", _line_name),
    Column("per doubling", lambda row: row.slope.points()),
    Column("taxes", _line_taxes),
    Column("steps", lambda row: "; ".join(step.points() for step in row.steps)),
    Column("left out", lambda row: "; ".join(row.left_out)),
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
