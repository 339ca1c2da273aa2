"""The sessions of a replay against a made-up engine and a made-up clock: who may leave when, whatever happens."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.load.replay_plan import Pace, ReplayPlan, plan_replay
from runners.load.sessions import Sessions
from runners.trace.session import Session
from tests.examples import examples
from tests.runners.load.traces import chain, trace_of, turn

S = 1_000_000_000


@dataclass(slots=True)
class Played:
    """What an engine that takes a fixed time for every turn saw; times in ns since the start."""

    due_ns: dict[int, int] = field(default_factory=dict)
    end_ns: dict[int, int] = field(default_factory=dict)
    given_up: list[int] = field(default_factory=list)
    most_active: int = 0


def play(
    plan: ReplayPlan,
    *,
    service_s: float = 1.0,
    max_inflight: int = 0,
    failing: frozenset[int] = frozenset(),
    end: bool = False,
) -> tuple[Played, Sessions]:
    sessions, played = Sessions(plan, max_inflight=max_inflight, end_on_error=end), Played()
    inflight: list[tuple[int, int]] = []
    now_ns = 0
    for _ in range(10 * len(plan.turns) + 10):
        while (due := sessions.take_due(now_ns)) is not None:
            due_ns, one = due
            assert due_ns <= now_ns
            assert one.index not in played.due_ns, "a turn leaves once"
            played.due_ns[one.index] = due_ns
            played.most_active = max(played.most_active, sessions.counts.active)
            sessions.note_sent(one, now_ns)
            heapq.heappush(inflight, (now_ns + round(service_s * S), one.index))
        next_ns = sessions.next_ns()
        if inflight and (next_ns is None or inflight[0][0] <= next_ns):
            now_ns, index = heapq.heappop(inflight)
            played.end_ns[index] = now_ns
            given_up = sessions.note_ended(plan.turns[index], now_ns, failed=index in failing)
            played.given_up += [one.index for one in given_up]
        elif next_ns is None:
            break
        else:
            now_ns = max(now_ns, next_ns)
    return played, sessions


def test_a_turn_leaves_its_pause_after_the_end_of_the_one_before() -> None:
    plan = plan_replay(trace_of(chain("a", 3, think_s=2.0)), [(0, 0)] * 3, Pace())
    played, sessions = play(plan, service_s=5.0)
    assert played.due_ns == {0: 0, 1: 7 * S, 2: 14 * S}
    assert sessions.is_over
    assert sessions.counts.done == 1


def test_a_session_that_has_not_begun_was_not_held_back() -> None:
    plan = plan_replay(trace_of(chain("a", 1), chain("b", 1, start_s=1.0)), [(0, 0)] * 2, Pace())
    assert Sessions(plan, max_inflight=1, end_on_error=False).measure_delay_ns(1) == 0


def test_a_gap_counts_from_the_send_but_never_overtakes_the_end() -> None:
    plan = plan_replay(trace_of(chain("a", 3, gap_s=3.0, think_s=None)), [(0, 0)] * 3, Pace())
    assert play(plan, service_s=1.0)[0].due_ns == {0: 0, 1: 3 * S, 2: 6 * S}
    assert play(plan, service_s=5.0)[0].due_ns == {0: 0, 1: 5 * S, 2: 10 * S}


def test_sessions_arrive_whatever_the_others_do() -> None:
    trace = trace_of(*(chain(name, 2, start_s=start) for name, start in (("a", 0.0), ("b", 1.0), ("c", 1.5))))
    played, sessions = play(plan_replay(trace, [(0, 0)] * 6, Pace()), service_s=100.0)
    assert [played.due_ns[index] for index in (0, 2, 4)] == [0, S, 1_500_000_000]
    assert sessions.counts.active_max == 3
    assert sessions.counts.delayed == 0


def test_a_turn_that_waits_for_nothing_leaves_at_its_place_in_the_session() -> None:
    session = Session("a", (turn(0, 0.0), turn(0, 2.0, agent="beside"), turn(1, 9.0, after=(0,), think_s=0.0)))
    trace = trace_of(chain("first", 1), session)
    played, _ = play(plan_replay(trace, [(0, 0)] * 4, Pace()), service_s=30.0, max_inflight=1)
    assert played.due_ns[1] == 30 * S, "it begins when the session before it is over"
    assert played.due_ns[2] == 32 * S


def test_the_limit_holds_sessions_back_and_drops_none() -> None:
    trace = trace_of(*(chain(f"s{number}", 2, start_s=number * 0.1, think_s=0.0) for number in range(6)))
    plan = plan_replay(trace, [(0, 0)] * 12, Pace())
    played, sessions = play(plan, service_s=10.0, max_inflight=2)
    assert played.most_active == sessions.counts.active_max == 2
    assert sessions.is_over
    assert len(played.end_ns) == 12
    assert sessions.counts.delayed == 4
    assert sessions.measure_delay_ns(0) == sessions.measure_delay_ns(1) == 0
    assert sessions.measure_delay_ns(2) == 20 * S - S // 5
    assert sessions.counts.delay_max_ns == sessions.measure_delay_ns(5) == 40 * S + S // 10 - S // 2


def test_once_closed_nothing_more_becomes_due() -> None:
    plan = plan_replay(trace_of(chain("a", 3, think_s=1.0), chain("b", 1, start_s=0.1)), [(0, 0)] * 4, Pace())
    sessions = Sessions(plan, max_inflight=1, end_on_error=False)
    due = sessions.take_due(S)
    assert due is not None
    sessions.note_sent(due[1], 0)
    sessions.close()
    sessions.note_ended(due[1], S, failed=False)
    assert sessions.next_ns() is None
    assert sessions.waiting == 1
    assert [one.index for one, _ in sessions.list_unsent(S)] == [1, 2, 3]


@st.composite
def families(draw: st.DrawFn) -> list[Session]:
    """Sessions whose turns wait for any earlier ones."""
    sessions, start = [], 0.0
    for name in range(draw(st.integers(1, 5))):
        turns, arrival = [], start
        for number in range(draw(st.integers(1, 7))):
            waited = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
            think = draw(st.one_of(st.none(), st.floats(0, 5)))
            turns.append(turn(number, arrival, after=tuple(sorted(waited)), think_s=think))
            arrival += draw(st.floats(0, 5))
        sessions.append(Session(f"s{name}", tuple(turns)))
        start += draw(st.floats(0, 3))
    return sessions


@given(
    sessions=families(),
    service_s=st.floats(0.001, 10),
    limit=st.integers(0, 4),
    failing=st.frozensets(st.integers(0, 20)),
    end=st.booleans(),
    think=st.sampled_from(("recorded", "gaps", "none")),
)
@settings(max_examples=examples(150), deadline=None)
def test_every_turn_ends_or_is_given_up_and_none_overtakes_what_it_waits_for(
    sessions: list[Session], service_s: float, limit: int, failing: frozenset[int], end: bool, think: str
) -> None:
    trace = trace_of(*sessions)
    plan = plan_replay(trace, [(0, 0)] * trace.requests, Pace(think=think))
    played, state = play(plan, service_s=service_s, max_inflight=limit, failing=failing, end=end)
    assert state.is_over
    assert state.counts.active == state.waiting == 0
    assert sorted([*played.end_ns, *played.given_up]) == list(range(trace.requests))
    assert bool(played.given_up) <= end
    if limit:
        assert played.most_active <= limit
    for planned in plan.turns:
        for follower in planned.followers:
            if follower in played.due_ns:
                assert played.due_ns[follower] >= played.end_ns[planned.index] + (
                    plan.turns[follower].pause_ns if plan.turns[follower].anchor < 0 else 0
                )
    with pytest.raises(StopIteration):
        next(iter(state.list_unsent(10**18)))
