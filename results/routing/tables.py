"""The tables of a `routing` report, as text: what each says, whatever it is drawn on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from results.measures import latency
from results.measures.summary import POINTS, name_percentile
from results.records.estimate import Estimate
from results.records.percent import format_percent
from results.records.routing_cells import InstanceNumbers
from results.report.engine_gates import make_gates_table
from results.report.table import NOT_MEASURED, Column, Table, make_gap_table, make_table
from results.report.terms import define_terms
from results.routing import comparison_tables, floor_tables, migration_tables, transfer_tables
from results.routing.analyze import RoutingAnalysis, compute_mean_of_known
from results.routing.cautions import explain_no_verdict
from results.routing.conditional_claims import make_conditional_table
from results.routing.coupling import LITTLE_WITHIN, Coupling
from results.routing.interference import Interference
from results.routing.metrics import HEADLINE, find_metric
from results.routing.shown import (
    POLICY,
    TableKind,
    make_metric_column,
    make_ms_column,
    make_percent_column,
    make_table_with_cut_note,
)
from results.routing.summary import RoutedSummary

FIGURES_BEFORE = "Cells"
"""The figures stand between the comparisons and the tables of single cells, which begin with this title."""


def build_tables(analysis: RoutingAnalysis) -> tuple[Table, ...]:
    """Every table that has rows, in reading order."""
    few = explain_no_verdict(analysis.trials)
    builders: tuple[Callable[[RoutingAnalysis], Table], ...] = (
        comparison_tables.CAUTIONS.build,
        lambda analysis: make_gates_table(analysis.engine_gates),
        comparison_tables.make_best_values_table if few else comparison_tables.WINNERS.build,
        make_end_to_end_table,
        migration_tables.make_schedulers_table,
        migration_tables.make_ablation_table,
        comparison_tables.make_known_outputs_table,
        migration_tables.make_claims_table,
        lambda analysis: make_conditional_table(analysis.conditional),
        comparison_tables.make_ratios_table,
        comparison_tables.make_differences_table,
        comparison_tables.make_turns_table,
        *(partial(make_latency_table, series=series) for series in latency.METRICS),
        make_caching_table,
        INSTANCES.build,
        make_decisions_table,
        migration_tables.MIGRATIONS.build,
        transfer_tables.make_transfers_table,
        transfer_tables.TRANSFERRED_TOKENS.build,
        transfer_tables.ARMS.build,
        transfer_tables.make_fitted_table,
        migration_tables.COSTS.build,
        transfer_tables.POOLS.build,
        floor_tables.make_decision_points_table,
        floor_tables.make_variants_table,
        COUPLING.build,
        make_occupancy_table,
        INTERFERENCE.build,
        CELLS.build,
        migration_tables.TRIALS.build,
        DEGRADED.build,
    )
    tables = (*(build(analysis) for build in builders), make_gap_table(analysis.gaps))
    return tuple(table for table in tables if table.rows)


def make_end_to_end_table(analysis: RoutingAnalysis) -> Table:
    """The specification's table of baselines."""

    def trials(label: str) -> str:
        done = sum(cell.label == label for cell in analysis.cells)
        planned = analysis.planned.get(label, done)
        return str(done) if planned == done else f"{done} of {planned}"

    note = "Means over the trials. APC by the engines' own counters; instances as (median, max), never as a ratio."
    metrics = (make_metric_column(analysis, name) for name in (*HEADLINE, "completed_share"))
    columns = (POLICY, *metrics, Column("trials", trials))
    return make_table_with_cut_note("End to end", columns, analysis.labels, note)


def make_latency_table(analysis: RoutingAnalysis, series: str) -> Table:
    points = (make_metric_column(analysis, name_percentile(series, point), point) for point in ("mean", *POINTS))
    unit = find_metric(name_percentile(series, "mean")).shown_unit
    title = f"{latency.METRICS[series].title} ({unit})"
    return make_table_with_cut_note(title, (POLICY, *points), analysis.labels)


def make_caching_table(analysis: RoutingAnalysis) -> Table:
    """APC against what the trace allows."""

    def bound_column(heading: str, name: str) -> Column[str]:
        return Column(heading, lambda label: analysis.compute_mean_over_cells(label, name), "%", scale=100, form=".1f")

    note = "Bounds: an endless cache in one place, over the turns that were completed, at the engine's block size."
    columns = (
        POLICY,
        make_metric_column(analysis, "apc"),
        make_metric_column(analysis, "apc_usage", "as responses say %"),
        bound_column("bound, any", "apc_bound_any"),
        bound_column("bound, own session", "apc_bound_intra"),
        bound_column("of its bound", "apc_of_bound"),
    )
    return make_table("Prefix cache", columns, analysis.labels, note)


InstanceRow = tuple[str, Sequence[InstanceNumbers]]
"""A label, and one of its instances in each of its cells."""


def _make_mean_column(
    name: str, value: Callable[[InstanceNumbers], float | None], scale: float = 1.0, form: str = ".1f"
) -> Column[InstanceRow]:
    return Column(name, lambda row: compute_mean_of_known(value(one) for one in row[1]), scale=scale, form=form)


INSTANCES: TableKind[InstanceRow] = TableKind(
    "Instances",
    lambda analysis: ((label, own) for label in analysis.labels for own in analysis.instances(label).values()),
    (
        Column("policy", lambda row: row[0]),
        Column("instance", lambda row: row[1][0].instance),
        Column("role", lambda row: row[1][0].role),
        _make_mean_column("turns", lambda one: one.turns, form=".0f"),
        _make_mean_column("sessions seen", lambda one: one.sessions),
        _make_mean_column("TTFT p90 ms", lambda one: one.values["ttft_p90_s"].value, 1e3),
        _make_mean_column("APC %", lambda one: one.values["apc"].value, 100),
        _make_mean_column("KV used, max %", lambda one: one.values["kv_usage_max"].value, 100),
        _make_mean_column("waiting p90", lambda one: one.values["waiting_p90"].value),
    ),
    "Means over the trials; KV and queue from samples at 1 Hz.",
)


def make_decisions_table(analysis: RoutingAnalysis) -> Table:
    cells = {label: [cell for cell in analysis.cells if cell.label == label] for label in analysis.labels}
    reasons = {label: sum((Counter(cell.reasons) for cell in own), Counter[str]()) for label, own in cells.items()}

    def shares(label: str) -> str | None:
        counted = sorted(reasons[label].items(), key=lambda item: (-item[1], item[0]))
        total = reasons[label].total()
        return ", ".join(f"{reason} {format_percent(count / total)}" for reason, count in counted) or None

    def sum_counts(label: str, name: str) -> int | None:
        known = [count for cell in cells[label] if (count := cell.counts.get(name)) is not None]
        return sum(known) if known else None

    columns: tuple[Column[str], ...] = (
        POLICY,
        Column("picks", lambda label: reasons[label].total() or None),
        Column("reasons", shares),
        Column("retried", lambda label: sum_counts(label, "retried")),
        Column("migrations asked for", lambda label: sum_counts(label, "migrations")),
    )
    return make_table("Decisions", columns, analysis.labels)


def _format_value_or_reason(estimate: Estimate) -> str:
    return f"{NOT_MEASURED} ({estimate.reason})" if estimate.value is None and estimate.reason else estimate.text(3)


def _show_of_loop(row: Coupling, estimate: Estimate) -> str:
    """Why there is no loop is said once, beside its gain."""
    return NOT_MEASURED if row.why_no_loop else _format_value_or_reason(estimate)


COUPLING: TableKind[Coupling] = TableKind(
    "Dispatch coupling",
    lambda analysis: analysis.couplings,
    (
        Column("policy", lambda row: row.label),
        Column("Lambda", lambda row: row.arrivals_per_s, "/s", 3),
        Column("N", lambda row: row.turns, digits=3),
        Column("W", lambda row: row.service_s, "s", 3),
        Column("T", lambda row: row.think_s, "s", 3),
        Column("L", lambda row: row.concurrency, digits=3),
        Column("L over time", lambda row: row.in_system, digits=3),
        make_percent_column("held back", lambda row: row.held_back),
        Column("session delay", lambda row: row.session_delay_s, "s", 3),
        make_ms_column("W'", lambda row: row.slope_s),
        Column("Lambda N W'", lambda row: _format_value_or_reason(row.loop_gain)),
        Column("L*", lambda row: _show_of_loop(row, row.equilibrium)),
        Column("gain", lambda row: _show_of_loop(row, row.gain)),
        Column("dL", lambda row: _show_of_loop(row, row.sensitivity)),
    ),
    "L = Lambda N (W + T). W': ms per turn that one more session in the system adds, fitted inside the cells; gain "
    "= 1 / (1 - Lambda N W'), how often the loop returns a small slow-down; dL = (L* - Lambda N T) x gain: sessions it "
    "adds, per unit. Held back: sessions that the limit on sessions in flight let in late. Then, and where Lambda N "
    f"(W + T) is more than {format_percent(LITTLE_WITHIN)} off L over time, no loop is stated.",
)


def make_occupancy_table(analysis: RoutingAnalysis) -> Table:
    """What decode pools would hold at the percentiles of the footprints."""
    at = {(row.deployment, row.point): row for row in analysis.occupancies if row.point}

    def make_deployment_column(name: str) -> Column[str]:
        def show(point: str) -> str:
            return f"{format_percent(at[name, point].p90)} (fits {at[name, point].fit_in_all_pools})"

        return Column(name, show)

    names = [one.name for one in analysis.deployments]
    columns: tuple[Column[str], ...] = (
        Column("footprint", str),
        Column("tokens", lambda point: f"{at[names[0], point].footprint_tokens:.0f}"),
        *map(make_deployment_column, names),
    )
    of = ", ".join(
        f"{one.name} of {one.arm}" + ("" if one.is_measured else " (which had no such pools: a model)")
        for one in analysis.deployments
    )
    note = (
        "Share of the decode pools held by the decodes passed a tenth of the time, if each were of this footprint; and "
        "how many fit: whole footprints in an instance's pool, times the instances that decode. Concurrency: "
        f"{of}."
    )
    return make_table("Decode pools by footprint", columns, dict.fromkeys(point for _, point in at), note)


INTERFERENCE: TableKind[Interference] = TableKind(
    "A prefill beside decodes",
    lambda analysis: analysis.interference,
    (
        Column("prefill tokens", lambda row: row.prefill_tokens),
        Column("decodes", lambda row: row.decodes),
        make_ms_column("ITL before", lambda row: row.before_s),
        make_ms_column("ITL during", lambda row: row.during_s),
        Column("during / before", lambda row: row.slowdown, digits=3),
        Column("longest gap", lambda row: row.worst_gap_s, "ms", scale=1e3, form=".1f"),
        Column("repeats", lambda row: row.repeats),
    ),
    "Means over repeats on one engine; brackets: the spread within that launch. During: while the prefill runs. "
    + define_terms("ITL"),
)

DEGRADED: TableKind[RoutedSummary] = TableKind(
    "Degraded cells",
    lambda analysis: analysis.degraded,
    (
        Column("cell", lambda cell: cell.cell),
        Column("why", lambda cell: cell.degraded),
    ),
    "In these cells the client fell behind, completions had other lengths than asked, or the replay ended early: no "
    "comparison uses them. A policy with one whose replay ended early, or with several that are more than a quarter of "
    "its trials, has no interval over its trials.",
)


def _format_turns(cell: RoutedSummary) -> str | None:
    turns = cell.counts.get("turns")
    return None if turns is None else f"{cell.counts.get('completed')} of {turns}"


def _format_marks(cell: RoutedSummary) -> str:
    marks = ["DEGRADED"] if cell.degraded else []
    marks += [f"{cell.counts[name]} {name}" for name in ("failed", "dropped", "cut") if cell.counts.get(name)]
    return ", ".join(marks)


CELLS: TableKind[RoutedSummary] = TableKind(
    FIGURES_BEFORE,
    lambda analysis: analysis.cells,
    (
        Column("policy", lambda cell: cell.label),
        Column("trial", lambda cell: cell.trial),
        Column("position", lambda cell: cell.position),
        Column("turns", _format_turns),
        Column("TTFT p90", lambda cell: cell.estimate("ttft_p90_s"), "ms", scale=1e3),
        Column("E2E p90", lambda cell: cell.estimate("e2e_p90_s"), "s"),
        Column("APC", lambda cell: cell.estimate("apc"), "%", 3, 100),
        Column("wall", lambda cell: cell.estimate("wall_clock_s"), "s"),
        Column("amplification", lambda cell: cell.estimate("amplification"), digits=3),
        Column("marks", _format_marks),
    ),
)
