"""The KV movements of a cell, summed up from the router's log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET

from results.records.decisions import DecisionRecord, KvTransfer, transfer_s
from results.records.routing_cells import KvMovements
from results.statistics.estimates import floats_or_nan, mean


def count_movements(decisions: Iterable[DecisionRecord]) -> KvMovements:
    """Sums over the KV movements of a cell's decision log."""
    outcomes = [record.outcome for record in decisions if record.outcome is not None]
    migrations = Counter(outcome.migration for outcome in outcomes if outcome.migration)
    moves = [outcome.transfer for outcome in outcomes if outcome.transfer is not None]
    handovers = Counter(move.status for move in moves if move.purpose == "handover")
    if not migrations and not moves:
        return KvMovements()
    done = [move for move in moves if move.status == "transferred"]
    counted = [move for move in done if move.external_tokens is not None]
    return KvMovements(
        migrations=dict(sorted(migrations.items())),
        handovers=dict(sorted(handovers.items())),
        external_tokens=sum(move.external_tokens or 0 for move in counted) if counted else None,
        bytes=_sum_bytes(done),
        uncounted=len(done) - len(counted),
        transfer_mean_s=mean(floats_or_nan(transfer_s(move) for move in done)).value,
    )


def movement_headline(movements: KvMovements) -> dict[str, Any]:
    """The movements as the flat numbers of a cell's headline."""
    if movements.migrations is UNSET or movements.handovers is UNSET:
        return {}
    return {
        **{f"migrations_{name}": count for name, count in movements.migrations.items()},
        **{f"handovers_{name}": count for name, count in movements.handovers.items()},
        "external_tokens": movements.external_tokens,
        "transfer_mean_s": movements.transfer_mean_s,
    }


def _sum_bytes(moves: Sequence[KvTransfer]) -> int | None:
    known = [move.bytes for move in moves if move.bytes is not None]
    return sum(known) if known else None
