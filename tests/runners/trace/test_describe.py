"""A description agrees with counting by hand, streams, and says what a trace cannot tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given

from results.traces.description import TraceDescription
from runners.trace.describe import DescribeError, describe_trace
from runners.trace.formats import open_trace
from runners.trace.session import Session, Trace
from tests.runners.trace.made import BLOCK, facts, session, trace, traces, turn

MOONCAKE = Path(__file__).resolve().parents[4] / "shared" / "data" / "mooncake_conversation_trace.jsonl.xz"


def described(made: Trace, **options: float) -> TraceDescription:
    return describe_trace(made.facts, iter(made.sessions), **options)  # type: ignore[arg-type]


def by_hand(made: Trace, shared_from: int) -> dict[str, float]:
    """Reused tokens, counted request by request with nothing but comparisons of prefixes."""
    order = sorted(
        (one.arrival_s, number, place)
        for number, whole in enumerate(made.sessions)
        for place, one in enumerate(whole.turns)
    )
    local = made.facts.hash_scope == "session"
    first_user: dict[object, int] = {}
    users: dict[object, set[int]] = defaultdict(set)
    reused: list[tuple[object, int, int]] = []
    counts: dict[str, float] = {"any": 0, "intra": 0}
    for _, number, place in order:
        one = made.sessions[number].turns[place]
        for end in range(1, len(one.hashes) + 1):
            key = (number if local else None, one.hashes[:end])
            tokens = min(end * BLOCK, one.input_tokens) - (end - 1) * BLOCK
            if key in first_user:
                counts["any"] += tokens
                reused.append((key, number, tokens))
            counts["intra"] += tokens * (number in users[key])
            first_user.setdefault(key, number)
            users[key].add(number)
    split: dict[str, float] = {"intra_session_share": 0, "cross_session_share": 0, "shared_prefix_share": 0}
    for block, number, tokens in reused:
        own, popular = first_user[block] == number, len(users[block]) >= shared_from
        split["intra_session_share" if own else "shared_prefix_share" if popular else "cross_session_share"] += tokens
    return counts | split | {"blocks": len(first_user)}


@given(traces())
def test_reuse_agrees_with_counting_by_hand(made: Trace) -> None:
    description, truth = described(made), by_hand(made, shared_from=3)
    tokens = sum(one.input_tokens for whole in made.sessions for one in whole.turns)
    assert description.input_tokens == tokens
    if description.apc_bound_any is None:
        assert not any(one.hashes for whole in made.sessions for one in whole.turns)
        return
    assert description.apc_bound_any == pytest.approx(truth["any"] / tokens)
    assert description.apc_bound_intra == pytest.approx(truth["intra"] / tokens)
    assert description.reuse.distinct_blocks == truth["blocks"]
    for name in ("intra_session_share", "cross_session_share", "shared_prefix_share"):
        share = getattr(description.reuse, name)
        if share is None:
            assert f"reuse.{name}" in description.reasons
        else:
            assert share == pytest.approx(truth[name] / truth["any"])


def test_the_json_has_what_is_asked_for() -> None:
    description = described(trace([session("a", [turn([1, 2]), turn([1, 2, 3], 1.0)])]))
    data = msgspec.json.decode(msgspec.json.encode(description))
    assert {
        "requests": 2,
        "sessions": 1,
        "input_tokens": 5 * BLOCK,
        "output_tokens": 4,
        "input_output_ratio": 10.0,
        "apc_bound_any": 0.4,
        "apc_bound_intra": 0.4,
    }.items() <= data.items()
    assert data["facts"]["block_tokens"] == BLOCK
    assert data["span_s"] == 1.0
    assert data["lengths"]["turns"]["mean"] == 2


def test_sub_agents_belong_to_their_session() -> None:
    description = described(trace([session("a", [turn([1]), turn([1, 2], 1.0, agent="helper")])]))
    assert description.apc_bound_intra == pytest.approx(1 / 3)
    assert description.agents == 2
    assert description.sessions == 1


def test_sessions_out_of_order_are_refused() -> None:
    late, early = session("late", [turn([1], 5.0)]), session("early", [turn([1], 1.0)])
    with pytest.raises(DescribeError, match=r"session early of made\.jsonl begins at 1 s") as error:
        describe_trace(facts(), [late, early])
    assert error.value.remedy


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(DescribeError, match="has no requests"):
        describe_trace(facts(), [])


@pytest.mark.parametrize(
    ("option", "value"),
    [("kv_pool_bytes", 0), ("bytes_per_token", -1), ("shared_from", 1), ("kv_pool_bytes", float("nan"))],
)
def test_parameters_without_sense_are_refused(option: str, value: float) -> None:
    with pytest.raises(DescribeError, match="cannot be"):
        described(trace([session("a", [turn([1])])]), **{option: value})


def test_a_file_without_sessions_has_no_intra_bound_and_no_skew() -> None:
    description = described(trace([session("0", [turn([1])]), session("1", [turn([1], 1.0)])], has_sessions=False))
    assert (description.apc_bound_any, description.apc_bound_intra) == (0.5, None)
    assert description.skew.top == ()
    assert "turns" not in description.lengths
    assert {"apc_bound_intra", "skew", "lengths.turns", "reuse.intra_session_share"} <= set(description.reasons)


def test_a_trace_without_hashes_has_no_bounds_but_lengths() -> None:
    description = described(trace([session("a", [turn([], tail=3 * BLOCK)])], tail_rule="floor"))
    assert description.apc_bound_any is None
    assert description.reasons["apc_bound_any"] == "the source has no block hashes"
    assert description.lengths["input_tokens"].mean == 3 * BLOCK


def test_think_times_are_described_where_they_are_recorded() -> None:
    paused = msgspec.structs.replace(turn([1, 2], 4.0), think_s=1.5)
    description = described(trace([session("a", [turn([1]), paused])]))
    assert description.lengths["think_s"].n == 1
    assert description.lengths["session_span_s"].max == 4.0
    assert "lengths.think_s" in described(trace([session("a", [turn([1])])])).reasons


def test_capacity_follows_pool_and_bytes_per_token() -> None:
    description = described(trace([session("a", [turn([1, 2])])]), kv_pool_bytes=1000, bytes_per_token=10)
    assert description.kv.capacity[0].footprint_bytes == (2 * BLOCK + 2) * 10  # output tokens take room too
    assert description.kv.capacity[0].concurrent == {"Combined 8C": 40, "4P+4D": 20, "6P+2D": 10}


def test_a_session_is_not_kept() -> None:
    alive = 0

    class Counted(Session):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    most = 0

    def sessions() -> Iterator[Session]:
        nonlocal alive, most
        for number in range(200):
            alive += 1
            most = max(most, alive)
            yield Counted(str(number), (turn([number, 1], float(number)), turn([number, 2], number + 50.0)))

    describe_trace(facts(), sessions())
    assert most <= 3


@pytest.mark.skipif(not MOONCAKE.is_file(), reason="the shared trace is not here")
def test_the_bound_of_the_shared_trace_is_that_computed_elsewhere() -> None:
    description = describe_trace(*open_trace(MOONCAKE))
    assert description.requests == 12_031
    assert description.apc_bound_any == pytest.approx(0.3736, abs=5e-5)
    assert description.apc_bound_intra is None
