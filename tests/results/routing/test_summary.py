"""One cell's numbers, from turns whose truth is written down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.measures.turns import count_in_flight_over_time, measure_session_times
from results.records.routing_cells import InstanceNumbers
from results.records.schemas import RequestStatus
from results.records.turns import EngineSample, RoutedEngine, RoutingCell, TurnRecord
from results.routing.read import LoadedCell
from results.routing.summary import (
    RoutedSummary,
    compute_engines_apc,
    read_amplification,
    summarize_cell,
    summarize_loaded_cell,
)
from tests.examples import examples
from tests.results.routing.synthetic import T0_NS, Truth, World, cell_record, decisions, records, turns_from

WORLD = World(sessions=6, turns=4, turn_sigma=0.0, session_sigma=0.0, gap_s=10.0)
TRUTH = Truth("unified", hot=3.0)


def _turns() -> list[TurnRecord]:
    return records(WORLD, TRUTH)


def _summary(turns: list[TurnRecord], record: RoutingCell | None = None) -> RoutedSummary:
    cell = record or cell_record(WORLD, TRUTH, 0, turns)
    return summarize_loaded_cell(LoadedCell(cell, turns_from(turns), None, (), "cell.json"))


def _instance(summary: RoutedSummary, name: str) -> InstanceNumbers:
    return next(one for one in summary.instances if one.instance == name)


def test_latencies_are_those_of_the_turns() -> None:
    found = _summary(_turns())
    assert found.estimate("ttft_p50_s").value == pytest.approx(0.4)  # half at 0.2 s, half on the hot instance at 0.6 s
    assert found.estimate("tpot_mean_s").value == pytest.approx(0.010)
    assert found.estimate("e2e_mean_s").value == pytest.approx(0.4 + 16 * 0.010)
    assert found.counts["completed"] == 24


def test_workers_are_median_and_maximum_over_instances() -> None:
    found = _summary(_turns())
    assert found.estimate("worker_ttft_p90_median_s").value == pytest.approx(0.4)
    assert found.estimate("worker_ttft_p90_max_s").value == pytest.approx(0.6)
    assert (_instance(found, "e0").turns, _instance(found, "e0").sessions) == (12, 3)


def test_an_instance_that_served_nothing_is_named_and_not_counted_as_fast() -> None:
    record = cell_record(WORLD, TRUTH, 0, _turns())
    idle = RoutedEngine("e9", "both", "", None, "spawn", 16, 1000, 0.0, 0.0)
    found = _summary(_turns(), replace(record, engines=(*record.engines, idle)))
    assert found.estimate("worker_ttft_p90_median_s").value == pytest.approx(0.4)
    assert found.estimate("worker_ttft_p90_max_s").reason == "1 of 3 instances served no turn"
    assert _instance(found, "e9").values["ttft_p90_s"].value is None


def test_cached_tokens_are_held_against_the_bound_of_the_turns_that_were_completed() -> None:
    found = _summary(_turns())
    tokens, reusable = 4 * 320 + 160 * 6, 320 + 480 + 640
    assert found.estimate("apc_bound_any").value == pytest.approx(reusable / tokens)
    assert found.estimate("apc").value == pytest.approx(0.9 * reusable / tokens)
    assert found.estimate("apc_usage").value == found.estimate("apc").value
    assert found.estimate("apc_of_bound").value == pytest.approx(0.9)


def test_samples_tell_how_full_an_instance_was_and_how_long_its_queue() -> None:
    rows = [EngineSample(place, "e0", 1.0, float(place), place / 10, 0, 1) for place in range(5)]
    rows.append(EngineSample(9, "e0", None, None, None, None, None))  # a scrape that failed
    turns = _turns()
    _, breakdown = summarize_cell(turns_from(turns), (), cell_record(WORLD, TRUTH, 0, turns), rows)
    values = {one.instance: one.values for one in breakdown.instances}
    assert values["e0"]["kv_usage_max"].value == 0.4
    assert values["e0"]["waiting_p90"].value == pytest.approx(3.6)
    assert values["e1"]["kv_usage_max"].value is None
    assert values["e1"]["kv_usage_max"].reason


def test_counters_that_were_not_read_leave_no_apc() -> None:
    record = cell_record(WORLD, TRUTH, 0, _turns())
    unread = replace(record.engines[1], cached_tokens=None)
    found = _summary(_turns(), replace(record, engines=(record.engines[0], unread)))
    assert found.estimate("apc").value is None
    assert found.estimate("apc").reason == "the counters of e1 were not read"
    assert found.estimate("apc_usage").value is not None
    assert compute_engines_apc(()).value is None


def test_a_turn_cut_after_its_first_token_has_a_ttft_and_no_more() -> None:
    turns = _turns()
    cut = replace(turns[0], status=RequestStatus.CUT, t_last_token_ns=None, completion_tokens=None)
    found = _summary([cut, *turns[1:]])
    assert (found.estimate("ttft_mean_s").n, found.estimate("e2e_mean_s").n) == (24, 23)
    assert (found.counts["completed"], found.counts["cut"]) == (23, 1)
    assert found.estimate("completed_share").value == pytest.approx(23 / 24)


@pytest.mark.parametrize(
    ("replay", "value", "reason"),
    [
        ({"wall_clock_s": 80.0, "trace_span_s": 10.0, "cut": 0}, 8.0, None),
        ({"wall_clock_s": 80.0, "trace_span_s": 10.0, "cut": 3}, None, "the replay was cut with 3 turns"),
        ({"wall_clock_s": 80.0, "trace_span_s": 0.0}, None, "the trace spans no time"),
        ({"wall_clock_s": 80.0}, None, "states no wall clock or no trace span"),
        ({"wall_clock_s": 80.0, "trace_span_s": 10.0, "completed": 95, "failed": 5}, 8.0, None),
        ({"wall_clock_s": 30.0, "trace_span_s": 10.0, "completed": 60, "failed": 40}, None, "40 of 100 turns failed"),
        (
            {"wall_clock_s": 30.0, "trace_span_s": 10.0, "completed": 90, "failed": 1, "never_sent": 9},
            None,
            "10 of 100 turns failed or were dropped",
        ),
    ],
)
def test_amplification_is_wall_clock_over_span_or_says_why_not(
    replay: dict[str, float], value: float | None, reason: str | None
) -> None:
    found = read_amplification(replay)
    assert found.value == value
    assert (found.reason is None) if reason is None else (reason in (found.reason or ""))


def test_without_turns_nothing_is_zero() -> None:
    found = summarize_loaded_cell(LoadedCell(cell_record(WORLD, TRUTH, 0, _turns()), None, None, (), "cell.json"))
    kept = {"apc", "wall_clock_s", "trace_span_s", "amplification"}
    assert {name for name, estimate in found.values.items() if estimate.value is not None} == kept
    assert all(estimate.reason for name, estimate in found.values.items() if name not in kept)


def test_what_a_cell_writes_counts_decisions_by_reason_and_instance() -> None:
    turns = _turns()
    numbers, breakdown = summarize_cell(
        turns_from(turns), decisions(turns, "unified"), cell_record(WORLD, TRUTH, 0, turns)
    )
    assert numbers.counts["picks"] == 24
    assert breakdown.picks is not None
    assert breakdown.picks.reasons == {"affinity": 18, "cold": 6}
    assert breakdown.picks.by_instance["e0"] == {"affinity": 9, "cold": 3}
    assert [one.reasons for one in breakdown.instances] == [{"affinity": 9, "cold": 3}] * 2


def test_sessions_are_busy_while_a_turn_runs_and_idle_between() -> None:
    world = replace(WORLD, think_s=2.0)
    times = measure_session_times(turns_from(records(world, Truth("a"))))
    assert times.busy_s == pytest.approx([4 * 0.36] * 6)
    assert times.idle_s == pytest.approx([3 * 2.0] * 6)
    assert times.arrival_s == pytest.approx(np.arange(6) * 10.0)


spans = st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 10)), min_size=1, max_size=20)


@settings(deadline=None, max_examples=examples(40))
@given(spans)
def test_turns_that_overlap_count_once(found: list[tuple[float, float]]) -> None:
    """Busy time is the measure of the union, found here by counting covered moments."""
    turns = [
        replace(
            _turns()[0], index=place, session="s", t_due_ns=None, t_send_ns=T0_NS + int(begin * 1e9),
            t_end_ns=T0_NS + int((begin + length) * 1e9),
        )
        for place, (begin, length) in enumerate(found)
    ]  # fmt: skip
    columns = turns_from(turns)
    times = measure_session_times(columns)
    counts, lengths = count_in_flight_over_time(columns.send_s, columns.end_s)
    assert times.busy_s[0] == pytest.approx(float(lengths[counts > 0].sum()), abs=1e-6)
    assert times.residence_s[0] == pytest.approx(float(columns.end_s.max() - columns.send_s.min()), abs=1e-6)
