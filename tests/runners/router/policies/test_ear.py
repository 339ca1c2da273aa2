"""EAR: section 4.2 and 4.3 of the specification, one clause at a time, and what it leaves open."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from results.records.decisions import ClusterView, Decision, InstanceLoad, RoutedRequest
from runners.router.policies import make_policy
from runners.router.policies.ear import EAR
from runners.router.policies.policy import PolicyError
from tests.runners.router.views import ask, load, ruled_out, view

POLICY = EAR(hot_tokens=4000, cooldown_s=30)
AFFINITY_ONLY = EAR(hot_tokens=4000, cooldown_s=30, migration=False)
MIGRATION_ONLY = EAR(hot_tokens=4000, cooldown_s=30, affinity=False)


def room(name: str, pp: int = 0, free: int | None = 10_000, **more: Any) -> InstanceLoad:
    """An instance with this many tokens pending and this many free."""
    return load(name, pp=pp, free_kv_tokens=free, **more)


def turn(tokens: int = 1000, *, since: float | None = None, moving_to: str = "", **more: Any) -> RoutedRequest:
    """A later turn of a session that lives on `a`."""
    return msgspec.structs.replace(
        ask(tokens, owner=more.pop("owner", "a"), turn=3, **more), since_migration_s=since, moving_to=moving_to
    )


def gates(decision: Decision) -> dict[str, bool]:
    return {gate.name: gate.passed for gate in decision.gates}


@pytest.mark.parametrize("parameters", [{}, {"hot_tokens": 4000}, {"cooldown_s": 30}])
def test_thresholds_have_no_silent_default(parameters: dict[str, object]) -> None:
    with pytest.raises(PolicyError, match="there is no default") as caught:
        make_policy("ear", parameters)
    for name, how in (("hot_tokens", "prefill tokens per second"), ("cooldown_s", "mean time of a turn")):
        assert (name in str(caught.value)) == (name not in parameters)
        assert (how in caught.value.remedy) == (name not in parameters), "it says how to choose"
    assert caught.value.exit_code == 2


def test_a_new_session_goes_where_the_fewest_prompt_tokens_are_pending() -> None:
    decision = POLICY.decide(ask(9000, {"a": 8990}), view(room("a", 500, bs=1), room("b", 400, bs=9), room("c", 600)))
    assert (decision.instance, decision.reason, decision.binds, decision.migrate_from) == ("b", "cold", True, "")


def test_new_sessions_at_idle_instances_take_turns() -> None:
    picked = [POLICY.decide(ask(), view(room("a"), room("b"), room("c"), fallbacks=n)).instance for n in range(4)]
    assert picked == ["a", "b", "c", "a"]
    assert POLICY.decide(ask(), view(room("a"), room("b"))).advances


def test_a_later_turn_stays_with_its_instance_up_to_the_threshold() -> None:
    decision = POLICY.decide(turn(), view(room("a", 4000), room("b")))
    assert (decision.instance, decision.reason, decision.binds, decision.migrate_from) == ("a", "bound", True, "")
    assert gates(decision) == {"hot": False}


def test_above_the_threshold_it_migrates_to_the_least_busy() -> None:
    decision = POLICY.decide(turn(), view(room("a", 4001), room("b", 300), room("c", 200)))
    assert (decision.instance, decision.migrate_from, decision.reason) == ("c", "a", "migrated")
    assert decision.binds, "the binding follows once it was served there"
    assert gates(decision) == {"hot": True, "cooldown": True, "one_at_a_time": True, "target": True}
    assert "it is hot: 4001" in ruled_out(decision)["a"]


@pytest.mark.parametrize(("since", "moves"), [(None, True), (0.0, False), (29.9, False), (30.0, True), (99.0, True)])
def test_a_session_that_migrated_stays_for_the_cooldown(since: float | None, moves: bool) -> None:
    decision = POLICY.decide(turn(since=since), view(room("a", 5000), room("b")))
    assert (decision.instance, bool(decision.migrate_from)) == (("b", True) if moves else ("a", False))
    assert decision.reason == ("migrated" if moves else "hot_cooldown")
    assert gates(decision)["cooldown"] == moves


def test_a_second_turn_in_flight_stays_while_the_first_migrates() -> None:
    decision = POLICY.decide(turn(moving_to="b"), view(room("a", 5000), room("b", 1000), room("c")))
    assert (decision.instance, decision.migrate_from, decision.reason) == ("a", "", "hot_moving")
    assert "one is, to b" in decision.gates[-1].text


@pytest.mark.parametrize(("free", "moves"), [(1100, True), (1099, False)])
def test_what_the_router_reserves_for_an_answer_needs_room_too(free: int, moves: bool) -> None:
    asked = msgspec.structs.replace(turn(1000, max_tokens=100), reserved_tokens=100)
    assert bool(POLICY.decide(asked, view(room("a", 5000), room("b", 0, free))).migrate_from) == moves


def test_without_a_target_it_stays_and_says_why_of_each() -> None:
    decision = POLICY.decide(turn(), view(room("a", 5000), room("b", 0, 500), room("c", 6000), room("d", free=None)))
    assert (decision.instance, decision.migrate_from, decision.reason, decision.binds) == (
        "a",
        "",
        "hot_no_target",
        True,
    )
    assert gates(decision)["target"] is False
    reasons = ruled_out(decision)
    assert set(reasons) == {"b", "c", "d"}
    assert reasons["b"] == "500 KV tokens free, 1000 needed"
    assert "not less busy than a" in reasons["c"]
    assert "not known" in reasons["d"]


@pytest.mark.parametrize("least", [0, 1, 1000])
@pytest.mark.parametrize(
    ("cached", "cut_off"),
    [
        ({}, {}),
        ({"b": 1000, "c": 1000}, {}),
        ({"a": 912, "b": 912}, {}),
        ({"a": 912, "c": 912}, {}),
        ({"a": 15, "b": 900}, {}),
        ({"a": 912}, {"b": "quarantined for 9 s"}),
        ({"a": 912}, {"b": "quarantined", "c": "it has no transfer"}),
    ],
    ids=[
        "evicted everywhere", "others hold all", "b holds as much", "c holds as much", "the owner holds no block",
        "none can move to b", "none can move",
    ],
)  # fmt: skip
def test_neither_how_much_kv_there_is_nor_whether_it_can_move_keeps_a_session(
    cached: dict[str, int], cut_off: dict[str, str], least: int
) -> None:
    """4.3.2: the fewest pending tokens among those with room. An arm that moves no KV is to decide alike."""
    asked = msgspec.structs.replace(turn(1000, cached=cached), min_move_tokens=least, cut_off=cut_off)
    cluster = view(room("a", 5000), room("b", 100), room("c", 200))
    for policy in (POLICY, MIGRATION_ONLY):
        decision = policy.decide(asked, cluster)
        assert (decision.instance, decision.migrate_from, decision.reason) == ("b", "a", "migrated")
    alone = AFFINITY_ONLY.decide(asked, cluster)
    assert (alone.instance, alone.gates) == ("a", ())


def follow_the_specification(request: RoutedRequest, cluster: ClusterView, hot_tokens: int, cooldown_s: float) -> str:
    """Sections 4.2 and 4.3 as they are written, of a session whose host H is up: where the request goes."""
    load_of = {one.instance: one for one in cluster.instances}
    host = load_of[request.owner]
    if host.pending_prefill_tokens <= hot_tokens:
        return host.instance
    if request.since_migration_s is not None and request.since_migration_s < cooldown_s:
        return host.instance
    candidates = [
        (one.pending_prefill_tokens, one.instance)
        for one in cluster.instances
        if (one.free_kv_tokens or 0) >= request.input_tokens
        and one.pending_prefill_tokens < host.pending_prefill_tokens
    ]
    return min(candidates)[1] if candidates else host.instance


def test_it_decides_as_the_specification_is_written() -> None:
    """4,000 random views of few values, so that each limit is met exactly and often.

    `tie="first"` because the specification does not say who wins a tie.
    """
    rng = np.random.default_rng(1)
    differing, migrated = [], 0
    for number in range(4000):
        names = "abcdefgh"[: int(rng.integers(2, 9))]
        free = [None, *range(0, 12_000, 1000)]
        cluster = view(*(room(name, 1000 * int(rng.integers(9)), free[int(rng.integers(len(free)))]) for name in names))
        tokens = 1000 * int(rng.integers(1, 9))
        cached = {name: (0, int(rng.integers(0, tokens + 1)), tokens)[int(rng.integers(3))] for name in names}
        since = (None, 0.0, 29.9, 30.0, 99.0)[int(rng.integers(5))]
        asked = msgspec.structs.replace(
            turn(tokens, owner=names[int(rng.integers(len(names)))], cached=cached, since=since, max_tokens=3000),
            min_move_tokens=(0, 1, 1000)[int(rng.integers(3))],
            cut_off={name: "quarantined" for name in names if rng.random() < 0.3},
        )
        decision = EAR(hot_tokens=2000, cooldown_s=30, tie="first").decide(asked, cluster)
        migrated += bool(decision.migrate_from)
        expected = follow_the_specification(asked, cluster, 2000, 30)
        if decision.instance != expected or bool(decision.migrate_from) != (expected != asked.owner):
            differing.append((number, decision.instance, expected))
    assert migrated > 700
    assert differing == []


@pytest.mark.parametrize("since", [None, 0.0])
@pytest.mark.parametrize("lost", ["down", "gone", "failed this request"])
def test_a_dead_owner_is_replaced_at_once_and_nothing_is_fetched_from_it(lost: str, since: float | None) -> None:
    dead = () if lost == "gone" else (room("a", 9000, available=lost != "down"),)
    tried = ["a"] if lost == "failed this request" else []
    decision = POLICY.decide(turn(since=since, tried=tried), view(*dead, room("b", 9500), room("c", 9400)))
    assert (decision.instance, decision.migrate_from, decision.reason) == ("c", "", "fallback_owner_down")
    assert decision.binds


def test_a_paused_owner_keeps_its_session() -> None:
    decision = POLICY.decide(turn(), view(room("a", 9000, paused_for_s=2.0), room("b")))
    assert (decision.instance, decision.migrate_from, decision.reason, decision.binds) == (
        "b",
        "",
        "owner_paused",
        False,
    )


def test_a_paused_instance_is_no_target() -> None:
    decision = POLICY.decide(turn(), view(room("a", 9000), room("b", paused_for_s=2.0), room("c", 8000)))
    assert (decision.instance, decision.migrate_from) == ("c", "a")


def test_a_target_that_failed_this_request_is_not_asked_again() -> None:
    decision = POLICY.decide(turn(tried=["b"]), view(room("a", 9000), room("b"), room("c", 8000)))
    assert (decision.instance, decision.migrate_from) == ("c", "a")
    assert POLICY.decide(turn(tried=["b"]), view(room("a", 9000), room("b"))).instance == "a"


def test_nobody_left_is_nowhere() -> None:
    decision = POLICY.decide(turn(), view(room("a", available=False)))
    assert (decision.instance, decision.reason, decision.binds) == ("", "no_instance", False)


def test_without_a_session_nothing_migrates() -> None:
    decision = POLICY.decide(ask(session=""), view(room("a", 9000), room("b")))
    assert (decision.instance, decision.migrate_from) == ("b", "")


def test_affinity_only_stays_however_hot() -> None:
    decision = AFFINITY_ONLY.decide(turn(), view(room("a", 90_000), room("b")))
    assert (decision.instance, decision.reason, decision.gates) == ("a", "bound", ())
    assert AFFINITY_ONLY.decide(ask(), view(room("a", 1), room("b"))).instance == "b", "cold start by load, as in full"


def test_migration_only_places_each_turn_by_load_and_takes_the_kv_along_from_a_hot_instance() -> None:
    cool = MIGRATION_ONLY.decide(turn(), view(room("a", 4000), room("b")))
    assert (cool.instance, cool.migrate_from, cool.reason, cool.binds) == ("b", "", "balanced", True)
    hot = MIGRATION_ONLY.decide(turn(), view(room("a", 4001), room("b")))
    assert (hot.instance, hot.migrate_from, hot.reason) == ("b", "a", "migrated")
    home = MIGRATION_ONLY.decide(turn(), view(room("a", 4001), room("b", 4002)))
    assert (home.instance, home.migrate_from, home.reason, home.gates) == ("a", "", "balanced", ())


def test_migration_only_without_a_target_or_in_cooldown_still_places_by_load() -> None:
    full = MIGRATION_ONLY.decide(turn(), view(room("a", 5000), room("b", 0, 10)))
    assert (full.instance, full.migrate_from, full.reason) == ("b", "", "balanced")
    again = MIGRATION_ONLY.decide(turn(since=1.0), view(room("a", 5000), room("b")))
    assert (again.instance, again.migrate_from, gates(again)["cooldown"]) == ("b", "", False)


def test_with_neither_it_balances_load() -> None:
    decision = EAR(hot_tokens=0, cooldown_s=0, affinity=False, migration=False).decide(
        turn(), view(room("a", 5000), room("b", 4000))
    )
    assert (decision.instance, decision.migrate_from, decision.gates) == ("b", "", ())
