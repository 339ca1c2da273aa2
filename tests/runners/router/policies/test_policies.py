"""The load policies, LMetric, the linear mix, sticky and the pools: their rules, their edges, their spread."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from results.records.decisions import Decision
from runners.router.policies.balance import LeastWork, LeastWorkSpread, LoadOnly, RoundRobin
from runners.router.policies.lmetric import KvLinear, LMetric
from runners.router.policies.static_pd import StaticPD
from runners.router.policies.sticky import Sticky, make_placing_order
from tests.runners.router.views import ask, load, ruled_out, view


def scores(decision: Decision) -> dict[str, tuple[float, ...]]:
    return {one.instance: one.score for one in decision.candidates}


def test_round_robin_takes_turns_among_those_that_are_up() -> None:
    loads = load("a", bs=9), load("b", available=False, why_unavailable="breaker open"), load("c")
    picked = [RoundRobin().decide(ask(), view(*loads, picks=n)).instance for n in range(4)]
    assert picked == ["a", "c", "a", "c"]
    decision = RoundRobin().decide(ask(), view(*loads))
    assert ruled_out(decision)["b"] == "breaker open"
    assert not decision.binds
    for picks in range(5):
        decision = RoundRobin().decide(ask(), view(*loads, picks=picks))
        ranked = {name: score for name, score in scores(decision).items() if score}
        lowest = min(ranked, key=ranked.__getitem__)
        assert (decision.instance, decision.tie_break) == (lowest, ""), "the record shows why it was its turn"


def test_load_only_goes_by_requests_then_tokens_then_turn() -> None:
    policy = LoadOnly()
    assert policy.decide(ask(), view(load("a", bs=1), load("b", bs=0, ot=9))).instance == "b"
    assert policy.decide(ask(), view(load("a", bs=1, ot=9), load("b", bs=1, ot=5))).instance == "b"
    turns = [policy.decide(ask(), view(load("a"), load("b"), fallbacks=n)).instance for n in range(4)]
    assert turns == ["a", "b", "a", "b"]
    assert LoadOnly(tie="first").decide(ask(), view(load("a"), load("b"), fallbacks=1)).instance == "a"


def test_lmetric_weighs_prompt_work_by_batch_size() -> None:
    decision = LMetric().decide(
        ask(60_000, {"b": 59_800}), view(load("a", bs=1), load("b", bs=2, pp=100), load("c", bs=3, pp=5_000))
    )
    assert {name: score[0] for name, score in scores(decision).items()} == {"a": 60_000, "b": 600, "c": 195_000}
    assert decision.instance == "b"
    assert not decision.binds, "lmetric never writes affinity"


def test_lmetric_swallows_the_cache_on_an_idle_instance_unless_the_offset_is_one() -> None:
    cluster = view(load("cold"), load("owner", bs=1))
    request = ask(60_000, {"owner": 59_800}, owner="owner")
    assert LMetric().decide(request, cluster).instance == "cold", "200 x 1 against 60000 x 0"
    assert LMetric(bs_offset=1).decide(request, cluster).instance == "owner", "200 x 2 against 60000 x 1"


def test_lmetric_never_reads_affinity() -> None:
    cluster = view(load("a", bs=2, pp=10), load("b", bs=1, pp=300))
    assert LMetric().decide(ask(owner="b"), cluster) == LMetric().decide(ask(owner=""), cluster)


def test_idle_ties_pin_the_first_instance_only_where_that_is_asked_for() -> None:
    loads = [load(name) for name in "abcd"]
    first = {LMetric(tie="first").decide(ask(), view(*loads, fallbacks=n)).instance for n in range(20)}
    turns = Counter(LMetric().decide(ask(), view(*loads, fallbacks=n)).instance for n in range(20))
    assert first == {"a"}
    assert turns == dict.fromkeys("abcd", 5)
    decision = LMetric().decide(ask(), view(*loads, fallbacks=1))
    assert decision.advances
    assert decision.tie_break == "a, b, c, d are equal on work_x_requests (0); decided by turns_away"


@pytest.mark.parametrize(("tokens_of_b", "decided"), [(5, "turns_away"), (7, "ongoing_tokens")])
def test_the_key_that_separates_the_pick_from_its_nearest_rival_decided(tokens_of_b: int, decided: str) -> None:
    loads = load("a", ot=5), load("b", ot=tokens_of_b), load("c", ot=9), load("d", bs=1)
    decision = LoadOnly().decide(ask(), view(*loads))
    assert decision.instance == "a"
    assert decision.tie_break == f"a, b, c are equal on num_requests (0); decided by {decided}"


def test_leastwork_counts_work_that_is_left_not_requests() -> None:
    decision = LeastWork().decide(ask(1000, {"b": 900}, turn=1), view(load("a", pp=200), load("b", bs=7, pp=900)))
    assert scores(decision)["a"][0] == 1200
    assert scores(decision)["b"][0] == 1000
    assert decision.instance == "b"


def test_leastwork_is_its_authors_rule_and_its_variant_weighs_a_first_prompt_whole() -> None:
    request, cluster = ask(1000, {"b": 900}), view(load("a"), load("b"))
    assert LeastWork().decide(request, cluster).instance == "b"
    spread = LeastWorkSpread().decide(request, cluster)
    assert (spread.policy, spread.instance) == ("leastwork_spread", "a")


def test_the_linear_mix_moves_from_load_to_cache_with_its_weight() -> None:
    cluster, request = view(load("a", bs=0), load("b", bs=4)), ask(1000, {"b": 800})
    assert KvLinear(w=0.3).decide(request, cluster).instance == "a"
    decision = KvLinear(w=0.6).decide(request, cluster)
    assert decision.instance == "b"
    assert scores(decision)["b"][0] == pytest.approx(-(0.6 * 0.8 - 0.4 * 1))


def test_the_linear_form_of_pr1035_compares_with_the_mean() -> None:
    cluster, request = view(load("a", bs=0), load("b", bs=4)), ask(1000, {"b": 900})
    decision = KvLinear(form="pr1035").decide(request, cluster)
    assert scores(decision)["b"][0] == pytest.approx(-(0.9 - 1.0 * (4 - 2) / 2))
    assert decision.instance == "a"
    assert KvLinear(form="pr1035", beta=0.4).decide(request, cluster).instance == "b"


@pytest.mark.parametrize("place", ["modulo", "ring"])
def test_sticky_places_by_hash_and_never_leaves_while_its_instance_is_up(place: str) -> None:
    policy = Sticky(place="ring") if place == "ring" else Sticky()
    loads = [load(name) for name in "abcd"]
    homes = {f"s{n}": policy.decide(ask(session=f"s{n}"), view(*loads)).instance for n in range(200)}
    assert set(Counter(homes.values())) == set("abcd")
    assert max(Counter(homes.values()).values()) < 90
    busy = [load(name, bs=50, pp=10**6) if name == homes["s1"] else load(name) for name in "abcd"]
    later = policy.decide(ask(session="s1", owner=homes["s1"]), view(*busy))
    assert (later.instance, later.reason) == (homes["s1"], "bound")


def test_a_new_instance_takes_few_sessions_from_a_ring() -> None:
    names = [f"e{n}" for n in range(8)]
    sessions = [f"s{n}" for n in range(400)]
    moved = {
        place: sum(
            make_placing_order(one, names, place, 160)[0] != make_placing_order(one, [*names, "f"], place, 160)[0]
            for one in sessions
        )
        for place in ("ring", "modulo")
    }
    assert moved["ring"] < 400 / 9 * 2
    assert moved["modulo"] > 300


def test_sticky_rebinds_when_its_instance_is_down_and_goes_home_only_where_it_is_told_to() -> None:
    loads = [load(name) for name in "abc"]
    home = Sticky().decide(ask(), view(*loads)).instance
    down = [load(one.instance, available=one.instance != home) for one in loads]
    moved = Sticky().decide(ask(owner=home), view(*down))
    assert moved.instance != home
    assert moved.reason == "owner_down"
    assert moved.binds
    assert Sticky().decide(ask(owner=moved.instance), view(*loads)).instance == moved.instance
    assert Sticky(rebind=False).decide(ask(owner=moved.instance), view(*loads)).instance == home


def test_sticky_without_a_session_goes_by_load() -> None:
    decision = Sticky().decide(ask(session=""), view(load("a", bs=1), load("b")))
    assert (decision.instance, decision.reason, decision.binds) == ("b", "no_session", False)


def test_bounded_sticky_passes_on_from_a_full_instance() -> None:
    home = Sticky().decide(ask(), view(load("a"), load("b"))).instance
    full = [load(name, active_sessions=9 if name == home else 1) for name in "ab"]
    assert Sticky().decide(ask(), view(*full)).instance == home
    assert Sticky(bound=1.25).decide(ask(), view(*full)).instance != home


def test_a_paused_instance_is_skipped_but_keeps_its_session() -> None:
    loads = load("a", paused_for_s=0.8), load("b")
    decision = Sticky().decide(ask(owner="a"), view(*loads))
    assert (decision.instance, decision.reason, decision.binds) == ("b", "owner_paused", False)
    everyone = LMetric().decide(ask(), view(load("a", paused_for_s=0.8), load("b", paused_for_s=0.1)))
    assert everyone.instance in ("a", "b")
    assert everyone.gates[0].text == "all 2 are paused: pauses are ignored"


PD = (
    load("p0", pp=500, role="prefill"),
    load("p1", pp=100, role="prefill"),
    load("d0", role="decode", kv_capacity_tokens=5000, free_kv_tokens=1500, ot=3500),
    load("d1", role="decode", kv_capacity_tokens=5000, free_kv_tokens=4000, ot=1000),
)


def test_static_pools_prefill_by_work_and_decode_by_free_kv() -> None:
    decision = StaticPD().decide(ask(1000), view(*PD))
    assert (decision.prefill, decision.instance) == ("p1", "d1")
    assert StaticPD().decide(ask(1000, {"p0": 900}), view(*PD)).prefill == "p0", "500 + 100 against 100 + 1000"


def test_static_pools_check_that_prompt_and_reserved_output_fit() -> None:
    decision = StaticPD().decide(ask(2000), view(*PD))
    assert ruled_out(decision)["d0"] == "1500 KV tokens free, 2000 needed"
    longer = msgspec.structs.replace(ask(1450), reserved_tokens=100)
    assert ruled_out(StaticPD().decide(longer, view(*PD)))["d0"] == "1500 KV tokens free, 1550 needed"
    assert decision.instance == "d1"
    full = StaticPD().decide(ask(4500), view(*PD))
    assert (full.instance, full.reason) == ("", "wait_decode_kv")
    assert StaticPD(on_full="reject").decide(ask(4500), view(*PD)).reason == "reject_decode_kv"


def test_static_pools_check_that_the_prompt_fits_where_it_is_computed() -> None:
    """What it keeps for others is not free there."""
    full = load("p0", role="prefill", kv_capacity_tokens=5000, free_kv_tokens=1000, retained_tokens=4000)
    room = load("p1", pp=9000, role="prefill", kv_capacity_tokens=5000, free_kv_tokens=1001)
    decision = StaticPD().decide(ask(1000), view(full, room, *PD[2:]))
    assert (decision.prefill, decision.instance) == ("p1", "d1")
    assert ruled_out(decision)["p0"] == "1000 KV tokens free, 1001 needed"
    waits = StaticPD().decide(ask(1000), view(full, *PD[2:]))
    assert (waits.instance, waits.reason) == ("", "wait_prefill_kv")
    assert [(gate.name, gate.passed) for gate in waits.gates] == [("fits", True), ("prompt_fits", False)]
    assert StaticPD(on_full="reject").decide(ask(1000), view(full, *PD[2:])).reason == "reject_prefill_kv"


def test_without_a_prefill_instance_the_decode_instance_computes() -> None:
    down = [load(name, role="prefill", available=False, why_unavailable="breaker open") for name in ("p0", "p1")]
    decision = StaticPD().decide(ask(1000), view(*down, *PD[2:]))
    assert (decision.instance, decision.prefill, decision.reason) == ("d1", "", "decode_alone")
    assert ruled_out(decision)["p0"] == "breaker open"


def test_static_pools_can_be_cut_from_instances_without_roles() -> None:
    loads = [load(name, ot=ot) for name, ot in (("a", 0), ("b", 0), ("c", 9), ("d", 3))]
    decision = StaticPD(prefill_count=2).decide(ask(), view(*loads))
    assert decision.prefill in ("a", "b")
    assert decision.instance == "d", "without known capacities the fewest tokens under way"
    assert StaticPD().decide(ask(), view(*loads)).reason == "no_prefill_instance"
    down = [load(one.instance, available=one.instance > "b") for one in loads]
    alone = StaticPD(prefill_count=2).decide(ask(), view(*down))
    assert (alone.instance, alone.prefill, alone.reason) == ("c", "", "decode_alone"), "the pool is only not there now"
    assert StaticPD(prefill_count=4).decide(ask(), view(*loads)).reason == "no_decode_instance"


def test_whole_requests_never_go_to_a_prefill_instance() -> None:
    decision = LMetric().decide(ask(), view(load("p", role="prefill"), load("d", role="decode", bs=5)))
    assert decision.instance == "d"
