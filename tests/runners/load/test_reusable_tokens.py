"""What an engine can reuse is what a cache of its blocks would hit on prompts with the trace's shared tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.records.trace_lines import Turn
from runners.load.replay_plan import count_reusable_tokens
from runners.trace.session import Trace
from tests.runners.trace.made import BLOCK, PARTIAL, session, trace, traces, turn


def prompt(one: Turn, scope: object, own: object) -> list[object]:
    """Stand-ins for token ids: equal where hashes are equal, different in every prompt beyond the last hash."""
    shared: list[object] = [(scope, value, place) for value in one.hashes for place in range(BLOCK)]
    return (shared + [(own, place) for place in range(BLOCK)])[: one.input_tokens]


class Cache:
    """vLLM's prefix cache with room for everything: whole blocks, each known by all tokens up to its end."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._held: set[tuple[object, ...]] = set()

    def serve(self, tokens: list[object]) -> int:
        size = self._block_tokens
        ends = range(size, len(tokens) + 1, size)
        hit = 0
        for end in ends:
            if end > len(tokens) - 1 or tuple(tokens[:end]) not in self._held:
                break
            hit = end
        self._held |= {tuple(tokens[:end]) for end in ends}
        return hit


@given(traces(), st.integers(1, 20))
def test_it_is_what_a_cache_of_real_prompts_hits(made: Trace, block_tokens: int) -> None:
    local = made.facts.hash_scope == "session"
    everywhere, own = Cache(block_tokens), [Cache(block_tokens) for _ in made.sessions]
    places = [(number, place) for number, one in enumerate(made.sessions) for place in range(len(one.turns))]
    hits: dict[tuple[int, int], tuple[int, int]] = {}
    for number, place in sorted(places, key=lambda at: (made.sessions[at[0]].turns[at[1]].arrival_s, *at)):
        tokens = prompt(made.sessions[number].turns[place], number if local else None, (number, place))
        hits[number, place] = everywhere.serve(tokens), own[number].serve(tokens)
    assert count_reusable_tokens(made, block_tokens) == [hits[at] for at in places]


def test_a_partial_block_is_shared_as_far_as_both_have_it() -> None:
    partial = PARTIAL + 4  # five tokens
    sessions_trace = trace([session("a", [turn([1, partial]), turn([1, partial], 1.0), turn([1, partial, 2], 2.0)])])
    assert [any_ for any_, _ in count_reusable_tokens(sessions_trace, 1)] == [0, BLOCK + 4, BLOCK + 5]


def test_a_block_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="0 tokens"):
        count_reusable_tokens(trace([session("a", [turn([1])])]), 0)
