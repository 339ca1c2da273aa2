"""The section of a `routing` report about specs/load_floor.md."""

from __future__ import annotations

from results.report.judgements import judgement_table
from results.report.table import NOT_MEASURED, Table
from results.routing.analyse import RoutingAnalysis
from results.routing.load_floor import TTFT_RATIO, FloorVariant
from results.routing.metrics import metric
from results.routing.shown import difference, mark, shown

SHARES = ("least_share", "direct_rate", "overlap_kept", "overlap_chosen")
TITLES = {
    "least_share": "smallest share %",
    "direct_rate": "direct to D %",
    "overlap_kept": "overlap kept %",
    "overlap_chosen": "overlap chosen %",
}


def answers(analysis: RoutingAnalysis) -> Table:
    """D1 to D7 and what was asked of the transport."""
    return judgement_table("Load floor: the decision points", "decision", analysis.decision_points)


def variants(analysis: RoutingAnalysis) -> Table:
    """kv_aware with and without the bonus and its alternatives."""
    floor = analysis.floor
    rows = () if floor is None else tuple(_variant(one, floor.reference) for one in floor.variants)
    note = (
        "D: an instance that decodes. Direct: served by the session's own D from its cache, no prefill elsewhere, no "
        "transfer; of served requests. Overlap kept: cached tokens over what the best D held by the router's index, of "
        "the requests of which both are known (counted); chosen: what the picked D held over the same. Transfers "
        "failed or recomputed: of those that were asked for. Differences and ratio: inside a trial, to "
        f"{_reference(analysis)}."
    )
    columns = (
        "policy", "fix", "sessions per D %", *TITLES.values(), "counted", "TTFT p90 ms", "completed %", "failed turns",
        "transfers failed or recomputed", "of transfers %", "direct, difference %", "overlap kept, difference %",
        "failed or recomputed, difference %", "TTFT p90, ratio",
    )  # fmt: skip
    return Table("Load floor: with and without", columns, rows, note)


def _reference(analysis: RoutingAnalysis) -> str:
    floor = analysis.floor
    return (floor.reference if floor is not None else "") or "kv_aware without a fix, which was not run"


def _variant(one: FloorVariant, reference: str) -> tuple[str, ...]:
    per_cent = metric("apc")
    shares = ", ".join(f"{name} {share.text(3, 100)}" for name, share in one.shares.items())
    ratio = one.differences.get(TTFT_RATIO)
    return (
        one.label,
        one.fix,
        shares or NOT_MEASURED,
        *(one.values[name].text(3, 100) for name in SHARES),
        f"{one.counted} of {one.served}",
        shown(one.values["ttft_p90_s"], metric("ttft_p90_s")),
        one.values["completed_share"].text(3, 100),
        f"{one.failed_turns} of {one.turns}",
        f"{one.lost_transfers} of {one.transfers}" if one.transfers else NOT_MEASURED,
        one.values["lost_share"].text(3, 100),
        *(
            NOT_MEASURED if one.label == reference else difference(one.differences.get(name), per_cent)
            for name in ("direct_rate", "overlap_kept", "lost_share")
        ),
        NOT_MEASURED if ratio is None or ratio.value is None else ratio.text(3) + mark(ratio, 1.0),
    )
