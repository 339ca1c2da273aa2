"""Simulations in processes of this host: one runs several, with the bytes of a fresh one; none is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from results.records.simulation_spec import SimulationSpec
from runners.load.replay_plan import ReplayPlan
from runners.simulator.backends import LocalSimulations
from runners.simulator.engine import Engine
from runners.simulator.fleet import Fleet
from runners.simulator.messages import SimulationError, SimulationOutcome
from runners.simulator.replay import SimulatedReplay
from runners.simulator.simulate import simulate
from runners.simulator.workload import Workload
from runners.trace.formats.tracon import write_trace
from runners.trace.synth import synthesize_trace
from tests.runners.simulator.test_simulate import make_spec

FILES = ("metrics.jsonl", "decisions.jsonl", "engines.jsonl")
WITHIN_S = 30.0


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = synthesize_trace(10, 3, {"span_s": 20})
    path = tmp_path_factory.mktemp("trace") / "sessions.jsonl"
    write_trace(path, made.facts, made.sessions)
    return path


def list_processes() -> list[int]:
    """Ids of the simulation processes that this process has started."""
    pids = []
    for one in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # another test's, which has just ended
            if "runners.simulator" in one.cmdline():
                pids.append(one.pid)
    return pids


async def run(simulations: LocalSimulations, spec: SimulationSpec, folder: Path) -> SimulationOutcome:
    async with asyncio.timeout(WITHIN_S):
        return await simulations.run(spec, folder / "spec.json", lambda _: None)


@pytest.fixture
def simulations() -> Iterator[LocalSimulations]:
    yield LocalSimulations()
    assert not list_processes()


async def test_one_process_runs_one_simulation_after_another_with_the_bytes_of_a_fresh_one(
    simulations: LocalSimulations, trace: Path, tmp_path: Path
) -> None:
    policies = ("sticky", "unified", "sticky")
    seen = []
    for number, policy in enumerate(policies):
        spec = make_spec(trace, policy, tmp_path / f"shared {number}")
        outcome = await run(simulations, spec, tmp_path / f"shared {number}")
        alone = simulate(make_spec(trace, policy, tmp_path / f"alone {number}"), lambda _: None)
        assert msgspec.json.encode(outcome) == msgspec.json.encode(alone)
        for name in FILES:
            shared, fresh = (tmp_path / f"{where} {number}" / name for where in ("shared", "alone"))
            assert shared.read_bytes() == fresh.read_bytes(), (policy, name)
        seen.append(list_processes())
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 1
    await simulations.close()


async def end_idle(simulations: LocalSimulations, signum: signal.Signals) -> None:
    """The one process that waits for a simulation ends by this signal."""
    (idle,) = list_processes()
    os.kill(idle, signum)
    async with asyncio.timeout(WITHIN_S):
        while simulations._idle[0].alive:  # noqa: ASYNC110  (a condition on another process)
            await asyncio.sleep(0.01)


async def test_a_failure_or_a_killed_process_ends_no_other_simulation(
    simulations: LocalSimulations, trace: Path, tmp_path: Path
) -> None:
    wrong = make_spec(trace, "sticky", tmp_path / "wrong", block_tokens=16)
    with pytest.raises(SimulationError, match="blocks of"):
        await run(simulations, wrong, tmp_path / "wrong")
    assert not list_processes(), "a process whose simulation failed takes no other"
    await run(simulations, make_spec(trace, "sticky", tmp_path / "first"), tmp_path / "first")
    await end_idle(simulations, signal.SIGKILL)
    await run(simulations, make_spec(trace, "sticky", tmp_path / "second"), tmp_path / "second")
    await simulations.close()


async def test_a_waiting_process_ends_by_sigterm(simulations: LocalSimulations, trace: Path, tmp_path: Path) -> None:
    """It was started while the signal was blocked, and did not unblock it."""
    await run(simulations, make_spec(trace, "sticky", tmp_path / "first"), tmp_path / "first")
    await end_idle(simulations, signal.SIGTERM)
    await simulations.close()


def test_nothing_of_a_simulation_remains_in_memory_once_it_has_ended(trace: Path, tmp_path: Path) -> None:
    kinds = (Workload, Fleet, Engine, SimulatedReplay, ReplayPlan)

    def count_alive() -> int:
        gc.collect()
        return sum(isinstance(one, kinds) for one in gc.get_objects())

    before = count_alive()
    simulate(make_spec(trace, "ear", tmp_path), lambda _: None)
    assert count_alive() == before


async def test_where_a_waiting_process_has_just_been_killed_the_error_names_the_signal(
    simulations: LocalSimulations, trace: Path, tmp_path: Path
) -> None:
    """By its `ended_by` the run tries the cell again."""
    await run(simulations, make_spec(trace, "sticky", tmp_path / "first"), tmp_path / "first")
    (idle,) = list_processes()
    os.kill(idle, signal.SIGKILL)  # the loop has not seen its end
    with pytest.raises(SimulationError) as failed:
        await run(simulations, make_spec(trace, "sticky", tmp_path / "second"), tmp_path / "second")
    assert failed.value.ended_by == "SIGKILL"
    await run(simulations, make_spec(trace, "sticky", tmp_path / "third"), tmp_path / "third")
    await simulations.close()


async def test_a_cancelled_simulation_leaves_no_process(
    simulations: LocalSimulations, trace: Path, tmp_path: Path
) -> None:
    spec = make_spec(trace, "sticky", tmp_path / "cut")
    slow = asyncio.create_task(simulations.run(spec, tmp_path / "cut" / "spec.json", lambda _: None, pace=1.0))
    async with asyncio.timeout(WITHIN_S):
        while not list_processes():  # noqa: ASYNC110  (a condition on another process)
            await asyncio.sleep(0.01)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
