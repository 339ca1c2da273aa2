"""The KV movements of a cell, summed up from the router's log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from results.measures.columns import floats_or_nan
from results.records.decisions import DecisionRecord, KvTransfer, transfer_s
from results.statistics.estimates import mean


def count_movements(decisions: Iterable[DecisionRecord]) -> dict[str, Any]:
    """Sums over the KV movements of a cell's decision log; empty where no KV was to be moved.

    `migrations` and `handovers` by outcome, tokens and bytes that arrived (`external_tokens`, `bytes`: None where no
    count is known, without `uncounted` movements), `transfer_mean_s` from the router's start of a transfer until the KV
    had arrived.
    """
    outcomes = [record.outcome for record in decisions if record.outcome is not None]
    migrations = Counter(outcome.migration for outcome in outcomes if outcome.migration)
    moves = [outcome.transfer for outcome in outcomes if outcome.transfer is not None]
    handovers = Counter(move.status for move in moves if move.purpose == "handover")
    if not migrations and not moves:
        return {}
    done = [move for move in moves if move.status == "transferred"]
    counted = [move for move in done if move.external_tokens is not None]
    return {
        "migrations": dict(sorted(migrations.items())),
        "handovers": dict(sorted(handovers.items())),
        "external_tokens": sum(move.external_tokens or 0 for move in counted) if counted else None,
        "bytes": _sum_bytes(done),
        "uncounted": len(done) - len(counted),
        "transfer_mean_s": mean(floats_or_nan(transfer_s(move) for move in done)).value,
    }


def movement_headline(facts: dict[str, Any]) -> dict[str, Any]:
    """`movements` as the flat numbers of a cell's headline."""
    if not facts:
        return {}
    return {
        **{f"migrations_{name}": count for name, count in facts["migrations"].items()},
        **{f"handovers_{name}": count for name, count in facts["handovers"].items()},
        "external_tokens": facts["external_tokens"],
        "transfer_mean_s": facts["transfer_mean_s"],
    }


def _sum_bytes(moves: Sequence[KvTransfer]) -> int | None:
    known = [move.bytes for move in moves if move.bytes is not None]
    return sum(known) if known else None
