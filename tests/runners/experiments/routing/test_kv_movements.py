"""What the decision log of a cell says of its KV movements."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from results.records.decisions import ClusterView, Decision, DecisionRecord, KvTransfer, RoutedOutcome, RoutedRequest
from runners.experiments.routing.artifacts import count_movements, make_movement_headline

MS = 1_000_000


def record(migration: str = "", **transfer: Any) -> DecisionRecord:
    move = KvTransfer("t", transport="mooncake", source="e0", target="e1", **transfer) if transfer else None
    request = RoutedRequest("r", "s", 0, 64, 8, 32, {})
    outcome = RoutedOutcome("ok", 200, migration=migration, transfer=move)
    return DecisionRecord(0, 0, 1.0, request, ClusterView((), 0), Decision("ear", "e1", "migrated"), outcome)


def moved(ms: int, tokens: int | None, **more: Any) -> dict[str, Any]:
    return {"status": "transferred", "t_begin_ns": MS, "t_done_ns": (1 + ms) * MS, "external_tokens": tokens, **more}


def test_movements_are_counted_by_what_came_of_them() -> None:
    moved_kv = count_movements(
        [
            record(),
            record("transferred", purpose="migration", **moved(20, 640, bytes=327_680)),
            record("transferred", purpose="migration", **moved(40, None)),
            record("recomputed", purpose="migration", status="failed", reason="gone", t_begin_ns=1, t_done_ns=9 * MS),
            record("failed"),
            record(purpose="handover", **moved(60, 128, bytes=65_536)),
            record(purpose="handover", status="refused"),
        ]
    )
    assert msgspec.to_builtins(moved_kv) == {
        "migrations": {"failed": 1, "recomputed": 1, "transferred": 2},
        "handovers": {"refused": 1, "transferred": 1},
        "external_tokens": 768,
        "bytes": 393_216,
        "uncounted": 1,
        "transfer_mean_s": pytest.approx(0.040),
    }
    assert make_movement_headline(moved_kv) == {
        "migrations_failed": 1,
        "migrations_recomputed": 1,
        "migrations_transferred": 2,
        "handovers_refused": 1,
        "handovers_transferred": 1,
        "external_tokens": 768,
        "transfer_mean_s": pytest.approx(0.040),
    }


def test_a_cell_in_which_nothing_was_to_be_moved_says_nothing_of_it() -> None:
    nothing = count_movements([record(), record()])
    assert msgspec.to_builtins(nothing) == {}
    assert make_movement_headline(nothing) == {}


def test_what_was_not_counted_is_not_nothing() -> None:
    moved_kv = count_movements([record("transferred", purpose="migration", **moved(20, None))])
    assert (moved_kv.external_tokens, moved_kv.bytes, moved_kv.uncounted) == (None, None, 1)
    assert count_movements([record("recomputed")]).transfer_mean_s is None
