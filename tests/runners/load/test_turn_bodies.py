"""Request bodies of turns: what is asked for, ready ahead of its time, in bounded memory."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from runners.load.block_prompts import BlockShape, prompt_ids
from runners.load.replay_plan import Pace, PlannedTurn, plan_replay
from runners.load.turn_bodies import AskShape, TurnBodies
from tests.examples import examples
from tests.runners.load.traces import FACTS, chain, trace_of

BLOCKS = BlockShape(5, FACTS.block_tokens, "session", 0, 256)


def planned(turns: int = 12) -> tuple[PlannedTurn, ...]:
    trace = trace_of(*(chain(f"s{number}", 3) for number in range(turns // 3)))
    return plan_replay(trace, [(0, 0)] * turns, Pace()).turns


def bodies(turns: tuple[PlannedTurn, ...], *, budget_bytes: int = 1 << 20) -> TurnBodies:
    return TurnBodies(AskShape("m", "usage", BLOCKS), turns, budget_bytes=budget_bytes)


def test_a_body_asks_for_the_recorded_lengths_and_evidence_of_tokens() -> None:
    turns = planned()
    body = json.loads(bodies(turns).take(2))
    assert body["prompt"] == prompt_ids(BLOCKS, turns[2].prompt).tolist()
    assert len(body["prompt"]) == turns[2].prompt.input_tokens == 26
    assert body["max_tokens"] == 3
    assert body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_what_is_expected_soon_is_built_before_what_comes_later() -> None:
    made = bodies(planned())
    made.expect_later(0)
    made.expect_later(3)
    made.expect(7)
    while 7 not in made._ready:
        assert made.advance()
    assert list(made._ready) == [7]
    while made.advance():
        pass
    assert list(made._ready) == [7, 0, 3]
    for index in (7, 0, 3):
        made.take(index)
    assert made.late == 0


def test_sessions_to_come_leave_room_for_those_that_run() -> None:
    turns = planned()
    size = len(bodies(turns).take(0))
    made = bodies(turns, budget_bytes=4 * size)
    for index in (0, 3, 6, 9):
        made.expect_later(index)
    while made.advance():
        pass
    assert set(made._ready) == {0, 3}
    made.expect(6)
    while made.advance():
        pass
    assert set(made._ready) == {0, 3, 6}


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(("soon", "later", "build", "take", "forget")), st.integers(0, 11)), max_size=60
    ),
    budget=st.integers(0, 2000),
)
@settings(max_examples=examples(80), deadline=None)
def test_bodies_are_the_same_however_they_were_built(steps: list[tuple[str, int]], budget: int) -> None:
    turns = planned()
    made, gone = bodies(turns, budget_bytes=budget), set[int]()
    largest = max(len(bodies(turns).take(index)) for index in range(12))
    for what, index in steps:
        if what == "build":
            made.advance()
        elif index in gone:
            continue
        elif what == "soon":
            made.expect(index)
        elif what == "later":
            made.expect_later(index)
        elif what == "forget":
            made.forget(index)
            gone.add(index)
        else:
            body = json.loads(made.take(index))
            assert body["prompt"] == prompt_ids(BLOCKS, turns[index].prompt).tolist()
            gone.add(index)
        assert made._held == sum(len(body) for body in made._ready.values()) <= budget + largest
        assert not gone & set(made._ready)
