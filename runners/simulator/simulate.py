"""One replay before one router and simulated engines, from its spec to its records."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep
from typing import BinaryIO

import msgspec

from results.records.simulation_spec import SimulationSpec
from results.records.turns import EngineSample
from runners.load.recent_latencies import LIVE_WINDOW_S
from runners.load.replay_plan import read_pace
from runners.router.policies import make_policy
from runners.router.tick import make_tick
from runners.simulator.clock import SimulatedClock
from runners.simulator.fleet import DecisionFile, Fleet
from runners.simulator.messages import SimulationError, SimulationOutcome, SimulationTick
from runners.simulator.replay import SimulatedReplay
from runners.simulator.workload import Workload, make_workload
from runners.trace.formats import open_trace

TICK_S = 1.0
"""By the host's clock."""
GARBAGE_EVERY = 50_000
"""Objects more than before, from which on Python looks for cycles; its own 700 cost a tenth of a simulation's time."""


@contextmanager
def _collect_rarely() -> Iterator[None]:
    """Collect garbage rarely: reading a trace and simulating it leave few cycles."""
    thresholds = gc.get_threshold()
    gc.set_threshold(GARBAGE_EVERY, *thresholds[1:])
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


@_collect_rarely()
def simulate(spec: SimulationSpec, on_tick: Callable[[SimulationTick], None], pace: float = 0.0) -> SimulationOutcome:
    """Write the router's and the load generator's records, and samples of the engines. Equal specs give equal bytes.

    `pace`: simulated seconds that pass in one of the host's, at most; 0 = no limit. It changes no byte.
    Raises PolicyError for a wrong policy or parameter, TraceError where the trace is malformed, SimulationError where
    its blocks are not those of the spec or it holds no turn.
    """
    policy = make_policy(spec.router.policy, spec.router.parameters)
    workload = make_workload(*open_trace(spec.replay.trace_path), read_pace(spec.replay))
    block = workload.facts.block_tokens
    if not workload.plan.turns:
        raise SimulationError(f"{spec.replay.trace_path} holds no turn", remedy="give a trace with a request")
    if block != spec.replay.block_tokens:
        raise SimulationError(
            f"the trace has blocks of {block} tokens, the spec of {spec.replay.block_tokens}",
            remedy="give the spec the trace's block_tokens: simulated engines have the trace's blocks",
        )
    log = spec.router.decisions_path
    with (
        _open(log) if log else nullcontext() as decisions,
        _open(spec.replay.requests_path) as turns,
        _open(spec.samples_path) as samples,
    ):
        fleet = Fleet(spec, policy, SimulatedClock(), DecisionFile(decisions))
        window_s = LIVE_WINDOW_S * (pace or 1.0)
        replay = SimulatedReplay(fleet, spec.replay, workload.plan, workload.keys, turns, window_s)
        if spec.prewarm_tokens:
            fleet.prewarm_engines(_find_prewarmed(workload, spec))
        begin_ns = fleet.clock.now_ns()
        watch = _Watch(fleet, replay, samples, on_tick, _Pacer(fleet.clock, pace) if pace else None)
        gc.freeze()  # no collection looks through the turns of the plan
        replay.run(watch.look)
        watch.send_tick(last=True)
        return SimulationOutcome(replay.make_outcome(), fleet.make_outcome(begin_ns), fleet.read_counters())


def _find_prewarmed(workload: Workload, spec: SimulationSpec) -> tuple[int, ...]:
    """Raises SimulationError where the sessions of the trace share nothing, as a live cell fails then."""
    keys = workload.find_common_prefix(spec.prewarm_tokens)
    if not keys:
        raise SimulationError(
            f"prewarm_tokens={spec.prewarm_tokens}, and no two sessions of the trace are known to share their first "
            f"{workload.facts.block_tokens} tokens",
            remedy="leave out prewarm_tokens: there is nothing to compute ahead",
        )
    return keys


def _open(path: str) -> BinaryIO:
    return Path(path).open("wb")


class _Pacer:
    """Lets simulated time pass no faster than a multiple of the host's; a simulation that is slower catches up."""

    def __init__(self, clock: SimulatedClock, pace: float) -> None:
        self._clock = clock
        self._pace = pace
        self._begin_s = clock.now_s()
        self._host_begin_s = perf_counter()

    def hold_back(self) -> None:
        due_s = self._host_begin_s + (self._clock.now_s() - self._begin_s) / self._pace
        sleep(max(0.0, due_s - perf_counter()))


class _Watch:
    """Samples the engines in every simulated second, and reports in every second of the host's."""

    def __init__(
        self,
        fleet: Fleet,
        replay: SimulatedReplay,
        file: BinaryIO,
        on_tick: Callable[[SimulationTick], None],
        pacer: _Pacer | None,
    ) -> None:
        self._fleet = fleet
        self._replay = replay
        self._file = file
        self._on_tick = on_tick
        self._pacer = pacer
        self._encode_lines = msgspec.json.Encoder().encode_lines
        self._samples: list[EngineSample] = []
        self._reported_s = perf_counter()

    def look(self) -> None:
        self._samples = self._fleet.take_samples()
        self._file.write(self._encode_lines(self._samples))
        if self._pacer is not None:
            self._pacer.hold_back()
        if perf_counter() - self._reported_s >= TICK_S:
            self.send_tick()

    def send_tick(self, *, last: bool = False) -> None:
        """`last`: no outcome of a migration is waited for."""
        fleet = self._fleet
        self._reported_s = perf_counter()
        router = make_tick(
            fleet.clock.now_ns(), fleet.policy.name, fleet.cluster, fleet.bindings, fleet.counts, fleet.ledger
        )
        steps = fleet.ledger.take_migrations(last=last)
        router = replace(router, migrations=steps)
        self._on_tick(SimulationTick(self._replay.tick(), router, tuple(self._samples)))
