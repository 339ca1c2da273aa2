"""A trace through a simulated fleet under one policy: what is asked for, and what comes of it, on disk as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from results.measures.replay import replay_numbers
from results.records.decisions import Role
from results.records.layout import AttemptLayout, write_atomic, write_indented_json
from results.records.schemas import RequestStatus
from results.statistics.estimates import Estimate
from runners.errors import RunnerError
from runners.load.replay_plan import Pace, ReplayPlan, plan_replay
from runners.router.policies import make_policy, may_migrate, parameters_of
from runners.simulator.clock import SimulatedClock
from runners.simulator.engine_file import EngineFile
from runners.simulator.fleet import DecisionList, Fleet, FleetShape, describe_engines
from runners.simulator.replay import SimulatedReplay, list_keys
from runners.trace.formats import read_trace
from runners.trace.reusable_tokens import count_reusable_tokens


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace, ready to be sent. Made once for all policies."""

    name: str
    plan: ReplayPlan
    keys: tuple[tuple[int, ...], ...]
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One policy and the fleet that it works on."""

    policy: str
    parameters: Mapping[str, Any]
    instances: Mapping[str, Role]
    engine: EngineFile
    max_inflight_sessions: int = 0
    """0 = no limit."""


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """A simulation that has ended. Every number is of the model, none was measured."""

    policy: str
    parameters: Mapping[str, Any]
    turns: int
    completed: int
    failed: int
    numbers: Mapping[str, Estimate]
    """By name with its unit, as of a replay."""
    migrations: Mapping[str, int]
    """By what came of them."""
    engines: Mapping[str, Mapping[str, Any]]
    simulated_s: float
    """From the first send to the last token."""
    took_s: float
    """Of this host's time."""
    folder: str
    simulated: bool = True


def read_workload(path: Path, pace: Pace) -> Workload:
    """Raises TraceError where the trace is malformed, RunnerError where it holds no turn."""
    trace = read_trace(path)
    if not trace.requests:
        raise RunnerError(f"{path} holds no turn", remedy="give a trace with at least one request")
    block = trace.facts.block_tokens
    plan = plan_replay(trace, count_reusable_tokens(trace, block), pace)
    return Workload(path.name, plan, list_keys(trace), block)


def name_instances(count: int, prefill: int = 0) -> dict[str, Role]:
    """`count` instances, of which the first `prefill` prefill and the others decode; 0 = all do both."""
    if count < 1 or not 0 <= prefill < count:
        raise RunnerError(
            f"{prefill} of {count} instances cannot prefill",
            remedy="give at least one instance, and fewer prefill instances than there are",
        )
    if not prefill:
        return {f"i{number:03}": "both" for number in range(count)}
    return {f"i{number:03}": "prefill" if number < prefill else "decode" for number in range(count)}


def simulate(work: Workload, choice: Choice, folder: Path) -> SimulationReport:
    """Simulate it and write the router's and the load generator's records. The same input gives the same bytes.

    Raises PolicyError for a wrong policy or parameter.
    """
    began_s = perf_counter()
    policy = make_policy(choice.policy, choice.parameters)
    clock, log = SimulatedClock(), DecisionList()
    link = choice.engine.link
    shape = FleetShape(choice.instances, choice.engine.model, work.block_tokens, link)
    fleet = Fleet(shape, policy, clock, log)
    replay = SimulatedReplay(fleet, work.plan, work.keys, choice.max_inflight_sessions)
    begin_ns = clock.now_ns()
    replay.run()
    end_ns = max(record.t_end_ns or 0 for record in replay.records)
    simulated_s = (end_ns - begin_ns) / 1e9
    layout = AttemptLayout(folder)
    lines = msgspec.json.Encoder().encode_lines
    write_atomic(layout.metrics, lines(sorted(replay.records, key=lambda record: record.index)))
    write_atomic(layout.decisions, lines(sorted(log.records, key=lambda record: record.seq)))
    completed = sum(record.status is RequestStatus.OK for record in replay.records)
    report = SimulationReport(
        policy=policy.name,
        parameters=parameters_of(policy),
        turns=len(work.plan.turns),
        completed=completed,
        failed=len(replay.records) - completed,
        numbers=replay_numbers(layout.metrics),
        migrations=dict(fleet.counts.migrations) if may_migrate(policy) else {},
        engines=describe_engines(fleet, simulated_s),
        simulated_s=simulated_s,
        took_s=perf_counter() - began_s,
        folder=str(folder),
    )
    document = msgspec.to_builtins(report) | {
        "trace": work.name,
        "block_tokens": work.block_tokens,
        "engine": msgspec.to_builtins(choice.engine),
        "instances": dict(choice.instances),
    }
    document.pop("took_s")
    document.pop("folder")
    write_indented_json(layout.simulation, document)
    return report
