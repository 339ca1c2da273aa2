"""The lex score with the load-floor bonus: the specification's numbers, its holes, and every alternative."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from results.records.decisions import ClusterView, Decision, InstanceLoad
from runners.router.policies.kv_aware import KvAware
from tests.runners.router.views import BLOCK, ask, load, ruled_out, view


def bonus(decision: Decision, instance: str) -> float:
    return next(one.terms["floor_bonus"] for one in decision.candidates if one.instance == instance)


def test_overlap_comes_first_whatever_the_load() -> None:
    decision = KvAware().decide(ask(2000, {"a": 50 * BLOCK}), view(load("a", bs=30, assigned=30), load("b")))
    assert decision.instance == "a"
    assert decision.candidates[0].terms["overlap_blocks"] == 50


def test_equal_overlap_goes_to_the_owner_then_to_fewer_requests_then_to_fewer_sessions() -> None:
    assert KvAware(sticky_bonus=0).decide(ask(owner="b"), view(load("a"), load("b", bs=9))).instance == "b"
    assert KvAware().decide(ask(), view(load("a", bs=1), load("b", assigned=9))).instance == "b"
    assert KvAware().decide(ask(), view(load("a", assigned=1), load("b"))).instance == "b"


def test_the_floor_bonus_has_the_specifications_numbers() -> None:
    """Mean 16, K = 200: an instance without a session gets 200, one that is one session short gets 12."""
    loads = load("a", assigned=0), load("b", assigned=15), load("c", assigned=33)
    decision = KvAware(load_floor_bonus=200).decide(ask(), view(*loads))
    assert [bonus(decision, name) for name in "abc"] == [200, 12, 0]
    hot = ask(2000, {"c": 50 * BLOCK})
    assert KvAware(load_floor_bonus=200).decide(hot, view(*loads)).instance == "a", "200 beats a boilerplate of 50"
    short = load("a", assigned=15), load("b", assigned=17)
    assert KvAware(load_floor_bonus=200).decide(ask(2000, {"b": 50 * BLOCK}), view(*short)).instance == "b"


@pytest.mark.parametrize("form", ["mean", "max"])
def test_how_soon_the_cold_instance_is_found(form: str) -> None:
    """8 instances, 50 blocks of boilerplate on the hot one: the mean form lets two sessions go there, the max one."""
    policy = KvAware(load_floor_bonus=200, floor_form="mean" if form == "mean" else "max")
    request = ask(2000, {"e0": 50 * BLOCK})

    def goes(sessions: int) -> str:
        loads = [load(f"e{n}", assigned=sessions if n == 0 else 0) for n in range(8)]
        return policy.decide(request, view(*loads)).instance

    assert goes(2) != "e0"
    assert (goes(1) == "e0") == (form == "mean"), "mean: 200 x 1/8 = 25 < 50; max: 200 > 50"


def test_a_warm_session_leaks_only_through_the_specifications_per_worker_gate() -> None:
    """K + overlap elsewhere > alpha + overlap at the owner: 200 + 0 > 100 + 60."""
    loads = load("a", assigned=9), load("b", assigned=0)
    request = ask(2000, {"a": 60 * BLOCK}, owner="a")
    leaks = KvAware(load_floor_bonus=200, floor_gate="per_worker").decide(request, view(*loads))
    assert (leaks.instance, leaks.reason) == ("b", "left_owner")
    stays = KvAware(load_floor_bonus=200).decide(request, view(*loads))
    assert (stays.instance, stays.reason) == ("a", "owner")


def test_a_new_instance_is_flooded_by_the_cumulative_count_only() -> None:
    loads = load("a", assigned=100, active_sessions=2), load("new", assigned=2, active_sessions=2)
    request = ask(2000, {"a": 50 * BLOCK})
    assert KvAware(load_floor_bonus=200).decide(request, view(*loads)).instance == "new"
    assert KvAware(load_floor_bonus=200, assigned="active").decide(request, view(*loads)).instance == "a"


def test_a_the_cold_bonus_protects_once() -> None:
    request = ask(2000, {"a": 50 * BLOCK})
    assert KvAware(cold_bonus=60).decide(request, view(load("a", assigned=9), load("b"))).instance == "b"
    assert KvAware(cold_bonus=60).decide(request, view(load("a", assigned=9), load("b", assigned=1))).instance == "a"


def test_c_inflight_first_sends_warm_sessions_to_idle_instances() -> None:
    request, cluster = ask(2000, {"a": 1600}, owner="a"), view(load("a", bs=1), load("b"))
    assert KvAware().decide(request, cluster).instance == "a"
    decision = KvAware(order="inflight_first").decide(request, cluster)
    assert decision.instance == "b"
    assert decision.keys[0] == "inflight"


def test_d_overlap_on_a_loaded_instance_is_worth_less() -> None:
    request, cluster = ask(2000, {"a": 50 * BLOCK, "b": 20 * BLOCK}), view(load("a", bs=48), load("b", bs=0))
    assert KvAware().decide(request, cluster).instance == "a"
    decision = KvAware(overlap_discount="fixed", max_inflight=64).decide(request, cluster)
    assert decision.instance == "b", "50 x (1 - 48/64) = 12.5 < 20"
    assert KvAware(overlap_discount="largest").decide(request, cluster).instance == "b", "the busiest counts nothing"
    over = KvAware(overlap_discount="fixed", max_inflight=10).decide(request, cluster)
    assert over.candidates[0].terms["counted_overlap"] == 0, "never negative"


def test_e_prewarming_is_a_setting_that_deciding_does_not_read() -> None:
    request, cluster = ask(2000, {"a": 800}), view(load("a"), load("b"))
    assert KvAware(prewarm_tokens=800).decide(request, cluster) == KvAware().decide(request, cluster)


def test_f_small_overlap_is_not_counted() -> None:
    request, cluster = ask(2000, {"a": 10 * BLOCK}), view(load("a", bs=1), load("b"))
    assert KvAware().decide(request, cluster).instance == "a"
    assert KvAware(min_overlap_blocks=10).decide(request, cluster).instance == "b", "more than tau, not tau"
    assert KvAware(min_overlap_blocks=9).decide(request, cluster).instance == "a"
    assert KvAware(min_overlap_share=0.08).decide(request, cluster).instance == "b"


def test_g_three_refusals_move_a_session_and_the_least_refused_takes_it_where_all_refuse() -> None:
    request = ask(2000, {"a": 1600}, owner="a", rejects={"a": 3})
    decision = KvAware().decide(request, view(load("a"), load("b", bs=9)))
    assert (decision.instance, decision.reason, decision.binds) == ("b", "reject_migration", True)
    assert not decision.gates[0].passed
    two = ask(2000, {"a": 1600}, owner="a", rejects={"a": 2})
    assert KvAware().decide(two, view(load("a"), load("b"))).instance == "a"
    everyone = ask(2000, owner="a", rejects={"a": 5, "b": 3, "c": 4})
    assert KvAware().decide(everyone, view(load("a"), load("b"), load("c"))).instance == "b"
    never = KvAware(migration_reject_threshold=0)
    assert never.decide(request, view(load("a"), load("b"))).instance == "a"


def test_q1e_a_full_kv_pool_is_skipped_and_keeps_its_session() -> None:
    full = load("a", kv_capacity_tokens=1000, free_kv_tokens=50)
    request = ask(2000, {"a": 1600}, owner="a")
    assert KvAware().decide(request, view(full, load("b"))).instance == "a", "off by default"
    decision = KvAware(backpressure_above=0.9).decide(request, view(full, load("b")))
    assert (decision.instance, decision.reason, decision.binds) == ("b", "backpressure", False)
    alone = KvAware(backpressure_above=0.9).decide(request, view(full, load("b", available=False)))
    assert alone.instance == "a", "where all are full, fullness is ignored"


def test_fresh_sessions_with_the_same_boilerplate_find_every_instance_with_the_bonus_only() -> None:
    def drive(policy: KvAware) -> Counter[str]:
        assigned = Counter({"d0": 1})
        for n in range(30):
            cached = {name: 50 * BLOCK for name in assigned if assigned[name]}
            loads = [load(name, assigned=assigned[name]) for name in ("d0", "d1", "d2")]
            assigned[policy.decide(ask(2000, cached), view(*loads, fallbacks=n)).instance] += 1
        return assigned

    assert drive(KvAware())["d2"] == 0, "the specification's pathology: D2 stays cold"
    assert min(drive(KvAware(load_floor_bonus=200)).values()) >= 8


POOLS = ("p0", "p1", "d0", "d1")


def pools(**changed: InstanceLoad) -> ClusterView:
    """Two instances that prefill and two that decode."""
    loads = {name: load(name, role="prefill" if name.startswith("p") else "decode") for name in POOLS}
    return view(*(loads | changed).values())


def test_with_pools_it_decodes_where_the_overlap_is_and_prefills_where_the_least_is_pending() -> None:
    cluster = pools(p0=load("p0", pp=900, role="prefill"), p1=load("p1", pp=300, bs=9, role="prefill"))
    decision = KvAware().decide(ask(2000, {"d1": 20 * BLOCK, "p0": 40 * BLOCK}), cluster)
    assert (decision.instance, decision.prefill) == ("d1", "p0"), "900 + 2000 - 640 beats 300 + 2000"
    assert decision.binds
    assert "prefill" in ruled_out(decision)["p1"]
    assert {one.instance for one in decision.candidates} == set(POOLS)


def test_a_turn_goes_straight_to_its_sessions_instance_while_that_holds_the_prompt() -> None:
    request = ask(20 * BLOCK, {"d1": 15 * BLOCK}, owner="d1")
    assert KvAware().decide(request, pools()).prefill == ""
    assert KvAware(direct_share=0.75).decide(request, pools()).prefill == "p0"
    assert KvAware(direct_share=1).decide(ask(20 * BLOCK, {"d1": 19 * BLOCK}, owner="d1"), pools()).prefill == "p0"
    direct = [gate for gate in KvAware().decide(request, pools()).gates if gate.name == "direct"]
    assert [(gate.value, gate.passed) for gate in direct] == [(0.75, True)]


def test_what_other_sessions_left_there_is_no_reason_to_go_straight() -> None:
    boilerplate = {"d1": 19 * BLOCK}
    assert KvAware().decide(ask(20 * BLOCK, boilerplate), pools()).prefill == "p0"
    moving = KvAware(sticky_bonus=0).decide(ask(20 * BLOCK, boilerplate, owner="d0"), pools())
    assert (moving.instance, moving.prefill) == ("d1", "p0")


def test_without_a_prefill_instance_that_is_up_the_decode_instance_computes() -> None:
    down = {name: load(name, role="prefill", available=False) for name in ("p0", "p1")}
    decision = KvAware().decide(ask(), pools(**down))
    assert decision.instance.startswith("d")
    assert decision.prefill == ""
    assert not next(gate for gate in decision.gates if gate.name == "prefill").passed


def test_a_prompt_is_computed_where_it_has_room() -> None:
    full = load("p0", role="prefill", free_kv_tokens=2000)
    room = load("p1", pp=9000, role="prefill", free_kv_tokens=2001)
    decision = KvAware().decide(ask(2000), pools(p0=full, p1=room))
    assert decision.prefill == "p1"
    assert "2000 KV tokens free, 2001 needed" in ruled_out(decision)["p0"]
    nowhere = KvAware().decide(ask(2000), pools(p0=full, p1=msgspec.structs.replace(room, free_kv_tokens=0)))
    assert (nowhere.prefill, nowhere.instance[0]) == ("", "d"), "the decode instance computes it"
    assert not next(gate for gate in nowhere.gates if gate.name == "prefill").passed


def test_the_floor_bonus_counts_the_instances_that_decode_alone() -> None:
    cluster = pools(d0=load("d0", assigned=16, role="decode"), d1=load("d1", role="decode"))
    decision = KvAware(load_floor_bonus=200).decide(ask(2000, {"d0": 50 * BLOCK}), cluster)
    assert decision.instance == "d1"
    assert bonus(decision, "d1") == 200, "mean 8 over two, not 4 over four"


@pytest.mark.parametrize(("form", "expected"), [("mean", {"a": 200, "b": 12}), ("max", {"a": 200, "b": 109})])
def test_an_instance_that_cannot_be_picked_now_still_counts_in_the_floor(form: str, expected: dict[str, int]) -> None:
    """The specification's mean is over all that decode: 16, though `c` with 33 sessions is paused or has failed."""
    policy = KvAware(load_floor_bonus=200, floor_form="mean" if form == "mean" else "max")
    few = load("a"), load("b", assigned=15)
    paused = policy.decide(ask(), view(*few, load("c", assigned=33, paused_for_s=2.0)))
    failed = policy.decide(ask(tried=("c",)), view(*few, load("c", assigned=33)))
    for decision in (paused, failed):
        assert {name: bonus(decision, name) for name in "ab"} == expected


def test_without_pools_nothing_is_prefilled_elsewhere() -> None:
    decision = KvAware().decide(ask(), view(load("a"), load("b")))
    assert decision.prefill == ""
    assert decision.gates == ()
