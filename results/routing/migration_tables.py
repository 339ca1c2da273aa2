"""The tables of a `routing` report about sessions that move: the specification's own, migrations, transfers, pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from results.report.judgements import judgement_table
from results.report.table import NOT_MEASURED, Column, Table, make_table
from results.routing.analyse import RoutingAnalysis
from results.routing.metrics import metric
from results.routing.migrations import MIN_COSTED
from results.routing.policy_migrations import PolicyTransfers, counts_text
from results.routing.shown import cut, difference, headed, shown
from results.routing.specified_tables import FULL, PaperRow
from results.routing.transfers import COUNTED_SHARE
from results.statistics.estimates import Estimate

NOT_RUN = "not in this run"
PAPER = (
    "ttft_p50_s", "ttft_p90_s", "tpot_p90_s", "apc", "worker_ttft_p90_median_s", "worker_ttft_p90_max_s",
    "amplification",
)  # fmt: skip
"""Columns of the specification's table 5.2."""
AGAINST_FULL = ("apc", "ttft_p90_s", "worker_ttft_p90_median_s")
OUTCOMES = ("transferred", "recomputed", "unneeded", "failed", "unknown")
STATUSES = ("transferred", "unneeded", "failed", "refused")
ACCURACY = ("accuracy %", "judged", "accuracy, next turn %", "judged, next turn")


def paper(analysis: RoutingAnalysis) -> Table:
    """Table 5.2, where two of its rows were run."""
    note = (
        "Rows as the specification names them, found by policy and parameters; of several settings of a policy none is "
        "the specification's. Worker p90: of the instances' TTFT p90 the median and the maximum. Wall-clock factor: "
        "wall clock over trace span."
    )
    titles = {"worker_ttft_p90_median_s": "worker p90 median ms", "worker_ttft_p90_max_s": "worker p90 max ms"}
    titles |= {"amplification": "wall-clock factor"}
    note += cut(analysis.value(row.label, name) for row in analysis.paper for name in PAPER)
    columns = ("scheduler", *(titles.get(name, headed(metric(name))) for name in PAPER), "measured as")
    rows = tuple(
        (row.name, *(shown(analysis.value(row.label, name), metric(name)) for name in PAPER), _measured_as(row))
        for row in analysis.paper
    )
    return Table("Schedulers of specs/ear, 5.2", columns, rows if _run(analysis.paper) else (), note)


def ablation(analysis: RoutingAnalysis) -> Table:
    """Table 5.3, where two of its rows were run."""
    names = (*PAPER[:-1], "e2e_p90_s")
    full = next((row.label for row in analysis.ablation if row.name == FULL), "")
    rows = tuple(
        (
            row.name,
            *(shown(analysis.value(row.label, name), metric(name)) for name in names),
            *(_against(analysis, row.label, full, name) for name in AGAINST_FULL),
            _measured_as(row),
        )
        for row in analysis.ablation
    )
    columns = (
        "variant",
        *(headed(metric(name)) for name in names),
        *(f"{headed(metric(name))}, to EAR" for name in AGAINST_FULL),
        "measured as",
    )
    note = "Affinity only: sessions stay, whatever is pending there. Migration only: every turn is placed as a new one."
    note += cut(analysis.value(row.label, name) for row in analysis.ablation for name in names)
    return Table("Ablation of EAR, 5.3", columns, rows if _run(analysis.ablation) else (), note)


def _run(rows: Sequence[PaperRow]) -> bool:
    return sum(bool(row.label) for row in rows) > 1


def _measured_as(row: PaperRow) -> str:
    if not row.label:
        return f"several settings, none of them this row's: {', '.join(row.others)}" if row.others else NOT_RUN
    return f"{row.label} (also run: {', '.join(row.others)})" if row.others else row.label


def _against(analysis: RoutingAnalysis, label: str, full: str, name: str) -> str:
    if not label or not full or label == full:
        return NOT_MEASURED
    return difference(analysis.difference(label, full, name), metric(name))


def claims(analysis: RoutingAnalysis) -> Table:
    """What the specification expects of migration, judged."""
    note = "Judged by the intervals of the differences; the rules stand in verdicts.json."
    return judgement_table("Claims about migration", "claim", analysis.claims, note)


def migrations(analysis: RoutingAnalysis) -> Table:
    """The microbenchmark of 5.6, where a policy of the run may migrate."""
    rows = tuple(
        (
            row.label,
            str(row.requests) if row.trials else NOT_MEASURED,
            str(row.asked) if row.trials else NOT_MEASURED,
            _per_cent(row.values["trigger_rate"]),
            *(str(row.outcomes.get(word, 0)) if row.trials else NOT_MEASURED for word in OUTCOMES),
            *_judged(row.values["accuracy"], row.values["accuracy_next"]),
            _per_cent(row.values["thrash_rate"]),
            counts_text(row.refused) or NOT_MEASURED,
            row.why_none or _bases(row.values),
        )
        for row in analysis.moves.migrations
    )
    columns = (
        "policy", "requests", "asked to migrate", "trigger rate %", *OUTCOMES, *ACCURACY, "thrash rate %",
        "stayed though hot, by gate", "why none, or what the intervals hold",
    )  # fmt: skip
    after = next((cell.found.turns_after for cell in analysis.moves.cells), 0)
    note = (
        "Trigger rate: of requests. Outcomes: of picks; recomputed: served without KV that came, unneeded: the target "
        "held it already. Accuracy: served migrations whose target was not hot at any of the session's next "
        f"{after} turns, of those after which that many were seen (judged); beside it, at the very next turn. Thrash "
        "rate: sessions that migrated again within their cooldown: must be 0. Accuracy and thrash rate have exact "
        "binomial intervals."
    )
    return Table("Migrations", columns, rows if analysis.moves.cells else (), note)


def by_trial(analysis: RoutingAnalysis) -> Table:
    """The same of every cell."""
    rows = tuple(
        (
            cell.label,
            str(cell.trial),
            str(sum(cell.found.requests.values())),
            str(cell.found.asked),
            _per_cent(cell.found.trigger_rate),
            *(str(cell.found.outcomes.get(word, 0)) for word in OUTCOMES),
            *_judged(cell.found.accuracy, cell.found.accuracy_next),
            _per_cent(cell.found.thrash_rate),
            "" if cell.counts else "not counted",
        )
        for cell in analysis.moves.cells
    )
    columns = (
        "policy", "trial", "requests", "asked to migrate", "trigger rate %", *OUTCOMES, *ACCURACY, "thrash rate %",
        "marks",
    )  # fmt: skip
    return Table("Cells: migrations by trial", columns, rows)


def transfers(analysis: RoutingAnalysis) -> Table:
    """KV on its way: how it ended, and how long it took."""
    note = (
        "Of those transferred: from the router's beginning to the KV at the target (handover: to its first byte). "
        "Waited: what neither leg took, above all for a turn at the target. Legs: queues of their engines included."
    )
    note += cut(value for row in analysis.moves.transfers for value in row.values.values())
    return make_table("KV transfers", TRANSFER_COLUMNS, analysis.moves.transfers, note)


def _count(status: str) -> Column[PolicyTransfers]:
    return Column(status, lambda row: str(row.statuses.get(status, 0)))


def _mean_ms(name: str, value: str) -> Column[PolicyTransfers]:
    return Column(name, lambda row: row.values[value], "ms", 3, 1e3)


TRANSFER_COLUMNS: tuple[Column[PolicyTransfers], ...] = (
    Column("policy", lambda row: row.label),
    Column("purpose", lambda row: row.purpose),
    Column("transport", lambda row: ", ".join(row.transports) or None),
    *map(_count, STATUSES),
    *(_mean_ms(point, f"transfer_{point}_s") for point in ("mean", "p50", "p90", "max")),
    _mean_ms("waited", "wait_mean_s"),
    _mean_ms("source leg", "source_leg_mean_s"),
    _mean_ms("target leg", "target_leg_mean_s"),
    Column("why not", lambda row: counts_text(row.reasons) or None),
)


def brought(analysis: RoutingAnalysis) -> Table:
    """What the transfers brought."""
    rows = tuple(
        (
            row.label,
            row.purpose,
            f"{row.counted} of {row.statuses.get('transferred', 0)}",
            *(row.values[f"{name}_tokens_mean"].text(3) for name in ("prefix", "external", "local", "computed")),
            row.values["external_total_mean"].text(3),
            _per_cent(row.values["source_computed_share"]),
            row.values["bytes_mean"].text(3, 1e-6),
            row.values["bandwidth_bytes_per_s"].text(3, 1e-6),
            counts_text(row.uncounted) or NOT_MEASURED,
        )
        for row in analysis.moves.transfers
        if row.statuses.get("transferred")
    )
    columns = (
        "policy", "purpose", "counted", "prefix tokens", "external", "local", "computed", "external, by totals",
        "source computed %", "MB", "MB/s", "not counted",
    )  # fmt: skip
    note = (
        "Means over the transferred ones. Of those whose tokens were counted, by the target's counters or its transfer "
        "log: external came by the transfer, local it had, computed it did itself, MB; where fewer than "
        f"{COUNTED_SHARE:.0%} were counted they are no sample of all, and have no interval. By totals: what all "
        "engines' counters say came by transfer, for each transferred one. Source computed: of the prefix, what the "
        "source had lost. MB/s: over the target's leg, its queue included."
    )
    return Table("What KV transfers brought", columns, rows, note)


def costs(analysis: RoutingAnalysis) -> Table:
    """What migrations cost against the turns left to pay for it."""
    rows = tuple(
        (
            row.label,
            one.turns_left,
            str(one.migrations),
            one.transfer_s.text(3, 1e3),
            one.transfer_per_turn_left_s.text(3, 1e3),
            str(one.recomputed),
            one.lost_tokens.text(3),
            one.lost_per_turn_left.text(3),
            one.ttft_s.text(3, 1e3),
        )
        for row in analysis.moves.migrations
        for one in row.costs
    )
    columns = (
        "policy", "turns left", "migrations", "transfer ms", "per turn left ms", "recomputed", "tokens computed again",
        "per turn left", "first byte ms",
    )  # fmt: skip
    note = (
        "Served migrations of all trials, by the turns of their session that came after. Computed again: by the "
        "recomputed ones, held by the source and not found at the target. First byte: from the pick. Intervals, from "
        f"{MIN_COSTED} on, are over migrations, which are not independent within a session."
    )
    return Table("Cost of a migration against the turns left", columns, rows, note)


def pools(analysis: RoutingAnalysis) -> Table:
    """KV in use and sources of prompt tokens, where any label has pools."""
    names = ("kv_mean", "kv_p90", "kv_max", "over_wall_share")
    sources = ("local_hit_share", "external_share", "computed_share")
    rows = tuple(
        (
            row.label,
            row.role,
            row.deployment,
            str(row.instances),
            *(_per_cent(row.values[name]) for name in names),
            row.values["prompt_tokens"].text(4),
            *(_per_cent(row.values[name]) for name in sources),
            row.values["external_tokens"].text(4),
        )
        for row in analysis.pools
    )
    columns = (
        "policy", "pool", "deployment", "instances", "KV used, mean %", "p90 %", "max %", "samples at 90 % or more",
        "prompt tokens", "from its cache %", "by transfer %", "computed %", "transferred tokens",
    )  # fmt: skip
    note = (
        "KV in use by requests that run, of the pool's instances together, at 1 Hz during the replay. Prompt tokens by "
        "the engines' counters, per cell: those of a transfer's legs count too. From its cache: the pool's own APC."
    )
    pooled = any(row.role != "both" for row in analysis.pools) or bool(analysis.moves.transfers)
    return Table("Pools as measured", columns, rows if pooled else (), note)


def _judged(*accuracies: Estimate) -> Iterator[str]:
    for found in accuracies:
        yield _per_cent(found)
        yield str(found.n)


def _bases(values: Mapping[str, Estimate]) -> str:
    found = dict.fromkeys(value.basis for value in values.values() if value.basis)
    return "; ".join(found) or NOT_MEASURED


def _per_cent(found: Estimate) -> str:
    return found.text(3, 100)
