"""The analysis of a search, computed from the run's folder; nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from results.capacity.read import read_points
from results.capacity.search import Answer, Assessed, Search, Size, answer, assess, estimate_needed
from results.capacity.slo import Limit, parse_slo
from results.records.errors import DAMAGED_JSON, ResultsError
from results.records.estimate import Estimate
from results.records.frames import Gap
from results.records.layout import RunLayout
from results.records.points import PointRecord
from results.records.run_folder import RunFacts, run_facts
from results.report.engine_gates import ShownGates, read_engine_gates


class _Planned(msgspec.Struct):
    slo: str
    searches: dict[str, Search]


class _Policy(msgspec.Struct):
    name: str


class _Grid(msgspec.Struct):
    trials: int
    policies: list[_Policy]
    """In the order of `_Planned.searches`."""


class _Inputs(msgspec.Struct):
    search: _Planned
    grid: _Grid


class _Plan(msgspec.Struct):
    inputs: _Inputs


@dataclass(frozen=True, slots=True)
class PolicyCapacity:
    """One policy's search."""

    label: str
    policy: str
    """A name of Tracon's, or the user's file."""
    search: Search
    answer: Answer
    needed: Estimate
    """Instances that the objective needs: `estimate_needed`."""
    points: Mapping[Size, Assessed]
    """By rising size; only those whose traces have all been simulated."""
    records: Mapping[Size, tuple[PointRecord, ...]]


@dataclass(frozen=True, slots=True)
class CapacityAnalysis:
    facts: RunFacts
    slo: str
    limits: tuple[Limit, ...]
    traces: int
    """Traces simulated for each point."""
    distinct_traces: int
    """Traces with different sessions; the others differ by step noise alone."""
    policies: tuple[PolicyCapacity, ...]
    """In the order of the plan."""
    gaps: tuple[Gap, ...]
    engine_gates: ShownGates
    """What the engine model has shown against real runs."""


def analyze(root: Path) -> CapacityAnalysis:
    """Raises ResultsError where `root` is not the folder of a capacity search."""
    facts, gaps = run_facts(root)
    try:
        plan = msgspec.json.decode(RunLayout(root).plan.read_bytes(), type=_Plan).inputs
        limits = parse_slo(plan.search.slo)
        policy_of = dict(zip(plan.search.searches, plan.grid.policies, strict=True))
    except (OSError, *DAMAGED_JSON, ValueError) as error:
        raise ResultsError(f"{root} holds no plan of a capacity search: {error}", remedy="name another run") from error
    records: dict[str, Mapping[Size, list[PointRecord]]] = {}
    for folder in sorted(RunLayout(root).points.glob("*")):
        try:
            points = read_points(folder)
        except (OSError, *DAMAGED_JSON) as error:
            gaps += (Gap(folder.name, f"is damaged: {error}"),)
            continue
        records |= {rows[0].label: points for rows in points.values()}
    policies = tuple(
        _analyze_policy(label, one.name, plan, limits, records.get(label, {})) for label, one in policy_of.items()
    )
    sums = {one.trace_sha256 for points in records.values() for rows in points.values() for one in rows}
    gates = read_engine_gates(root, facts) or ShownGates(missing="the plan names no engine model")
    return CapacityAnalysis(facts, plan.search.slo, limits, plan.grid.trials, len(sums), policies, gaps, gates)


def _analyze_policy(
    label: str, policy: str, plan: _Inputs, limits: tuple[Limit, ...], records: Mapping[Size, list[PointRecord]]
) -> PolicyCapacity:
    search, traces = plan.search.searches[label], plan.grid.trials
    complete = {size: tuple(rows) for size, rows in sorted(records.items()) if len(rows) == traces}
    points = {
        size: assess(limits, [one.values for one in rows], [one.completed / one.turns for one in rows])
        for size, rows in complete.items()
    }
    known = answer(search, points)
    needed = estimate_needed(search, known, points, traces)
    if needed.basis and len({one.trace_sha256 for rows in complete.values() for one in rows}) < traces:
        needed = replace(needed, basis=f"over {traces} replays of one trace")
    return PolicyCapacity(label, policy, search, known, needed, points, complete)
