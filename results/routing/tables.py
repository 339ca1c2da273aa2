"""The tables of a `routing` report, as text: what each says, whatever it is drawn on."""

from __future__ import annotations

from collections.abc import Sequence

from results.measures import latency
from results.measures.summary import POINTS, percentile_name
from results.report.table import NOT_MEASURED, Column, Table, gap_table, make_table
from results.routing import comparison_tables, floor_tables, migration_tables, recomputing_tables
from results.routing.analyse import RoutingAnalysis
from results.routing.cautions import few_trials
from results.routing.coupling import Coupling
from results.routing.interference import Interference
from results.routing.metrics import HEADLINE, metric
from results.routing.occupancy import DEPLOYMENTS
from results.routing.shown import cut, headed, shown
from results.routing.summary import RoutedSummary
from results.statistics.estimates import Estimate

FIGURES_BEFORE = "Cells"
"""The figures stand between the comparisons and the tables of single cells, which begin with this title."""


def tables(analysis: RoutingAnalysis) -> tuple[Table, ...]:
    """Every table that has rows, in reading order."""
    found = (
        comparison_tables.read_first(analysis),
        comparison_tables.best_values(analysis) if few_trials(analysis.trials) else comparison_tables.winners(analysis),
        end_to_end(analysis),
        migration_tables.paper(analysis),
        migration_tables.ablation(analysis),
        migration_tables.claims(analysis),
        comparison_tables.ratios(analysis),
        comparison_tables.against(analysis),
        comparison_tables.turn_by_turn(analysis),
        *(latencies(analysis, series) for series in latency.METRICS),
        caching(analysis),
        workers(analysis),
        decisions(analysis),
        migration_tables.migrations(analysis),
        migration_tables.transfers(analysis),
        migration_tables.brought(analysis),
        recomputing_tables.arms(analysis),
        recomputing_tables.fitted(analysis),
        migration_tables.costs(analysis),
        migration_tables.pools(analysis),
        floor_tables.answers(analysis),
        floor_tables.variants(analysis),
        coupling(analysis),
        occupancy(analysis),
        interference(analysis),
        cells(analysis),
        migration_tables.by_trial(analysis),
        degraded(analysis),
        gap_table(analysis.gaps),
    )
    return tuple(table for table in found if table.rows)


def end_to_end(analysis: RoutingAnalysis) -> Table:
    """The specification's table of baselines."""
    measures = [metric(name) for name in (*HEADLINE, "completed_share")]
    columns = ("policy", *map(headed, measures), "trials")
    rows = tuple(
        (label, *(shown(analysis.value(label, one.name), one) for one in measures), _trials(analysis, label))
        for label in analysis.labels
    )
    note = "Means over the trials. APC by the engines' own counters; instances as (median, max), never as a ratio."
    note += cut(analysis.value(label, one.name) for label in analysis.labels for one in measures)
    return Table("End to end", columns, rows, note)


def _trials(analysis: RoutingAnalysis, label: str) -> str:
    done = sum(cell.label == label for cell in analysis.cells)
    planned = analysis.planned.get(label)
    return f"{done} of {planned}" if planned is not None and planned != done else str(done)


def latencies(analysis: RoutingAnalysis, series: str) -> Table:
    """Mean and percentiles of one latency."""
    names = [percentile_name(series, point) for point in ("mean", *POINTS)]
    unit = metric(names[0]).shown_unit
    rows = tuple(
        (label, *(shown(analysis.value(label, name), metric(name)) for name in names)) for label in analysis.labels
    )
    note = cut(analysis.value(label, name) for label in analysis.labels for name in names).strip()
    return Table(f"{latency.METRICS[series].title} ({unit})", ("policy", "mean", *POINTS), rows, note)


def caching(analysis: RoutingAnalysis) -> Table:
    """APC against what the trace allows."""
    names = ("apc", "apc_usage", "apc_bound_any", "apc_bound_intra", "apc_of_bound")
    rows = []
    for label in analysis.labels:
        counted = [cell for cell in analysis.cells if cell.label == label and not cell.degraded]
        bounds = [_mean_text(counted, name) for name in names[2:]]
        rows.append((label, *(shown(analysis.value(label, name), metric(name)) for name in names[:2]), *bounds))
    note = "Bounds: an endless cache in one place, over the turns that were completed, at the engine's block size."
    columns = (
        "policy",
        "APC %",
        "as responses say %",
        "bound, any %",
        "bound, own session %",
        "of its bound %",
    )
    return Table("Prefix cache", columns, tuple(rows), note)


def _mean_text(counted: list[RoutedSummary], name: str) -> str:
    found = [value for cell in counted if (value := cell.estimate(name).value) is not None]
    return f"{100 * sum(found) / len(found):.1f}" if found else NOT_MEASURED


def workers(analysis: RoutingAnalysis) -> Table:
    """Every instance of every policy, mean over the trials."""
    rows = []
    for label in analysis.labels:
        counted = [cell for cell in analysis.cells if cell.label == label and not cell.degraded]
        for name in dict.fromkeys(one.instance for cell in counted for one in cell.instances):
            ones = [one for cell in counted for one in cell.instances if one.instance == name]
            rows.append(
                (
                    label,
                    name,
                    ones[0].role,
                    _mean([one.turns for one in ones], ".0f"),
                    _mean([one.sessions for one in ones], ".1f"),
                    _mean([one.values["ttft_p90_s"].value for one in ones], ".1f", 1e3),
                    _mean([one.values["apc"].value for one in ones], ".1f", 100),
                    _mean([one.values["kv_usage_max"].value for one in ones], ".1f", 100),
                    _mean([one.values["waiting_p90"].value for one in ones], ".1f"),
                )
            )
    columns = (
        "policy", "instance", "role", "turns", "sessions seen", "TTFT p90 ms", "APC %", "KV used, max %", "waiting p90",
    )  # fmt: skip
    return Table("Instances", columns, tuple(rows), "Means over the trials; KV and queue from samples at 1 Hz.")


def _mean(values: Sequence[float | None], form: str, scale: float = 1.0) -> str:
    """The mean of those that were measured."""
    known = [scale * value for value in values if value is not None]
    return format(sum(known) / len(known), form) if known else NOT_MEASURED


def decisions(analysis: RoutingAnalysis) -> Table:
    """Why the router picked as it did."""
    rows = []
    for label in analysis.labels:
        own = [cell for cell in analysis.cells if cell.label == label]
        reasons: dict[str, int] = {}
        for cell in own:
            for reason, count in cell.reasons.items():
                reasons[reason] = reasons.get(reason, 0) + count
        picks = sum(reasons.values())
        counted = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        rows.append(
            (
                label,
                str(picks) if picks else NOT_MEASURED,
                ", ".join(f"{reason} {count / picks:.0%}" for reason, count in counted) or NOT_MEASURED,
                _sum(own, "retried"),
                _sum(own, "migrations"),
            )
        )
    return Table("Decisions", ("policy", "picks", "reasons", "retried", "migrations asked for"), tuple(rows))


def _sum(own: list[RoutedSummary], name: str) -> str:
    known = [count for cell in own if (count := cell.counts.get(name)) is not None]
    return str(sum(known)) if known else NOT_MEASURED


def coupling(analysis: RoutingAnalysis) -> Table:
    """The loop of every policy."""
    note = (
        "L = Lambda N (W + T). W': ms per turn that one more session in the system adds, fitted inside the cells; gain "
        "= 1 / (1 - Lambda N W'), how often the loop returns a small slow-down; L* x gain: sessions that it adds."
    )
    return make_table("Dispatch coupling", COUPLING_COLUMNS, analysis.couplings, note)


def _with_reason(estimate: Estimate) -> str:
    return f"{NOT_MEASURED} ({estimate.reason})" if estimate.value is None and estimate.reason else estimate.text(3)


COUPLING_COLUMNS: tuple[Column[Coupling], ...] = (
    Column("policy", lambda row: row.label),
    Column("Lambda", lambda row: row.arrivals_per_s, "/s", 3),
    Column("N", lambda row: row.turns, digits=3),
    Column("W", lambda row: row.service_s, "s", 3),
    Column("T", lambda row: row.think_s, "s", 3),
    Column("L", lambda row: row.concurrency, digits=3),
    Column("W'", lambda row: row.slope_s, "ms", 3, 1e3),
    Column("Lambda N W'", lambda row: row.loop_gain, digits=3),
    Column("L*", lambda row: _with_reason(row.equilibrium)),
    Column("gain", lambda row: _with_reason(row.gain)),
    Column("L* x gain", lambda row: _with_reason(row.sensitivity)),
)


def occupancy(analysis: RoutingAnalysis) -> Table:
    """What decode pools would hold at the percentiles of the footprints."""
    at = {(row.deployment, row.point): row for row in analysis.occupancies if row.point}
    points = list(dict.fromkeys(point for _, point in at))
    rows = tuple(
        (
            point,
            f"{at[next(iter(DEPLOYMENTS)), point].footprint_tokens:.0f}",
            *(f"{at[name, point].p90:.0%} (fits {at[name, point].fit_per_pool})" for name in DEPLOYMENTS),
        )
        for point in points
    )
    columns = ("footprint", "tokens", *DEPLOYMENTS)
    note = (
        "Share of the decode pools held by the decodes passed a tenth of the time, if each were of this footprint; and "
        "how many fit. Computed from this run's concurrency and KV capacity; no KV was moved."
    )
    return Table("Decode pools by footprint", columns, rows, note)


def interference(analysis: RoutingAnalysis) -> Table:
    """Prefill beside decodes."""
    note = "Means over repeats; during: while the prefill runs."
    return make_table("A prefill beside decodes", INTERFERENCE_COLUMNS, analysis.interference, note)


INTERFERENCE_COLUMNS: tuple[Column[Interference], ...] = (
    Column("prefill tokens", lambda row: str(row.prefill_tokens)),
    Column("decodes", lambda row: str(row.decodes)),
    Column("TPOT before", lambda row: row.before_s, "ms", 3, 1e3),
    Column("TPOT during", lambda row: row.during_s, "ms", 3, 1e3),
    Column("during / before", lambda row: row.slowdown, digits=3),
    Column("longest gap", lambda row: None if row.worst_gap_s is None else f"{1e3 * row.worst_gap_s:.1f}", "ms"),
    Column("repeats", lambda row: str(row.repeats)),
)


def cells(analysis: RoutingAnalysis) -> Table:
    """Every cell."""
    return make_table(FIGURES_BEFORE, CELL_COLUMNS, analysis.cells)


def _turns(cell: RoutedSummary) -> str | None:
    turns = cell.counts.get("turns")
    return None if turns is None else f"{cell.counts.get('completed')} of {turns}"


def _marks(cell: RoutedSummary) -> str:
    found = ["DEGRADED"] if cell.degraded else []
    found += [f"{cell.counts[name]} {name}" for name in ("failed", "dropped", "cut") if cell.counts.get(name)]
    return ", ".join(found)


def degraded(analysis: RoutingAnalysis) -> Table:
    """Cells whose client fell behind."""
    rows = tuple((cell.cell, cell.degraded) for cell in analysis.degraded)
    note = "The client fell behind in these cells: their latencies are its own, and no comparison uses them."
    return Table("Degraded cells", ("cell", "why"), rows, note)


CELL_COLUMNS: tuple[Column[RoutedSummary], ...] = (
    Column("policy", lambda cell: cell.label),
    Column("trial", lambda cell: str(cell.trial)),
    Column("place", lambda cell: str(cell.place)),
    Column("turns", _turns),
    Column("TTFT p90", lambda cell: cell.estimate("ttft_p90_s"), "ms", scale=1e3),
    Column("E2E p90", lambda cell: cell.estimate("e2e_p90_s"), "s"),
    Column("APC", lambda cell: cell.estimate("apc"), "%", 3, 100),
    Column("wall", lambda cell: cell.estimate("wall_clock_s"), "s"),
    Column("amplification", lambda cell: cell.estimate("amplification"), digits=3),
    Column("marks", lambda cell: _marks(cell)),
)
