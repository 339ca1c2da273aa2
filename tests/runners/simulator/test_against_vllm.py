"""The model of an engine against vLLM's own scheduler: the same requests at the same times, and steps as long."""

from __future__ import annotations

import json
import random
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launch.environment import find_engine
from launch.tiny_model import write_tiny_model
from results.records.simulation_spec import EngineModel, StepTime
from runners.simulator.clock import SimulatedClock
from runners.simulator.engine import Engine
from runners.simulator.job import Job

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

BLOCK = 16
BASE_NS, TOKEN_NS = 10_000_000, 100_000
CASES = 100
Case = dict[str, Any]
Result = list[int | None]
"""Of a request: its first token and its end (ns), its cached tokens, how often it was preempted."""


def draw_case(seed: int, scheduling: str, is_async: bool) -> Case:
    """Requests of a few families that share prefixes, more of them than the engine has room for.

    No prompt ends with a full block: its last token would be computed again, and the block be cached twice.
    """
    draw = random.Random(f"{seed} {scheduling} {is_async}")
    requests = []
    for _ in range(draw.randint(5, 30)):
        family, depth, at_ns = draw.randint(0, 2), draw.randint(0, 6), draw.randrange(1_500_000_000)
        prompt = depth * BLOCK + draw.randint(1, BLOCK - 1)
        requests.append(
            {
                "at_ns": at_ns,
                "keys": [100 * family + place + 1 for place in range(depth)],
                "prompt": prompt,
                "answer": draw.randint(1, 12 * BLOCK - prompt),
                "priority": draw.randint(0, 2),
                "leaves_ns": at_ns + draw.randrange(1, 500_000_000) if not is_async and draw.random() < 0.1 else None,
            }
        )
    return {
        "requests": requests, "blocks": draw.randint(12, 40), "budget": draw.randint(20, 200),
        "sequences": draw.randint(1, 8), "scheduling": scheduling, "is_async": is_async, "base_ns": BASE_NS,
        "token_ns": TOKEN_NS,
    }  # fmt: skip


def schedule_with_vllm(cases: list[Case], folder: Path) -> list[list[Result]]:
    script = Path(__file__).with_name("vllm_schedule.py")
    work = {"model": str(write_tiny_model(folder)), "cases": cases}
    command = [str(find_engine("cpu").python), str(script)]
    done = subprocess.run(command, input=json.dumps(work), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    results: list[list[Result]] = json.loads(done.stdout.splitlines()[-1])
    return results


def schedule_with_model(case: Case) -> list[Result]:
    clock = SimulatedClock()
    begin_ns = clock.now_ns()
    model = EngineModel(
        StepTime(BASE_NS / 1e9, TOKEN_NS / 1e9, TOKEN_NS / 1e9), case["blocks"] * BLOCK, case["budget"],
        case["sequences"], scheduling=case["scheduling"], async_scheduling=case["is_async"],
    )  # fmt: skip
    engine = Engine(model, BLOCK, clock)
    results: list[Result] = [[None, None, None, None] for _ in case["requests"]]
    jobs: list[Job] = []

    def note(number: int, what: int) -> None:
        results[number][what] = clock.now_ns() - begin_ns
        results[number][2] = jobs[number].cached_tokens

    for number, one in enumerate(case["requests"]):
        first, end = (partial(note, number, what) for what in (0, 1))
        job = Job(one["keys"], one["prompt"], one["answer"], first, end, priority=one["priority"])
        jobs.append(job)
        clock.call_at(begin_ns + one["at_ns"], partial(engine.submit, job))
        if one["leaves_ns"]:
            clock.call_at(begin_ns + one["leaves_ns"], partial(engine.cancel, job))
    clock.run()
    for result, job in zip(results, jobs, strict=True):
        result[3] = job.preemptions
    return results


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("scheduling", ["fcfs", "priority"])
def test_requests_are_scheduled_as_vllms_own_scheduler_does(scheduling: str, is_async: bool, tmp_path: Path) -> None:
    """To the nanosecond. Left out, as docs/simulator.md states: a block that is cached twice, and with async scheduling
    requests that leave or are preempted.
    """
    cases = [draw_case(seed, scheduling, is_async) for seed in range(CASES)]
    compared = 0
    for seed, (case, expected) in enumerate(zip(cases, schedule_with_vllm(cases, tmp_path), strict=True)):
        if is_async and any(preemptions for *_, preemptions in expected):
            continue
        assert schedule_with_model(case) == expected, f"case {seed}"
        compared += 1
    assert compared > CASES / 5
