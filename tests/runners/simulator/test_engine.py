"""The model of an engine against what is known without it: queueing theory, conservation, and itself step by step."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.simulator.clock import SimulatedClock
from runners.simulator.engine import Engine, EngineModel, Job
from runners.simulator.step_time import StepTime, prefill_context

BLOCK = 16


@dataclass
class Seen:
    """One request and what became of it, in seconds of the clock."""

    at_s: float
    job: Job
    first_s: float = 0.0
    end_s: float = 0.0


def serve(
    model: EngineModel, requests: Sequence[tuple[float, Sequence[int], int, int]], *, jumps: bool = True
) -> tuple[Engine, list[Seen]]:
    """Each request is (arrival in s, keys, input tokens, output tokens); run until all have ended."""
    clock = SimulatedClock()
    engine = Engine(model, BLOCK, clock, jumps=jumps)
    begin_ns = clock.now_ns()
    seen: list[Seen] = []

    def send(at_s: float, keys: Sequence[int], prompt: int, answer: int) -> None:
        def first() -> None:
            one.first_s = (clock.now_ns() - begin_ns) / 1e9

        def end() -> None:
            one.end_s = (clock.now_ns() - begin_ns) / 1e9

        one = Seen(at_s, Job(keys, prompt, answer, first, end))
        seen.append(one)
        clock.call_at(begin_ns + round(at_s * 1e9), lambda: engine.submit(one.job))

    for request in requests:
        send(*request)
    clock.run()
    return engine, seen


def a_model(step: StepTime | None = None, **limits: int) -> EngineModel:
    return EngineModel(step or StepTime(0.01, 1e-4, 1e-3), **{"kv_capacity_tokens": 16_000, **limits})


def test_a_request_alone_takes_its_prompt_and_a_step_for_each_further_token() -> None:
    step = StepTime(0.010, 1e-4, 2e-3, 1e-8, 1e-6)
    engine, (one,) = serve(a_model(step), [(0.0, (), 100, 11)])
    prefill_s = 0.010 + 100 * 1e-4 + 1e-8 * 100 * 101 / 2
    decode_s = sum(0.010 + 2e-3 + 1e-6 * (100 + k) for k in range(10))
    assert one.first_s == pytest.approx(prefill_s, abs=1e-8)
    assert one.end_s == pytest.approx(prefill_s + decode_s, abs=1e-8)
    assert (engine.steps, engine.computed_tokens) == (11, 100)


def test_a_long_prompt_is_computed_in_chunks_beside_which_others_decode() -> None:
    step = StepTime(0.01, 1e-4, 1e-3)
    engine, (short, long) = serve(a_model(step, max_batched_tokens=101), [(0.0, (), 1, 50), (0.02, (), 1000, 1)])
    assert long.first_s > 10 * (0.01 + 100 * 1e-4)
    assert short.end_s < long.first_s + 50 * 0.02
    assert engine.computed_tokens == 1001


def test_what_is_cached_is_not_computed_again_and_the_last_token_always_is() -> None:
    keys = tuple(range(1, 7))
    requests = [(0.0, keys, 96, 1), (1.0, keys, 96, 1), (2.0, (*keys[:3], 99), 64, 1)]
    engine, seen = serve(a_model(), requests)
    assert [one.job.cached_tokens for one in seen] == [0, 80, 48]
    assert engine.computed_tokens == 96 + 16 + 16


def test_requests_of_one_step_share_the_prefix_that_the_first_of_them_computes() -> None:
    keys = tuple(range(1, 7))
    engine, seen = serve(a_model(), [(0.0, keys, 97, 1), (0.0, keys, 97, 1)])
    assert [one.job.cached_tokens for one in seen] == [0, 96]
    assert engine.computed_tokens == 97 + 1


def test_where_no_block_is_free_the_last_one_is_preempted_and_computed_again() -> None:
    model = a_model(kv_capacity_tokens=8 * BLOCK)
    engine, (first, last) = serve(model, [(0.0, (), 3 * BLOCK, 3 * BLOCK), (0.0, (), 3 * BLOCK, 3 * BLOCK)])
    assert (first.job.preemptions, last.job.preemptions) == (0, 1)
    assert first.end_s < last.end_s
    assert engine.computed_tokens > 2 * 3 * BLOCK
    assert (engine.blocks.used, engine.running, engine.waiting) == (0, 0, 0)


def test_a_prompt_waits_until_all_of_it_has_room() -> None:
    """As vLLM reserves it: not only the first chunk of what is computed."""
    model = a_model(kv_capacity_tokens=10 * BLOCK, max_batched_tokens=2 * BLOCK)
    _, (first, last) = serve(model, [(0.0, (), 6 * BLOCK, BLOCK), (0.0, (), 6 * BLOCK, 1)])
    assert (first.job.preemptions, last.job.preemptions) == (0, 0)
    assert last.first_s > first.end_s


def test_a_request_that_can_never_fit_is_refused() -> None:
    engine = Engine(a_model(kv_capacity_tokens=4 * BLOCK), BLOCK, SimulatedClock())
    with pytest.raises(ValueError, match="do not fit"):
        engine.submit(Job((), 3 * BLOCK, 2 * BLOCK, lambda: None, lambda: None))


def test_a_request_that_is_cancelled_gives_its_blocks_back_and_the_others_go_on() -> None:
    clock = SimulatedClock()
    engine = Engine(a_model(), BLOCK, clock)
    ended: list[str] = []
    left = Job((), 100, 400, lambda: None, lambda: ended.append("left"))
    stays = Job((), 100, 40, lambda: None, lambda: ended.append("stays"))
    engine.submit(left)
    engine.submit(stays)
    clock.advance(0.1)
    engine.cancel(left)
    clock.run()
    assert ended == ["stays"]
    assert engine.blocks.used == 0


def mean_wait_s(services_s: Sequence[float], load: float, seed: int) -> float:
    """Of Poisson arrivals at one engine that serves one request at a time, of one step's length per output token."""
    draw = random.Random(seed)
    step_s = 0.01
    rate = load / statistics.fmean(services_s)
    at_s, requests = 0.0, []
    for service_s in services_s:
        at_s += draw.expovariate(rate)
        requests.append((at_s, (), 1, round(service_s / step_s)))
    _, seen = serve(a_model(StepTime(step_s, 0.0, 0.0), max_sequences=1), requests)
    return statistics.fmean(one.end_s - one.at_s - service_s for one, service_s in zip(seen, services_s, strict=True))


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_waits_are_those_of_m_d_1_and_m_g_1(load: float) -> None:
    """Pollaczek and Khinchine: W = lambda E[S^2] / (2 (1 - rho))."""
    count, tolerance = 20_000, 0.06
    equal = [0.05] * count
    assert mean_wait_s(equal, load, 1) == pytest.approx(load * 0.05 / (2 * (1 - load)), rel=tolerance)
    mixed = [random.Random(2 + index).choice((0.01, 0.09)) for index in range(count)]
    mean_s, square = statistics.fmean(mixed), statistics.fmean(one**2 for one in mixed)
    expected = load / mean_s * square / (2 * (1 - load))
    assert mean_wait_s(mixed, load, 3) == pytest.approx(expected, rel=tolerance)


def test_beyond_its_capacity_an_engine_completes_at_its_capacity() -> None:
    """The fluid limit: with all sequences taken the rate is sequences over the time of their steps."""
    step = StepTime(0.01, 0.0, 1e-3)
    requests = [(0.001 * index, (), 1, 20) for index in range(2000)]
    _, seen = serve(a_model(step, max_sequences=10), requests)
    ends = sorted(one.end_s for one in seen)
    rate = (len(ends) - 200) / (ends[-100] - ends[100])
    assert rate == pytest.approx(10 / (20 * (0.01 + 10 * 1e-3)), rel=0.06)


Case = tuple[float, tuple[int, ...], int, int]


@st.composite
def workloads(draw: st.DrawFn) -> list[Case]:
    """Requests that share prefixes, some longer than their keys."""
    cases = []
    for _ in range(draw(st.integers(1, 12))):
        family, depth = draw(st.integers(0, 2)), draw(st.integers(0, 5))
        keys = tuple(100 * family + place + 1 for place in range(depth))
        prompt = depth * BLOCK + draw(st.integers(0 if depth else 1, BLOCK - 1))
        cases.append((draw(st.floats(0, 0.5)), keys, max(1, prompt), draw(st.integers(1, 60))))
    return cases


@settings(max_examples=150, deadline=None)
@given(workloads(), st.integers(12, 40), st.integers(20, 200), st.integers(1, 6))
def test_steps_taken_at_once_end_when_single_ones_do_and_nothing_is_lost(
    cases: list[Case], blocks: int, budget: int, sequences: int
) -> None:
    model = a_model(
        StepTime(0.01, 1e-4, 1e-3, 1e-7, 1e-6),
        kv_capacity_tokens=blocks * BLOCK, max_batched_tokens=budget, max_sequences=sequences,
    )  # fmt: skip
    fast, at_once = serve(model, cases)
    slow, single = serve(model, cases, jumps=False)
    for one, other in zip(at_once, single, strict=True):
        assert one.first_s == pytest.approx(other.first_s, abs=1e-6)
        assert one.end_s == pytest.approx(other.end_s, abs=1e-6)
        assert one.job.generated == one.job.output_tokens
        assert 0 < one.first_s - one.at_s <= one.end_s - one.at_s + 1e-9
        assert (one.job.cached_tokens, one.job.preemptions) == (other.job.cached_tokens, other.job.preemptions)
    for engine in (fast, slow):
        assert (engine.running, engine.waiting, engine.blocks.used) == (0, 0, 0)
    assert (fast.steps, fast.computed_tokens) == (slow.steps, slow.computed_tokens)
    computed = sum(one.job.input_tokens - one.job.cached_tokens for one in at_once)
    again = any(one.job.preemptions for one in at_once)
    assert fast.computed_tokens == computed or (again and fast.computed_tokens > computed - BLOCK * blocks)


@given(st.integers(0, 500), st.integers(1, 200))
def test_the_context_of_a_chunk_is_the_sum_over_its_tokens(computed: int, tokens: int) -> None:
    assert prefill_context(computed, tokens) == sum(computed + place + 1 for place in range(tokens))


@pytest.mark.parametrize(
    "fields", [{"base_s": -1.0}, {"base_s": float("nan")}, {"base_s": 0.0, "prefill_token_s": 0.0}]
)
def test_a_step_that_takes_no_time_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be a number of seconds|no time"):
        StepTime(**{"base_s": 0.01, "prefill_token_s": 1e-4, "decode_sequence_s": 0.0, **fields})
