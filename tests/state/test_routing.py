"""What a reader sees of a cell's router, and its alarms."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.records.events import CellChanged, CellState, Event, RoutedLine, RoutedLoad, RouterSampled
from results.records.live import LiveLatency
from state.errors import IllegalTransition
from state.model import RunView
from state.routing import (
    ALARM_GONE_S,
    COLD_S,
    HOT_S,
    ROUTED_LINES,
    ROUTING_SAMPLES,
    AlarmKind,
    LoadSample,
    RoutingView,
    find_alarms,
    fold_sample_into_routing,
    make_routing_json,
)
from state.store import RunStore
from tests.state.plans import CELLS, folded

FIRST, SECOND = CELLS[0].cell, CELLS[1].cell


def load(
    instance: str,
    requests: int = 3,
    pending: int = 1_000,
    *,
    picks: int | None = None,
    available: bool = True,
    sessions: int = 0,
    role: str = "both",
) -> RoutedLoad:
    why = "" if available else "no answer"
    return RoutedLoad(instance, available, why, requests, pending, 2 * pending, sessions, picks, role)


def seconds(*spans: tuple[int, tuple[RoutedLoad, ...]]) -> list[LoadSample]:
    """One sample a second: each load for this many seconds."""
    loads = [each for count, each in spans for _ in range(count)]
    return [(100.0 + second, each) for second, each in enumerate(loads)]


def kinds(history: list[LoadSample]) -> list[tuple[AlarmKind, str]]:
    return [(alarm.kind, alarm.instance) for alarm in find_alarms(history)]


HOT = (load("a", pending=4_000), load("b"), load("c", pending=500))
EVEN = (load("a"), load("b"), load("c"))
LONG, SHORT = int(COLD_S) + 1, int(HOT_S) + 1


def test_an_instance_far_above_the_others_for_seconds_is_hot() -> None:
    assert kinds(seconds((SHORT, HOT))) == [(AlarmKind.HOT, "a")]
    assert "4000 pending prefill tokens, the others 750 each" in find_alarms(seconds((SHORT, HOT)))[0].text


@pytest.mark.parametrize(
    "history",
    [
        seconds((SHORT, EVEN)),
        seconds((SHORT - 2, HOT)),
        seconds((SHORT - 1, HOT), (1, EVEN), (SHORT - 2, HOT)),
        seconds((SHORT, (load("a", requests=1, pending=90_000), load("b", pending=0), load("c", pending=0)))),
        seconds((SHORT, (load("a", pending=9_000), load("b", pending=0, role="decode")))),
        seconds((SHORT, (load("a", pending=9_000), load("b", available=False, pending=0)))),
        [(0.0, HOT), (600.0, HOT)],
        [],
    ],
    ids=["even", "too short", "with a break", "one long prompt", "another role", "alone", "not watched", "no sample"],
)
def test_without_a_lasting_difference_nothing_is_hot(history: list[LoadSample]) -> None:
    assert find_alarms(history) == ()


def test_an_instance_that_gets_nothing_beside_loaded_ones_is_cold() -> None:
    idle = (load("a", 0, 0, picks=4), load("b", 3, 0, picks=50), load("c", 3, 0, picks=60))
    assert kinds(seconds((LONG, idle))) == [(AlarmKind.COLD, "a")]
    assert kinds(seconds((LONG - 2, idle))) == []


def test_short_requests_between_two_samples_keep_an_instance_from_being_cold() -> None:
    history: list[LoadSample] = [
        (float(s), (load("a", 0, 0, picks=s), load("b", 2, 0, picks=3 * s))) for s in range(20)
    ]
    assert kinds(history) == []


def test_where_nobody_has_work_nobody_is_cold() -> None:
    assert kinds(seconds((LONG, (load("a", 0, 0), load("b", 1, 0), load("c", 2, 0))))) == []


def test_an_instance_that_came_back_and_gets_nothing_was_never_rebalanced() -> None:
    away = (load("a", 0, 0, picks=7, available=False), load("b", 3, 0, picks=50, sessions=9))
    back = (load("a", 0, 0, picks=7), load("b", 3, 0, picks=60, sessions=9))
    assert kinds(seconds((5, away), (LONG, back))) == [(AlarmKind.NEVER_REBALANCED, "a")]
    assert "came back 10 s ago" in find_alarms(seconds((5, away), (LONG, back)))[0].text
    assert kinds(seconds((5, away), (LONG - 3, back))) == []


def test_one_that_was_given_work_after_its_return_is_at_most_cold() -> None:
    away = (load("a", 0, 0, available=False), load("b", 3, 0))
    served = (load("a", 1, 10), load("b", 3, 0))
    idle = (load("a", 0, 0), load("b", 3, 0))
    assert kinds(seconds((5, away), (2, served), (LONG, idle))) == [(AlarmKind.COLD, "a")]


loads = st.builds(load, st.just("x"), st.integers(0, 30), st.integers(0, 10**6))


@given(loads, st.integers(1, 8), st.integers(1, 40))
def test_instances_that_are_loaded_alike_raise_no_alarm(one: RoutedLoad, count: int, length: int) -> None:
    same = tuple(replace(one, instance=str(i)) for i in range(count))
    assert find_alarms(seconds((length, same))) == ()


@given(st.lists(st.lists(loads, max_size=4), max_size=25))
def test_an_alarm_names_an_instance_that_may_be_picked(history: list[list[RoutedLoad]]) -> None:
    samples = [(float(s), tuple(replace(each, instance=str(i)) for i, each in enumerate(own)))
               for s, own in enumerate(history)]  # fmt: skip
    for alarm in find_alarms(samples):
        assert alarm.instance in [each.instance for each in samples[-1][1] if each.available]
        assert alarm.instance in alarm.text
        assert str(alarm.kind) in alarm.text


# -- folding --------------------------------------------------------------------------------------------------------


def line(number: int, instance: str = "a") -> RoutedLine:
    return RoutedLine(100.0 + number, f"r-{number}", f"s-{number % 3}", instance, "affinity")


def sampled(cell: str = FIRST, *lines: RoutedLine, instances: tuple[RoutedLoad, ...] = EVEN) -> RouterSampled:
    return RouterSampled(cell, "lmetric", instances, 3, {"affinity": 2, "cold": 1}, tuple(lines))


def routed(*events: Event) -> RoutingView:
    routing = folded(*events).routing
    assert routing is not None
    return routing


def test_the_newest_second_and_the_past_are_kept() -> None:
    assert folded().routing is None
    routing = routed(sampled(), sampled(FIRST, line(1)))
    assert (routing.cell, routing.policy, routing.latest_unix_s) == (FIRST, "lmetric", 102.0)
    assert [t for t, _ in routing.history] == [101.0, 102.0]
    assert routing.latest == sampled(FIRST, line(1))


def test_a_router_s_numbers_make_no_feed_line() -> None:
    assert folded(sampled()).feed == folded().feed


def test_another_cell_or_attempt_begins_anew() -> None:
    start = CellChanged(FIRST, CellState.RUNNING, 1)
    again = (CellChanged(FIRST, CellState.PENDING, 1), CellChanged(FIRST, CellState.RUNNING, 2))
    for events in (
        (start, sampled(FIRST, line(1)), sampled(SECOND)),
        (start, sampled(FIRST, line(1)), *again, sampled()),
    ):
        routing = routed(*events)
        assert (len(routing.history), routing.lines) == (1, ())


def test_what_the_client_saw_is_kept_from_cell_to_cell() -> None:
    slow = LiveLatency(ttft_p90_s=2.0)
    routing = routed(replace(sampled(), latency=slow), sampled(SECOND))
    assert routing.latencies == ((101.0, slow), (102.0, LiveLatency()))


def test_a_cell_that_the_plan_does_not_have_is_passed_over_by_readers_and_refused_by_the_file(store: RunStore) -> None:
    assert folded(sampled("no/such")).routing is None
    with pytest.raises(IllegalTransition, match="no cell 'no/such'"):
        store.append(sampled("no/such"))
    store.append(sampled(FIRST, line(1)))
    assert store.find_problems() == ()
    routing = store.view().routing
    assert routing is not None
    assert routing.lines == (line(1),)


def test_decisions_that_are_told_twice_are_kept_once_and_in_their_order() -> None:
    routing = routed(sampled(FIRST, line(2), line(1)), sampled(FIRST, line(1), line(2), line(3)))
    assert routing.lines == (line(1), line(2), line(3))


def test_the_past_is_bounded() -> None:
    routing = None
    for second in range(ROUTING_SAMPLES + 20):
        routing = fold_sample_into_routing(routing, sampled(FIRST, line(second)), float(second), 1)
    assert routing is not None
    assert (len(routing.history), len(routing.lines)) == (ROUTING_SAMPLES, ROUTED_LINES)
    assert (routing.history[0][0], routing.lines[-1]) == (20.0, line(ROUTING_SAMPLES + 19))


def test_shares_are_of_all_picks_where_they_are_counted_else_of_the_decisions_kept() -> None:
    counted, uncounted = (load("a", picks=30), load("b", picks=10)), (load("a"), load("b"))
    assert routed(sampled(FIRST, line(1), instances=counted)).shares == {"a": 0.75, "b": 0.25}
    lines = line(1), line(2), line(3, "b"), line(4)
    assert routed(sampled(FIRST, *lines, instances=uncounted)).shares == {"a": 0.75, "b": 0.25}
    assert routed(sampled(instances=uncounted)).shares == {"a": None, "b": None}


def test_with_pools_shares_are_of_the_picks_of_a_role() -> None:
    pools = (load("p", picks=10, role="prefill"), load("d", picks=4, role="decode"), load("e", picks=6, role="decode"))
    assert routed(sampled(instances=pools)).shares == {"p": 1.0, "d": 0.4, "e": 0.6}


def test_the_alarms_of_the_run_process_come_first() -> None:
    hot = [sampled(instances=HOT) for _ in range(SHORT)]
    first, second = routed(*hot, replace(hot[0], alarms=("the router did not answer for 4 s",))).alarms
    assert first == "the router did not answer for 4 s"
    assert second.startswith("hot: a ")


def told_of(view: RunView) -> list[tuple[float, str, str, str]]:
    return [(line.t_unix_s, line.level, line.subject, line.text) for line in view.feed[1:]]


def test_the_feed_is_told_when_an_alarm_begins_and_when_it_has_ended() -> None:
    hot = [sampled(instances=HOT) for _ in range(SHORT + 4)]
    even = [sampled(instances=EVEN) for _ in range(int(ALARM_GONE_S) + 2)]
    (began,) = told_of(folded(*hot))
    assert began == (106.0, "warning", "a", "hot: a has 4000 pending prefill tokens, the others 750 each")
    ended = told_of(folded(*hot, *even))[1:]
    assert ended == [(120.0, "info", "a", "no longer hot, after 5 s")]


def test_an_alarm_that_flickers_is_told_once() -> None:
    flicker = [sampled(instances=EVEN if second % 8 == 7 else HOT) for second in range(120)]
    history = routed(*flicker).history
    lived = sum(bool(find_alarms(history[: second + 1])) for second in range(120))
    assert 10 < lived < 110, "it comes and goes"
    assert len(told_of(folded(*flicker))) == 1


def test_an_alarm_is_told_with_the_name_that_the_other_events_of_the_run_use() -> None:
    named = tuple(replace(each, engine=f"plain-{each.instance}") for each in HOT)
    (began,) = told_of(folded(*[sampled(instances=named) for _ in range(SHORT)]))
    assert began[2] == "plain-a"


def test_the_alarms_of_a_router_that_is_no_more_do_not_end() -> None:
    hot = [sampled(instances=HOT) for _ in range(SHORT)]
    other = [sampled(SECOND, instances=EVEN) for _ in range(int(ALARM_GONE_S) + 2)]
    assert len(told_of(folded(*hot, *other))) == 1


@settings(deadline=None)
@given(st.lists(st.sampled_from([HOT, EVEN, HOT[1:], (load("a", 0, 0, picks=1), load("b"))]), max_size=60))
def test_what_began_ends_at_most_once(story: list[tuple[RoutedLoad, ...]]) -> None:
    open_ones: set[tuple[str, str]] = set()
    for _, level, subject, text in told_of(folded(*[sampled(instances=loads) for loads in story])):
        kind = text.removeprefix("no longer ").replace(",", ":").partition(":")[0]
        if level == "warning":
            assert (kind, subject) not in open_ones
            open_ones.add((kind, subject))
        else:
            assert (kind, subject) in open_ones
            open_ones.remove((kind, subject))


def test_the_router_as_json() -> None:
    instances = load("a", picks=1), load("b", 0, 0, picks=0, available=False)
    shown_json = make_routing_json(routed(sampled(FIRST, line(1), instances=instances)))
    assert shown_json == json.loads(json.dumps(shown_json))
    assert shown_json == {
        "t_unix_s": 101.0,
        "cell": FIRST,
        "attempt": 0,
        "policy": "lmetric",
        "instances": [
            {"instance": "a", "available": True, "why": "", "num_requests": 3, "pending_prefill_tokens": 1000,
             "ongoing_tokens": 2000, "sessions": 0, "picks": 1, "role": "both", "engine": "", "share_of_picks": 1.0},
            {"instance": "b", "available": False, "why": "no answer", "num_requests": 0, "pending_prefill_tokens": 0,
             "ongoing_tokens": 0, "sessions": 0, "picks": 0, "role": "both", "engine": "", "share_of_picks": 0.0},
        ],
        "sessions": 3,
        "decisions": {"affinity": 2, "cold": 1},
        "latency": {"ttft_p50_s": None, "ttft_p90_s": None, "tpot_p50_s": None, "tpot_p90_s": None},
        "latest": [{"t_unix_s": 101.0, "request": "r-1", "session": "s-1", "instance": "a", "reason": "affinity"}],
        "alarms": [],
        "sessions_moved": 0,
    }  # fmt: skip
