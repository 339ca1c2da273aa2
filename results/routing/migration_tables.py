"""The tables of a `routing` report about sessions that move: the specification's own, and migrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from results.records.estimate import Estimate
from results.report.judgements import make_judgement_table
from results.report.table import NOT_MEASURED, Column, Row, Table
from results.report.terms import define_terms
from results.routing import shown
from results.routing.analyze import RoutingAnalysis
from results.routing.metrics import find_metric
from results.routing.migrations import MIN_COSTED, TURNS_AFTER, CostRow, PolicyMigrations, format_counts
from results.routing.moves import CellMigrations
from results.routing.specification import FULL, SpecifiedRow

SCHEDULER_METRICS = (
    "ttft_p50_s", "ttft_p90_s", "tpot_p90_s", "apc", "worker_ttft_p90_median_s", "worker_ttft_p90_max_s",
    "amplification",
)  # fmt: skip
"""Columns of the specification's table 5.2."""
SCHEDULER_HEADINGS = {
    "worker_ttft_p90_median_s": "worker p90 median ms",
    "worker_ttft_p90_max_s": "worker p90 max ms",
    "amplification": "wall-clock factor",
}
"""Where the specification's are not the metric's own."""
ABLATION_METRICS = (*SCHEDULER_METRICS[:-1], "e2e_p90_s")
AGAINST_FULL = ("apc", "ttft_p90_s", "worker_ttft_p90_median_s")
DEFINED = (
    "trigger rate", "recomputed migration", "unneeded migration", "refused migration", "migration accuracy",
    "thrash rate",
)  # fmt: skip
"""Terms in the note of the table of migrations."""
OUTCOMES = ("transferred", "recomputed", "unneeded", "failed", "unknown")


def make_schedulers_table(analysis: RoutingAnalysis) -> Table:
    note = (
        "Rows as the specification names them, found by policy and parameters; of several settings of a policy none is "
        "the specification's. Worker p90: of the instances' TTFT p90 the median and the maximum. Wall-clock factor: "
        "wall clock over trace span."
    )
    columns: tuple[Column[SpecifiedRow], ...] = (
        Column("scheduler", lambda row: row.name),
        *(
            _make_column_of_row(shown.make_metric_column(analysis, name, SCHEDULER_HEADINGS.get(name, "")))
            for name in SCHEDULER_METRICS
        ),
        MEASURED_AS,
    )
    return shown.make_table_with_cut_note(
        "Schedulers of specs/ear, 5.2", columns, _take_if_two_were_run(analysis.paper), note
    )


def make_ablation_table(analysis: RoutingAnalysis) -> Table:
    full = next((row.label for row in analysis.ablation if row.name == FULL), "")

    def make_difference_column(name: str) -> Column[SpecifiedRow]:
        def difference(row: SpecifiedRow) -> str:
            if not row.label or not full or row.label == full:
                return NOT_MEASURED
            return shown.format_difference(analysis.difference(row.label, full, name), find_metric(name))

        return Column(f"{find_metric(name).heading}, to EAR", difference)

    columns: tuple[Column[SpecifiedRow], ...] = (
        Column("variant", lambda row: row.name),
        *(_make_column_of_row(shown.make_metric_column(analysis, name)) for name in ABLATION_METRICS),
        *map(make_difference_column, AGAINST_FULL),
        MEASURED_AS,
    )
    note = "Affinity only: sessions stay, whatever is pending there. Migration only: every turn is placed as a new one."
    return shown.make_table_with_cut_note(
        "Ablation of EAR, 5.3", columns, _take_if_two_were_run(analysis.ablation), note
    )


def _make_column_of_row(column: Column[str]) -> Column[SpecifiedRow]:
    """The same of the label that was measured for a row."""
    return Column(column.name, lambda row: column.value(row.label), column.unit, column.digits, column.scale)


def _take_if_two_were_run(rows: Sequence[SpecifiedRow]) -> Sequence[SpecifiedRow]:
    return rows if sum(bool(row.label) for row in rows) > 1 else ()


def _describe_measured_label(row: SpecifiedRow) -> str:
    others = ", ".join(row.others)
    if not row.label:
        return f"several settings, none of them this row's: {others}" if others else "not in this run"
    return f"{row.label} (also run: {others})" if others else row.label


MEASURED_AS = Column("measured as", _describe_measured_label)


def make_claims_table(analysis: RoutingAnalysis) -> Table:
    note = (
        "Judged by the intervals of the differences. By the point: what the values alone say, and in parentheses what "
        "the specification states. The rules are in verdicts.json."
    )
    return make_judgement_table("Claims of the specifications", "claim", analysis.claims, note)


def _make_shared_columns(
    rate: Callable[[Row, str], Estimate], outcomes: Callable[[Row], Mapping[str, int] | None]
) -> tuple[Column[Row], ...]:
    """Rates and outcomes of one cell or of all trials; `outcomes` is None where no log can be read."""

    def make_outcome_column(outcome: str) -> Column[Row]:
        def count(row: Row) -> int | None:
            counts = outcomes(row)
            return None if counts is None else counts.get(outcome, 0)

        return Column(outcome, count)

    return (
        shown.make_percent_column("trigger rate", lambda row: rate(row, "trigger_rate")),
        *map(make_outcome_column, OUTCOMES),
        shown.make_percent_column("accuracy", lambda row: rate(row, "accuracy")),
        Column("judged", lambda row: rate(row, "accuracy").n),
        shown.make_percent_column("accuracy, next turn", lambda row: rate(row, "accuracy_next")),
        Column("judged, next turn", lambda row: rate(row, "accuracy_next").n),
        shown.make_percent_column("thrash rate", lambda row: rate(row, "thrash_rate")),
    )


MIGRATIONS: shown.TableKind[PolicyMigrations] = shown.TableKind(
    "Migrations",
    lambda analysis: analysis.moves.migrations if analysis.moves.cells else (),
    (
        Column("policy", lambda row: row.label),
        Column("requests", lambda row: row.requests if row.trials else None),
        Column("asked to migrate", lambda row: row.asked if row.trials else None),
        *_make_shared_columns(lambda row, name: row.values[name], lambda row: row.outcomes if row.trials else None),
        Column("stayed though hot, by gate", lambda row: format_counts(row.refused) or None),
        Column(
            "why none, or what the intervals hold", lambda row: row.why_none or shown.join_bases(row.values.values())
        ),
    ),
    f"{define_terms(*DEFINED)} Outcomes are counted by picks, the accuracy over the next {TURNS_AFTER} turns and "
    "beside it at the very next one. Accuracy and thrash rate have exact binomial intervals.",
)

TRIALS: shown.TableKind[CellMigrations] = shown.TableKind(
    "Cells: migrations by trial",
    lambda analysis: analysis.moves.cells,
    (
        Column("policy", lambda row: row.label),
        Column("trial", lambda row: row.trial),
        Column("requests", lambda row: sum(row.migrations.requests.values())),
        Column("asked to migrate", lambda row: row.migrations.asked),
        *_make_shared_columns(lambda row, name: getattr(row.migrations, name), lambda row: row.migrations.outcomes),
        Column("marks", lambda row: "" if row.counts else "not counted"),
    ),
)

COSTS: shown.TableKind[tuple[str, CostRow]] = shown.TableKind(
    "Cost of a migration against the turns left",
    lambda analysis: [(row.label, cost) for row in analysis.moves.migrations for cost in row.costs],
    (
        Column("policy", lambda row: row[0]),
        Column("turns left", lambda row: row[1].turns_left),
        Column("migrations", lambda row: row[1].migrations),
        shown.make_ms_column("transfer", lambda row: row[1].transfer_s),
        shown.make_ms_column("per turn left", lambda row: row[1].transfer_per_turn_left_s),
        Column("recomputed", lambda row: row[1].recomputed),
        Column("tokens computed again", lambda row: row[1].lost_tokens, digits=3),
        Column("per turn left", lambda row: row[1].lost_per_turn_left, digits=3),
        shown.make_ms_column("first byte", lambda row: row[1].first_byte_s),
    ),
    "Served migrations of all trials, by the turns of their session that came after. Computed again: by the "
    "recomputed ones, held by the source and not found at the target. First byte: from the pick. Intervals, from "
    f"{MIN_COSTED} on, are over migrations, which are not independent within a session.",
)
