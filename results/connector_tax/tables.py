"""The tables of a report, as text: what each says, whatever it is drawn on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from results.connector_tax import verdict_tables
from results.connector_tax.analyse import Analysis
from results.connector_tax.tax import RATIOS, Metric, TaxRow
from results.measures.saturation import REF_LOAD, REF_SAFE, ConfigSaturation
from results.measures.saturation_criteria import CellSaturation, Criterion
from results.measures.summary import CellSummary
from results.records.manifest import ManifestRow
from results.report.table import NOT_MEASURED, Column, Table, gap_table, make_table
from results.statistics.trials import MIN_PAIRED

FIGURES_BEFORE = "Phase A"
"""The figures stand between the conclusions and the tables of single cells, which begin with this title."""


def tables(analysis: Analysis) -> tuple[Table, ...]:
    """Every table that has rows, in reading order."""
    found = (
        verdict_tables.verdicts(analysis),
        verdict_tables.criteria(analysis),
        _reference_rates(analysis),
        _noise_floor(analysis),
        _latency_taxes(analysis),
        verdict_tables.decomposition(analysis),
        verdict_tables.additivity(analysis),
        verdict_tables.amplification(analysis),
        _step_taxes(analysis),
        _shape_taxes(analysis),
        verdict_tables.trends(analysis),
        verdict_tables.drift(analysis),
        _phase(analysis, "A", "Phase A: rate sweep"),
        _saturation(analysis),
        _phase(analysis, "B", "Phase B: shape sweep at ref_safe"),
        _phase(analysis, "Bp", "Phase B': shapes at ref_load"),
        make_table("Configs", MANIFEST_COLUMNS, analysis.manifest),
        _degraded(analysis),
        gap_table(analysis.gaps),
        verdict_tables.rules(analysis),
    )
    return tuple(table for table in found if table.rows)


def _phase(analysis: Analysis, phase: str, title: str) -> Table:
    """What all cells share (the shape in Phase A, the rate in Phase B) stands in the title."""
    cells = sorted(
        (cell for cell in analysis.cells if cell.phase == phase),
        key=lambda cell: (cell.rate_per_s, cell.shape.input_tokens, cell.shape.output_tokens, cell.config, cell.trial),
    )
    rates, shapes = {cell.rate_per_s for cell in cells}, {cell.shape for cell in cells}
    loads: list[tuple[str, Callable[[CellSummary], str]]] = []
    shared = []
    if len(rates) == 1:
        shared.append(f"{cells[0].rate_per_s:g} req/s")
    else:
        loads.append(("req/s", lambda cell: f"{cell.rate_per_s:g}"))
    if len(shapes) == 1:
        shared.append(f"{cells[0].shape.input_tokens} tokens in, {cells[0].shape.output_tokens} out")
    else:
        loads.append(("shape", lambda cell: str(cell.shape)))
    columns = (
        *(name for name, _ in loads), "config", "TTFT p90 ms", "TPOT p90 ms", "E2E p90 s", "throughput ratio",
        "waiting p50", "step p50 us", "n", "marks",
    )  # fmt: skip
    rows = tuple((*(show(cell) for _, show in loads), *_cell_row(analysis, cell)) for cell in cells)
    facts = tuple(_cell_facts(cell) for cell in cells)
    return Table(f"{title} ({', '.join(shared)})" if shared else title, columns, rows, facts=facts)


def _cell_facts(cell: CellSummary) -> tuple[tuple[str, str], ...]:
    """Everything else that is measured of a cell."""
    counts = ", ".join(f"{count} {name}" for name, count in cell.counts.items() if count is not None)
    values = ((name, value.text() if value.value is not None else f"{NOT_MEASURED} ({value.reason})")
              for name, value in cell.values.items())  # fmt: skip
    return (("cell", cell.cell), ("degraded", cell.degraded), ("requests", counts), *values)


def _cell_row(analysis: Analysis, cell: CellSummary) -> tuple[str, ...]:
    return (
        cell.config,
        cell.estimate("ttft_p90_s").text(scale=1e3),
        cell.estimate("tpot_p90_s").text(scale=1e3),
        _number(cell.value("e2e_p90_s"), ".3g"),
        _number(cell.value("throughput_ratio"), ".3f"),
        _number(cell.value("waiting_p50"), ".1f"),
        _number(cell.value("engine_step_p50_us"), ".0f"),
        _number(cell.counts["completed"], "d"),
        _marks(analysis, cell),
    )


def _marks(analysis: Analysis, cell: CellSummary) -> str:
    found = []
    judgement = analysis.saturation[cell.path]
    if judgement.saturated:
        found.append(f"saturated ({', '.join(map(str, judgement.fired))})")
    if cell.degraded:
        found.append("DEGRADED")
    if cell.stop_reason != "complete":
        found.append(cell.stop_reason)
    for name in ("failed", "dropped", "cut"):
        if cell.counts[name]:
            found.append(f"{cell.counts[name]} {name}")
    if cell.value("prefix_cache_hit_tokens"):
        found.append(f"{cell.value('prefix_cache_hit_tokens'):.0f} prefix-hit tokens")
    return ", ".join(found)


def _saturation(analysis: Analysis) -> Table:
    by_config = {scan.config: scan for scan in analysis.rates.configs}
    phase_a = {cell.path for cell in analysis.cells if cell.phase == "A"}
    judged = sorted(
        (judgement for path, judgement in analysis.saturation.items() if path in phase_a),
        key=lambda judgement: (judgement.config, judgement.rate_per_s, judgement.trial),
    )
    limit = analysis.rates.thresholds
    columns = (
        "config",
        "req/s",
        f"1: throughput/rate < {limit.throughput_ratio:g}",
        f"2: waiting p50 > {limit.waiting_p50:g}",
        f"3: TTFT p90 growth > {limit.ttft_p90_growth:g}",
        "saturated",
        "config saturates at",
    )
    rows = tuple(_saturation_row(judgement, by_config.get(judgement.config)) for judgement in judged)
    return Table("Saturation", columns, rows, "A star marks the criterion that fired. Growth is against half the rate.")


def _saturation_row(judgement: CellSaturation, scan: ConfigSaturation | None) -> tuple[str, ...]:
    verdict = {True: "yes", False: "no", None: f"not known: {judgement.reason}"}[judgement.saturated]
    knee = scan.saturation_rate_per_s if scan is not None else None
    return (
        judgement.config,
        f"{judgement.rate_per_s:g}",
        *(_criterion(criterion) for criterion in judgement.criteria),
        verdict,
        f"{knee:g} req/s" if knee is not None else "above the grid",
    )


def _criterion(criterion: Criterion) -> str:
    if criterion.measured is None:
        return NOT_MEASURED
    return f"{criterion.measured:.3g}{' *' if criterion.fired else ''}{' ?' if criterion.fired is None else ''}"


def _reference_rates(analysis: Analysis) -> Table:
    rates = analysis.rates
    if not rates.rates_per_s:
        return Table("Reference rates", (), ())
    rows = tuple(
        (name, "none" if rates.rate(name) is None else f"{rates.rate(name):g} req/s", rates.reason_for(name))
        for name in (REF_SAFE, REF_LOAD)
    )
    return Table("Reference rates", ("", "rate", "limited by"), rows)


def _noise_floor(analysis: Analysis) -> Table:
    rows = [row for row in analysis.noise_floor if row.metric in RATIOS]
    columns = ("reference", "req/s", "shape", "TTFT p90 vs plain", "TPOT p90 vs plain", "brackets")
    lines = _by_config(rows, lambda row: (row.reference, f"{row.rate_per_s:g}", str(row.shape)), tuple(RATIOS))
    note = (
        "The same config measured twice, launch by launch: whatever differs here is noise. A tax that is no larger may "
        "be noise too, whatever its own interval says."
    )
    return Table("Noise floor: plain against plain", columns, lines, note)


def _latency_taxes(analysis: Analysis) -> Table:
    rows = [row for row in analysis.taxes if row.phase == "A" and row.metric in RATIOS]
    columns = ("reference", "req/s", "config", "TTFT p90 vs plain", "TPOT p90 vs plain", "brackets")
    lines = _by_config(rows, lambda row: (row.reference, f"{row.rate_per_s:g}", _name(analysis, row)), tuple(RATIOS))
    return Table("Substrate tax (Phase A shape)", columns, lines, _withheld(rows))


def _shape_taxes(analysis: Analysis) -> Table:
    rows = [row for row in analysis.taxes if row.phase != "A" and row.metric in RATIOS]
    columns = ("reference", "shape", "config", "TTFT p90 vs plain", "TPOT p90 vs plain", "brackets")
    lines = _by_config(rows, lambda row: (row.reference, str(row.shape), row.config), tuple(RATIOS))
    return Table("Tax by shape", columns, lines, _withheld(rows))


def _withheld(rows: Iterable[TaxRow]) -> str:
    """Why taxes that were measured have no verdict, each reason once."""
    why = dict.fromkeys(row.withheld for row in rows if row.withheld and row.estimate.value is not None)
    return f"No verdict: {'; '.join(why)}." if why else ""


def _step_taxes(analysis: Analysis) -> Table:
    wanted = (Metric.STEP_P50, Metric.ENGINE_STEP_P50, Metric.CALLBACK_P50, Metric.REMAINDER_P50)
    rows = [row for row in analysis.taxes if row.phase == "A" and row.metric in wanted]
    columns = ("reference", "req/s", "config", "tax_step", "tax_engine_step", "tax_callback", "remainder", "brackets")
    lines = _by_config(rows, lambda row: (row.reference, f"{row.rate_per_s:g}", row.config), wanted)
    note = "p50 per engine step against plain, microseconds; remainder = tax_step - tax_callback."
    note = f"{note} {_withheld(rows)}".strip()
    return Table("Step tax", columns, lines, note)


def _name(analysis: Analysis, row: TaxRow) -> str:
    """The config, with a word where the tax includes its queue."""
    saturated = any(
        judgement.saturated
        for cell in analysis.cells
        if (cell.phase, cell.config, cell.rate_per_s) == (row.phase, row.config, row.rate_per_s)
        for judgement in (analysis.saturation[cell.path],)
    )
    return f"{row.config} (saturated)" if saturated else row.config


def _by_config(
    rows: Iterable[TaxRow], key: Callable[[TaxRow], tuple[str, ...]], metrics: Sequence[Metric]
) -> tuple[tuple[str, ...], ...]:
    """One line per key, one column per metric, and what the brackets hold."""
    lines: dict[tuple[str, ...], dict[Metric, TaxRow]] = {}
    for row in rows:
        lines.setdefault(key(row), {})[row.metric] = row
    return tuple(
        (
            *name,
            *(_tax(found[metric]) if metric in found else NOT_MEASURED for metric in metrics),
            "; ".join(dict.fromkeys(row.estimate.basis or "" for row in found.values())).strip("; ") or NOT_MEASURED,
        )
        for name, found in lines.items()
    )


def _tax(row: TaxRow) -> str:
    """The tax, its bounds, and its verdict; of a latency, that there is none."""
    if row.estimate.value is None:
        return f"{NOT_MEASURED} ({row.estimate.reason})"
    shown = row.estimate.percent() if row.metric in RATIOS else row.estimate.text(digits=3)
    if row.verdict is not None:
        return f"{shown} {row.verdict}"
    if row.metric not in RATIOS:
        return shown
    if row.estimate.low is None and row.estimate.high is None:
        return f"{shown} (n = {row.estimate.n}: no {'interval' if row.estimate.launches >= MIN_PAIRED else 'spread'})"
    return f"{shown} no verdict"


def _connectors(row: ManifestRow) -> str:
    versions = (row.mooncake_version, row.nixl_version, row.lmcache_version)
    return " / ".join(version or NOT_MEASURED for version in versions)


def _cell_counts(row: ManifestRow) -> str:
    counts = (row.cells_done, row.cells_failed, row.cells_dropped)
    return " / ".join(NOT_MEASURED if count is None else str(count) for count in counts)


def _step_timing(row: ManifestRow) -> str | None:
    return {True: "yes", False: f"no: {row.step_timing_reason}", None: None}[row.step_timing_available]


def _engine(row: ManifestRow) -> str:
    commit = "" if row.vllm_sha.startswith("unknown") else row.vllm_sha[:12]
    return f"{row.vllm_version} {commit}".strip()


MANIFEST_COLUMNS: tuple[Column[ManifestRow], ...] = (
    Column("config", lambda row: row.config),
    Column("status", lambda row: row.status),
    Column("why", lambda row: row.skip_reason),
    Column("vLLM", _engine),
    Column("Mooncake / NIXL / LMCache", _connectors),
    Column("step timing", _step_timing),
    Column("cells done / failed / not tried", _cell_counts),
)


def _degraded(analysis: Analysis) -> Table:
    rows = tuple((cell.cell, cell.degraded) for cell in analysis.degraded)
    note = "The client fell behind in these cells: their latencies are its own, and no verdict uses them."
    return Table("Degraded cells", ("cell", "why"), rows, note)


def _number(value: float | None, form: str) -> str:
    return NOT_MEASURED if value is None else format(value, form)
