"""Legal state transitions of a run, its stages, cells and instances, and the states that end them."""

from __future__ import annotations

from collections.abc import Mapping

from results.records.events import CellState, InstanceState, RunState, StageState

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
"""RUNNING -> RUNNING is the takeover of a run whose process died before it could record its end."""

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
checksummed when its attempt failed, or its run process died, before that was recorded. No cell leaves DONE: a
measurement is final."""

CELL_ENDED: frozenset[CellState] = frozenset({CellState.DONE, CellState.FAILED, CellState.SKIPPED})
"""The states in which a cell needs no more work."""

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
"""None -> STARTING records a new instance, None -> FAILED one whose process could not be created. STARTING -> STARTING
adds what was not known at first, such as the process id. An engine started again is a new instance."""

INSTANCE_ENDED: frozenset[InstanceState] = frozenset({InstanceState.GONE, InstanceState.FAILED})
"""The states in which no process of the instance is left."""
