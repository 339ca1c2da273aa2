"""Small traces, made by hand or by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from results.records.trace_lines import MAIN, Turn
from runners.trace.session import Session, Trace, TraceFacts

BLOCK = 8
PARTIAL = 100
"""A hash from here on stands for a partial last block, of hash - PARTIAL + 1 tokens."""


def facts(**changes: Any) -> TraceFacts:
    fields: dict[str, Any] = {
        "source": "made.jsonl",
        "block_tokens": BLOCK,
        "tail_rule": "ceil",
        "hash_scope": "global",
        "hashes_chained": False,
    }
    return TraceFacts(**(fields | changes))


def turn(hashes: Sequence[int], arrival_s: float = 0.0, *, tail: int = 0, agent: str = MAIN, place: int = 0) -> Turn:
    """A prompt of whole blocks, but for a last one from PARTIAL on, and `tail` tokens without a hash."""
    tokens = sum(value - PARTIAL + 1 if value >= PARTIAL else BLOCK for value in hashes)
    return Turn(
        arrival_s=arrival_s,
        input_tokens=tokens + tail,
        output_tokens=2,
        hashes=tuple(hashes),
        agent=agent,
        turn=place,
    )


def session(name: str, turns: Sequence[Turn]) -> Session:
    return Session(name, tuple(turns))


def trace(sessions: Sequence[Session], **changes: Any) -> Trace:
    return Trace(facts(**changes), tuple(sorted(sessions, key=lambda one: one.arrival_s)))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A few sessions whose prompts begin alike, interleaved in time."""
    tail_rule = draw(st.sampled_from(("ceil", "floor")))
    blocks = st.lists(st.integers(0, 2), max_size=5)
    sessions = []
    for number in range(draw(st.integers(1, 5))):
        arrivals = sorted(draw(st.lists(st.integers(0, 6), min_size=1, max_size=5)))
        turns = []
        for arrival_s in arrivals:
            hashes = draw(blocks)
            if tail_rule == "ceil":
                hashes += draw(st.lists(st.integers(PARTIAL, PARTIAL + BLOCK - 2), max_size=1))
                tail = 0
            else:
                tail = draw(st.integers(0, BLOCK - 1))
            if not hashes and not tail:
                hashes, tail = ([0], 0) if tail_rule == "ceil" else ([], 1)
            turns.append(turn(hashes, float(arrival_s), tail=tail))
        sessions.append(session(f"s{number}", turns))
    scope = draw(st.sampled_from(("global", "session")))
    return trace(sessions, tail_rule=tail_rule, hash_scope=scope)
