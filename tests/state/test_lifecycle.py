"""What a reader sees of lifecycle requests."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from results.records.events import CellChanged, CellState, Event, LifecycleMeasured
from state.lifecycle import (
    MAX_REQUESTS,
    LifecycleCounts,
    LifecycleView,
    find_worst_residual,
    fold_request_into_lifecycle,
    list_bandwidths,
    list_counted,
    list_overheads,
    make_lifecycle_json,
)
from tests.state.moves import OTHER, STORY, request
from tests.state.plans import folded


def lifecycle(*events: Event) -> LifecycleView:
    view = folded(*events).lifecycle
    assert view is not None
    return view


def test_warm_ups_and_discarded_requests_are_told_apart() -> None:
    view = lifecycle(*STORY)
    assert view.cells == {OTHER: LifecycleCounts(1, counted=1, warmups=1, discarded=1)}
    assert [event.repetition for event in list_counted(view)] == [2]
    assert len(view.requests) == 3


def test_only_a_request_that_does_not_count_makes_a_line_of_the_feed() -> None:
    lines = [(line.level, line.text) for line in folded(*STORY).feed if line.subject == OTHER and "C 0" in line.text]
    assert lines == [("warning", "C 0 N 512 O 32 rep 3 does not count: D held 16 tokens of the context, not 0")]


def test_another_attempt_takes_the_place_of_the_one_before() -> None:
    again = (CellChanged(OTHER, CellState.PENDING, 1), CellChanged(OTHER, CellState.RUNNING, 2), request(1))
    view = lifecycle(*STORY, *again)
    assert [each.event.repetition for each in view.requests] == [1]
    assert view.cells == {OTHER: LifecycleCounts(2, counted=1)}


def test_the_overhead_joins_what_was_measured_apart_and_combined() -> None:
    both = (request(1, ttft_ms=30.0, colo_ttft_ms=24.0), request(2, ttft_ms=32.0, colo_ttft_ms=20.0))
    again = request(5, ttft_ms=900.0, colo_ttft_ms=20.0, discarded="why")
    lone = request(4, ttft_ms=900.0, colo_ttft_ms=None)
    (small, large) = list_overheads(lifecycle(*both, request(3, new_tokens=2048), lone, again))
    assert (small.context_tokens, small.new_tokens, small.requests) == (0, 512, 2)
    assert (small.ttft_ms, small.colo_ttft_ms, small.overhead_ms) == (31.0, 22.0, 9.0)
    assert large.new_tokens == 2048
    alone = lifecycle(request(1, colo_ttft_ms=None))
    assert list_overheads(alone) == ()


def test_an_effect_of_the_order_of_a_pair_cancels_in_the_overhead() -> None:
    """Whatever comes second takes 6 ms more; the overhead is 10 ms."""
    late = [request(n, ttft_ms=36.0, colo_ttft_ms=20.0, colo_first=True) for n in (1, 2, 3)]
    early = request(4, ttft_ms=30.0, colo_ttft_ms=26.0, colo_first=False)
    (overhead,) = list_overheads(lifecycle(*late, early))
    assert (overhead.overhead_ms, overhead.both_orders, overhead.requests) == (10.0, True, 4)
    (single,) = list_overheads(lifecycle(*late))
    assert (single.overhead_ms, single.both_orders) == (16.0, False)
    (unknown,) = list_overheads(lifecycle(*late, replace(early, colo_first=None)))
    assert (unknown.overhead_ms, unknown.both_orders) == (13.0, False)


def test_bandwidth_is_told_per_number_of_bytes_moved() -> None:
    view = lifecycle(
        request(1, bytes=100, bandwidth_gbps=1.0), request(2, bytes=100, bandwidth_gbps=4.0),
        request(3, bytes=100, bandwidth_gbps=2.0), request(4, bytes=900, bandwidth_gbps=9.0),
        request(5, bytes=500, bandwidth_gbps=None), request(6, bytes=100, bandwidth_gbps=99.0, warmup=True),
    )  # fmt: skip
    assert [(each.bytes, each.median_gbps, each.low_gbps, each.high_gbps) for each in list_bandwidths(view)] == [
        (100, 2.0, 1.0, 4.0), (900, 9.0, 9.0, 9.0)
    ]  # fmt: skip


def test_the_worst_residual_is_that_of_a_request_that_counts() -> None:
    assert find_worst_residual(lifecycle(request(1, residual_share=None))) is None
    mixed = (
        request(1, residual_share=0.01),
        request(2, residual_share=0.03),
        request(3, residual_share=0.9, warmup=True),
    )
    assert find_worst_residual(lifecycle(*mixed)) == 0.03


def test_the_past_is_bounded_and_the_counts_are_not() -> None:
    view: LifecycleView | None = None
    for number in range(MAX_REQUESTS + 7):
        view = fold_request_into_lifecycle(view, request(number), float(number), 1)
    assert view is not None
    assert len(view.requests) == MAX_REQUESTS
    assert view.requests[0].event.repetition == 7
    assert view.cells[OTHER].counted == MAX_REQUESTS + 7


measured = st.builds(
    request,
    st.integers(1, 5),
    warmup=st.booleans(),
    discarded=st.sampled_from(["", "why"]),
    bytes=st.none() | st.integers(0, 10**9),
    ttft_ms=st.none() | st.floats(0, 1e5),
    bandwidth_gbps=st.none() | st.floats(0, 400),
)


@settings(deadline=None)
@given(st.lists(measured, min_size=1, max_size=30))
def test_every_request_is_counted_once_and_all_of_it_can_be_printed(events: list[LifecycleMeasured]) -> None:
    view = lifecycle(*events)
    counts = view.cells[OTHER]
    assert counts.counted + counts.warmups + counts.discarded == len(events)
    assert len(list(list_counted(view))) == counts.counted
    assert all(each.low_gbps <= each.median_gbps <= each.high_gbps for each in list_bandwidths(view))
    assert json.loads(json.dumps(make_lifecycle_json(view), allow_nan=False))
