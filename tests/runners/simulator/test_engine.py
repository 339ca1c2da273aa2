"""The model of an engine against what is known without it: queueing theory, conservation, and itself step by step."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.records.simulation_spec import EngineModel, StepTime
from runners.simulator import job_blocks
from runners.simulator.clock import SimulatedClock
from runners.simulator.engine import Engine
from runners.simulator.job import Job, PromptTally
from runners.simulator.kv_blocks import KvBlocks
from runners.simulator.step_time import (
    FORGET_AT,
    STEADY,
    Noise,
    ResidualNoise,
    SharedCores,
    StepNoise,
    prefill_context,
)

BLOCK = 16


@dataclass
class Seen:
    """One request and what became of it, in seconds of the clock."""

    at_s: float
    job: Job
    first_s: float = 0.0
    end_s: float = 0.0


def serve(
    model: EngineModel,
    requests: Sequence[tuple[float, Sequence[int], int, int]],
    *,
    jumps: bool = True,
    priorities: Sequence[int] = (),
    noise: Noise = STEADY,
) -> tuple[Engine, list[Seen]]:
    """Each request is (arrival in s, keys, input tokens, output tokens); run until all have ended."""
    clock = SimulatedClock()
    engine = Engine(model, BLOCK, clock, jumps=jumps, noise=noise)
    begin_ns = clock.now_ns()
    seen: list[Seen] = []

    def send(at_s: float, keys: Sequence[int], prompt: int, answer: int) -> None:
        def first() -> None:
            one.first_s = (clock.now_ns() - begin_ns) / 1e9

        def end() -> None:
            one.end_s = (clock.now_ns() - begin_ns) / 1e9

        priority = priorities[len(seen)] if priorities else 0
        one = Seen(at_s, Job(keys, prompt, answer, first, end, priority=priority))
        seen.append(one)
        clock.call_at(begin_ns + round(at_s * 1e9), lambda: engine.submit(one.job))

    for request in requests:
        send(*request)
    clock.run()
    return engine, seen


def a_model(step: StepTime | None = None, **settings: Any) -> EngineModel:
    return EngineModel(step or StepTime(0.01, 1e-4, 1e-3), **{"kv_capacity_tokens": 16_000, **settings})


def nothing() -> None:
    """What becomes of this request is not asked."""


@pytest.mark.parametrize(("engines", "slower"), [(1, 1.0), (2, 1.5), (4, 2.5)])
def test_engines_that_share_cores_slow_each_other(engines: int, slower: float) -> None:
    clock, cores, ends_s = SimulatedClock(), SharedCores(0.5), []
    begin_s = clock.now_s()

    def end() -> None:
        ends_s.append(clock.now_s() - begin_s)

    for _ in range(engines):
        Engine(a_model(StepTime(0.01, 0.0, 0.0)), BLOCK, clock, cores=cores).submit(Job((), 16, 200, nothing, end))
    clock.run()
    assert len(ends_s) == engines
    for end_s in ends_s:
        assert end_s == pytest.approx(200 * 0.01 * slower, rel=0.03)


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


def test_blocks_for_another_engine_stay_in_use_until_they_have_been_read() -> None:
    clock = SimulatedClock()
    engine = Engine(a_model(kv_capacity_tokens=8 * BLOCK), BLOCK, clock)
    source = Job(tuple(range(1, 7)), 6 * BLOCK, 1, nothing, nothing, retains=True)
    later = Job((), 5 * BLOCK, 1, nothing, nothing)
    engine.submit(source)
    engine.submit(later)
    clock.advance(1.0)
    assert (engine.blocks.used, engine.running, engine.waiting, later.generated) == (6, 0, 1, 0)
    engine.release(source)
    engine.release(source)
    clock.run()
    assert (engine.blocks.used, later.generated) == (0, 1)
    assert engine.blocks.match(source.keys) < 6, "what was read is free, and goes first"


def test_kv_from_another_engine_has_its_blocks_before_it_comes_and_its_last_token_alone_is_computed() -> None:
    clock = SimulatedClock()
    engine = Engine(a_model(kv_capacity_tokens=8 * BLOCK), BLOCK, clock)
    keys = tuple(range(1, 7))
    known = Job(keys[:2], 2 * BLOCK, 1, nothing, nothing)
    pulls = Job(keys, 6 * BLOCK, 3, nothing, nothing)
    pulls.on_allocated = partial(clock.call_later, 0.5, lambda: engine.resume(pulls))
    other = Job((), 4 * BLOCK, 1, nothing, nothing)
    for job in (known, pulls, other):
        engine.submit(job)
        clock.advance(0.1)
    assert (engine.blocks.used, engine.running, other.generated) == (6, 0, 0)
    clock.run()
    assert [job.generated for job in (known, pulls, other)] == [1, 3, 1]
    assert engine.computed_tokens == 2 * BLOCK + 1 + 4 * BLOCK
    assert (pulls.external_tokens, pulls.cached_tokens) == (4 * BLOCK, 6 * BLOCK - 1)
    assert (engine.prompts.external, engine.prompts.cached) == (4 * BLOCK, 2 * BLOCK - 1)
    assert sum((engine.prompts.computed, engine.prompts.cached, engine.prompts.external)) == 12 * BLOCK


def test_a_pull_waits_for_room_and_those_behind_it_too() -> None:
    clock = SimulatedClock()
    engine = Engine(a_model(kv_capacity_tokens=8 * BLOCK), BLOCK, clock)
    allocated: list[int] = []
    first = Job((), 4 * BLOCK, 4 * BLOCK, nothing, nothing)
    pulls = Job((), 6 * BLOCK, 1, nothing, nothing)

    def pull() -> None:
        allocated.append(first.generated)
        clock.call_later(0.1, lambda: engine.resume(pulls))

    pulls.on_allocated = pull
    engine.submit(first)
    engine.submit(pulls)
    clock.run()
    assert allocated == [4 * BLOCK]
    assert pulls.generated == 1


def test_a_prompt_counts_when_its_first_token_is_there() -> None:
    """As vLLM counts it: a request that leaves in the middle of its prompt is in no counter."""
    clock = SimulatedClock()
    engine = Engine(a_model(max_batched_tokens=BLOCK), BLOCK, clock)
    leaves, stays = (Job((), 4 * BLOCK, 2, nothing, nothing) for _ in range(2))
    engine.submit(leaves)
    engine.submit(stays)
    clock.call_later(0.02, lambda: engine.cancel(leaves))
    clock.run()
    assert engine.prompts == PromptTally(computed=4 * BLOCK)


def test_by_priority_the_sooner_is_admitted_first_and_the_later_preempted() -> None:
    requests = [(0.0, (), 100, 60), (0.0, (), 100, 5), (0.01, (), 100, 5)]
    for scheduling, order in (("fcfs", [0, 1, 2]), ("priority", [0, 2, 1])):
        model = a_model(max_sequences=1, scheduling=scheduling)
        _, seen = serve(model, requests, priorities=[0, 0, -1])
        assert sorted(range(3), key=lambda index: seen[index].first_s) == order
    model = a_model(kv_capacity_tokens=8 * BLOCK, scheduling="priority")
    twice = [(0.0, (), 3 * BLOCK, 3 * BLOCK), (0.02, (), 3 * BLOCK, 3 * BLOCK)]
    _, (late, soon) = serve(model, twice, priorities=[1, 0])
    assert (late.job.preemptions, soon.job.preemptions) == (1, 0), "though it was admitted first"
    assert soon.end_s < late.end_s


def test_one_that_gives_way_before_anything_is_scheduled_leaves_its_slot_to_others_in_that_step() -> None:
    model = a_model(
        StepTime(0.01, 0.0, 0.0), kv_capacity_tokens=8 * BLOCK, scheduling="priority", max_sequences=2,
    )  # fmt: skip
    requests = [(0.0, (), 3 * BLOCK, 3 * BLOCK), (0.025, (), 3 * BLOCK, 3 * BLOCK), (0.03, (), BLOCK, 1)]
    _, (late, _, waits) = serve(model, requests, priorities=[1, 0, 0])
    assert late.job.preemptions == 1
    # at 0.17 s its prompt and 16 tokens of its answer fill four blocks, and the other request has the four others
    assert waits.first_s == pytest.approx(0.18)


def test_with_async_scheduling_an_arrival_waits_for_one_step_more() -> None:
    step_s, requests = 0.01, [(0.0, (), 1, 50), (0.105, (), 1, 1)]
    for is_async, waits in ((False, 1), (True, 2)):
        _, (_, second) = serve(a_model(StepTime(step_s, 0.0, 0.0), async_scheduling=is_async), requests)
        assert second.first_s == pytest.approx(0.105 + 0.005 + waits * step_s, abs=1e-6)
    _, (alone,) = serve(a_model(StepTime(step_s, 0.0, 0.0), async_scheduling=True), requests[:1])
    assert alone.first_s == pytest.approx(step_s), "an idle engine begins at once"


def test_with_async_scheduling_what_comes_too_late_for_a_step_holds_up_no_other() -> None:
    """A request of a higher priority, or one whose KV has come, is not there when that step is scheduled."""
    model = a_model(StepTime(0.01, 0.0, 0.0), scheduling="priority", async_scheduling=True)
    requests = [(0.0, (), 1, 50), (0.105, (), 1, 1), (0.115, (), 1, 1)]
    _, (_, in_time, late) = serve(model, requests, priorities=[0, 0, -1])
    assert (in_time.first_s, late.first_s) == pytest.approx((0.13, 0.14))
    clock, firsts_s = SimulatedClock(), dict[str, float]()
    engine, begin_s = Engine(model, BLOCK, clock), clock.now_s()

    def note(name: str) -> None:
        firsts_s[name] = clock.now_s() - begin_s

    runs, in_step = Job((), 1, 50, nothing, nothing), Job((), 1, 1, partial(note, "in time"), nothing)
    pulls = Job((), BLOCK, 1, partial(note, "late"), nothing, on_allocated=nothing)
    for at_s, job in ((0.0, runs), (0.005, pulls), (0.105, in_step)):
        clock.call_later(at_s, partial(engine.submit, job))
    clock.call_later(0.115, partial(engine.resume, pulls))
    clock.run()
    assert firsts_s == {"in time": pytest.approx(0.13), "late": pytest.approx(0.14)}


@pytest.mark.parametrize("limit", [{"max_sequences": 2}, {"kv_capacity_tokens": 2 * BLOCK}], ids=["slot", "block"])
def test_with_async_scheduling_what_an_ended_request_held_is_free_one_step_later(limit: dict[str, int]) -> None:
    """The next step was scheduled while its last one ran."""
    requests = [(0.0, (), 1, 5), (0.0, (), 1, 10), (0.0, (), 1, 1)]
    for is_async, steps in ((False, 6), (True, 7)):
        model = a_model(StepTime(0.01, 0.0, 0.0), async_scheduling=is_async, **limit)
        engine, (_, longest, waits) = serve(model, requests)
        assert waits.first_s == pytest.approx(0.01 * steps)
        assert longest.end_s == pytest.approx(0.1)
        assert engine.blocks.used == 0
    _, (alone, after) = serve(a_model(StepTime(0.01, 0.0, 0.0), async_scheduling=True, max_sequences=1), requests[:2])
    assert after.first_s == pytest.approx(alone.end_s + 0.01), "no step was scheduled: the engine begins one at once"


def test_with_async_scheduling_one_that_has_ended_gives_way_where_it_was_admitted_last() -> None:
    """vLLM does not know yet that it has ended, and preempts the last one in any case."""
    model = a_model(StepTime(0.01, 0.0, 0.0), async_scheduling=True, kv_capacity_tokens=2 * BLOCK)
    goes_on, ends = (0.0, (), 12, 20), (0.0, (), 1, 5)  # the first takes a second block in its 6th step
    engine, (one, other) = serve(model, [goes_on, ends])
    assert (one.job.preemptions, other.end_s, one.end_s) == pytest.approx((0, 0.05, 0.2))
    assert engine.blocks.used == 0
    _, (other, one) = serve(model, [ends, goes_on])
    assert (one.job.preemptions, other.end_s) == pytest.approx((1, 0.05))


def test_blocks_of_answers_hold_places_that_prompts_lose() -> None:
    keys = tuple(range(1, 5))
    warm = (0.0, keys, 4 * BLOCK, 1)
    _, kept = serve(a_model(kv_capacity_tokens=10 * BLOCK), [warm, (5.0, (), BLOCK, BLOCK), (9.0, *warm[1:])])
    assert kept[2].job.cached_tokens == 3 * BLOCK
    long = (5.0, (), BLOCK, 5 * BLOCK)
    more = (8.0, (50,), BLOCK, 2 * BLOCK)
    _, lost = serve(a_model(kv_capacity_tokens=10 * BLOCK), [warm, long, more, (9.0, *warm[1:])])
    assert lost[3].job.cached_tokens < 3 * BLOCK


def test_the_block_that_an_answer_did_not_fill_goes_before_every_cached_one() -> None:
    keys = (1, 2)
    warm, short = (0.0, keys, 2 * BLOCK, 1), [(1.0 + index, (), 5, 3) for index in range(9)]
    _, seen = serve(a_model(kv_capacity_tokens=4 * BLOCK), [warm, *short, (20.0, keys, 2 * BLOCK + 1, 1)])
    assert seen[-1].job.cached_tokens == 2 * BLOCK


def test_a_preempted_request_finds_the_blocks_that_nobody_took() -> None:
    model = a_model(kv_capacity_tokens=12 * BLOCK)
    engine, (first, last) = serve(model, [(0.0, (), 3 * BLOCK, 4 * BLOCK)] * 2)
    assert (first.job.preemptions, last.job.preemptions) == (0, 1)
    computed_again = engine.computed_tokens - 2 * 3 * BLOCK
    assert 0 < computed_again < 5 * BLOCK, "of its 5 blocks some were not needed meanwhile"


Server = Literal["answers", "prompts"]


def mean_wait_s(services_s: Sequence[float], load: float, seed: int, server: Server) -> float:
    """Of Poisson arrivals at an engine that serves one answer at a time, or one prompt in chunks of its budget."""
    draw = random.Random(seed)
    rate = load / statistics.fmean(services_s)
    steps = [round(service_s / 0.01) for service_s in services_s]
    at_s, requests = 0.0, []
    for count in steps:
        at_s += draw.expovariate(rate)
        requests.append((at_s, (), *((1, count) if server == "answers" else (100 * count, 1))))
    one_sequence = a_model(StepTime(0.01, 0.0, 0.0), max_sequences=1)
    one_budget = a_model(StepTime(0.0, 1e-4, 1e-3), max_batched_tokens=100 * min(steps))
    _, seen = serve(one_sequence if server == "answers" else one_budget, requests)
    return statistics.fmean(one.end_s - one.at_s - service_s for one, service_s in zip(seen, services_s, strict=True))


@pytest.mark.parametrize("server", ["answers", "prompts"])
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_waits_are_those_of_m_d_1_and_m_g_1(load: float, server: Server) -> None:
    """Pollaczek and Khinchine: W = lambda E[S^2] / (2 (1 - rho))."""
    count, tolerance = 20_000, 0.06
    equal = [0.05] * count
    assert mean_wait_s(equal, load, 1, server) == pytest.approx(load * 0.05 / (2 * (1 - load)), rel=tolerance)
    mixed = [random.Random(2 + index).choice((0.01, 0.09)) for index in range(count)]
    mean_s, square = statistics.fmean(mixed), statistics.fmean(one**2 for one in mixed)
    expected = load / mean_s * square / (2 * (1 - load))
    assert mean_wait_s(mixed, load, 3, server) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(
    ("step", "limit", "tokens", "rate"),
    [
        (StepTime(0.01, 0.0, 1e-3), {"max_sequences": 10}, (1, 20), 10 / (20 * (0.01 + 10 * 1e-3))),
        (StepTime(0.01, 1e-4, 0.0), {"max_batched_tokens": 100}, (250, 1), 100 / 250 / (0.01 + 100 * 1e-4)),
        (StepTime(0.01, 0.0, 0.0), {"kv_capacity_tokens": 20 * BLOCK}, (17, 15), 10 / (15 * 0.01)),
    ],
    ids=["sequences", "tokens of a step", "KV cache"],
)
def test_beyond_its_capacity_an_engine_completes_at_its_capacity(
    step: StepTime, limit: dict[str, int], tokens: tuple[int, int], rate: float
) -> None:
    """The fluid limit: requests per second by what is scarce. A request of 17 and 15 tokens fills two blocks."""
    _, seen = serve(a_model(step, **limit), [(0.001 * index, (), *tokens) for index in range(2000)])
    ends = sorted(one.end_s for one in seen)
    assert (len(ends) - 200) / (ends[-100] - ends[100]) == pytest.approx(rate, rel=0.06)
    assert not any(one.job.preemptions for one in seen)


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


def models(step: StepTime | None = None, *, most_blocks: int = 40, **fixed: Any) -> st.SearchStrategy[EngineModel]:
    """Engines with little room. `fixed`: settings that are not drawn."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "kv_capacity_tokens": st.integers(12, most_blocks).map(lambda blocks: blocks * BLOCK),
        "max_batched_tokens": st.integers(20, 200),
        "max_sequences": st.integers(1, 6),
        "scheduling": st.sampled_from(["fcfs", "priority"]),
        "async_scheduling": st.booleans(),
    }
    return st.builds(a_model, st.just(step), **(drawn | {name: st.just(value) for name, value in fixed.items()}))


@settings(max_examples=150, deadline=None)
@given(workloads(), models(StepTime(0.01, 1e-4, 1e-3, 1e-7, 1e-6)))
def test_steps_taken_at_once_end_when_single_ones_do_and_nothing_is_lost(cases: list[Case], model: EngineModel) -> None:
    priorities = [prompt % 3 for _, _, prompt, _ in cases]
    fast, at_once = serve(model, cases, priorities=priorities)
    slow, single = serve(model, cases, jumps=False, priorities=priorities)
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
    assert fast.computed_tokens == computed or (again and fast.computed_tokens > computed - model.kv_capacity_tokens)


def make_noise(kind: str) -> Noise:
    if kind == "drawn":
        return StepNoise(0.4, "seed")
    return ResidualNoise([random.Random(place).uniform(0.3, 3.0) for place in range(37)], "seed")


@settings(max_examples=100, deadline=None)
@given(
    workloads(),
    models(StepTime(0.01, 1e-4, 1e-3, 1e-7), scheduling="fcfs", async_scheduling=False),
    st.sampled_from(["drawn", "residual"]),
)
def test_a_step_has_its_noise_whatever_is_taken_at_once_with_it_and_cut_by_whom(
    cases: list[Case], model: EngineModel, kind: str
) -> None:
    """Without a term for the context of decodes: its growth within steps taken at once meets their mean factor."""
    fast, at_once = serve(model, cases, noise=make_noise(kind))
    slow, single = serve(model, cases, jumps=False, noise=make_noise(kind))
    for one, other in zip(at_once, single, strict=True):
        assert one.first_s == pytest.approx(other.first_s, abs=1e-6)
        assert one.end_s == pytest.approx(other.end_s, abs=1e-6)
    assert (fast.steps, fast.computed_tokens) == (slow.steps, slow.computed_tokens)


def test_drawn_noise_has_the_mean_one_and_its_deviation_for_each_step() -> None:
    noise, steps = StepNoise(0.3, "seed"), 20 * FORGET_AT
    factors = []
    for _ in range(steps):
        factors.append(noise.find_factor(1))
        noise.pass_steps(1)
    assert statistics.fmean(factors) == pytest.approx(1.0, abs=0.01)
    assert statistics.stdev(map(math.log, factors)) == pytest.approx(0.3, rel=0.03)
    assert StepNoise(0.3, "seed").find_factor(steps) == pytest.approx(statistics.fmean(factors))


Kind = Literal["plain", "retains", "pulls", "leaves"]
Kinds = list[tuple[Kind, float]]
"""What each request does, and after how many seconds."""
Schedule = list[tuple[int, int, str]]
"""When, which request, what."""
KINDS = st.lists(st.tuples(st.sampled_from(["plain", "retains", "pulls", "leaves"]), st.floats(0, 0.4)), min_size=12)


def play(engine: Engine, clock: SimulatedClock, cases: list[Case], kinds: Kinds) -> tuple[Schedule, list[Job]]:
    """Requests of all kinds to their ends, and what became of each."""
    events: Schedule = []

    def note(number: int, what: str) -> None:
        events.append((clock.now_ns(), number, what))

    def start(number: int, case: Case, kind: Kind, delay_s: float) -> Job:
        at_s, keys, prompt, answer = case

        def end() -> None:
            note(number, f"end, {job.cached_tokens} cached, {job.preemptions} preempted")
            clock.call_later(delay_s, partial(engine.release, job))

        def pull() -> None:
            note(number, "allocated")
            clock.call_later(delay_s, partial(engine.resume, job))

        job = Job(keys, prompt, answer, partial(note, number, "first"), end, priority=number % 2)
        job.retains = kind == "retains"
        job.on_allocated = pull if kind == "pulls" else None
        if kind == "leaves":
            clock.call_later(at_s + delay_s, partial(engine.cancel, job))
        clock.call_later(at_s, partial(engine.submit, job))
        return job

    jobs = [start(number, case, *kinds[number]) for number, case in enumerate(cases)]
    clock.run()
    return events, jobs


@settings(max_examples=150, deadline=None)
@given(workloads(), KINDS, models(most_blocks=24, max_batched_tokens=100))
def test_whatever_requests_do_every_token_is_given_once_and_every_block_comes_back(
    cases: list[Case], kinds: Kinds, model: EngineModel
) -> None:
    """Blocks are pinned for and by other engines, requests are left in any state, and none is stuck."""
    clock = SimulatedClock()
    engine = Engine(model, BLOCK, clock)
    events, jobs = play(engine, clock, cases, kinds)
    counts = Counter((number, what.partition(",")[0]) for _, number, what in events)
    for number, job in enumerate(jobs):
        first, ended = counts[number, "first"], counts[number, "end"]
        if kinds[number][0] != "leaves":
            assert (first, ended, job.generated) == (1, 1, job.output_tokens)
        assert max(first, ended) <= 1
    tally = engine.prompts
    begun = sum(job.input_tokens for number, job in enumerate(jobs) if counts[number, "first"])
    assert tally.computed + tally.cached + tally.external == begun, "each prompt counts once, with its first token"
    assert (engine.running, engine.waiting, engine.blocks.used, engine.blocks.free) == (0, 0, 0, engine.blocks.capacity)


class AsksAgain(Engine):
    """The reference rule: the first waiting request is matched against the pool at every attempt."""

    def _is_blocked(self, job: Job) -> bool:
        return False


@settings(max_examples=300, deadline=None)
@given(workloads(), KINDS, models(most_blocks=24))
def test_a_blocked_request_is_matched_again_only_where_that_could_change_the_schedule(
    cases: list[Case], kinds: Kinds, model: EngineModel
) -> None:
    schedules, ends = [], []
    for kind in (Engine, AsksAgain):
        clock = SimulatedClock()
        engine = kind(model, BLOCK, clock)
        schedules.append(play(engine, clock, cases, kinds)[0])
        ends.append((engine.steps, engine.computed_tokens, engine.prompts, engine.blocks.used, clock.now_ns()))
    assert schedules[0] == schedules[1]
    assert ends[0] == ends[1]


@settings(max_examples=200, deadline=None)
@given(workloads(), KINDS, models(most_blocks=24, max_batched_tokens=8192))
def test_steps_taken_at_once_end_as_single_ones_do_whoever_leaves_meanwhile(
    cases: list[Case], kinds: Kinds, model: EngineModel
) -> None:
    """What a request took by then is freed with it, and the others have taken theirs before."""
    schedules = []
    for jumps in (True, False):
        clock = SimulatedClock()
        events, _ = play(Engine(model, BLOCK, clock, jumps=jumps), clock, cases, kinds)
        schedules.append({(number, what): at_ns for at_ns, number, what in events})
    assert schedules[0] == pytest.approx(schedules[1], abs=100)


def test_one_that_leaves_within_steps_taken_at_once_frees_what_it_had_by_then() -> None:
    """It had come to all four blocks, those of the cached prefix too."""
    clock = SimulatedClock()
    engine = Engine(a_model(StepTime(0.01, 0.0, 0.0), kv_capacity_tokens=4 * BLOCK), BLOCK, clock)
    cached, leaves = Job((1, 2), 2 * BLOCK, 1, nothing, nothing), Job((), BLOCK, 3 * BLOCK, nothing, nothing)
    engine.submit(cached)
    clock.advance(0.1)
    engine.submit(leaves)
    clock.advance(0.395)
    engine.cancel(leaves)
    clock.run()
    assert (leaves.computed, engine.steps) == (BLOCK + 38, 1 + 40)
    assert engine.blocks.match((1, 2)) == 0


def test_kv_that_comes_within_steps_taken_at_once_finds_what_these_have_left() -> None:
    """By then the running answer has taken the places of the cached prompt, so that the same prefix is cached again."""
    cached = []
    for jumps in (True, False):
        clock = SimulatedClock()
        engine = Engine(a_model(StepTime(0.01, 0.0, 0.0), kv_capacity_tokens=6 * BLOCK), BLOCK, clock, jumps=jumps)
        pulls = Job((1, 2), 2 * BLOCK, 1, nothing, nothing)
        pulls.on_allocated = partial(clock.call_later, 0.36, partial(engine.resume, pulls))
        engine.submit(Job((1, 2), 2 * BLOCK, 1, nothing, nothing))
        clock.advance(0.1)
        engine.submit(Job((), BLOCK, 3 * BLOCK, nothing, nothing))
        clock.call_later(0.01, partial(engine.submit, pulls))
        clock.run()
        cached.append(engine.blocks.match((1, 2)))
    assert cached[0] == cached[1]


def test_a_blocked_prompt_is_matched_once_while_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    find_cached, attempts = job_blocks.find_cached, 0

    def count_attempt(blocks: KvBlocks, job: Job) -> Sequence[int]:
        nonlocal attempts
        attempts += 1
        return find_cached(blocks, job)

    monkeypatch.setattr(job_blocks, "find_cached", count_attempt)
    clock = SimulatedClock()
    engine = Engine(a_model(kv_capacity_tokens=8 * BLOCK), BLOCK, clock)
    first = Job((), 4 * BLOCK, 3 * BLOCK, nothing, nothing)
    engine.submit(first)
    clock.advance(0.05)
    blocked = Job((), 6 * BLOCK, 1, nothing, nothing)
    engine.submit(blocked)
    for place in range(20):
        clock.call_later(0.01 * place, partial(engine.submit, Job((), BLOCK, 1, nothing, nothing)))
    clock.advance(0.3)
    assert (first.generated < first.output_tokens, blocked.generated, engine.waiting) == (True, 0, 21)
    assert attempts == 2
    clock.run()
    assert (engine.waiting, engine.blocks.used, blocked.generated) == (0, 0, 1)


@given(st.integers(0, 500), st.integers(1, 200))
def test_the_context_of_a_chunk_is_the_sum_over_its_tokens(computed: int, tokens: int) -> None:
    assert prefill_context(computed, tokens) == sum(computed + place + 1 for place in range(tokens))


@pytest.mark.parametrize(
    "fields", [{"base_s": -1.0}, {"base_s": float("nan")}, {"base_s": 0.0, "prefill_token_s": 0.0}]
)
def test_a_step_that_takes_no_time_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be a number of seconds|no time"):
        StepTime(**{"base_s": 0.01, "prefill_token_s": 1e-4, "decode_sequence_s": 0.0, **fields})
