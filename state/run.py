"""What a run is made of: the frozen plan, its stages and cells, and the transitions each may make.

A run executes one experiment and owns one folder. Its plan is fixed before it starts: stages are barriers, a cell is
the smallest resumable unit (one config x one load point x one trial).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class RunState(StrEnum):
    PLANNED = "planned"
    RUNNING = "running"
    PAUSED = "paused"
    INTERRUPTED = "interrupted"
    """Stopped or killed before its end; `resume` goes on from here."""
    DONE = "done"
    FAILED = "failed"


class StageState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class CellState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class AttemptState(StrEnum):
    """How one attempt at a cell stands or ended."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"
    """The run was stopped or died in the middle of it; the cell went back to pending."""


class InstanceState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    GONE = "gone"
    FAILED = "failed"
    """It died or never became ready; its processes are gone too."""


RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    RunState.PLANNED: frozenset({RunState.RUNNING, RunState.INTERRUPTED}),
    RunState.RUNNING: frozenset(
        {RunState.RUNNING, RunState.PAUSED, RunState.INTERRUPTED, RunState.DONE, RunState.FAILED}
    ),
    RunState.PAUSED: frozenset({RunState.RUNNING, RunState.INTERRUPTED}),
    RunState.INTERRUPTED: frozenset({RunState.RUNNING, RunState.INTERRUPTED}),
    RunState.DONE: frozenset({RunState.RUNNING}),  # `retry` reopens a run whose cells failed
    RunState.FAILED: frozenset({RunState.RUNNING}),
}
"""RUNNING -> RUNNING is the takeover of a run whose process died without a word."""

STAGE_TRANSITIONS: Mapping[StageState, frozenset[StageState]] = {
    StageState.PENDING: frozenset({StageState.RUNNING, StageState.SKIPPED}),
    StageState.RUNNING: frozenset({StageState.RUNNING, StageState.DONE, StageState.FAILED, StageState.SKIPPED}),
    StageState.DONE: frozenset({StageState.RUNNING}),
    StageState.FAILED: frozenset({StageState.RUNNING}),
    StageState.SKIPPED: frozenset({StageState.RUNNING}),
}
"""A finished stage runs again only when `retry` put one of its cells back to pending."""

CELL_TRANSITIONS: Mapping[CellState, frozenset[CellState]] = {
    CellState.PENDING: frozenset({CellState.RUNNING, CellState.SKIPPED, CellState.DONE}),
    CellState.RUNNING: frozenset({CellState.DONE, CellState.FAILED, CellState.SKIPPED, CellState.PENDING}),
    CellState.DONE: frozenset(),
    CellState.FAILED: frozenset({CellState.PENDING}),
    CellState.SKIPPED: frozenset({CellState.PENDING}),
}
"""RUNNING -> PENDING is an interruption. PENDING -> DONE adopts a measurement whose artifacts were complete and
checksummed when the run process died before it could say so. Nothing leaves DONE: a finished measurement is final."""

CELL_ENDED: frozenset[CellState] = frozenset({CellState.DONE, CellState.FAILED, CellState.SKIPPED})
"""The states in which a cell asks for no more work."""

INSTANCE_TRANSITIONS: Mapping[InstanceState | None, frozenset[InstanceState]] = {
    None: frozenset({InstanceState.STARTING, InstanceState.FAILED}),
    InstanceState.STARTING: frozenset(
        {InstanceState.STARTING, InstanceState.READY, InstanceState.STOPPING, InstanceState.GONE, InstanceState.FAILED}
    ),
    InstanceState.READY: frozenset({InstanceState.STOPPING, InstanceState.GONE, InstanceState.FAILED}),
    InstanceState.STOPPING: frozenset({InstanceState.GONE, InstanceState.FAILED}),
    InstanceState.GONE: frozenset(),
    InstanceState.FAILED: frozenset(),
}
"""None is an instance not heard of yet; FAILED at once is one whose process never came to be. STARTING -> STARTING adds
what was not known at first, such as the process id. An engine started again is a new instance."""

INSTANCE_ENDED: frozenset[InstanceState] = frozenset({InstanceState.GONE, InstanceState.FAILED})
"""The states in which no process of the instance is left."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One barrier: no cell of a later stage starts before every cell of this one has ended."""

    stage: str
    """Short id, unique in the run, e.g. `phase-a`."""
    title: str


@dataclass(frozen=True, slots=True)
class CellPlan:
    """The smallest resumable unit of a run."""

    cell: str
    """Id, unique in the run and safe as a file name part after `/` became `_`, e.g. `phase-a/plain/r4`."""
    stage: str
    kind: str
    """What the experiment does with it, e.g. `preflight`, `load`, `reference`, `analysis`."""
    config: str | None
    """The engine configuration it needs, None where no engine runs."""
    label: str
    """What an operator reads, e.g. `4 req/s` or `512 x 64`."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Everything that shapes its numbers; JSON values only."""
    estimated_s: float = 0.0
    trial: int = 0


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run will do, fixed before it starts."""

    experiment: str
    profile: str
    preset: str
    """The grid's scale inside the profile, e.g. `full` or `demo`."""
    configs: tuple[str, ...]
    """In the order they run (randomised with `seed`)."""
    seed: int
    stages: tuple[StagePlan, ...]
    cells: tuple[CellPlan, ...]
    """In the order they run."""
    estimated_s: float
    inputs: Mapping[str, Any]
    """Everything that shapes numbers (profile, configs, grid, engine and probe versions); the fingerprint covers it."""
    fingerprint: str
    """SHA-256 over the canonical JSON of `inputs`, `seed`, stages and cells."""
