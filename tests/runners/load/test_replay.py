"""What a replay promises, against a server whose true times are known."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from results.records.schemas import RequestStatus
from runners.load.process import run_replay
from runners.load.replay import amplified, session_line
from runners.load.replay_spec import ReplaySpec, ReplayTick
from runners.load.spec import LoadError, load_spec, to_json
from runners.trace.session import Session
from tests.runners.load.traces import Replayed, chain, prompts_of, replay, replay_spec, seconds, trace_of, turn
from tests.servers.truth_server import TruthServer


def test_a_replay_measures_the_truth(server: TruthServer, tmp_path: Path) -> None:
    trace = trace_of(chain("a", 3), chain("b", 2, start_s=0.05))
    found = replay(server, replay_spec(server.url(ttft_ms=20, itl_ms=5, instance=3), trace, tmp_path))
    outcome = found.outcome
    assert outcome.stop_reason == "complete"
    assert (outcome.turns, outcome.sent, outcome.completed, outcome.never_sent) == (5, 5, 5, 0)
    assert (outcome.sessions, outcome.sessions_done, outcome.sessions_failed) == (2, 2, 0)
    assert [row.index for row in found.rows] == [0, 1, 2, 3, 4]
    for row in found.rows:
        truth = found.truth[row.index]
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
    assert (
        median(seconds(row.t_first_token_ns, row.t_send_ns) - found.truth[row.index].ttft_s for row in found.rows)
        < 0.01
    )


def test_turns_of_a_session_wait_for_each_other_and_think(server: TruthServer, tmp_path: Path) -> None:
    trace = trace_of(chain("a", 4, think_s=0.03), chain("b", 4, think_s=0.0))
    found = replay(server, replay_spec(server.url(ttft_ms=5, itl_ms=1), trace, tmp_path))
    for session, think_s in (("a", 0.03), ("b", 0.0)):
        rows = [row for row in found.rows if row.session == session]
        for before, row in pairwise(rows):
            assert seconds(row.t_due_ns, before.t_end_ns) == pytest.approx(think_s, abs=1e-6)
    assert {found.row("a", 0).inflight_sessions, found.row("b", 0).inflight_sessions} == {2}
    assert found.row("a", 3).inflight_sessions == 1, "the other session is over by then"


def test_the_wall_clock_is_first_send_to_last_end_and_amplification_its_share_of_the_span(
    server: TruthServer, tmp_path: Path
) -> None:
    """Two sessions recorded as one second long, on a server that needs 50 ms for a turn."""
    trace = trace_of(chain("a", 3, gap_s=0.5, think_s=0.02), chain("b", 2, gap_s=1.0, think_s=0.02))
    found = replay(server, replay_spec(server.url(ttft_ms=50, itl_ms=0), trace, tmp_path))
    sends, ends = (
        [row.t_send_ns for row in found.rows if row.t_send_ns],
        [row.t_end_ns for row in found.rows if row.t_end_ns],
    )
    assert found.outcome.wall_clock_s == (max(ends) - min(sends)) / 1e9
    assert found.outcome.trace_span_s == 1.0
    assert found.outcome.amplification == pytest.approx(found.outcome.wall_clock_s, rel=1e-9)
    assert 0.19 < found.outcome.wall_clock_s < 0.9


def test_time_scale_and_cap_reach_the_clock(server: TruthServer, tmp_path: Path) -> None:
    trace = trace_of(chain("a", 2, gap_s=9.0, think_s=8.0), chain("b", 1, start_s=2.0))
    found = replay(server, replay_spec(server.url(itl_ms=0), trace, tmp_path, time_scale=0.1, idle_gap_cap_s=0.3))
    a, b = found.row("a", 0), found.row("b", 0)
    assert seconds(found.row("a", 1).t_due_ns, a.t_end_ns) == pytest.approx(0.3, abs=1e-6)
    assert seconds(b.t_due_ns, a.t_due_ns) == pytest.approx(0.2, abs=1e-6)
    assert found.outcome.trace_span_s == pytest.approx(0.4)


def test_two_turns_of_a_session_may_be_in_flight(server: TruthServer, tmp_path: Path) -> None:
    family = Session(
        "a",
        (
            turn(0, 0.0),
            turn(0, 0.1, after=(0,), agent="one", think_s=0.0),
            turn(0, 0.1, after=(0,), agent="two", think_s=0.0),
            turn(1, 0.2, after=(1, 2), think_s=0.0),
        ),
    )
    found = replay(server, replay_spec(server.url(ttft_ms=60, itl_ms=0), trace_of(family), tmp_path))
    _, one, two, last = found.rows
    assert found.outcome.inflight_max == 2
    assert seconds(one.t_end_ns, two.t_send_ns) > 0
    assert seconds(two.t_end_ns, one.t_send_ns) > 0
    assert last.t_due_ns == max(one.t_end_ns or 0, two.t_end_ns or 0)
    assert (one.agent, two.agent, last.agent) == ("one", "two", "")


def test_a_later_turn_begins_with_the_prompt_of_the_one_before(server: TruthServer, tmp_path: Path) -> None:
    found = replay(server, replay_spec(server.url(itl_ms=0), trace_of(chain("a", 3), chain("b", 3)), tmp_path))
    prompts = prompts_of(found)
    for before, after in ((0, 1), (1, 2), (3, 4), (4, 5)):
        shared = len(prompts[before]) - 2  # its tail belongs to it alone
        assert prompts[after][:shared] == prompts[before][:shared]
        assert prompts[after][: shared + 2] != prompts[before]
    assert prompts[0][:8] != prompts[3][:8]
    assert [row.reusable_intra_tokens for row in found.rows[:3]] == [0, 8, 16]
    assert found.outcome.reusable_intra_tokens == 48
    assert found.outcome.apc_bound_intra == pytest.approx(48 / (2 * (10 + 18 + 26)))


def test_a_seed_means_the_same_prompts_and_the_same_names(server: TruthServer, tmp_path: Path) -> None:
    spec = replay_spec(server.url(itl_ms=0), trace_of(chain("a", 2)), tmp_path)
    one, two = replay(server, spec), replay(server, spec)
    assert prompts_of(one) == prompts_of(two)
    assert [row.request for row in one.rows] == [row.request for row in two.rows]
    other = replay(server, replay_spec(server.url(itl_ms=0), trace_of(chain("a", 2)), tmp_path, seed=8))
    assert prompts_of(one) != prompts_of(other)


def test_the_limit_on_sessions_holds_back_counts_and_records(server: TruthServer, tmp_path: Path) -> None:
    trace = trace_of(*(chain(f"s{number}", 2, think_s=0.0) for number in range(5)))
    spec = replay_spec(server.url(ttft_ms=40, itl_ms=0), trace, tmp_path, max_inflight_sessions=2)
    found = replay(server, spec)
    assert found.outcome.completed == 10
    assert found.outcome.inflight_sessions_max == 2
    assert max(row.inflight_sessions for row in found.rows) == 2
    assert found.outcome.sessions_delayed == 3
    delays = [row.session_delay_s for row in found.rows]
    assert delays[0] == delays[2] == 0.0
    assert found.outcome.session_delay_max_s == max(delays) >= 0.15
    assert delays[4] == delays[5] > 0
    assert not found.outcome.fidelity.degraded or "lateness" in found.outcome.fidelity.reason
    assert median(seconds(row.t_send_ns, row.t_due_ns) for row in found.rows) < 0.02, "waiting is not lateness"


def test_after_a_failed_turn_the_session_goes_on_with_the_next(server: TruthServer, tmp_path: Path) -> None:
    trace = trace_of(chain("a", 3, think_s=0.03), chain("b", 1))
    found = replay(server, replay_spec(server.url(itl_ms=0, status=503, refuse=1), trace, tmp_path))
    assert [row.status for row in found.rows] == ["ok", "error", "ok", "ok"]
    assert "503" in (found.rows[1].error or "")
    assert seconds(found.rows[2].t_due_ns, found.rows[1].t_end_ns) == pytest.approx(0.03, abs=1e-6)
    assert (found.outcome.failed, found.outcome.sessions_failed, found.outcome.sessions_done) == (1, 1, 2)
    assert found.outcome.stop_reason == "complete"


def test_or_its_session_ends_and_the_rest_is_recorded_as_dropped(server: TruthServer, tmp_path: Path) -> None:
    trace = trace_of(chain("a", 3), chain("b", 2))
    spec = replay_spec(server.url(itl_ms=0, status=503, refuse=0), trace, tmp_path, on_error="end_session")
    found = replay(server, spec)
    assert [row.status for row in found.rows] == ["error", "dropped", "dropped", "ok", "ok"]
    for row in found.rows[1:3]:
        assert row.t_due_ns is row.t_send_ns is row.t_end_ns is None
        assert found.rows[0].request in (row.error or "")
    assert (found.outcome.sent, found.outcome.never_sent, found.outcome.cut) == (3, 2, 0)
    assert found.outcome.stop_reason == "complete"


def test_a_server_that_only_fails_ends_the_replay(server: TruthServer, tmp_path: Path) -> None:
    trace = trace_of(chain("a", 30, think_s=0.0))
    found = replay(server, replay_spec(server.url(status=500), trace, tmp_path, max_failures_in_a_row=4))
    assert found.outcome.stop_reason == "failing"
    assert (found.outcome.failed, found.outcome.sent, found.outcome.cut) == (4, 4, 26)
    assert found.outcome.amplification is None
    assert "failing" in found.outcome.amplification_reason


def test_a_server_that_is_gone_in_the_middle_fails_turns_and_nothing_hangs(tmp_path: Path) -> None:
    with TruthServer() as gone:
        spec = replay_spec(gone.url(ttft_ms=5, drop_after=1), trace_of(chain("a", 3, think_s=0.0)), tmp_path)
        found = replay(gone, spec)
    assert [row.status for row in found.rows] == ["error"] * 3
    assert all(row.chunks == 1 for row in found.rows)


def test_the_hard_stop_sends_nothing_more_and_records_every_turn(server: TruthServer, tmp_path: Path) -> None:
    trace = trace_of(chain("a", 3, think_s=0.0), chain("late", 1, start_s=30.0))
    spec = replay_spec(server.url(ttft_ms=400, itl_ms=0), trace, tmp_path, max_duration_s=0.6, drain_s=5.0)
    found = replay(server, spec)
    assert found.outcome.stop_reason == "hard_stop"
    assert [row.status for row in found.rows] == ["ok", "ok", "cut", "cut"]
    assert (found.outcome.completed, found.outcome.cut, found.outcome.never_sent) == (2, 2, 2)
    assert found.rows[2].t_due_ns is None
    assert (found.outcome.t_stop_ns - found.outcome.t_start_ns) / 1e9 == pytest.approx(0.6, abs=1e-6)
    assert found.outcome.sessions_done == 0
    assert found.outcome.amplification is None


def test_a_cut_ends_it_now_and_records_what_was_in_flight(server: TruthServer, tmp_path: Path) -> None:
    trace = trace_of(*(chain(f"s{number}", 2) for number in range(4)))
    found = replay(server, replay_spec(server.url(ttft_ms=60_000), trace, tmp_path), cut_once_sent=4)
    assert found.outcome.stop_reason == "cancelled"
    assert {row.status for row in found.rows} == {RequestStatus.CUT}
    assert sum(row.t_send_ns is not None for row in found.rows) == 4
    assert (found.outcome.sent, found.outcome.cut, found.outcome.sessions_done) == (4, 8, 0)


def test_ticks_say_where_it_stands(server: TruthServer, tmp_path: Path) -> None:
    trace = trace_of(chain("a", 2, think_s=1.0), chain("b", 1, start_s=0.1))
    spec = replay_spec(server.url(ttft_ms=300, itl_ms=0), trace, tmp_path, max_inflight_sessions=1)
    found = replay(server, spec)
    first = found.ticks[0]
    assert (first.turns, first.sessions, first.sent, first.completed) == (3, 2, 1, 1)
    assert (first.inflight_sessions, first.waiting_sessions, first.sessions_done) == (1, 1, 0)
    assert first.fraction == pytest.approx(1 / 3)
    assert first.pending_prefill_tokens == 0
    assert first.ttft_p50_s == pytest.approx(0.3, abs=0.1)
    assert first.instances == ()


def test_ticks_say_what_was_seen_of_each_instance(server: TruthServer, tmp_path: Path) -> None:
    trace = trace_of(chain("a", 2, think_s=1.0))
    found = replay(server, replay_spec(server.url(ttft_ms=30, itl_ms=5, instance=3), trace, tmp_path))
    (seen,) = found.ticks[0].instances
    assert seen.instance == "i3"
    assert (seen.ttft_p90_s, seen.tpot_p50_s) == (found.ticks[0].ttft_p90_s, found.ticks[0].tpot_p50_s)
    assert seen.ttft_p90_s is not None


def test_nothing_has_to_be_built_at_its_time(server: TruthServer, tmp_path: Path) -> None:
    trace = trace_of(*(chain(f"s{number}", 5, think_s=0.0) for number in range(4)))
    found = replay(server, replay_spec(server.url(ttft_ms=15, itl_ms=1), trace, tmp_path))
    assert found.outcome.late_bodies == 0
    assert found.outcome.wrong_length == 0


def test_a_session_may_have_any_name(server: TruthServer, tmp_path: Path) -> None:
    name = "Sitzung 7: µ%\n"
    found = replay(server, replay_spec(server.url(itl_ms=0), trace_of(chain(name, 1)), tmp_path))
    assert found.rows[0].session == name
    assert found.truth[0].session == "Sitzung%207:%20%C2%B5%25%0A"
    assert session_line("agent/4f-a.b=c") == "x-session-id: agent/4f-a.b=c\r\n"


def test_amplification_needs_a_whole_replay_and_a_span() -> None:
    assert amplified(12.0, 6.0, "complete") == (2.0, "")
    assert amplified(12.0, 6.0, "hard_stop")[0] is None
    assert amplified(None, 6.0, "complete")[0] is None
    value, reason = amplified(12.0, 0.0, "complete")
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
    with pytest.raises(LoadError, match=named) as refused:
        replay_spec("http://127.0.0.1:1", trace_of(chain("a", 1)), tmp_path, **changes)
    assert refused.value.remedy


def test_a_url_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="url 'ftp://x'"):
        replay_spec("ftp://x", trace_of(chain("a", 1)), tmp_path)


def test_a_spec_survives_its_file(tmp_path: Path) -> None:
    spec = replay_spec("http://127.0.0.1:1", trace_of(chain("a", 1)), tmp_path, idle_gap_cap_s=3.5, think="gaps")
    (tmp_path / "spec.json").write_bytes(to_json(spec))
    assert load_spec(tmp_path / "spec.json", ReplaySpec) == spec


async def test_a_replay_in_its_own_process_ends_with_its_outcome(server: TruthServer, tmp_path: Path) -> None:
    ticks: list[ReplayTick] = []
    spec = replay_spec(server.url(ttft_ms=5, itl_ms=1), trace_of(chain("a", 2, think_s=1.2)), tmp_path)
    outcome = await run_replay(spec, ticks.append)
    assert (outcome.stop_reason, outcome.completed) == ("complete", 2)
    assert ticks
    assert load_spec(tmp_path / "metrics.spec.json", ReplaySpec) == spec


async def test_a_cut_before_it_has_begun_is_an_outcome_too(server: TruthServer, tmp_path: Path) -> None:
    cut = asyncio.Event()
    cut.set()
    spec = replay_spec(server.url(ttft_ms=60_000), trace_of(chain("a", 1)), tmp_path)
    stopped = await run_replay(spec, lambda tick: None, cut=cut)
    assert stopped.cut == 1
    assert stopped.stop_reason == "cancelled"


def test_what_the_process_refuses_reaches_the_parent(server: TruthServer, tmp_path: Path) -> None:
    spec = replay_spec(server.url(), trace_of(chain("a", 1)), tmp_path)
    Path(spec.trace_path).write_text('{"tracon_trace": 1}\n')
    with pytest.raises(LoadError, match=r"trace\.jsonl, line 1") as refused:
        asyncio.run(run_replay(spec, lambda tick: None))
    assert refused.value.exit_code == 2


def test_rows_are_complete_whatever_happens(server: TruthServer, tmp_path: Path) -> None:
    """A turn each, in every way to end."""
    found: list[Replayed] = []
    ways: tuple[dict[str, Any], ...] = ({}, {"max_duration_s": 0.2, "drain_s": 0.1}, {"on_error": "end_session"})
    for place, changes in enumerate(ways):
        folder = tmp_path / str(place)
        folder.mkdir()
        trace = trace_of(chain("a", 4, think_s=0.1), chain("b", 3, think_s=0.1))
        url = server.url(ttft_ms=80, itl_ms=1, status=500, refuse=1)
        found.append(replay(server, replay_spec(url, trace, folder, **changes)))
    for one in found:
        assert [row.index for row in one.rows] == list(range(7))
        assert one.outcome.sent == sum(row.t_send_ns is not None for row in one.rows)
        assert one.outcome.completed == sum(row.status is RequestStatus.OK for row in one.rows)
        assert one.outcome.cut == sum(row.status is RequestStatus.CUT for row in one.rows)
