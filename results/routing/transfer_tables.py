"""The tables of a `routing` report about KV that moves: transfers, whether they were the faster way, and pools."""

from __future__ import annotations

from collections.abc import Iterable

from results.records.percent import format_percent
from results.report.table import NOT_MEASURED, Column, Table, make_table
from results.routing.analyze import RoutingAnalysis
from results.routing.migrations import format_counts
from results.routing.pools import InstancePool
from results.routing.recomputing import MIN_R2, WITHIN, AgainstArm, AgainstRecomputing
from results.routing.shown import ND, TableKind, make_ms_column, make_percent_column, note_cut, state_basis_or_reason
from results.routing.transfers import COUNTED_SHARE, PolicyTransfers
from results.statistics.judgement import Verdict


def make_transfers_table(analysis: RoutingAnalysis) -> Table:
    note = (
        "Of those transferred: from the router's beginning to the KV at the target (handover: to its first byte). "
        "Waited: what neither request took, above all for a turn at the target. Both with their engine's queue."
    )
    note += note_cut(value for row in analysis.moves.transfers for value in row.values.values())
    return make_table("KV transfers", TRANSFER_COLUMNS, analysis.moves.transfers, note)


def _make_status_column(status: str) -> Column[PolicyTransfers]:
    return Column(status, lambda row: row.statuses.get(status, 0))


def _make_mean_column(name: str, value: str, unit: str = "", scale: float = 1.0) -> Column[PolicyTransfers]:
    return Column(name, lambda row: row.values[value], unit, 3, scale)


TRANSFER_COLUMNS: tuple[Column[PolicyTransfers], ...] = (
    Column("policy", lambda row: row.label),
    Column("purpose", lambda row: row.purpose),
    Column("transport", lambda row: ", ".join(row.transports) or None),
    *map(_make_status_column, ("transferred", "unneeded", "failed", "refused")),
    *(_make_mean_column(point, f"transfer_{point}_s", "ms", 1e3) for point in ("mean", "p50", "p90", "max")),
    _make_mean_column("waited", "wait_mean_s", "ms", 1e3),
    _make_mean_column("prefill request", "prefill_request_mean_s", "ms", 1e3),
    _make_mean_column("decode request", "decode_request_mean_s", "ms", 1e3),
    Column("why not", lambda row: format_counts(row.reasons) or None),
)

TRANSFERRED_TOKENS: TableKind[PolicyTransfers] = TableKind(
    "What KV transfers moved",
    lambda analysis: [row for row in analysis.moves.transfers if row.statuses.get("transferred")],
    (
        Column("policy", lambda row: row.label),
        Column("purpose", lambda row: row.purpose),
        Column("counted", lambda row: f"{row.counted} of {row.statuses.get('transferred', 0)}"),
        _make_mean_column("prefix tokens", "prefix_tokens_mean"),
        _make_mean_column("external", "external_tokens_mean"),
        _make_mean_column("local", "local_tokens_mean"),
        _make_mean_column("computed", "computed_tokens_mean"),
        _make_mean_column("external, by totals", "external_total_mean"),
        _make_mean_column("source computed", "source_computed_share", "%", 100),
        _make_mean_column("MB", "bytes_mean", scale=1e-6),
        _make_mean_column("MB/s", "bandwidth_bytes_per_s", scale=1e-6),
        Column("not counted", lambda row: format_counts(row.uncounted) or None),
    ),
    "Means over the transferred ones. Of those whose tokens were counted, by the target's counters or its transfer "
    "log: external came by the transfer, local it had, computed it did itself, MB; where fewer than "
    f"{format_percent(COUNTED_SHARE)} were counted they are no sample of all, and have no interval. By totals: what "
    "all engines' counters say came by transfer, for each transferred one. Source computed: of the prefix, what the "
    "source had lost. MB/s: over the decode request, its queue included.",
)


def _format_ratio(arm: AgainstArm) -> str:
    return arm.ratio.text(3) + (ND if arm.verdict == Verdict.NOT_DISTINGUISHABLE else "")


ARMS: TableKind[tuple[str, AgainstArm]] = TableKind(
    "Moving KV against computing it again",
    lambda analysis: [(row.label, row.arm) for row in analysis.moves.recomputing if row.arm is not None],
    (
        Column("policy", lambda row: row[0]),
        Column("the same, computed again", lambda row: row[1].other),
        Column("migrated turns of each", lambda row: f"{row[1].migrated}, {row[1].other_migrated}"),
        make_ms_column("first byte", lambda row: row[1].with_kv_s),
        make_ms_column("computed again", lambda row: row[1].without_kv_s),
        Column("ratio", lambda row: _format_ratio(row[1])),
        Column("TTFT mean of all turns, ratio", lambda row: row[1].every_turn, digits=3),
        Column("verdict", lambda row: row[1].verdict),
        Column("interval", lambda row: state_basis_or_reason(row[1].ratio)),
    ),
    "Two arms that differ in nothing but whether KV moves, compared inside a trial. Migrated turns: from the pick "
    "to the first byte, all that were served; each arm's load decides which turns migrate. All turns: those both "
    "completed, the sessions that stayed included. Below 1 moving KV was the faster way.",
)


def make_fitted_table(analysis: RoutingAnalysis) -> Table:
    migrated = {row.label: row.values["waited_recomputed_s"] for row in analysis.moves.migrations}
    rows = [row for row in analysis.moves.recomputing if row.fits or row.arm is None]
    columns: tuple[Column[AgainstRecomputing], ...] = (
        *FIT_COLUMNS,
        make_ms_column("recomputed ones, first byte", lambda row: migrated[row.label]),
        Column("interval", lambda row: state_basis_or_reason(row.difference_s)),
    )
    note = (
        "Migrated turns that found their KV. First byte: from the pick, the transfer with all its waits included. Had "
        "it been computed: the time of the cell's turns without a transfer (least squares in computed tokens and in "
        "tokens pending at the instance), at what the target would have computed and had pending. Below zero the "
        "transfer was the faster way; the interval is widened by the error of a turn. Extrapolated: migrated turns "
        f"with more tokens to compute or pending than {format_percent(WITHIN)} of those turns. No verdict where the "
        f"fit explains less than {format_percent(MIN_R2)} of the variance in any trial or most migrated turns are "
        "extrapolated. The recomputed ones, to whom no KV came, are other turns."
    )
    return make_table("A transfer against recomputing, as fitted", columns, rows, note)


def _format_range(values: Iterable[float], form: str) -> str | None:
    """`0.30 to 0.36`, over the trials."""
    texts = list(dict.fromkeys(format(value, form) for value in sorted(values)))
    return " to ".join(texts[:1] + texts[1:][-1:]) or None


def _format_extrapolated(row: AgainstRecomputing) -> str:
    if not row.fits:
        return NOT_MEASURED
    beyond, moved = sum(fit.beyond for fit in row.fits), sum(fit.moved for fit in row.fits)
    computed, pending = max(fit.computed_tokens for fit in row.fits), max(fit.pending_tokens for fit in row.fits)
    return f"{beyond} of {moved} (above {computed:.0f} computed or {pending:.0f} pending)"


FIT_COLUMNS: tuple[Column[AgainstRecomputing], ...] = (
    Column("policy", lambda row: row.label),
    Column("turns", lambda row: row.with_kv_s.n),
    Column("prefill us per token", lambda row: row.prefill_s_per_token, digits=3, scale=1e6),
    make_ms_column("computing what came", lambda row: row.compute_s),
    make_ms_column("transfer", lambda row: row.transfer_s),
    make_ms_column("first byte", lambda row: row.with_kv_s),
    make_ms_column("had it been computed", lambda row: row.without_kv_s),
    make_ms_column("difference", lambda row: row.difference_s),
    Column("verdict", lambda row: f"none: {row.withheld}" if row.withheld else row.verdict),
    Column("fit: R2", lambda row: _format_range((fit.r2 for fit in row.fits), ".2f")),
    Column("fit: error of a turn ms", lambda row: _format_range((1e3 * fit.error_s for fit in row.fits), ".0f")),
    Column("fit: extrapolated", _format_extrapolated),
)


def _list_pools_if_any(analysis: RoutingAnalysis) -> tuple[InstancePool, ...]:
    """Where any label has pools, or moves KV."""
    has_pools = any(row.role != "both" for row in analysis.pools) or bool(analysis.moves.transfers)
    return analysis.pools if has_pools else ()


POOLS: TableKind[InstancePool] = TableKind(
    "Pools as measured",
    _list_pools_if_any,
    (
        Column("policy", lambda row: row.label),
        Column("pool", lambda row: row.role),
        Column("deployment", lambda row: row.deployment),
        Column("instances", lambda row: row.instances),
        make_percent_column("KV used, mean", lambda row: row.values["kv_mean"]),
        make_percent_column("p90", lambda row: row.values["kv_p90"]),
        make_percent_column("max", lambda row: row.values["kv_max"]),
        Column("samples at 90 % or more", lambda row: row.values["over_wall_share"], digits=3, scale=100),
        Column("prompt tokens", lambda row: row.values["prompt_tokens"]),
        make_percent_column("from its cache", lambda row: row.values["local_hit_share"]),
        make_percent_column("by transfer", lambda row: row.values["external_share"]),
        make_percent_column("computed", lambda row: row.values["computed_share"]),
        Column("transferred tokens", lambda row: row.values["external_tokens"]),
    ),
    "KV in use by requests that run, of the pool's instances together, at 1 Hz during the replay. Prompt tokens by "
    "the engines' counters, per cell: those of a transfer's requests count too. From its cache: the pool's own APC.",
)
