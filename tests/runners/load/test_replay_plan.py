"""When turns may leave: pauses, scaling, the cap on pauses, and the span that amplification is measured against."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.load.replay_plan import FROM_END, Pace, ReplayPlan, plan_replay
from runners.trace.session import Session, Trace
from tests.examples import examples
from tests.runners.load.traces import chain, trace_of, turn


def plan(trace: Trace, pace: Pace = Pace()) -> ReplayPlan:  # noqa: B008  # frozen
    return plan_replay(trace, [(0, 0)] * trace.requests, pace)


def test_gaps_may_be_asked_for_and_pauses_be_left_out() -> None:
    trace = trace_of(chain("a", 2, gap_s=0.5, think_s=0.1))
    gaps, none = plan(trace, Pace(think="gaps")), plan(trace, Pace(think="none"))
    assert (gaps.turns[1].pause_ns, gaps.turns[1].anchor) == (500_000_000, 0)
    assert (none.turns[1].pause_ns, none.turns[1].anchor) == (0, FROM_END)
    assert none.trace_span_s == gaps.trace_span_s == 0.5


def test_time_scale_stretches_arrivals_pauses_and_the_span() -> None:
    trace = trace_of(chain("a", 2, gap_s=4.0, think_s=1.0), chain("b", 2, start_s=10.0, gap_s=4.0, think_s=1.0))
    made = plan(trace, Pace(time_scale=0.5))
    assert [session.start_ns for session in made.sessions] == [0, 5_000_000_000]
    assert made.turns[1].pause_ns == 500_000_000
    assert made.trace_span_s == pytest.approx(7.0)


def test_the_cap_cuts_pauses_inside_a_session_and_the_span_by_as_much() -> None:
    """Think time 60 s of a gap of 63 s: 58 s fall away. The second session arrives when it did."""
    trace = trace_of(chain("a", 3, gap_s=63.0, think_s=60.0), chain("b", 1, start_s=100.0))
    made = plan(trace, Pace(idle_gap_cap_s=2.0))
    assert [one.pause_ns for one in made.turns[:3]] == [0, 2_000_000_000, 2_000_000_000]
    assert made.sessions[1].start_ns == 100_000_000_000
    assert made.trace_span_s == pytest.approx(100.0)
    alone = plan(trace_of(chain("a", 3, gap_s=63.0, think_s=60.0)), Pace(idle_gap_cap_s=2.0))
    assert alone.trace_span_s == pytest.approx(126.0 - 2 * 58.0)


def test_a_cap_keeps_what_ran_beside_each_other_beside_each_other() -> None:
    """A turn that waits for nothing keeps its place after the turn before it in the recording."""
    session = Session(
        "a",
        (turn(0, 0.0), turn(1, 100.0, after=(0,), think_s=90.0), turn(0, 101.0, agent="helper")),
    )
    made = plan(trace_of(session), Pace(idle_gap_cap_s=5.0))
    assert made.turns[1].pause_ns == 5_000_000_000
    assert made.turns[2].offset_ns == pytest.approx(16_000_000_000)
    assert made.trace_span_s == pytest.approx(16.0)


def test_a_turn_may_wait_for_several_and_several_for_one() -> None:
    session = Session(
        "a",
        (
            turn(0, 0.0),
            turn(0, 1.0, after=(0,), agent="one", think_s=0.5),
            turn(0, 2.0, after=(0,), agent="two", think_s=None),
            turn(1, 9.0, after=(1, 2), think_s=None),
        ),
    )
    made = plan(trace_of(session))
    assert made.turns[0].followers == (1, 2)
    assert made.turns[3].waits == 2
    assert made.turns[3].anchor == 2  # the gap counts from the send of the later one
    assert made.turns[3].pause_ns == 7_000_000_000
    assert made.sessions[0].agents == 3
    assert made.estimate_width(0) == 3
    assert plan(trace_of(session, chain("b", 2), chain("c", 2))).estimate_width(2) == 4


def test_an_answer_of_no_token_becomes_one_of_one() -> None:
    assert plan(trace_of(Session("a", (turn(0, 0.0, output_tokens=0),)))).turns[0].output_tokens == 1


@given(
    gaps=st.lists(st.floats(0, 500), min_size=1, max_size=8),
    shares=st.lists(st.floats(0, 1), min_size=8, max_size=8),
    scale=st.floats(0.01, 3),
    cap=st.one_of(st.none(), st.floats(0, 100)),
)
@settings(max_examples=examples(80), deadline=None)
def test_a_system_as_fast_as_the_recorded_one_takes_the_trace_span(
    gaps: list[float], shares: list[float], scale: float, cap: float | None
) -> None:
    """Service times are what the recording leaves beside the think times."""
    turns, arrival = [turn(0, 0.0)], 0.0
    service = []
    for number, gap in enumerate(gaps, start=1):
        arrival += gap
        think = gap * shares[number - 1]
        service.append((gap - think) * scale)
        turns.append(turn(number, arrival, after=(number - 1,), think_s=think))
    made = plan(trace_of(Session("a", tuple(turns))), Pace(scale, cap))
    replayed = sum(service) + sum(one.pause_ns for one in made.turns) / 1e9
    assert made.trace_span_s == pytest.approx(replayed, rel=1e-6, abs=1e-6)
    assert all(cap is None or one.pause_ns <= cap * 1e9 + 1 for one in made.turns)
