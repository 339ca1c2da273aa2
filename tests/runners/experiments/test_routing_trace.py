"""The trace of a run: what fits, what waits for what once turns are left out, and the same file every time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.layout import RunLayout
from runners.errors import CellFailed
from runners.experiments.routing_grid import TraceChoice
from runners.experiments.routing_trace import fitted, prepare_trace, read_record, trace_path
from runners.trace.session import MAIN, Session, Trace, TraceFacts, Turn

FACTS = TraceFacts("tracon", "made", 1.0, 16, "floor", "global", True, "self_contained", True)


def turn(place: int, tokens: int, after: tuple[int, ...] = (), arrival_s: float | None = None) -> Turn:
    at_s = float(place) if arrival_s is None else arrival_s
    return Turn(MAIN, place, at_s, None, tokens, 8, tuple(range(tokens // 16)), after)


def chain(*tokens: int, arrival_s: float = 0.0) -> Session:
    turns = (turn(i, count, (i - 1,) if i else (), arrival_s + i) for i, count in enumerate(tokens))
    return Session("s", tuple(turns))


@st.composite
def sessions(draw: st.DrawFn) -> tuple[Session, ...]:
    found = []
    begin_s = 0.0
    for number in range(draw(st.integers(1, 5))):
        begin_s += draw(st.floats(0, 10))
        turns = []
        for place in range(draw(st.integers(1, 8))):
            waits = draw(st.sets(st.integers(0, place - 1), max_size=3)) if place else set()
            agent = draw(st.sampled_from([MAIN, "helper"]))
            tokens = draw(st.integers(1, 300))
            turns.append(Turn(agent, place, begin_s + place, None, tokens, 4, (), tuple(sorted(waits))))
        found.append(Session(f"s{number}", tuple(turns)))
    return tuple(found)


@given(sessions(), st.integers(5, 310), st.integers(0, 6))
def test_what_is_left_fits_and_waits_only_for_what_is_left(of: tuple[Session, ...], limit: int, most: int) -> None:
    trace = fitted(Trace(FACTS, of), limit, most)
    for session in trace.sessions:
        assert 0 < len(session.turns) <= (most or len(session.turns))
        counts: dict[str, int] = {}
        for place, each in enumerate(session.turns):
            assert each.input_tokens + each.output_tokens <= limit
            assert all(0 <= waited < place for waited in each.after)
            assert each.turn == counts.get(each.agent, 0)
            counts[each.agent] = each.turn + 1
    arrivals = [session.arrival_s for session in trace.sessions]
    assert arrivals == sorted(arrivals)
    assert not arrivals or arrivals[0] == 0.0


@given(sessions())
def test_a_trace_that_fits_keeps_its_turns_and_what_they_wait_for(of: tuple[Session, ...]) -> None:
    trace = fitted(Trace(FACTS, of), 10_000)
    before = {session.session: [each.after for each in session.turns] for session in of}
    assert {session.session: [each.after for each in session.turns] for session in trace.sessions} == before


def test_a_turn_behind_one_that_is_left_out_waits_for_what_that_one_waited_for() -> None:
    trace = fitted(Trace(FACTS, (chain(100, 500, 120),)), 200)
    assert [each.input_tokens for each in trace.sessions[0].turns] == [100, 120]
    assert trace.sessions[0].turns[1].after == (0,)


def test_the_generated_trace_is_the_same_every_time_and_changed_ones_are_noticed(tmp_path: Path) -> None:
    choice = TraceChoice(sessions=4, seed=5, tokens=1 / 64)
    first = prepare_trace(choice, 4096, RunLayout(tmp_path / "one"))
    again = prepare_trace(choice, 4096, RunLayout(tmp_path / "two"))
    assert first == again
    assert first.sessions == 4
    assert first.requests > 4
    assert read_record(RunLayout(tmp_path / "one")) == first
    with trace_path(RunLayout(tmp_path / "one")).open("ab") as file:
        file.write(b"\n")
    assert read_record(RunLayout(tmp_path / "one")) is None


def test_a_trace_of_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CellFailed, match=r"trace\.tokens"):
        prepare_trace(TraceChoice(sessions=2, seed=5), 16, RunLayout(tmp_path))
