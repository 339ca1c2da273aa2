"""The router's counters: counted at the pick, released once, back at zero whatever happened in between."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.records.decisions import Decision, InstanceLoad, RoutedRequest
from runners.router.cluster import Cluster, Member
from runners.router.sessions.bindings import Bindings
from tests.examples import examples
from tests.runners.router.views import ask, is_idle


def to(instance: str, *, prefill: str = "", binds: bool = True, advances: bool = False) -> Decision:
    return Decision("test", instance, "test", prefill=prefill, binds=binds, advances=advances)


def at(cluster: Cluster, instance: str) -> InstanceLoad:
    return next(one for one in cluster.take_view().instances if one.instance == instance)


def make(*names: str, capacity: int | None = None) -> Cluster:
    return Cluster([Member(name, kv_capacity_tokens=capacity) for name in names], lambda: 100.0)


def test_a_request_is_counted_at_its_pick_and_released_in_two_steps() -> None:
    cluster = make("a", "b", capacity=5000)
    asked = msgspec.structs.replace(ask(1000, {"a": 300, "b": 900}, max_tokens=4000), reserved_tokens=200)
    reservation = cluster.reserve_counters(to("a"), asked)
    now = at(cluster, "a")
    assert (now.num_requests, now.pending_prefill_tokens, now.ongoing_tokens) == (1, 700, 1000)
    assert (now.ongoing_decode_tokens, now.free_kv_tokens) == (0, 3800), "what is reserved, not what is asked for"
    reservation.end_prefill()
    now = at(cluster, "a")
    assert (now.num_requests, now.pending_prefill_tokens, now.ongoing_tokens) == (1, 0, 1000)
    assert now.ongoing_decode_tokens == 1000
    reservation.end()
    assert is_idle(cluster.take_view().instances)
    assert at(cluster, "a").free_kv_tokens == 5000


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(("first", "end", "arrived", "lost")))))
@settings(max_examples=examples(100), deadline=None)
def test_any_order_and_number_of_releases_ends_at_zero_and_never_below(steps: list[tuple[int, str]]) -> None:
    cluster = make("a", "b")
    moves = [Decision("test", target, "test", migrate_from=source) for target, source in ("ab", "ba")]
    decisions = [to("a"), to("b"), to("a", prefill="b"), to("b", prefill="a"), *moves]
    held = [cluster.reserve_counters(decision, ask(100 * n + 1, {"a": 16 * n})) for n, decision in enumerate(decisions)]
    for place, step in steps:
        if step in ("arrived", "lost"):
            held[place].end_transfer(arrived=step == "arrived")
        else:
            held[place].end_prefill() if step == "first" else held[place].end()
        for load in cluster.take_view().instances:
            assert min(load.num_requests, load.pending_prefill_tokens, load.ongoing_decode_tokens) >= 0
            assert min(load.ongoing_tokens, load.retained_tokens) >= 0
    for reservation in held:
        reservation.end()
        reservation.end_prefill()
    assert is_idle(cluster.take_view().instances)


def test_with_pools_the_prompt_is_pending_where_it_is_computed() -> None:
    cluster = Cluster([Member("p", role="prefill"), Member("d", role="decode")], lambda: 0.0)
    reservation = cluster.reserve_counters(to("d", prefill="p", binds=False), ask(1000, {"p": 200, "d": 600}))
    assert (at(cluster, "p").pending_prefill_tokens, at(cluster, "d").pending_prefill_tokens) == (800, 0)
    reservation.end_transfer(arrived=True)
    assert (at(cluster, "p").num_requests, at(cluster, "p").pending_prefill_tokens) == (0, 0)
    assert at(cluster, "d").pending_prefill_tokens == 1, "its last token"
    reservation.end_transfer(arrived=False)
    assert at(cluster, "d").pending_prefill_tokens == 400, "the decode request has failed: it computes"
    assert at(cluster, "p").retained_tokens == 0
    reservation.end_prefill()
    assert at(cluster, "d").ongoing_decode_tokens == 1000
    reservation.end()
    assert is_idle(cluster.take_view().instances)


@pytest.mark.parametrize("how", ["served", "failed", "ended"])
def test_what_a_prefill_instance_keeps_is_not_free_until_it_is_pulled_or_given_up(how: str) -> None:
    cluster = make("p", "d", capacity=5000)
    reservation = cluster.reserve_counters(to("d", prefill="p", binds=False), ask(1000, max_tokens=50))
    assert (at(cluster, "p").free_kv_tokens, at(cluster, "p").retained_tokens) == (4000, 0)
    reservation.end_transfer(arrived=True)
    assert (at(cluster, "p").free_kv_tokens, at(cluster, "p").retained_tokens) == (4000, 1000), "its blocks are there"
    assert (at(cluster, "p").num_requests, at(cluster, "p").ongoing_tokens) == (0, 0), "it has nothing more to do"
    assert not is_idle(cluster.take_view().instances)
    cluster.drain_instance("p")
    if how == "served":
        reservation.end_prefill()
    elif how == "failed":
        reservation.end_transfer(arrived=False)
    else:
        reservation.end()
    assert (at(cluster, "p").free_kv_tokens, at(cluster, "p").retained_tokens) == (5000, 0)
    reservation.end_transfer(arrived=True)
    assert at(cluster, "p").retained_tokens == 0, "once"
    reservation.end()
    assert is_idle(cluster.take_view().instances)


@pytest.mark.parametrize(
    ("cached", "block", "on_its_way", "alone"),
    [
        ({"h": 912}, 16, 88, 1000),
        ({"h": 912}, 128, 104, 1000),
        ({"h": 912, "t": 960}, 16, 40, 40),
        ({"h": 912, "t": 500}, 16, 88, 500),
        ({}, 16, 1000, 1000),
    ],
)
def test_what_is_on_its_way_is_not_pending_unless_it_does_not_come(
    cached: dict[str, int], block: int, on_its_way: int, alone: int
) -> None:
    cluster = Cluster([Member("h", block_tokens=block), Member("t")], lambda: 0.0)
    reservation = cluster.reserve_counters(Decision("test", "t", "test", migrate_from="h"), ask(1000, cached))
    assert (at(cluster, "h").num_requests, at(cluster, "t").pending_prefill_tokens) == (0, on_its_way)
    reservation.end_transfer(arrived=True)
    assert at(cluster, "t").pending_prefill_tokens == on_its_way
    reservation.end_transfer(arrived=False)
    assert at(cluster, "t").pending_prefill_tokens == alone
    reservation.end_prefill()
    reservation.end_transfer(arrived=True)
    reservation.end()
    assert is_idle(cluster.take_view().instances)


@pytest.mark.parametrize("how", ["arrived", "lost", "ended"])
def test_what_a_migration_takes_along_is_not_free_at_its_source_until_it_is_over(how: str) -> None:
    members = [Member(name, kv_capacity_tokens=5000, block_tokens=16) for name in "ht"]
    cluster = Cluster(members, lambda: 0.0)
    reservation = cluster.reserve_counters(Decision("test", "t", "test", migrate_from="h"), ask(1000, {"h": 920}))
    assert (at(cluster, "h").retained_tokens, at(cluster, "h").free_kv_tokens) == (912, 5000 - 912)
    if how == "ended":
        reservation.end()
    else:
        reservation.end_transfer(arrived=how == "arrived")
    assert (at(cluster, "h").retained_tokens, at(cluster, "h").free_kv_tokens) == (0, 5000)
    reservation.end()
    reservation.end_transfer(arrived=True)
    assert is_idle(cluster.take_view().instances)


def test_a_source_that_is_no_member_lends_nothing() -> None:
    cluster = make("t")
    cluster.reserve_counters(Decision("test", "t", "test", migrate_from="gone"), ask(1000, {"gone": 900}))
    assert at(cluster, "t").pending_prefill_tokens == 1000


def test_picks_and_fallbacks_count_for_the_next_view() -> None:
    cluster = make("a")
    cluster.reserve_counters(to("a", advances=True), ask())
    cluster.reserve_counters(to("a"), ask())
    assert (cluster.take_view().picks, cluster.take_view().fallbacks) == (2, 1)


def test_sessions_on_their_way_count_where_they_go() -> None:
    cluster = make("a", "b")
    reservation = cluster.reserve_counters(to("a"), ask(session="s"))
    assert (at(cluster, "a").assigned, at(cluster, "a").active_sessions) == (1, 1)
    cluster.bindings.commit_binding("s", "a", 0.0)
    reservation.end()
    reservation.end()
    assert (at(cluster, "a").assigned, at(cluster, "a").active_sessions) == (1, 1)
    cluster.reserve_counters(to("b", binds=False), ask(session="t"))
    assert at(cluster, "b").assigned == 0


def test_instances_come_drain_and_go_at_run_time() -> None:
    cluster = make("a", "b")
    reservation = cluster.reserve_counters(to("a"), ask(session="s"))
    cluster.bindings.commit_binding("s", "a", 0.0)
    cluster.drain_instance("a")
    assert (at(cluster, "a").available, at(cluster, "a").why_unavailable) == (False, "draining")
    cluster.add_member(Member("c"))
    assert [one.instance for one in cluster.take_view().instances] == ["a", "b", "c"]
    reservation.end()
    assert cluster.remove_instance("a") == ("s",)
    assert cluster.bindings.find_owner("s") == ""
    with pytest.raises(KeyError):
        cluster.reserve_counters(to("a"), ask())


def test_a_request_may_outlive_its_instance() -> None:
    cluster = make("a", "b")
    reservation = cluster.reserve_counters(to("a"), ask())
    cluster.remove_instance("a")
    cluster.add_member(Member("a"))
    reservation.end()
    assert is_idle(cluster.take_view().instances)


def test_a_drained_instance_is_taken_back_and_a_second_of_its_name_is_refused() -> None:
    cluster = Cluster([Member("a", "http://one")], lambda: 0.0)
    cluster.drain_instance("a")
    cluster.add_member(Member("a", "http://one"))
    assert at(cluster, "a").available
    with pytest.raises(ValueError, match="there is an instance a already"):
        cluster.add_member(Member("a", "http://two"))


def test_a_short_absence_moves_nobody() -> None:
    bindings = Bindings()
    cluster = Cluster([Member("a"), Member("b")], lambda: 50.0, bindings)
    for n in range(4):
        bindings.commit_binding(f"s{n}", "ab"[n % 2], float(n))
    cluster.set_available("a", False, "timeout")
    assert cluster.set_available("a", True) == ()
    assert bindings.find_owner("s0") == "a"


def test_a_pause_ends_by_itself() -> None:
    now = [10.0]
    cluster = Cluster([Member("a")], lambda: now[0])
    cluster.pause_instance("a", 2.0)
    now[0] = 11.5
    assert at(cluster, "a").paused_for_s == pytest.approx(0.5)
    now[0] = 13.0
    assert at(cluster, "a").paused_for_s == 0.0


def test_capacity_may_be_learnt_later() -> None:
    cluster = make("a")
    assert at(cluster, "a").free_kv_tokens is None
    held: RoutedRequest = ask(1100)
    cluster.reserve_counters(to("a"), held)
    cluster.set_capacity("a", 1000)
    assert at(cluster, "a").free_kv_tokens == 0, "never below"
