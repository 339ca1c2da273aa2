"""A changed trace keeps its structure: who shares which prefix, who waits for whom, in which order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.records.trace_lines import MAIN
from runners.errors import RunnerError
from runners.trace.session import Session, Trace, count_expected_hashes, count_shared_hashes
from runners.trace.synth import synthesize_trace
from runners.trace.transform import (
    Arrivals,
    Limits,
    draw_names,
    is_sampled,
    limit_session,
    limit_trace,
    redraw_arrivals,
    sample_trace,
    scale_block,
    scale_input,
    scale_trace,
)
from tests.examples import examples
from tests.runners.trace import files

MADE = Trace(files.FACTS, files.sessions(20))


@given(
    block=st.integers(1, 1024),
    tail_rule=st.sampled_from(["ceil", "floor"]),
    tokens=st.floats(1e-4, 3),
    input_tokens=st.integers(1, 200_000),
)
def test_a_prompt_keeps_its_number_of_blocks_at_any_factor(
    block: int, tail_rule: Literal["ceil", "floor"], tokens: float, input_tokens: int
) -> None:
    facts = replace(files.FACTS, block_tokens=block, tail_rule=tail_rule)
    new = scale_block(facts, tokens)
    scaled = scale_input(facts, new, input_tokens)
    assert scaled >= 1
    assert count_expected_hashes(tail_rule, new, scaled) == count_expected_hashes(tail_rule, block, input_tokens)


def test_scaling_is_as_close_as_whole_tokens_allow() -> None:
    trace = synthesize_trace(60, 1)
    small = scale_trace(trace, 1 / 16)
    assert small.facts.block_tokens == 4
    files.assert_sound(small)
    turns = [
        pair
        for one, two in zip(trace.sessions, small.sessions, strict=True)
        for pair in zip(one.turns, two.turns, strict=True)
    ]
    for before, after in turns:
        assert after.hashes == before.hashes
        assert abs(after.input_tokens - before.input_tokens / 16) <= 1
        assert after.output_tokens == max(1, round(before.output_tokens / 16))
        assert (after.arrival_s, after.think_s, after.after) == (before.arrival_s, before.think_s, before.after)


def test_equal_prompts_stay_equal_and_share_as_many_blocks() -> None:
    small = scale_trace(MADE, 0.3)
    files.assert_sound(small)
    for one, two in zip(MADE.sessions, small.sessions, strict=True):
        for (a, b), (c, d) in zip(
            itertools.combinations(one.turns, 2), itertools.combinations(two.turns, 2), strict=True
        ):
            assert count_shared_hashes(a.hashes, b.hashes) == count_shared_hashes(c.hashes, d.hashes)


def test_times_and_outputs_have_factors_of_their_own() -> None:
    small = scale_trace(MADE, 1.0, output_tokens=0.5, time=0.1)
    first, before = small.sessions[3].turns, MADE.sessions[3].turns
    assert [turn.arrival_s for turn in first] == pytest.approx([turn.arrival_s * 0.1 for turn in before])
    assert [turn.think_s for turn in first] == [
        None,
        *(pytest.approx((turn.think_s or 0) * 0.1) for turn in before[1:]),
    ]
    assert [turn.output_tokens for turn in first] == [max(1, round(turn.output_tokens / 2)) for turn in before]
    assert [turn.input_tokens for turn in first] == [turn.input_tokens for turn in before]
    files.assert_sound(small)


def test_an_answer_of_none_stays_one_of_none() -> None:
    silent = Trace(files.FACTS, (Session("s", (files.make_turn(MAIN, 0, 0.0, None, 40, 0, (1, 2)),)),))
    assert scale_trace(silent, 0.01).sessions[0].turns[0].output_tokens == 0


@pytest.mark.parametrize("factor", [0, -1, float("inf"), float("nan")])
def test_a_factor_that_cannot_be_is_refused(factor: float) -> None:
    with pytest.raises(RunnerError, match="factor on tokens"):
        scale_trace(MADE, factor)
    with pytest.raises(RunnerError, match="factor on time"):
        scale_trace(MADE, 1.0, time=factor)


def test_a_sample_keeps_whole_sessions_in_their_order_from_0() -> None:
    few = sample_trace(MADE, 5, seed=3)
    files.assert_sound(few)
    assert len(few.sessions) == 5
    by_name = {session.session: session for session in MADE.sessions}
    shift_s = by_name[few.sessions[0].session].arrival_s
    for session in few.sessions:
        original = by_name[session.session]
        assert session.arrival_s == pytest.approx(original.arrival_s - shift_s)
        assert [turn.hashes for turn in session.turns] == [turn.hashes for turn in original.turns]
    assert sample_trace(MADE, 5, seed=3) == few
    assert sample_trace(MADE, 5, seed=4) != few
    assert sample_trace(MADE, 100, seed=3) == MADE


@given(seed=st.integers(0, 1 << 40), less=st.integers(0, 30), more=st.integers(0, 30))
def test_a_larger_sample_holds_a_smaller_one(seed: int, less: int, more: int) -> None:
    names = [f"s{number}" for number in range(40)]
    assert draw_names(names, less, seed) <= draw_names(names, less + more, seed)


def test_every_session_is_as_likely() -> None:
    names = [f"s{number}" for number in range(50)]
    counts = dict.fromkeys(names, 0)
    for seed in range(400):
        for name in draw_names(names, 10, seed):
            counts[name] += 1
    assert all(45 < count < 120 for count in counts.values())  # 80 expected, 8 a standard deviation
    assert sum(is_sampled(f"s{number}", 0.25, 1) for number in range(4000)) == pytest.approx(1000, abs=120)


def test_who_waited_for_a_turn_that_is_left_out_waits_for_what_that_waited_for() -> None:
    session = MADE.sessions[0]  # turn 2 waits for 0 and 1, turn 3 for 2
    limited = limit_session(session, Limits(74))
    assert limited is not None
    assert [(turn.agent, turn.turn, turn.after) for turn in limited.turns] == [(MAIN, 0, ()), ("helper", 0, (0,))]
    longer = msgspec.structs.replace(session.turns[2], output_tokens=500)
    grown = replace(session, turns=(*session.turns[:2], longer, session.turns[3]))
    limited = limit_session(grown, Limits(200))
    assert limited is not None
    assert [(turn.agent, turn.turn, turn.after) for turn in limited.turns] == [
        (MAIN, 0, ()),
        ("helper", 0, (0,)),
        (MAIN, 1, (0, 1)),
    ]
    assert limit_session(session, Limits(10)) is None


def test_limits_leave_out_and_keep_the_order_of_arrival() -> None:
    first = replace(
        MADE.sessions[0],
        turns=(msgspec.structs.replace(MADE.sessions[0].turns[0], output_tokens=900), *MADE.sessions[0].turns[1:]),
    )
    late = Trace(MADE.facts, (first, *MADE.sessions[1:]))
    limited = limit_trace(late, Limits(100))
    files.assert_sound(limited)
    assert [session.session for session in limited.sessions[:3]] == ["session-1", "session-0", "session-2"]
    assert limited.sessions[0].arrival_s == 0
    assert limited.sessions[1].arrival_s == pytest.approx(0.5)
    short = limit_trace(MADE, Limits(turns=2))
    assert [len(session.turns) for session in short.sessions] == [2] * 20
    assert limit_trace(MADE, Limits(turns=0)) == MADE


@given(factor=st.floats(0.05, 2), most=st.integers(10, 200), turns=st.integers(0, 5), seed=st.integers(0, 9))
@settings(max_examples=examples(40), deadline=None)
def test_any_chain_of_changes_gives_a_sound_trace(factor: float, most: int, turns: int, seed: int) -> None:
    scaled = scale_trace(sample_trace(MADE, 8, seed), factor, time=0.5)
    changed = limit_trace(scaled, Limits(most, turns))
    if changed.sessions:
        files.assert_sound(changed)
        assert all(
            turn.input_tokens + turn.output_tokens <= most for session in changed.sessions for turn in session.turns
        )


def test_sessions_can_be_given_arrivals() -> None:
    at_once = tuple(
        replace(
            session,
            turns=tuple(msgspec.structs.replace(turn, arrival_s=turn.arrival_s - number) for turn in session.turns),
        )
        for number, session in enumerate(files.sessions(400))
    )
    spread = Trace(files.FACTS, tuple(redraw_arrivals(at_once, Arrivals(2.0, seed=1))))
    files.assert_sound(spread)
    assert spread.sessions[-1].arrival_s == pytest.approx(200, rel=0.15)
    gaps = [
        [two.arrival_s - one.arrival_s for one, two in itertools.pairwise(session.turns)] for session in spread.sessions
    ]
    assert all(gap == pytest.approx([1.5, 1.0, 1.5]) for gap in gaps)
    with pytest.raises(RunnerError, match="cannot arrive"):
        list(redraw_arrivals(at_once, Arrivals(0.0, seed=1)))


def test_the_reuse_survives_down_to_a_model_of_few_tokens() -> None:
    """The reuse of a trace scaled to a 32nd is that of the original: its blocks are the same, only smaller."""
    from runners.trace.describe import describe_trace

    trace = synthesize_trace(60, 2)
    small = scale_trace(trace, 1 / 32)
    one, two = (describe_trace(actual.facts, actual.sessions) for actual in (trace, small))
    assert two.apc_bound_any == pytest.approx(one.apc_bound_any, abs=0.005)
    assert two.apc_bound_intra == pytest.approx(one.apc_bound_intra, abs=0.005)
    assert two.input_tokens == pytest.approx(one.input_tokens / 32, rel=0.01)
