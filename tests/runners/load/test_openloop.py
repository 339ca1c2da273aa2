"""What an open-loop cell promises: it keeps its schedule, drops at the cap, and ends when it has enough."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec
import pytest

from results.records.schemas import RequestStatus
from runners.load.messages import LoadError
from tests.runners.load.cells import INPUT_TOKENS, Measure


def test_the_cap_drops_and_counts_and_never_blocks(measure: Measure) -> None:
    cell = measure({"ttft_ms": 300, "itl_ms": 1}, inflight_cap=3, min_duration_s=1.0, min_completed=1)
    dropped = [row for row in cell.rows if row.status is RequestStatus.DROPPED]
    assert cell.outcome.dropped == len(dropped) > 0
    assert len(cell.rows) == cell.outcome.sent + cell.outcome.dropped
    assert len(cell.truth) == cell.outcome.sent
    assert max(row.inflight_at_send for row in cell.rows) == 3
    for row in dropped:
        assert row.inflight_at_send == 3
        assert row.t_send_ns is row.t_end_ns is row.completion_tokens is None
    # A client that waited at the cap would have handled its arrivals hundreds of milliseconds late.
    assert median(row.t_send_ns - row.t_intended_ns for row in cell.ok if row.t_send_ns) < 100e6
    assert cell.outcome.fidelity.achieved_ratio == pytest.approx(1.0, abs=0.1)


def test_the_window_lasts_until_the_minimum_duration(measure: Measure) -> None:
    cell = measure(min_duration_s=1.0, min_completed=1)
    assert cell.outcome.stop_reason == "complete"
    assert cell.outcome.window_s == pytest.approx(1.0, abs=1e-6)  # on the schedule's grid
    assert cell.outcome.t_window_start_ns - cell.outcome.t_start_ns == 200_000_000
    measured = [row for row in cell.rows if not row.warmup]
    assert len(measured) == 40
    assert all(row.t_intended_ns >= cell.outcome.t_window_start_ns for row in measured)
    assert all(row.t_intended_ns < cell.outcome.t_window_start_ns for row in cell.rows if row.warmup)


def test_the_window_lasts_until_the_minimum_completions(measure: Measure) -> None:
    cell = measure(min_duration_s=0.1, min_completed=50)
    assert cell.outcome.stop_reason == "complete"
    assert cell.outcome.window_s >= 50 / 40 - 1e-6
    ended = [row.t_end_ns or 0 for row in cell.ok if not row.warmup]
    assert sum(t_ns < cell.outcome.t_window_end_ns + 5e6 for t_ns in ended) >= 50


def test_the_hard_stop_ends_a_cell_that_cannot_get_enough(measure: Measure) -> None:
    cell = measure({"ttft_ms": 5_000}, min_duration_s=0.2, max_duration_s=0.8, drain_s=0.3)
    assert cell.outcome.stop_reason == "hard_stop"
    assert cell.outcome.window_s == pytest.approx(0.8, abs=1e-6)
    assert cell.outcome.cut == cell.outcome.sent == 40
    assert {row.status for row in cell.rows} == {RequestStatus.CUT}
    assert (cell.outcome.t_end_ns - cell.outcome.t_window_end_ns) / 1e9 >= 0.29


def test_slow_requests_of_the_window_get_time_to_finish(measure: Measure) -> None:
    cell = measure({"ttft_ms": 700, "itl_ms": 1}, min_completed=1)
    assert cell.outcome.cut == 0
    assert cell.outcome.completed == cell.outcome.sent
    assert any((row.t_end_ns or 0) > cell.outcome.t_window_end_ns for row in cell.ok)
    assert cell.outcome.completed_in_window < cell.outcome.completed


def test_a_poisson_cell_sends_what_it_scheduled(measure: Measure) -> None:
    cell = measure(arrival="poisson", min_duration_s=1.0)
    assert cell.outcome.completed == cell.outcome.sent == len(cell.truth)
    gaps = {after.t_intended_ns - before.t_intended_ns for before, after in pairwise(cell.rows)}
    assert len(gaps) > 10


def test_what_an_operator_sees_while_it_runs(measure: Measure) -> None:
    ticks = measure({"ttft_ms": 150, "itl_ms": 4}, min_duration_s=2.5).ticks
    assert len(ticks) >= 2
    assert [tick.sent for tick in ticks] == sorted(tick.sent for tick in ticks)
    assert all(0 <= before.fraction <= after.fraction <= 1 for before, after in pairwise(ticks))
    live = ticks[1]
    assert live.phase == "measure"
    assert live.inflight > 0
    assert live.pending_prefill_tokens % INPUT_TOKENS == 0
    assert 0 < live.pending_prefill_tokens <= live.inflight * INPUT_TOKENS
    assert live.ttft_p50_s is not None
    assert live.ttft_p50_s >= 0.15
    assert live.tpot_p50_s == pytest.approx(0.004, rel=0.5)
    assert live.lateness_p99_s is not None


def test_the_stamps_of_every_chunk_can_be_kept(measure: Measure, tmp_path: Path) -> None:
    chunks = tmp_path / "chunks.jsonl"
    cell = measure({"itl_ms": 2}, chunks_path=str(chunks))
    rows = {row["index"]: row["t_ns"] for row in msgspec.json.Decoder().decode_lines(chunks.read_bytes())}
    for row, truth in cell.pairs():
        stamps = rows[row.index]
        assert stamps[0] == row.t_first_token_ns
        assert stamps[-1] == row.t_last_token_ns
        assert all(wrote <= read for wrote, read in zip(truth.t_writes_ns, stamps, strict=True))


def test_a_full_disk_is_an_error_that_names_the_file(measure: Measure, tmp_path: Path) -> None:
    full = tmp_path / "requests.jsonl"
    full.symlink_to("/dev/full")
    with pytest.raises(LoadError, match=r"requests\.jsonl: No space left"):
        measure(min_duration_s=3.0)


def test_the_scheduler_is_left_as_it_was(measure: Measure) -> None:
    before = os.sched_getscheduler(0)
    cell = measure(realtime=True)
    assert os.sched_getscheduler(0) == before
    assert cell.outcome.completed == cell.outcome.sent
