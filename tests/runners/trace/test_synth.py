"""A generated trace is as stated: its statistics within the tolerances of the docs, the same for the same seed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from results.records.trace_lines import MAIN
from results.traces.description import GIB, TraceDescription
from runners.errors import RunnerError
from runners.trace.describe import describe_trace
from runners.trace.synth import open_synthetic, synthesize_trace
from runners.trace.workload_statistics import Statistics
from tests.runners.trace import files

DEFAULTS = Statistics()


def described(sessions: int, seed: int, statistics: dict[str, Any] | None = None) -> TraceDescription:
    return describe_trace(*open_synthetic(sessions, seed, statistics))


@pytest.mark.parametrize(("sessions", "seed"), [(2000, 1), (200, 3)])
def test_the_defaults_are_those_of_the_specification_within_the_stated_tolerances(sessions: int, seed: int) -> None:
    description = described(sessions, seed)
    assert description.sessions == sessions
    assert description.input_output_ratio == pytest.approx(75, rel=0.02)
    assert description.apc_bound_any == pytest.approx(0.803, abs=0.01)
    assert description.apc_bound_intra == pytest.approx(0.796, abs=0.01)
    assert description.reuse.intra_session_share == pytest.approx(0.932, abs=0.005)
    assert description.reuse.cross_session_share == pytest.approx(0.057, abs=0.005)
    assert description.reuse.shared_prefix_share == pytest.approx(0.011, abs=0.001)
    for top, (share, mass) in zip(description.skew.top, DEFAULTS.top_shares, strict=True):
        assert top.top_share == share
        assert top.input_share == pytest.approx(mass, abs=0.015)
    tolerance = 0.04 if sessions >= 2000 else 0.08
    for row, (percentile, gib) in zip(description.kv.capacity, DEFAULTS.kv_footprint_gib, strict=True):
        assert row.percentile == percentile
        assert row.footprint_bytes / GIB == pytest.approx(gib, rel=tolerance)


def test_twenty_sessions_keep_what_so_few_can() -> None:
    description = described(20, 5)
    assert description.input_output_ratio == pytest.approx(75, rel=0.02)
    assert description.apc_bound_intra == pytest.approx(0.796, abs=0.02)
    assert description.reuse.intra_session_share == pytest.approx(0.932, abs=0.01)
    assert description.kv.capacity[0].footprint_bytes / GIB == pytest.approx(1.8, rel=0.1)
    top = {row.top_share: row.input_share for row in description.skew.top}
    assert top[0.5] == pytest.approx(0.96, abs=0.02)
    assert top[0.1] == pytest.approx(0.746, abs=0.05)


@pytest.mark.parametrize(
    ("statistics", "measure", "expected"),
    [
        ({"input_output_ratio": 20}, lambda made: made.input_output_ratio, 20),
        (
            {
                "top_shares": [[0.1, 0.3], [0.5, 0.8]],
                "intra_share": 0.985,
                "cross_share": 0.005,
                "shared_prefix_share": 0.01,
            },
            lambda made: next(row.input_share for row in made.skew.top if row.top_share == 0.1),
            0.3,
        ),
        (
            {"kv_footprint_gib": [[50, 0.5], [99, 3.0]]},
            lambda made: made.kv.capacity[0].footprint_bytes / GIB,
            0.5,
        ),
        ({"apc_bound_intra": 0.5, "apc_bound_any": 0.52}, lambda made: made.apc_bound_intra, 0.5),
        (
            {"intra_share": 0.8, "cross_share": 0.15, "shared_prefix_share": 0.05},
            lambda made: made.reuse.cross_session_share,
            0.15,
        ),
        ({"block_tokens": 256}, lambda made: made.apc_bound_intra, 0.796),
    ],
)
def test_other_statistics_are_met_too(statistics: dict[str, Any], measure: Any, expected: float) -> None:  # noqa: ANN401
    assert measure(described(150, 2, statistics)) == pytest.approx(expected, rel=0.06)


def test_the_same_seed_gives_the_same_trace_and_another_another() -> None:
    assert synthesize_trace(50, 3) == synthesize_trace(50, 3)
    assert synthesize_trace(50, 3).sessions != synthesize_trace(50, 4).sessions


def test_the_random_numbers_are_those_of_every_machine() -> None:
    """Pinned: a change here changes every experiment that was run on a generated trace."""
    turn = synthesize_trace(5, 1).sessions[0].turns[0]
    assert (turn.input_tokens, turn.output_tokens, turn.hashes[:6]) == (8403, 236, (0, 1, 2, 3, 4, 1048581))


def test_sessions_are_sound_arrive_over_the_span_and_go_on_when_the_turn_before_has_ended() -> None:
    trace = synthesize_trace(100, 1, {"span_s": 60.0})
    files.assert_sound(trace)
    assert 50 < trace.sessions[-1].arrival_s <= 60
    for session in trace.sessions:
        for one, two in itertools.pairwise(session.turns):
            assert two.agent == MAIN
            assert two.think_s is not None
            assert two.arrival_s > one.arrival_s + two.think_s
            assert two.input_tokens >= one.input_tokens
            assert two.hashes[: len(one.hashes)] == one.hashes


def test_a_copy_shares_what_its_origin_had_sent_before() -> None:
    trace = synthesize_trace(400, 2)
    seen: dict[int, int] = {}
    copies = 0
    for number, session in enumerate(trace.sessions):
        others = {seen[block] for block in session.turns[0].hashes if block >= 1 << 20 and block in seen}
        copies += bool(others)
        assert len(others) <= 1
        assert all(trace.sessions[other].arrival_s <= session.arrival_s for other in others)
        for block in session.turns[0].hashes:
            seen.setdefault(block, number)
    assert copies >= 5


def test_a_trace_of_any_size_is_a_stream() -> None:
    facts, sessions = open_synthetic(200_000, 1)
    assert facts == replace(facts, block_tokens=64, tail_rule="floor", hash_scope="global")
    assert [session.session for session in itertools.islice(sessions, 3)] == ["s0", "s1", "s2"]


@pytest.mark.parametrize(
    ("statistics", "message"),
    [
        ({"ratio": 75}, "unknown field `ratio`"),
        ({"input_output_ratio": "many"}, "input_output_ratio"),
        ({"input_output_ratio": 0}, "input_output_ratio must be above 0"),
        ({"top_shares": [[0.5, 0.4]]}, "must be at least the share"),
        ({"top_shares": [[0.5, 0.9], [0.1, 0.95]]}, "must rise"),
        ({"kv_footprint_gib": [[50, 2.0]]}, "two points or more"),
        ({"intra_share": 0.5}, "must sum to 1"),
        ({"apc_bound_intra": 0.9}, "not above apc_bound_any"),
        ({"block_tokens": 1}, "block_tokens"),
        ({"intra_share": 0.0, "cross_share": 1.0, "shared_prefix_share": 0.0}, "cannot share as much"),
    ],
)
def test_statistics_that_cannot_be_are_refused_by_name(statistics: dict[str, Any], message: str) -> None:
    with pytest.raises(RunnerError, match=message) as refused:
        open_synthetic(2000, 1, statistics)
    assert refused.value.remedy


def test_a_number_of_sessions_or_a_seed_that_cannot_be_is_refused() -> None:
    with pytest.raises(RunnerError, match="0 sessions"):
        open_synthetic(0)
    with pytest.raises(RunnerError, match="seed"):
        open_synthetic(1, -1)
