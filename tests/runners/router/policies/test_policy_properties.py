"""What every policy promises, whatever it is shown; and how sessions spread when real counters drive it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings

from results.records.decisions import ClusterView, Decision, RoutedRequest
from runners.router.policies import POLICIES, make_policy
from runners.router.policies.reasons import REASONS
from tests.examples import examples
from tests.runners.router.logs import NEEDED, PolicyRouter, Sent
from tests.runners.router.strategies import asked, clusters

VARIANTS = (
    *((name, NEEDED.get(name, {})) for name in POLICIES),
    ("ear", {"hot_tokens": 0, "cooldown_s": 0, "tie": "first"}),
    ("ear", {"hot_tokens": 20_000, "cooldown_s": 60, "affinity": False}),
    ("ear", {"hot_tokens": 0, "cooldown_s": 0, "migration": False}),
    ("lmetric", {"tie": "first", "bs_offset": 1}),
    ("kv_linear", {"form": "pr1035"}),
    ("sticky", {"place": "ring", "points": 8, "bound": 1.25}),
    ("sticky", {"rebind": False}),
    ("unified", {"hard_ceiling": 3, "exclude_owner_on_gate2_fail": True, "average_over": "others", "p_floor": 1}),
    ("leastwork_spread", {}),
    ("unified", {"spread_cold": True, "update_affinity": False, "bs_offset": 1}),
    ("kv_aware", {"load_floor_bonus": 200, "floor_form": "max", "assigned": "active", "backpressure_above": 0.8}),
    (
        "kv_aware",
        {"order": "inflight_first", "overlap_discount": "largest", "cold_bonus": 50, "floor_gate": "per_worker"},
    ),
    ("static_pd", {"prefill_count": 1, "on_full": "reject"}),
)


@pytest.mark.parametrize(("name", "parameters"), VARIANTS)
def test_a_policy_picks_only_what_may_be_picked_and_the_same_each_time(
    name: str, parameters: Mapping[str, object]
) -> None:
    policy = make_policy(name, parameters)

    @settings(max_examples=examples(20), deadline=None)
    @given(asked(), clusters())
    def holds(request: RoutedRequest, cluster: ClusterView) -> None:
        decision = policy.decide(request, cluster)
        up = {load.instance for load in cluster.instances if load.available} - set(request.tried)
        assert {decision.instance, decision.prefill} <= up | {""}
        whole = {load.instance for load in cluster.instances if load.role != "prefill"}
        assert name == "static_pd" or bool(decision.instance) == bool(up & whole), "an instance is picked if one may be"
        assert [one.instance for one in decision.candidates] == [load.instance for load in cluster.instances]
        assert decision.reason in REASONS
        assert decision.instance or not (decision.binds or decision.prefill or decision.migrate_from)
        weighed = [one for one in decision.candidates if one.score]
        assert all(len(one.score) == len(decision.keys) for one in weighed)
        assert all(bool(one.ruled_out) != bool(one.score) for one in decision.candidates if decision.instance)
        assert policy.decide(request, cluster) == decision
        assert msgspec.json.decode(msgspec.json.encode(decision), type=Decision) == decision

    holds()


def spread(policy: str, concurrency: int, shared: int, turns: int = 3, **parameters: object) -> Counter[str]:
    """Where the last turns of 20 sessions went on 4 instances, `concurrency` at a time in flight."""
    router, last = PolicyRouter(policy, 4, None, **parameters), {}
    flying: list[Sent] = []
    common = list(range(shared))
    for turn in range(turns):
        for number in range(20):
            if len(flying) >= concurrency:
                router.finish(flying.pop(0))
            sent = router.send(f"s{number}", common + [number + 1000] * (200 + 100 * turn))
            flying.append(sent)
            last[number] = sent.decision.instance
    while flying:
        router.finish(flying.pop())
    assert not any(load.num_requests or load.ongoing_tokens for load in router.cluster.take_view().instances)
    return Counter(last.values())


@pytest.mark.parametrize("name", ["lmetric", "unified", "leastwork"])
@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_twenty_sessions_on_four_instances_use_all_four(name: str, concurrency: int) -> None:
    homes = spread(name, concurrency, shared=0)
    assert len(homes) == 4
    assert max(homes.values()) <= 12


@pytest.mark.parametrize("name", ["lmetric", "unified", "leastwork"])
def test_a_shared_prompt_does_not_draw_all_sessions_to_one_while_requests_overlap(name: str) -> None:
    homes = spread(name, 8, shared=320)
    assert len(homes) > 1
    assert max(homes.values()) < 20


@pytest.mark.parametrize("name", ["unified", "leastwork"])
def test_with_nothing_in_flight_a_shared_prompt_draws_all_to_one_unless_cold_sessions_are_spread(name: str) -> None:
    assert spread(name, 1, shared=320) == {"e0": 20}, "the spec's second key, and the rule of least work: the cache"
    assert len(spread(f"{name}_spread", 1, shared=320)) == 4


def test_later_turns_stay_with_their_cache_under_unified() -> None:
    router = PolicyRouter("unified", 4)
    homes: dict[str, set[str]] = {}
    for turn in range(4):
        for number in range(8):
            sent = router.send(f"s{number}", [number + 5] * (200 * (turn + 1)))
            router.finish(sent)
            homes.setdefault(f"s{number}", set()).add(sent.decision.instance)
    assert all(len(home) == 1 for home in homes.values())
