"""The migration microbenchmark: logs written down by hand, so that every number can be counted."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.records.decisions import ClusterView, Gate
from results.records.turns import EngineSample
from results.routing.logs import make_pending_series
from results.routing.migration_figures import bin_pending
from results.routing.migrations import find_migrations
from tests.results.routing.logs import COOLDOWN_S, HOT, Log
from tests.results.routing.synthetic import T0_NS


def gate(name: str, *, passed: bool) -> Gate:
    return Gate(name, 0, 0, passed, "")


def test_the_trigger_rate_is_of_requests_and_not_of_picks() -> None:
    log = Log()
    for place in range(6):
        log.pick(place, f"s{place}", "a")
    log.pick(7, "s0", "b", source="a", status="failed", request="again", first_byte_s=None)
    log.pick(7.1, "s0", "c", source="a", request="again")
    log.pick(8, "s1", "b", source="a")
    found = find_migrations(log.records, HOT, COOLDOWN_S)
    assert (sum(found.requests.values()), found.asked) == (8, 2)
    assert found.trigger_rate.value == pytest.approx(2 / 8)
    assert found.outcomes == {"failed": 1, "recomputed": 2}
    assert [event.moved_s is None for event in found.events] == [True, False, False]


def test_refusals_are_counted_by_the_gate_that_failed() -> None:
    log = Log()
    hot, cool = gate("hot", passed=True), gate("hot", passed=False)
    log.pick(0, "s", "a", gates=(cool,))
    log.pick(1, "s", "a", gates=(hot, gate("cooldown", passed=False), gate("one_at_a_time", passed=True)))
    log.pick(2, "s", "a", gates=(hot, gate("cooldown", passed=True), gate("target", passed=False)))
    log.pick(3, "s", "a", gates=(hot, gate("cooldown", passed=True), gate("target", passed=False)))
    log.pick(4, "s", "b", source="a", gates=(hot,))
    assert find_migrations(log.records, HOT, COOLDOWN_S).refused == {"cooldown": 1, "target": 2}


def followed(pending_after: list[int], *, move_s: float = 0.0) -> Log:
    """A session that moves to `b`, where this many tokens are pending at its next turns."""
    log = Log()
    log.pick(move_s, "s", "b", source="a")
    for place, tokens in enumerate(pending_after):
        log.pending["b"] = tokens
        log.pick(move_s + 1 + place, "s", "b")
    return log


@pytest.mark.parametrize(
    ("pending", "cool"),
    [([0, 0, 0], True), ([HOT, HOT, HOT], True), ([0, HOT + 1, 0], False), ([0, 0, 0, HOT + 1], True), ([0, 0], None)],
)
def test_a_migration_was_right_if_its_target_was_not_hot_at_the_next_turns(
    pending: list[int], cool: bool | None
) -> None:
    (event,) = find_migrations(followed(pending).records, HOT, COOLDOWN_S).events
    assert event.stayed_cool is cool
    assert event.turns_left == len(pending)


def test_accuracy_is_of_the_migrations_whose_next_turns_were_seen() -> None:
    log = followed([0, 0, 0])
    for session, later in (("t", [0, HOT + 1, 0]), ("u", [HOT + 1])):
        for record in followed(later).records:
            request = msgspec.structs.replace(
                record.request, session=session, request=f"{session}{record.request.request}"
            )
            log.records.append(msgspec.structs.replace(record, seq=len(log.records), request=request))
    found = find_migrations(log.records, HOT, COOLDOWN_S)
    assert (found.accuracy.value, found.accuracy.n) == (0.5, 2)
    assert found.accuracy_next.value == pytest.approx(2 / 3), "the very next turn alone"
    assert found.accuracy_next.n == 3
    none = find_migrations(followed([]).records, HOT, COOLDOWN_S).accuracy
    assert none.value is None
    assert "followed by 3 turns" in (none.reason or "")
    assert "followed by a turn" in (find_migrations(followed([]).records, HOT, COOLDOWN_S).accuracy_next.reason or "")


def test_five_that_stayed_cool_of_five_leave_room_for_doubt() -> None:
    log = Log()
    for place in range(5):
        log.pick(10 * place, f"s{place}", "b", source="a")
        for turn in range(3):
            log.pick(10 * place + 1 + turn, f"s{place}", "b")
    found = find_migrations(log.records, HOT, COOLDOWN_S)
    assert (found.accuracy.value, found.accuracy.n, found.accuracy.high) == (1.0, 5, 1.0)
    assert found.accuracy.low == pytest.approx(0.025 ** (1 / 5)), "Clopper and Pearson of 5 of 5"
    assert (found.thrash_rate.value, found.thrash_rate.low) == (0.0, 0.0)
    assert found.thrash_rate.high == pytest.approx(1 - 0.025 ** (1 / 5))


def test_a_turn_that_was_in_flight_when_the_session_moved_is_not_one_of_the_next() -> None:
    log = followed([HOT + 1, 0, 0, 0])
    later_ns = log.records[0].t_ns + 200_000_000  # the target answers after 0.5 s
    log.records[1] = msgspec.structs.replace(log.records[1], t_ns=later_ns)
    (event,) = find_migrations(log.records, HOT, COOLDOWN_S).events
    assert (event.stayed_cool, event.turns_left) == (True, 3)


def test_a_target_that_is_gone_cannot_be_judged() -> None:
    log = followed([0, 0, 0])
    last = log.records[-1]
    log.records[-1] = msgspec.structs.replace(last, cluster=ClusterView(last.cluster.instances[:1], 0))
    (event,) = find_migrations(log.records, HOT, COOLDOWN_S).events
    assert event.stayed_cool is None


def test_thrashing_is_a_session_that_migrates_again_within_the_cooldown() -> None:
    log = Log()
    for session, times in (("calm", (0.0, 10.0, 20.0)), ("once", (3.0,)), ("thrashes", (4.0, 13.9))):
        for place, t_s in enumerate(times):
            log.pick(t_s, session, "ab"[place % 2], source="ba"[place % 2])
    found = find_migrations(log.records, HOT, COOLDOWN_S).thrash_rate
    assert found.value == pytest.approx(1 / 3)
    assert found.n == 3


def test_a_migration_that_failed_is_no_thrashing() -> None:
    log = Log()
    log.pick(0, "s", "b", source="a", status="failed", first_byte_s=None)
    log.pick(1, "s", "b", source="a")
    found = find_migrations(log.records, HOT, COOLDOWN_S).thrash_rate
    assert (found.value, found.n) == (0.0, 1)


@given(st.lists(st.floats(0, 100), max_size=8), st.floats(0.1, 20))
def test_no_thrashing_means_at_most_one_migration_in_each_cooldown(times: list[float], cooldown_s: float) -> None:
    log = Log()
    for t_s in sorted(times):
        log.pick(t_s, "s", "b", source="a")
    found = find_migrations(log.records, HOT, cooldown_s).thrash_rate
    if not times:
        assert (found.value, found.reason) == (None, "no session migrated")
    elif found.value == 0:
        assert len(times) <= (max(times) - min(times)) / cooldown_s + 1 + 1e-6


def test_the_cost_is_what_the_source_held_and_the_target_had_to_compute() -> None:
    log = Log()
    log.pick(0, "s", "b", source="a", cached={"a": 1600, "b": 320}, counted=160)
    log.pick(1, "t", "b", source="a", cached={"a": 1600, "b": 320})
    log.pick(2, "u", "b", source="a", cached={"b": 320})
    log.pick(3, "v", "b", source="a", status="failed", first_byte_s=None, cached={"a": 1600})
    found = [event.lost_tokens for event in find_migrations(log.records, HOT, COOLDOWN_S).events]
    assert found == [1440, 1280, 0, None], "by the engine's count, by the index, nothing to lose, not served"


def test_costs_stand_against_the_turns_that_are_left_to_pay_for_them() -> None:
    log = Log()
    for session, left, held in (("s", 0, 1600), ("t", 3, 900), ("u", 4, 400), ("v", 30, 3000)):
        log.pick(0, session, "b", source="a", cached={"a": held}, counted=0)
        for place in range(left):
            log.pick(1 + place, session, "b")
    rows = {row.turns_left: row for row in find_migrations(log.records, HOT, COOLDOWN_S).costs}
    assert {name: row.migrations for name, row in rows.items()} == {"0": 1, "2-4": 2, "20+": 1}
    assert rows["0"].lost_tokens.value == 1600
    assert (rows["0"].lost_per_turn_left.value, rows["0"].lost_per_turn_left.reason) == (None, "no turns were left")
    assert rows["2-4"].lost_tokens.value == 650
    assert rows["2-4"].lost_per_turn_left.value == pytest.approx((900 / 3 + 400 / 4) / 2)
    assert rows["20+"].lost_per_turn_left.value == 100
    assert rows["20+"].first_byte_s.value == 0.5
    assert find_migrations([], HOT, COOLDOWN_S).costs == ()


def test_only_what_was_recomputed_is_cost_of_recomputing() -> None:
    log = Log()
    for place, (status, held) in enumerate(
        [("recomputed", 1600), ("unneeded", 320), ("transferred", 64), ("recomputed", 800)]
    ):
        log.pick(place, f"s{place}", "b", source="a", status=status, cached={"a": held}, counted=0)
    found = find_migrations(log.records, HOT, COOLDOWN_S)
    assert found.outcomes == {"recomputed": 2, "transferred": 1, "unneeded": 1}
    assert [event.moved_s is not None for event in found.events] == [True] * 4, "all four moved their session"
    (row,) = found.costs
    assert (row.migrations, row.recomputed, row.lost_tokens.value, row.lost_tokens.n) == (4, 2, 1200, 2)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=12))
def test_a_cost_has_an_interval_from_five_on_and_none_below_zero(held: list[int]) -> None:
    log = Log()
    for place, tokens in enumerate(held):
        log.pick(place, f"s{place}", "b", source="a", cached={"a": tokens}, counted=0)
    (row,) = find_migrations(log.records, HOT, COOLDOWN_S).costs
    lost = row.lost_tokens
    mean = float(np.mean(held))
    assert lost.value == pytest.approx(mean)
    assert (lost.low is None) == (len(held) < 5)
    assert lost.low is None or 0 <= lost.low <= mean + 1e-9
    assert lost.low is not None or lost.reason


def test_a_log_without_migrations_or_without_anything_has_reasons_and_no_numbers() -> None:
    log = Log()
    log.pick(0, "s", "a")
    found = find_migrations(log.records, HOT, COOLDOWN_S)
    assert (found.trigger_rate.value, found.thrash_rate.value) == (0.0, None)
    empty = find_migrations([], HOT, COOLDOWN_S)
    assert (empty.trigger_rate.value, empty.trigger_rate.reason) == (None, "no requests")
    assert make_pending_series([]) == ()


def test_a_router_that_ended_first_leaves_an_unknown_outcome() -> None:
    log = Log()
    log.pick(0, "s", "b", source="a")
    log.records[0] = msgspec.structs.replace(log.records[0], outcome=None)
    found = find_migrations(log.records, HOT, COOLDOWN_S)
    assert found.outcomes == {"unknown": 1}
    assert found.thrash_rate.value is None


def test_figure_10_has_what_was_pending_at_each_instance() -> None:
    log = Log()
    log.pick(0, "s", "a")
    log.pending["a"] = 1500
    log.pick(2.25, "s", "b", source="a")
    log.pick(2.5, "t", "c", source="a", status="failed", first_byte_s=None)
    samples = [
        EngineSample(T0_NS + 1_000_000_000, "a", 1.0, 0.0, 0.1, 700, 2),
        EngineSample(T0_NS + 1_000_000_000, "b", None, None, None, None, None),
    ]
    first, second, third = make_pending_series(log.records, samples)
    assert [one.instance for one in (first, second, third)] == ["a", "b", "c"]
    assert first.t_s.tolist() == [0.0, 1.0, 2.25, 2.5]
    assert first.tokens.tolist() == [0, 700, 1500, 1500]
    assert second.t_s.tolist() == [0.0, 2.25, 2.5]


def test_its_cells_hold_the_most_that_was_pending_and_nothing_where_nothing_was_seen() -> None:
    log = Log()
    for t_s, tokens in ((0.0, 5), (0.5, 9), (0.9, 7), (2.5, 3), (9.0, 8)):
        log.pending["a"] = tokens
        log.pick(t_s, "s", "a")
    grid = bin_pending(make_pending_series(log.records), np.array([0.0, 1.0, 2.0, 3.0]))
    assert grid.shape == (3, 3)
    np.testing.assert_array_equal(grid[0], [9, np.nan, 3])
    np.testing.assert_array_equal(grid[1], [0, np.nan, 0])


def test_the_order_of_the_rows_does_not_matter() -> None:
    log = followed([0, 5, HOT + 1])
    assert find_migrations(log.records[::-1], HOT, COOLDOWN_S) == find_migrations(log.records, HOT, COOLDOWN_S)
