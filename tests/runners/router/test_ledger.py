"""What is counted and logged a moment later is counted and logged all the same, once and in order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter_ns
from typing import cast

import msgspec
import pytest

from results.records.decisions import Candidate, ClusterView, Decision, DecisionRecord, InstanceLoad, RoutedRequest
from runners.router.counts import Counts
from runners.router.ledger import AT_ONCE, Ledger, PendingOutcome, Pick
from runners.router.policies.policy import Draft
from runners.router.server.log import RecordFile
from runners.router.server.server import EventLoop
from tests.runners.router.routers import until

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":3}}\n\n'


def pick(seq: int, *, tried: tuple[str, ...] = (), terms: dict[str, float] | None = None) -> Pick:
    request = RoutedRequest(f"r-{seq}", "s", seq, 8, 4, 16, {}, tried=tried)
    decision = Decision("mine", "a", "cold", (Candidate("a", (0.0,), terms or {}),))
    now_ns = perf_counter_ns()
    return Pick(request, ClusterView((InstanceLoad("a"),), seq), Draft(decision), seq, now_ns - 5_000, now_ns)


def make_record(seq: int) -> DecisionRecord:
    """Of `pick(seq)`; it has no outcome."""
    one = pick(seq)
    return DecisionRecord(seq, seq, 5.0, one.request, one.cluster, one.decision)


def end(one: Pick, status: str = "ok") -> PendingOutcome:
    begin_ns = one.t_dispatch_ns
    return PendingOutcome(one, status, 200, begin_ns + 10_000_000, begin_ns + 30_000_000, (USAGE,), "")


async def test_notes_settle_by_themselves_and_in_order(tmp_path: Path) -> None:
    path, counts = tmp_path / "d.jsonl", Counts()
    log = RecordFile(str(path))
    ledger = Ledger(log, counts, EventLoop())
    number = 3 * AT_ONCE + 1
    for seq in range(number):
        one = pick(seq, tried=("b",) if seq % 2 else ())
        ledger.add_pick(one)
        ledger.add_outcome(end(one))
    assert counts.picks == 0
    await until(lambda: counts.count_status("ok") == number)
    await log.close()
    rows = msgspec.json.Decoder(DecisionRecord).decode_lines(path.read_bytes())
    assert [row.seq for row in rows] == list(range(number))
    assert {row.decide_us for row in rows} == {5.0}
    assert (counts.picks, counts.retries, counts.picks_of["a"]) == (number, number // 2, number)
    outcome = rows[0].outcome
    assert outcome is not None
    assert outcome.first_byte_s == pytest.approx(0.01)
    assert outcome.last_byte_s == pytest.approx(0.03)
    assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.completion_tokens) == (8, None, 3)


async def test_settle_counts_everything_noted_so_far() -> None:
    counts = Counts()
    ledger = Ledger(RecordFile(""), counts, EventLoop())
    for seq in range(100):
        one = pick(seq)
        ledger.add_pick(one)
        ledger.add_outcome(end(one, "aborted"))
    ledger.settle_records()
    assert (counts.picks, counts.count_status("aborted")) == (100, 100)
    assert [row.request for row in ledger.list_latest_picks()] == [f"r-{seq}" for seq in range(80, 100)]
    await asyncio.sleep(0.1)  # its own turn finds nothing left to count twice
    assert counts.picks == 100


async def test_a_decision_that_is_no_json_costs_its_record_and_no_other(tmp_path: Path) -> None:
    path, counts = tmp_path / "d.jsonl", Counts()
    log = RecordFile(str(path))
    ledger = Ledger(log, counts, EventLoop())
    for seq in range(3):
        ledger.add_outcome(end(pick(seq, terms={"odd": cast(float, object())} if seq == 1 else None)))
    ledger.settle_records()
    await log.close()
    assert path.read_bytes().count(b"\n") == 2
    assert log.lost == 1
    assert "pick 1" in log.error
    assert counts.count_status("ok") == 3
