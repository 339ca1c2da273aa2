"""What a run, its stages, cells, attempts, instances and requests are at one moment: frozen values, no behavior.

The store keeps the `...Row` part and the cells as current rows; the view adds what only a reader of the whole journal
knows (live numbers, feed). Times are seconds since the epoch (`_unix_s`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from results.records.events import (
    AttemptState,
    CellState,
    InstanceFacts,
    InstanceSampled,
    OperatorRequest,
    RunState,
    StageState,
)
from results.records.gpu import GpuSample
from results.records.plan import CellPlan, RunPlan
from state.feed_lines import FeedLine
from state.lifecycle import LifecycleView
from state.migrations import MigrationsView
from state.routing import RoutingView
from state.run import INSTANCE_ENDED


@dataclass(frozen=True, slots=True)
class RunRow:
    """How the run as a whole stands."""

    state: RunState = RunState.PLANNED
    reason: str = ""
    pid: int | None = None
    """The process that last changed the run's state."""
    created_unix_s: float = 0.0
    started_unix_s: float | None = None
    """When it first ran."""
    ended_unix_s: float | None = None
    """When it last stopped running; None while it runs or is paused."""
    active_s: float = 0.0
    """Seconds it ran up to `running_since_unix_s`: pauses, and the time between a death and the takeover, left out."""
    running_since_unix_s: float | None = None
    changed_seq: int = 0
    """The event that brought it into this state."""


@dataclass(frozen=True, slots=True)
class StageRow:
    stage: str
    state: StageState = StageState.PENDING
    reason: str = ""
    started_unix_s: float | None = None
    ended_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One try at a cell."""

    attempt: int
    state: AttemptState
    started_unix_s: float
    started_active_s: float
    """The run's active seconds when it began."""
    ended_unix_s: float | None = None
    spent_s: float | None = None
    """Active seconds from its start to its end; None while it runs."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CellView:
    """One cell: its plan and what became of it."""

    cell: str
    plan: CellPlan
    state: CellState = CellState.PENDING
    attempt: int = 0
    reason: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)
    degraded: str = ""
    fraction: float = 0.0
    """0..1 of the running attempt's expected work; 1 once ended."""
    note: str = ""
    started_unix_s: float | None = None
    """Start of the last attempt; None where there was none, or while it waits for the next."""
    ended_unix_s: float | None = None
    attempts: tuple[AttemptView, ...] = ()

    @property
    def observed_s(self) -> float | None:
        """Active seconds of the attempt that measured it, None where there is none."""
        last = self.attempts[-1] if self.attempts else None
        return last.spent_s if last is not None and last.state is AttemptState.DONE else None


@dataclass(frozen=True, slots=True)
class InstanceRow(InstanceFacts):
    """One launched engine process group, and since when."""

    started_unix_s: float = 0.0
    ready_unix_s: float | None = None
    ended_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class RequestView(OperatorRequest):
    """An operator's request, and the answer."""

    submitted_unix_s: float = 0.0
    submitted_seq: int = 0
    answered_unix_s: float | None = None
    accepted: bool | None = None
    """None while it is open."""
    detail: str = ""

    @property
    def open(self) -> bool:
        return self.accepted is None


@dataclass(frozen=True, slots=True)
class StageView(StageRow):
    title: str = ""
    cells: tuple[str, ...] = ()
    """Its cells' ids in the order they run."""
    counts: Mapping[CellState, int] = field(default_factory=dict)
    """How many of its cells are in each state; a state without cells counts 0."""


@dataclass(frozen=True, slots=True)
class InstanceView(InstanceRow):
    """An instance with what distinguishes its process from others, and its live numbers."""

    start_ticks: int | None = None
    """As in `InstanceChanged`, like the next three."""
    host: str = ""
    pid_namespace: str = ""
    devices: tuple[str, ...] = ()
    latest: InstanceSampled | None = None
    latest_unix_s: float | None = None
    history: tuple[tuple[float, InstanceSampled], ...] = ()
    """(unix seconds, numbers), oldest first, at most `HISTORY_SAMPLES`."""
    step_counts_total: tuple[int, ...] = ()
    """Engine steps since it started per bucket of STEP_BUCKETS_US, one more for the rest; empty = no step timing."""


_NO_PLAN = RunPlan("", "", "", (), 0, (), (), 0.0, {}, "")


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything a viewer shows of a run after the event `last_seq`."""

    run: str = ""
    plan: RunPlan = _NO_PLAN
    tracon_version: str = ""
    row: RunRow = RunRow()
    stages: tuple[StageView, ...] = ()
    cells: Mapping[str, CellView] = field(default_factory=dict)
    """By id, in the plan's order."""
    instances: Mapping[str, InstanceView] = field(default_factory=dict)
    """By id, in the order they were started; ended ones stay."""
    requests: Mapping[int, RequestView] = field(default_factory=dict)
    pace: float = 0.0
    """Simulated seconds per second; 0 = as fast as the host can."""
    routing: RoutingView | None = None
    """The router of the cell that was routed last; None where no cell has a router."""
    migrations: MigrationsView | None = None
    """Migrations of all routed cells; None where no session has migrated or was refused."""
    lifecycle: LifecycleView | None = None
    """None where no lifecycle request was measured."""
    gpus: tuple[GpuSample, ...] = ()
    """The last sample of each GPU that engines of the run use; empty where none was sampled."""
    gpus_unix_s: float | None = None
    feed: tuple[FeedLine, ...] = ()
    feed_total: int = 0
    """Lines of the feed so far, with those that it no longer keeps."""
    last_seq: int = 0
    last_t_unix_s: float = 0.0

    @property
    def state(self) -> RunState:
        return self.row.state

    @property
    def reason(self) -> str:
        return self.row.reason

    def find_stage_state(self, stage: StageView) -> str:
        """As viewers show it. No event interrupts a stage: it goes on with the run, so the run's state decides."""
        is_cut = self.state is RunState.INTERRUPTED and stage.state is StageState.RUNNING
        return RunState.INTERRUPTED if is_cut else stage.state

    @property
    def open_requests(self) -> tuple[RequestView, ...]:
        return tuple(request for request in self.requests.values() if request.open)

    @property
    def current_cells(self) -> tuple[CellView, ...]:
        return tuple(cell for cell in self.cells.values() if cell.state is CellState.RUNNING)

    @property
    def live_instances(self) -> tuple[InstanceView, ...]:
        """The instances whose processes may still run."""
        return tuple(instance for instance in self.instances.values() if instance.state not in INSTANCE_ENDED)

    @property
    def counts(self) -> Mapping[CellState, int]:
        """How many cells of the run are in each state; a state without cells counts 0."""
        return count_cells(self.cells.values())

    @property
    def pause(self) -> Literal["", "pausing", "paused"]:
        """`pausing` from the operator's request until the run has come to rest."""
        if self.state is RunState.PAUSED:
            return "paused"
        asked = [r for r in self.requests.values() if r.action in ("pause", "resume") and r.accepted is not False]
        last = asked[-1] if asked else None
        current = last is not None and last.action == "pause" and last.submitted_seq > self.row.changed_seq
        return "pausing" if current and self.state is RunState.RUNNING else ""


def count_cells(cells: Iterable[CellView]) -> dict[CellState, int]:
    """How many cells are in each state; a state without cells counts 0."""
    counts = dict.fromkeys(CellState, 0)
    for cell in cells:
        counts[cell.state] += 1
    return counts


EMPTY = RunView()
"""The view before the first event."""
