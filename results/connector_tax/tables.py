"""The tables of a connector-tax report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from results.connector_tax.analyze import Analysis
from results.connector_tax.attribution import make_attribution_table
from results.connector_tax.capacity import make_capacity_table
from results.connector_tax.engine_changes import make_engine_changes_table
from results.connector_tax.launch_noise import NAMED_TAX, LaunchNoise
from results.connector_tax.launch_table import build_launch_table
from results.connector_tax.read import headline
from results.connector_tax.saturation import describe_knee, describe_rate, reference_rates
from results.connector_tax.saturation_criteria import FEWEST
from results.connector_tax.slo import Slo
from results.connector_tax.summary import CellSummary
from results.connector_tax.tax_tables import (
    make_contrast_tables,
    make_latency_tax_table,
    make_noise_floor_table,
    make_shape_tax_table,
    make_step_tax_table,
    make_trend_table,
)
from results.measures.drift import Drift
from results.measures.step_durations import CALLBACKS
from results.measures.summary import name_percentile
from results.records.estimate import Estimate
from results.records.manifest import ManifestRow
from results.records.percent import format_percent
from results.records.phase_names import CONFIRM
from results.records.reference_rates import REF_LOAD, REF_SAFE, CellSaturation, Criterion, ReferenceRates
from results.records.schemas import CHILD_FIELDS_US
from results.report.judgements import make_judgement_table, rules_table
from results.report.table import NOT_MEASURED, Column, Table, format_or_reason, make_gap_table, make_table
from results.report.terms import term
from results.statistics.blocks import show_count
from results.statistics.estimates import count_samples_needed

FIGURES_BEFORE = "Phase A"
"""Title of the first table of single cells, which the figures precede."""


def build_tables(analysis: Analysis) -> tuple[Table, ...]:
    """Every table that has rows, in reading order."""
    candidates = (
        _launch_noise_table(analysis),
        *make_judgement_tables(analysis),
        _make_reference_rate_table(analysis.rates, analysis.cells),
        make_noise_floor_table(analysis),
        make_latency_tax_table(analysis),
        make_attribution_table(analysis.attribution),
        make_engine_changes_table(analysis.engine_changes),
        _make_children_table(analysis.cells),
        make_capacity_table(analysis.capacity, Slo(**analysis.facts.slo)),
        *make_contrast_tables(analysis),
        make_step_tax_table(analysis),
        make_shape_tax_table(analysis),
        make_trend_table(analysis),
        _make_drift_table(analysis),
        build_launch_table(analysis.cells, analysis.saturation, analysis.facts.cells),
        _make_phase_table(analysis, "A", "Phase A: rate sweep"),
        _make_saturation_table(analysis),
        _make_phase_table(analysis, "B", "Phase B: shape sweep at ref_safe"),
        _make_phase_table(analysis, "Bp", "Phase B': shapes at ref_load"),
        make_table("Configs", MANIFEST_COLUMNS, analysis.manifest),
        make_table("Degraded cells", DEGRADED_COLUMNS, analysis.degraded, _DEGRADED_NOTE),
        make_gap_table(analysis.gaps),
        rules_table((*analysis.verdicts, *analysis.criteria)),
    )
    return tuple(table for table in candidates if table.rows)


def _make_phase_table(analysis: Analysis, phase: str, title: str) -> Table:
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
    return replace(table, facts=tuple(_list_cell_facts(cell) for cell in cells))


def _list_cell_facts(cell: CellSummary) -> tuple[tuple[str, str], ...]:
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


def _make_saturation_table(analysis: Analysis) -> Table:
    phase_a = {cell.path for cell in analysis.cells if cell.phase == "A"}
    judged = sorted(
        (judgement for path, judgement in analysis.saturation.items() if path in phase_a),
        key=lambda judgement: (judgement.config, judgement.rate_per_s, judgement.trial),
    )
    limit = analysis.rates.thresholds

    columns: tuple[Column[CellSaturation], ...] = (
        Column("config", lambda cell: cell.config),
        Column("req/s", lambda cell: cell.rate_per_s, form="g"),
        Column(f"1: cohort ratio < {limit.throughput_ratio:g}", lambda cell: _format_criterion(cell.criteria[0])),
        Column(f"2: waiting p50 > {limit.waiting_p50:g}", lambda cell: _format_criterion(cell.criteria[1])),
        Column(f"3: TTFT p90 growth > {limit.ttft_p90_growth:g}", lambda cell: _format_criterion(cell.criteria[2])),
        Column("fire by the point", lambda cell: _list_numbers(cell.fired_by_point)),
        Column("specification: throughput ratio", lambda cell: cell.criteria[0].specified, form=".3f"),
        Column("its criteria fire", lambda cell: _list_numbers(cell.specified_fired)),
        Column("saturated", lambda cell: {True: "yes", False: "no", None: f"not known: {cell.reason}"}[cell.saturated]),
        Column("config saturates at", lambda cell: describe_knee(analysis.rates, cell.config)),
    )
    note = (
        f"A star marks the criterion that fired. Cohort ratio: {term('cohort ratio').meaning}. The specification "
        f"judges the throughput ratio instead: {term('throughput ratio').meaning}. 3: growth against half the rate. 1 "
        "and 3 fire where their whole spread (in brackets) is beyond the limit; by the point: where the number alone "
        f"is, as the specification goes. 2: n samples of the queue; of fewer than {count_samples_needed(0.5)} the "
        f"brackets hold the range, it is open where they hold the limit, and fewer than {FEWEST} never fire."
    )
    return make_table("Saturation", columns, judged, note)


def _list_numbers(criteria: Sequence[int]) -> str:
    return ", ".join(map(str, criteria)) or "none"


def _format_criterion(criterion: Criterion) -> str:
    if criterion.measured is None:
        return NOT_MEASURED
    shown = Estimate(criterion.measured, criterion.low, criterion.high).text(digits=3)
    if criterion.n is not None:
        shown += f" (n = {criterion.n})"
    return f"{shown}{' *' if criterion.fired else ''}{' ?' if criterion.fired is None else ''}"


def _make_reference_rate_table(rates: ReferenceRates, cells: Sequence[CellSummary]) -> Table:
    specified = reference_rates(cells, rates.thresholds, specified=True)
    columns: tuple[Column[str], ...] = (
        Column("", lambda name: name),
        Column("rate", lambda name: describe_rate(rates.rate(name))),
        Column("limited by", rates.explain_rate),
        Column("by the specification's rules", lambda name: describe_rate(specified.rate(name))),
    )
    return make_table("Reference rates", columns, (REF_SAFE, REF_LOAD) if rates.rates_per_s else ())


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


def _format_connector_versions(row: ManifestRow) -> str:
    versions = (row.mooncake_version, row.nixl_version, row.lmcache_version)
    return " / ".join(version or NOT_MEASURED for version in versions)


def _format_cell_counts(row: ManifestRow) -> str:
    counts = (row.cells_done, row.cells_failed, row.cells_dropped)
    return " / ".join(NOT_MEASURED if count is None else str(count) for count in counts)


def _describe_step_timing(row: ManifestRow) -> str | None:
    return {True: "yes", False: f"no: {row.step_timing_reason}", None: None}[row.step_timing_available]


def _format_engine_version(row: ManifestRow) -> str:
    commit = "" if row.vllm_sha.startswith("unknown") else row.vllm_sha[:12]
    return f"{row.vllm_version} {commit}".strip()


MANIFEST_COLUMNS: tuple[Column[ManifestRow], ...] = (
    Column("config", lambda row: row.config),
    Column("status", lambda row: row.status),
    Column("why", lambda row: row.skip_reason),
    Column("vLLM", _format_engine_version),
    Column("Mooncake / NIXL / LMCache", _format_connector_versions),
    Column("step timing", _describe_step_timing),
    Column("cells done / failed / not tried", _format_cell_counts),
)
DEGRADED_COLUMNS: tuple[Column[CellSummary], ...] = (
    Column("cell", lambda cell: cell.cell),
    Column("why", lambda cell: cell.degraded),
)
_DEGRADED_NOTE = "No verdict uses these cells: the client fell behind, or completions had other lengths than asked for."


def make_judgement_tables(analysis: Analysis) -> tuple[Table, ...]:
    note = "A spread within the launch does not hold what two launches differ by: no verdict rests on one."
    return (
        make_judgement_table("Hypotheses", "hypothesis", analysis.verdicts, note),
        make_judgement_table("Success criteria", "criterion", analysis.criteria),
    )


def _make_drift_table(analysis: Analysis) -> Table:
    note = (
        "A config against itself under the same load at another time: what moved is not the config's. A round of "
        "launches in which the host was slow for all configs counts as drift too: the change need not be steady."
    )
    return make_table("Drift over the run", DRIFT_COLUMNS, analysis.drift if analysis.cells else (), note)


DRIFT_COLUMNS: tuple[Column[Drift], ...] = (
    Column("median of", lambda row: {"ttft_p50_s": "TTFT", "tpot_p50_s": "TPOT"}[row.series]),
    Column("change per hour", lambda row: row.slope_per_h.percent()),
    Column("over", lambda row: None if row.span_h is None else f"{row.span_h:.2f} h"),
    Column("verdict", lambda row: str(row.verdict)),
    Column("why", lambda row: row.reason),
)


@dataclass(frozen=True, slots=True)
class _ChildTime:
    """The callback time of a connector inside a MultiConnector, per step."""

    cell: str
    child: str
    """Its class."""
    p50_us: float | None
    mean_us: float | None
    all_p50_us: float | None
    """p50 of the whole MultiConnector."""


def _list_child_times(cells: Sequence[CellSummary]) -> Iterator[_ChildTime]:
    for cell in cells:
        whole = cell.value(name_percentile(CALLBACKS, "p50"))
        for child, series in zip(cell.step_timing.get("children") or (), CHILD_FIELDS_US, strict=False):
            p50, mean = (cell.value(name_percentile(series, point)) for point in ("p50", "mean"))
            yield _ChildTime(cell.cell, child, p50, mean, whole)


def _make_children_table(cells: Sequence[CellSummary]) -> Table:
    note = (
        "build_connector_meta, get_finished and start_load_kv of one connector in a step; what the MultiConnector "
        "itself does is the difference to all of it."
    )
    return make_table("Connectors inside a MultiConnector", CHILD_COLUMNS, _list_child_times(cells), note)


CHILD_COLUMNS: tuple[Column[_ChildTime], ...] = (
    Column("cell", lambda row: row.cell),
    Column("connector", lambda row: row.child),
    Column("callbacks p50", lambda row: row.p50_us, "us", digits=3),
    Column("mean", lambda row: row.mean_us, "us", digits=3),
    Column("of all p50", lambda row: row.all_p50_us, "us", digits=3),
)
