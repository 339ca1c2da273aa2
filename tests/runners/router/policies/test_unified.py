"""The hybrid: its gates, its four keys, both sides of every question that the specification leaves open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from results.records.decisions import ClusterView, InstanceLoad, RoutedRequest
from runners.router.policies.unified import ApproachA, Unified, UnifiedSpread
from tests.runners.router.views import ask, load, ruled_out, view


def test_both_gates_pass_and_the_owner_is_taken_although_others_score_better() -> None:
    decision = Unified().decide(
        ask(1000, {"a": 501}, owner="a"), view(load("a", bs=2, pp=50), load("b"), load("c", bs=1))
    )
    assert (decision.instance, decision.reason, decision.binds) == ("a", "affinity", True)
    assert [gate.passed for gate in decision.gates] == [True, True]
    assert not decision.advances
    assert {one.instance: one.score[0] for one in decision.candidates} == {"a": 1098, "b": 0, "c": 1000}


def test_gate_two_compares_with_the_mean_of_all() -> None:
    request = ask(1000, {"a": 900}, owner="a")
    at_limit = Unified().decide(request, view(load("a", bs=4), load("b", bs=1), load("c", bs=1)))
    assert at_limit.reason == "affinity", "4 <= 2.0 x 2"
    over = Unified().decide(request, view(load("a", bs=5), load("b", bs=1), load("c", bs=1)))
    assert over.reason == "fallback_overload"
    assert over.gates[1].limit == pytest.approx(14 / 3)
    assert over.instance == "a", "100 x 5 against 1000 x 1"


def test_gate_two_can_never_fail_with_two_instances_unless_the_owner_is_left_out_of_the_mean() -> None:
    request, cluster = ask(1000, {"a": 900}, owner="a"), view(load("a", bs=100), load("b", bs=1))
    assert Unified().decide(request, cluster).reason == "affinity"
    assert Unified(average_over="others").decide(request, cluster).reason == "fallback_overload"
    alone = view(load("a", bs=100))
    assert Unified(average_over="others").decide(request, alone).reason == "affinity"


@pytest.mark.parametrize(
    ("policy", "instance"),
    [
        (Unified(), "a"),
        (Unified(bs_offset=1, p_floor=1), "a"),
        (Unified(p_floor=1), "b"),
        (Unified(exclude_owner_on_gate2_fail=True), "b"),
        (Unified(hard_ceiling=20), "b"),
        (Unified(hard_ceiling=21), "a"),
    ],
)
def test_a_full_cache_hit_on_an_overloaded_owner(policy: Unified, instance: str) -> None:
    """The specification's open question: with ratio 1.0 the fallback elects the same owner again (0 x BS = 0)."""
    decision = policy.decide(ask(1000, {"a": 1000}, owner="a"), view(load("a", bs=20), load("b"), load("c", bs=1)))
    assert decision.reason == "fallback_overload"
    assert decision.instance == instance
    assert ("a" in ruled_out(decision)) == (policy.exclude_owner_on_gate2_fail or policy.hard_ceiling == 20)


def test_hybrid_high_cache_breaks_on_overload() -> None:
    """Named after the specification's own test: it works when at least one block is not cached."""
    decision = Unified().decide(ask(1000, {"a": 984}, owner="a"), view(load("a", bs=20), load("b"), load("c", bs=1)))
    assert decision.instance == "b", "16 x 20 against 1000 x 0"


def test_an_excluded_owner_is_taken_where_nobody_else_is_left() -> None:
    policy = Unified(hard_ceiling=1)
    assert policy.decide(ask(owner="a"), view(load("a", bs=3), load("b", available=False))).instance == "a"


KEYS = (0, 1, 2)
"""Of the fallback, before the turn: P_tokens x BS, new_uncached_tokens, num_requests."""


def follow_the_specification(request: RoutedRequest, cluster: ClusterView, keys: Sequence[int] = KEYS) -> str:
    """`Current Algorithm` as it is written, of instances that are all up: where the request goes."""
    loads, count = cluster.instances, len(cluster.instances)
    hit = request.cached_tokens
    for one in loads:
        if one.instance == request.owner:
            cache_ratio = hit.get(one.instance, 0) / request.input_tokens
            avg_num_requests = sum(one.num_requests for one in loads) / count
            if cache_ratio > 0.5 and one.num_requests <= avg_num_requests * 2.0:
                return one.instance

    def score(one: InstanceLoad) -> tuple[int, ...]:
        new_uncached_tokens = request.input_tokens - hit.get(one.instance, 0)
        p_tokens = one.pending_prefill_tokens + new_uncached_tokens
        return tuple((p_tokens * one.num_requests, new_uncached_tokens, one.num_requests)[key] for key in keys)

    first = cluster.fallbacks % count
    return min((*loads[first:], *loads[:first]), key=score).instance  # of equals the first from the turn on


def draw_view(rng: np.random.Generator) -> tuple[RoutedRequest, ClusterView]:
    """Of few different values, so that each key has ties to break; prompts share blocks or are cached nowhere."""
    names = "abcdefgh"[: int(rng.integers(2, 9))]
    busy, tokens = int(rng.integers(1, 5)), int(rng.integers(2, 5)) * 16
    loads = [
        load(name, bs=int(rng.integers(0, busy)), pp=int(rng.integers(0, 3)) * 16, active_sessions=int(rng.integers(3)))
        for name in names
    ]
    cached = {name: int(rng.integers(0, tokens // 16 + 1)) * 16 for name in names if rng.random() < 0.7}
    owner = names[int(rng.integers(len(names)))] if rng.random() < 0.6 else ""
    return ask(tokens, cached, owner=owner), view(*loads, fallbacks=int(rng.integers(0, 100)))


def test_it_decides_as_the_specification_is_written() -> None:
    """4,000 random views, in which every gate and key decides some; a fifth key or a missing one shows."""
    rng = np.random.default_rng(1)
    drawn = [draw_view(rng) for _ in range(4000)]
    expected = [follow_the_specification(*one) for one in drawn]
    decisions = [Unified().decide(*one) for one in drawn]
    assert [one.instance for one in decisions] == expected
    reasons = Counter(one.reason for one in decisions)
    assert set(reasons) == {"affinity", "cold", "fallback_low_cache", "fallback_overload"}
    assert min(reasons.values()) > 100
    for left_out in KEYS:
        keys = [key for key in KEYS if key != left_out]
        others = [follow_the_specification(*one, keys) for one in drawn]
        assert sum(one != other for one, other in zip(expected, others, strict=True)) > 50, left_out
    without_turn = [
        follow_the_specification(request, view(*cluster.instances, fallbacks=0)) for request, cluster in drawn
    ]
    assert sum(one != other for one, other in zip(expected, without_turn, strict=True)) > 100
    spread = [UnifiedSpread().decide(*one).instance for one in drawn]
    assert sum(one != other for one, other in zip(expected, spread, strict=True)) > 100


def test_a_shared_prompt_draws_fresh_sessions_together_unless_they_are_spread() -> None:
    loads = load("a", active_sessions=3), load("b"), load("c")
    request = ask(1000, {"a": 112})
    assert Unified().decide(request, view(*loads)).instance == "a", "as the specification's second key has it"
    decision = UnifiedSpread().decide(request, view(*loads))
    assert (decision.policy, decision.instance) == ("unified_spread", "b")
    assert decision.keys[1] == "active_sessions"
    warm = ask(1000, {"a": 112}, owner="c")
    assert UnifiedSpread().decide(warm, view(*loads)).instance == "a", "only for sessions without an owner"


def test_an_owner_that_is_down_or_paused_is_left() -> None:
    down = Unified().decide(ask(owner="a", cached={"a": 999}), view(load("a", available=False), load("b")))
    assert (down.instance, down.reason, down.binds) == ("b", "fallback_owner_down", True)
    assert not down.gates[0].passed
    paused = Unified().decide(ask(owner="a", cached={"a": 999}), view(load("a", paused_for_s=1), load("b")))
    assert (paused.instance, paused.binds) == ("b", False)
    retried = Unified().decide(ask(owner="a", cached={"a": 999}, tried=["a"]), view(load("a"), load("b")))
    assert retried.instance == "b"


def test_whether_a_fallback_moves_the_session_is_a_setting() -> None:
    cluster = view(load("a", bs=1), load("b"))
    request = ask(1000, {"a": 100}, owner="a")
    assert Unified().decide(request, cluster).binds
    assert not Unified(update_affinity=False).decide(request, cluster).binds
    assert Unified(update_affinity=False).decide(ask(), cluster).binds, "a session without an owner gets its first"


def test_an_empty_prompt_is_no_division_by_zero() -> None:
    assert Unified().decide(ask(0, owner="a"), view(load("a"), load("b"))).reason == "fallback_low_cache"


def test_the_inputs_of_approach_a_are_accepted_and_change_nothing() -> None:
    request, cluster = ask(1000, {"a": 700}, owner="a"), view(load("a", bs=3, pp=90), load("b", bs=1))
    odd = Unified(decode_iteration_s=9.0, prefill_throughput=1.0, rdma_overhead_s=5.0)
    assert odd.decide(request, cluster) == Unified().decide(request, cluster)


def test_approach_a_adds_contention_queue_and_prefill_in_seconds() -> None:
    decision = ApproachA().decide(ask(7000, {"a": 3500}), view(load("a", bs=4, pp=700), load("b", pp=7000)))
    cost = {one.instance: one.score[0] for one in decision.candidates}
    assert cost["a"] == pytest.approx(4 * 0.05 + 0.1 + 0.5)
    assert cost["b"] == pytest.approx(1.0 + 1.0)
    assert decision.instance == "a"


def test_approach_a_keeps_its_owner_within_both_gates_only() -> None:
    request = ask(7000, {"a": 7000}, owner="a")
    within = ApproachA().decide(request, view(load("a", bs=10, ot=10), load("b", bs=10, ot=10)))
    assert within.reason == "affinity"
    tokens = ApproachA().decide(request, view(load("a", ot=90), load("b", ot=10), load("c", ot=10)))
    assert tokens.reason == "fallback_overload", "90 > 2 x 36.7"
    assert tokens.instance == "a", "it is still the cheapest"
    cost = ApproachA().decide(request, view(load("a", pp=70_000, ot=10), load("b", ot=10)))
    assert (cost.reason, cost.instance) == ("fallback_cost", "b"), "10 s > 2 x 1 s"
