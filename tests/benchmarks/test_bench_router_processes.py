"""What bench_router_processes says of prefix indexes: what a process believes, held against what arrived where."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from results.records.decisions import ClusterView, Decision, DecisionRecord, RoutedRequest
from tests.benchmarks.bench_router_processes import (
    BLOCK,
    Arrival,
    BlockCache,
    IndexErrors,
    LoadErrors,
    Row,
    chain_blocks,
    describe_row,
    make_prompt,
    measure_index,
)

PROMPTS = {f"r{turn}": make_prompt(session=0, document=0, turn=turn) for turn in range(2)}


def make_pick(t_ns: int, request: str, instance: str, cached_tokens: Mapping[str, int]) -> DecisionRecord:
    length = len(PROMPTS[request])
    routed = RoutedRequest(request, "s", 0, length, 8, BLOCK, cached_tokens)
    return DecisionRecord(t_ns, t_ns, 0.0, routed, ClusterView((), 0), Decision("p", instance, "cold"))


def test_a_process_that_saw_no_turn_misses_what_is_cached() -> None:
    arrivals = [Arrival(10, "i0", "r0")]
    first_tokens = len(PROMPTS["r0"])
    picks = [make_pick(20, "r1", "i0", {}), make_pick(30, "r1", "i1", {"i0": first_tokens})]
    errors = measure_index(picks, arrivals, PROMPTS)
    assert (errors.true, errors.missed) == (1.0, 0.5)
    assert errors.hit == pytest.approx(first_tokens / len(PROMPTS["r1"]) / 2), "the second pick went elsewhere"


def test_what_was_evicted_or_never_arrived_is_believed_in_vain() -> None:
    tokens = len(PROMPTS["r0"])
    picks = [make_pick(20, "r1", "i0", {"i0": tokens, "i1": tokens})]
    errors = measure_index(picks, [Arrival(10, "i0", "r0"), Arrival(40, "i1", "r0")], PROMPTS)
    assert (errors.true, errors.missed) == (0.5, 0.0)


def test_there_is_no_share_of_what_no_process_believes_and_no_instance_has() -> None:
    believes_nothing = measure_index([make_pick(20, "r1", "i0", {})], [Arrival(10, "i0", "r0")], PROMPTS)
    assert (believes_nothing.true, believes_nothing.missed) == (None, 1.0)
    nothing_arrived = measure_index([make_pick(20, "r1", "i0", {"i0": BLOCK})], [], PROMPTS)
    assert nothing_arrived == IndexErrors(true=0.0, missed=None, hit=0.0)
    assert measure_index([], [], PROMPTS) == IndexErrors(None, None, None)
    row = Row("load_only", 2, 1, 0, LoadErrors(0.0, 0.0, 1.0, 4.0), believes_nothing)
    assert "index: true -, missed 100.0 %" in describe_row(row)


def test_a_prompts_last_token_is_never_cached() -> None:
    tokens = len(PROMPTS["r0"])
    picks = [make_pick(20, "r0", "i0", {"i0": tokens - BLOCK})]
    errors = measure_index(picks, [Arrival(10, "i0", "r0")], PROMPTS)
    assert (errors.true, errors.missed) == (1.0, 0.0)


def test_the_cache_evicts_tails_first_and_what_was_used_longest_ago() -> None:
    cache = BlockCache(4)
    one, other = chain_blocks(range(3 * BLOCK)), chain_blocks(range(1000, 1000 + 2 * BLOCK))
    cache.add_prompt(one)
    cache.add_prompt(other)
    assert (cache.count_cached(one), cache.count_cached(other)) == (2 * BLOCK, 2 * BLOCK)
    cache.add_prompt(one)
    assert (cache.count_cached(one), cache.count_cached(other)) == (3 * BLOCK, BLOCK)
