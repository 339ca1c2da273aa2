"""A trace as a simulation holds it: keys that are equal where prefixes are, and the bounds of an unlimited cache."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.load.replay_plan import Pace, count_reusable_tokens, plan_replay
from runners.simulator.workload import Workload, make_workload
from runners.trace.common_prefix import common_prefix
from runners.trace.session import Trace
from tests.runners.load.traces import chain, trace_of
from tests.runners.trace.made import traces


def make(trace: Trace) -> Workload:
    return make_workload(trace.facts, trace.sessions, Pace())


def test_keys_are_equal_exactly_where_prefixes_are() -> None:
    local = make(trace_of(chain("a", 3), chain("b", 2))).keys
    shared = make(trace_of(chain("a", 3), chain("b", 2), hash_scope="global")).keys
    assert [len(local[turn]) for turn in range(5)] == [1, 2, 3, 1, 2]
    assert local[2][:2] == local[1]
    assert set(local[2]).isdisjoint(local[4]), "hashes are of one session"
    assert shared[4] == shared[1], "hashes are of the whole trace"


def test_keys_do_not_depend_on_how_many_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of(*(chain(f"s{number}", 5) for number in range(4)), hash_scope="global")
    whole = make(trace).keys
    monkeypatch.setattr("runners.simulator.workload.WORDS_AT_ONCE", 3)
    parts = make(trace).keys
    assert (parts.keys.tolist(), parts.bounds.tolist()) == (whole.keys.tolist(), whole.bounds.tolist())
    assert parts.bounds[-1] == parts.keys.size == 4 * 15


@given(traces(), st.integers(0, 400))
def test_the_common_prefix_is_as_long_as_that_of_the_hashes(trace: Trace, tokens: int) -> None:
    workload = make(trace)
    prefix = workload.find_common_prefix(tokens)
    assert len(prefix) == len(common_prefix(trace, tokens))
    assert not prefix or prefix in {workload.keys[one.first][: len(prefix)] for one in workload.plan.sessions}


@given(traces())
def test_it_is_the_plan_of_the_whole_trace_without_its_hashes(trace: Trace) -> None:
    plan = make(trace).plan
    whole = plan_replay(trace, count_reusable_tokens(trace, trace.facts.block_tokens), Pace())
    bare = tuple(replace(turn, recorded=msgspec.structs.replace(turn.recorded, hashes=())) for turn in whole.turns)
    assert plan == replace(whole, turns=bare)


def test_a_block_takes_four_bytes() -> None:
    keys = make(trace_of(*(chain(f"s{number}", 20) for number in range(50)))).keys
    assert keys.keys.dtype == np.uint32
    assert keys.keys.size == 50 * 20 * 21 // 2
