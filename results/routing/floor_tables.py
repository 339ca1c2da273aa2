"""The section of a `routing` report about specs/load_floor.md."""

from __future__ import annotations

from results.report.judgements import make_judgement_table
from results.report.table import NOT_MEASURED, Column, Table, make_table
from results.routing.analyze import RoutingAnalysis
from results.routing.load_floor import TTFT_RATIO, FloorVariant
from results.routing.loads import describe_difference
from results.routing.metrics import find_metric
from results.routing.shown import format_difference, make_ms_column, make_percent_column, mark_interval


def make_decision_points_table(analysis: RoutingAnalysis) -> Table:
    """D1 to D7, Q1, Q1.D and Q1.E."""
    note = "By the point: what the rule says of the values alone."
    return make_judgement_table("Load floor: the decision points", "decision", analysis.decision_points, note)


def make_variants_table(analysis: RoutingAnalysis) -> Table:
    """kv_aware with and without the bonus and its alternatives."""
    variants = () if analysis.floor is None else analysis.floor.variants
    against = "" if analysis.floor is None else analysis.floor.reference
    if loads := describe_difference({one.label: one.load for one in variants}):
        against = f"kv_aware without a fix under the same load. The loads: {loads}"
    note = (
        "D: an instance that decodes. Direct: served by the session's own D from its cache, no prefill elsewhere, no "
        "transfer; of served requests. Overlap kept: cached tokens over what the best D held by the router's index, of "
        "the requests of which both are known (counted); chosen: what the picked D held over the same. Transfers "
        "failed or recomputed: of those that were asked for. Differences and ratio: inside a trial, to "
        f"{against or 'kv_aware without a fix, which was not run'}."
    )
    return make_table("Load floor: with and without", VARIANT_COLUMNS, variants, note)


def _format_shares(row: FloorVariant) -> str | None:
    return ", ".join(f"{name} {share.text(3, 100)}" for name, share in row.shares.items()) or None


def _make_value_column(heading: str, name: str) -> Column[FloorVariant]:
    return make_percent_column(heading, lambda row: row.values[name])


def _make_difference_column(heading: str, name: str) -> Column[FloorVariant]:
    return Column(heading, lambda row: format_difference(row.differences.get(name), find_metric("apc")), "%")


def _format_ratio(row: FloorVariant) -> str:
    ratio = row.differences.get(TTFT_RATIO)
    return NOT_MEASURED if ratio is None or ratio.value is None else ratio.text(3) + mark_interval(ratio, 1.0)


VARIANT_COLUMNS: tuple[Column[FloorVariant], ...] = (
    Column("policy", lambda row: row.label),
    Column("fix", lambda row: row.fix),
    Column("sessions per D", _format_shares, "%"),
    _make_value_column("smallest share", "least_share"),
    _make_value_column("direct to D", "direct_rate"),
    _make_value_column("overlap kept", "overlap_kept"),
    _make_value_column("overlap chosen", "overlap_chosen"),
    Column("counted", lambda row: f"{row.counted} of {row.served}"),
    make_ms_column("TTFT p90", lambda row: row.values["ttft_p90_s"]),
    _make_value_column("completed", "completed_share"),
    Column("failed turns", lambda row: f"{row.failed_turns} of {row.turns}"),
    Column(
        "transfers failed or recomputed",
        lambda row: f"{row.lost_transfers} of {row.transfers}" if row.transfers else None,
    ),
    _make_value_column("of transfers", "lost_share"),
    _make_difference_column("direct, difference", "direct_rate"),
    _make_difference_column("overlap kept, difference", "overlap_kept"),
    _make_difference_column("failed or recomputed, difference", "lost_share"),
    Column("TTFT p90, ratio", _format_ratio),
)
