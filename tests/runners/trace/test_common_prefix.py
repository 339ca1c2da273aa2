"""What a run sends ahead of a trace: the beginning that most sessions share."""

from __future__ import annotations

from runners.trace.common_prefix import common_prefix
from runners.trace.session import MAIN, Session, Trace, TraceFacts, Turn

FACTS = TraceFacts("tracon", "t", 1.0, 10, "ceil", "global", True, "self_contained", True)


def a_trace(*openings: tuple[int, ...], facts: TraceFacts = FACTS, tokens: int | None = None) -> Trace:
    turns = [Turn(MAIN, 0, 0.0, None, tokens or len(hashes) * 10, 1, hashes) for hashes in openings]
    return Trace(facts, tuple(Session(str(number), (turn,)) for number, turn in enumerate(turns)))


def test_the_path_of_most_sessions_is_taken_until_one_is_left() -> None:
    trace = a_trace((1, 2, 3, 4), (1, 2, 3, 5), (1, 9), (1, 9), (7, 8))
    assert common_prefix(trace, 1000) == (1, 2, 3)
    assert common_prefix(trace, 29) == (1, 2)


def test_only_whole_blocks_count() -> None:
    assert common_prefix(a_trace((1, 2), (1, 2), tokens=15), 1000) == (1,)


def test_sessions_that_share_nothing_have_no_common_prefix() -> None:
    assert common_prefix(a_trace((1,), (2,)), 1000) == ()
    local = TraceFacts("tracon", "t", 1.0, 10, "ceil", "session", True, "self_contained", True)
    assert common_prefix(a_trace((1, 2), (1, 2), facts=local), 1000) == ()
