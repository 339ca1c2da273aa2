"""What a replay promises, against a server whose true times are known."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from results.records.errors import SpecError
from results.records.schemas import RequestStatus
from runners.load.process import run_replay
from runners.load.replay import compute_amplification, make_session_line
from runners.load.replay_messages import ReplayTick, read_replay_spec
from runners.trace.session import Session
from tests.runners.load.cells import seconds
from tests.runners.load.traces import Replay, chain, prompts_of, replay_spec, trace_of, turn
from tests.servers.truth_server import TruthServer


def test_a_replay_measures_the_truth(replay: Replay) -> None:
    trace = trace_of(chain("a", 3), chain("b", 2, start_s=0.05))
    replayed = replay(trace, {"ttft_ms": 20, "itl_ms": 5, "instance": 3})
    outcome = replayed.outcome
    assert outcome.stop_reason == "complete"
    assert (outcome.turns, outcome.sent, outcome.completed, outcome.never_sent) == (5, 5, 5, 0)
    assert (outcome.sessions, outcome.sessions_done, outcome.sessions_failed) == (2, 2, 0)
    assert [row.index for row in replayed.rows] == [0, 1, 2, 3, 4]
    for row in replayed.rows:
        truth = replayed.truth[row.index]
        assert row.status is RequestStatus.OK
        assert row.request == truth.request_id
        assert row.session == truth.session
        assert row.instance == "i3"
        assert row.prompt_tokens == len(truth.prompt) == row.input_tokens
        assert row.completion_tokens == truth.tokens == row.output_tokens == 3
        assert row.t_due_ns is not None
        assert row.t_send_ns is not None
        assert row.t_due_ns <= row.t_send_ns <= truth.t_recv_ns
        assert row.t_first_token_ns is not None
        assert truth.t_writes_ns[0] <= row.t_first_token_ns
    ttfts_s = [seconds(row.t_first_token_ns, row.t_send_ns) for row in replayed.rows]
    assert median(ttft_s - replayed.truth[index].ttft_s for index, ttft_s in enumerate(ttfts_s)) < 0.01


def test_turns_of_a_session_wait_for_each_other_and_think(replay: Replay) -> None:
    trace = trace_of(chain("a", 4, think_s=0.03), chain("b", 4, think_s=0.0))
    replayed = replay(trace, {"ttft_ms": 5, "itl_ms": 1})
    for session, think_s in (("a", 0.03), ("b", 0.0)):
        rows = [row for row in replayed.rows if row.session == session]
        for before, row in pairwise(rows):
            assert seconds(row.t_due_ns, before.t_end_ns) == pytest.approx(think_s, abs=1e-6)
    assert {replayed.row("a", 0).inflight_sessions, replayed.row("b", 0).inflight_sessions} == {2}
    assert replayed.row("a", 3).inflight_sessions == 1, "the other session is over by then"


def test_the_wall_clock_is_first_send_to_last_end_and_amplification_its_share_of_the_span(replay: Replay) -> None:
    """Two sessions recorded as one second long, on a server that needs 50 ms for a turn."""
    trace = trace_of(chain("a", 3, gap_s=0.5, think_s=0.02), chain("b", 2, gap_s=1.0, think_s=0.02))
    replayed = replay(trace, {"ttft_ms": 50, "itl_ms": 0})
    sends, ends = (
        [row.t_send_ns for row in replayed.rows if row.t_send_ns],
        [row.t_end_ns for row in replayed.rows if row.t_end_ns],
    )
    assert replayed.outcome.wall_clock_s == (max(ends) - min(sends)) / 1e9
    assert replayed.outcome.trace_span_s == 1.0
    assert replayed.outcome.amplification == pytest.approx(replayed.outcome.wall_clock_s, rel=1e-9)
    assert 0.19 < replayed.outcome.wall_clock_s < 0.9


def test_time_scale_and_cap_reach_the_clock(replay: Replay) -> None:
    trace = trace_of(chain("a", 2, gap_s=9.0, think_s=8.0), chain("b", 1, start_s=2.0))
    replayed = replay(trace, {"itl_ms": 0}, time_scale=0.1, idle_gap_cap_s=0.3)
    a, b = replayed.row("a", 0), replayed.row("b", 0)
    assert seconds(replayed.row("a", 1).t_due_ns, a.t_end_ns) == pytest.approx(0.3, abs=1e-6)
    assert seconds(b.t_due_ns, a.t_due_ns) == pytest.approx(0.2, abs=1e-6)
    assert replayed.outcome.trace_span_s == pytest.approx(0.4)


def test_two_turns_of_a_session_may_be_in_flight(replay: Replay) -> None:
    family = Session(
        "a",
        (
            turn(0, 0.0),
            turn(0, 0.1, after=(0,), agent="one", think_s=0.0),
            turn(0, 0.1, after=(0,), agent="two", think_s=0.0),
            turn(1, 0.2, after=(1, 2), think_s=0.0),
        ),
    )
    replayed = replay(trace_of(family), {"ttft_ms": 60, "itl_ms": 0})
    _, one, two, last = replayed.rows
    assert replayed.outcome.inflight_max == 2
    assert seconds(one.t_end_ns, two.t_send_ns) > 0
    assert seconds(two.t_end_ns, one.t_send_ns) > 0
    assert last.t_due_ns == max(one.t_end_ns or 0, two.t_end_ns or 0)
    assert (one.agent, two.agent, last.agent) == ("one", "two", "")


def test_a_later_turn_begins_with_the_prompt_of_the_one_before(replay: Replay) -> None:
    replayed = replay(trace_of(chain("a", 3), chain("b", 3)), {"itl_ms": 0})
    prompts = prompts_of(replayed)
    for before, after in ((0, 1), (1, 2), (3, 4), (4, 5)):
        shared = len(prompts[before]) - 2  # its tail belongs to it alone
        assert prompts[after][:shared] == prompts[before][:shared]
        assert prompts[after][: shared + 2] != prompts[before]
    assert prompts[0][:8] != prompts[3][:8]
    assert [row.reusable_intra_tokens for row in replayed.rows[:3]] == [0, 8, 16]
    assert replayed.outcome.reusable_intra_tokens == 48
    assert replayed.outcome.apc_bound_intra == pytest.approx(48 / (2 * (10 + 18 + 26)))


def test_a_seed_means_the_same_prompts_and_the_same_names(replay: Replay) -> None:
    trace = trace_of(chain("a", 2))
    one, two, other = replay(trace), replay(trace), replay(trace, seed=8)
    assert prompts_of(one) == prompts_of(two)
    assert [row.request for row in one.rows] == [row.request for row in two.rows]
    assert prompts_of(one) != prompts_of(other)


def test_the_limit_on_sessions_holds_back_counts_and_records(replay: Replay) -> None:
    trace = trace_of(*(chain(f"s{number}", 2, think_s=0.0) for number in range(5)))
    replayed = replay(trace, {"ttft_ms": 40, "itl_ms": 0}, max_inflight_sessions=2)
    assert replayed.outcome.completed == 10
    assert replayed.outcome.inflight_sessions_max == 2
    assert max(row.inflight_sessions for row in replayed.rows) == 2
    assert replayed.outcome.sessions_delayed == 3
    delays = [row.session_delay_s for row in replayed.rows]
    assert delays[0] == delays[2] == 0.0
    assert replayed.outcome.session_delay_max_s == max(delays) >= 0.15
    assert delays[4] == delays[5] > 0
    assert not replayed.outcome.fidelity.degraded or "lateness" in replayed.outcome.fidelity.reason
    assert median(seconds(row.t_send_ns, row.t_due_ns) for row in replayed.rows) < 0.02, "waiting is not lateness"


def test_after_a_failed_turn_the_session_goes_on_with_the_next(replay: Replay) -> None:
    trace = trace_of(chain("a", 3, think_s=0.03), chain("b", 1))
    replayed = replay(trace, {"itl_ms": 0, "status": 503, "refuse": 1})
    assert [row.status for row in replayed.rows] == ["ok", "error", "ok", "ok"]
    assert "503" in (replayed.rows[1].error or "")
    assert seconds(replayed.rows[2].t_due_ns, replayed.rows[1].t_end_ns) == pytest.approx(0.03, abs=1e-6)
    assert (replayed.outcome.failed, replayed.outcome.sessions_failed, replayed.outcome.sessions_done) == (1, 1, 2)
    assert replayed.outcome.stop_reason == "complete"


def test_or_its_session_ends_and_the_rest_is_recorded_as_dropped(replay: Replay) -> None:
    trace = trace_of(chain("a", 3), chain("b", 2))
    replayed = replay(trace, {"itl_ms": 0, "status": 503, "refuse": 0}, on_error="end_session")
    assert [row.status for row in replayed.rows] == ["error", "dropped", "dropped", "ok", "ok"]
    for row in replayed.rows[1:3]:
        assert row.t_due_ns is row.t_send_ns is row.t_end_ns is None
        assert replayed.rows[0].request in (row.error or "")
    assert (replayed.outcome.sent, replayed.outcome.never_sent, replayed.outcome.cut) == (3, 2, 0)
    assert (replayed.outcome.sessions_done, replayed.outcome.sessions_failed) == (2, 1)
    assert replayed.outcome.stop_reason == "complete"


def test_a_server_that_only_fails_ends_the_replay(replay: Replay) -> None:
    trace = trace_of(chain("a", 30, think_s=0.0))
    replayed = replay(trace, {"status": 500}, max_failures_in_a_row=4)
    assert replayed.outcome.stop_reason == "failing"
    assert (replayed.outcome.failed, replayed.outcome.sent, replayed.outcome.cut) == (4, 4, 26)
    assert replayed.outcome.amplification is None
    assert "failing" in replayed.outcome.amplification_reason


def test_the_hard_stop_sends_nothing_more_and_records_every_turn(replay: Replay) -> None:
    trace = trace_of(chain("a", 3, think_s=0.0), chain("late", 1, start_s=30.0))
    replayed = replay(trace, {"ttft_ms": 400, "itl_ms": 0}, max_duration_s=0.6, drain_s=5.0)
    assert replayed.outcome.stop_reason == "hard_stop"
    assert [row.status for row in replayed.rows] == ["ok", "ok", "cut", "cut"]
    assert (replayed.outcome.completed, replayed.outcome.cut, replayed.outcome.never_sent) == (2, 2, 2)
    assert replayed.rows[2].t_due_ns is None
    assert (replayed.outcome.t_stop_ns - replayed.outcome.t_start_ns) / 1e9 == pytest.approx(0.6, abs=1e-6)
    assert replayed.outcome.sessions_done == 0
    assert replayed.outcome.amplification is None


def test_a_cut_ends_it_now_and_records_what_was_in_flight(replay: Replay) -> None:
    trace = trace_of(*(chain(f"s{number}", 2) for number in range(4)))
    replayed = replay(trace, {"ttft_ms": 60_000}, cut_once_sent=4)
    assert replayed.outcome.stop_reason == "cancelled"
    assert {row.status for row in replayed.rows} == {RequestStatus.CUT}
    assert sum(row.t_send_ns is not None for row in replayed.rows) == 4
    assert (replayed.outcome.sent, replayed.outcome.cut, replayed.outcome.sessions_done) == (4, 8, 0)


def test_ticks_say_where_it_stands(replay: Replay) -> None:
    trace = trace_of(chain("a", 2, think_s=1.0), chain("b", 1, start_s=0.1))
    replayed = replay(trace, {"ttft_ms": 300, "itl_ms": 0}, max_inflight_sessions=1)
    first = replayed.ticks[0]
    assert (first.turns, first.sessions, first.sent, first.completed) == (3, 2, 1, 1)
    assert (first.inflight_sessions, first.waiting_sessions, first.sessions_done) == (1, 1, 0)
    assert first.fraction == pytest.approx(1 / 3)
    assert first.pending_prefill_tokens == 0
    assert first.ttft_p50_s == pytest.approx(0.3, abs=0.1)
    assert first.instances == ()


def test_ticks_say_what_was_seen_of_each_instance(replay: Replay) -> None:
    trace = trace_of(chain("a", 2, think_s=1.0))
    replayed = replay(trace, {"ttft_ms": 30, "itl_ms": 5, "instance": 3})
    (seen,) = replayed.ticks[0].instances
    assert seen.instance == "i3"
    assert (seen.ttft_p90_s, seen.tpot_p50_s) == (replayed.ticks[0].ttft_p90_s, replayed.ticks[0].tpot_p50_s)
    assert seen.ttft_p90_s is not None


def test_nothing_has_to_be_built_at_its_time(replay: Replay) -> None:
    trace = trace_of(*(chain(f"s{number}", 5, think_s=0.0) for number in range(4)))
    replayed = replay(trace, {"ttft_ms": 150, "itl_ms": 1})
    assert replayed.outcome.late_bodies == 0
    assert replayed.outcome.wrong_length == 0


def test_a_session_may_have_any_name(replay: Replay) -> None:
    name = "Sitzung 7: µ%\n"
    replayed = replay(trace_of(chain(name, 1)), {"itl_ms": 0})
    assert replayed.rows[0].session == name
    assert replayed.truth[0].session == "Sitzung%207:%20%C2%B5%25%0A"
    assert make_session_line("agent/4f-a.b=c") == "x-session-id: agent/4f-a.b=c\r\n"


def test_amplification_needs_a_whole_replay_and_a_span() -> None:
    assert compute_amplification(12.0, 6.0, "complete") == (2.0, "")
    assert compute_amplification(12.0, 6.0, "hard_stop")[0] is None
    assert compute_amplification(None, 6.0, "complete")[0] is None
    value, reason = compute_amplification(12.0, 0.0, "complete")
    assert value is None
    assert "one moment" in reason


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"time_scale": 0.0}, "time_scale"),
        ({"think": "sometimes"}, "think"),
        ({"on_error": "panic"}, "on_error"),
        ({"idle_gap_cap_s": -1.0}, "idle_gap_cap_s"),
        ({"max_inflight_sessions": -1}, "max_inflight_sessions"),
        ({"vocab_high": 1}, "tokens"),
        ({"block_tokens": 0}, "block_tokens"),
    ],
)
def test_an_impossible_spec_is_refused_by_name(changes: dict[str, object], named: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=named) as refused:
        replay_spec("http://127.0.0.1:1", trace_of(chain("a", 1)), tmp_path, **changes)
    assert refused.value.remedy


async def test_a_replay_in_its_own_process_ends_with_its_outcome(server: TruthServer, tmp_path: Path) -> None:
    ticks: list[ReplayTick] = []
    spec = replay_spec(server.url(ttft_ms=5, itl_ms=1), trace_of(chain("a", 2, think_s=1.2)), tmp_path)
    outcome = await run_replay(spec, ticks.append)
    assert (outcome.stop_reason, outcome.completed) == ("complete", 2)
    assert ticks
    assert read_replay_spec(tmp_path / "metrics.spec.json") == spec


async def test_a_cut_before_it_has_begun_is_an_outcome_too(server: TruthServer, tmp_path: Path) -> None:
    cut = asyncio.Event()
    cut.set()
    spec = replay_spec(server.url(ttft_ms=60_000), trace_of(chain("a", 1)), tmp_path)
    stopped = await run_replay(spec, lambda tick: None, cut=cut)
    assert stopped.cut == 1
    assert stopped.stop_reason == "cancelled"
