"""How one event changes a run, a stage, a cell, an instance or a request, and which changes are forbidden.

The store writes its rows and the view folds the journal through these functions, so the two cannot disagree. All of
them are pure. `illegal_*` is checked before an event is written; what is in the journal has happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from results.records import events
from results.records.events import AttemptState, CellState, InstanceState, RunState, StageState
from state.model import AttemptView, CellView, InstanceRow, RequestView, RunRow, StageRow
from state.run import (
    CELL_ENDED,
    CELL_TRANSITIONS,
    INSTANCE_ENDED,
    INSTANCE_TRANSITIONS,
    RUN_TRANSITIONS,
    STAGE_TRANSITIONS,
)

_Stage = TypeVar("_Stage", bound=StageRow)
_Instance = TypeVar("_Instance", bound=InstanceRow)


def compute_active_s(run: RunRow, now_unix_s: float) -> float:
    """Seconds the run has been running at `now_unix_s`: without pauses and the time that no process ran it."""
    if run.running_since_unix_s is None:
        return run.active_s
    return run.active_s + max(0.0, now_unix_s - run.running_since_unix_s)


def change_run(run: RunRow, event: events.RunChanged, t_unix_s: float, previous_t_unix_s: float, seq: int) -> RunRow:
    """The run after the event; `previous_t_unix_s` is the time of the journal's event before it.

    RUNNING -> RUNNING follows a crash: the run counts as active until the previous event.
    """
    after_death = run.state is RunState.RUNNING and event.state is RunState.RUNNING
    runs = event.state is RunState.RUNNING
    open_ended = event.state in (RunState.RUNNING, RunState.PAUSED)
    started = t_unix_s if runs and run.started_unix_s is None else run.started_unix_s
    return replace(
        run,
        state=event.state,
        reason=event.reason,
        pid=event.pid if event.pid is not None else run.pid,
        started_unix_s=started,
        ended_unix_s=None if open_ended else t_unix_s,
        active_s=compute_active_s(run, previous_t_unix_s if after_death else t_unix_s),
        running_since_unix_s=t_unix_s if runs else None,
        changed_seq=seq,
    )


def change_run_owner(run: RunRow, event: events.RunTaken) -> RunRow:
    """The run after a takeover: its active time stops at the last heartbeat, until it is RUNNING again."""
    until_unix_s = event.last_heartbeat_unix_s
    return replace(run, pid=event.pid, active_s=compute_active_s(run, until_unix_s), running_since_unix_s=None)


def change_stage(stage: _Stage, event: events.StageChanged, t_unix_s: float) -> _Stage:
    runs = event.state is StageState.RUNNING
    return replace(
        stage,
        state=event.state,
        reason=event.reason,
        started_unix_s=t_unix_s if runs and stage.started_unix_s is None else stage.started_unix_s,
        ended_unix_s=None if runs else t_unix_s,
    )


def change_cell(cell: CellView, event: events.CellChanged, t_unix_s: float, now_active_s: float) -> CellView:
    """The cell after the event; `now_active_s` is the run's active time at the event."""
    ended = event.state in CELL_ENDED
    done = event.state is CellState.DONE
    if event.state is CellState.RUNNING:
        attempts = (*cell.attempts, AttemptView(event.attempt, AttemptState.RUNNING, t_unix_s, now_active_s))
    else:
        attempts = _finish_attempt(cell, event, t_unix_s, now_active_s)
    return replace(
        cell,
        state=event.state,
        attempt=max(cell.attempt, event.attempt),
        reason=event.reason,
        summary=event.summary if done else {},
        degraded=event.degraded if done else "",
        fraction=1.0 if ended else 0.0,
        note="",
        started_unix_s=_start_time(cell, event, t_unix_s),
        ended_unix_s=t_unix_s if ended else None,
        attempts=attempts,
    )


def _start_time(cell: CellView, event: events.CellChanged, t_unix_s: float) -> float | None:
    if event.state is CellState.RUNNING:
        return t_unix_s
    if event.state is CellState.PENDING:
        return None
    if event.state is CellState.DONE and cell.attempts:
        return cell.attempts[-1].started_unix_s
    return cell.started_unix_s


_OUTCOMES: Mapping[CellState, AttemptState] = {
    CellState.DONE: AttemptState.DONE,
    CellState.FAILED: AttemptState.FAILED,
    CellState.SKIPPED: AttemptState.SKIPPED,
    CellState.PENDING: AttemptState.INTERRUPTED,
}


def _finish_attempt(
    cell: CellView, event: events.CellChanged, t_unix_s: float, now_active_s: float
) -> tuple[AttemptView, ...]:
    """The attempts with the last one ended; an interrupted one becomes DONE where its measurement was complete."""
    if not cell.attempts:
        return ()
    *before, last = cell.attempts
    outcome = _OUTCOMES[event.state]
    if cell.state is CellState.RUNNING:
        spent = max(0.0, now_active_s - last.started_active_s)
        return (*before, replace(last, state=outcome, ended_unix_s=t_unix_s, spent_s=spent, reason=event.reason))
    if outcome is AttemptState.DONE:
        return (*before, replace(last, state=outcome, reason=event.reason))
    return cell.attempts


def note_cell_progress(cell: CellView, event: events.CellProgressed) -> CellView:
    """The cell with its progress, which counts only while it runs."""
    if cell.state is not CellState.RUNNING:
        return cell
    return replace(cell, fraction=min(1.0, max(0.0, event.fraction)), note=event.note)


def change_instance(instance: _Instance, event: events.InstanceChanged, t_unix_s: float) -> _Instance:
    """The instance after the event: what the event leaves out stays as it was."""
    ready = event.state is InstanceState.READY
    ended = event.state in INSTANCE_ENDED
    return replace(
        instance,
        config=event.config or instance.config,
        state=event.state,
        pid=event.pid if event.pid is not None else instance.pid,
        pgid=event.pgid if event.pgid is not None else instance.pgid,
        process_start=event.process_start if event.process_start is not None else instance.process_start,
        boot_id=event.boot_id or instance.boot_id,
        url=event.url or instance.url,
        started_by=event.started_by or instance.started_by,
        reason=event.reason,
        ready_unix_s=t_unix_s if ready else instance.ready_unix_s,
        ended_unix_s=t_unix_s if ended else None,
    )


def make_submitted_request(event: events.RequestSubmitted, t_unix_s: float, seq: int) -> RequestView:
    return RequestView(event.request, event.action, event.target, event.reason, event.by, t_unix_s, seq)


def note_answered_request(request: RequestView, event: events.RequestAnswered, t_unix_s: float) -> RequestView:
    return replace(request, answered_unix_s=t_unix_s, accepted=event.accepted, detail=event.detail)


def explain_illegal_run(run: RunRow, event: events.RunChanged) -> str:
    """Why the run may not make this change; empty when it may."""
    return "" if event.state in RUN_TRANSITIONS[run.state] else f"run: {run.state} -> {event.state}"


def explain_illegal_stage(stage: StageRow, event: events.StageChanged) -> str:
    """Why the stage may not make this change; empty when it may."""
    legal = event.state in STAGE_TRANSITIONS[stage.state]
    return "" if legal else f"stage {stage.stage}: {stage.state} -> {event.state}"


def explain_illegal_cell(cell: CellView, event: events.CellChanged) -> str:
    """Why the cell may not make this change; empty when it may. Each attempt needs a number above the ones before."""
    if event.state not in CELL_TRANSITIONS[cell.state]:
        return f"cell {cell.cell}: {cell.state} -> {event.state}"
    if event.state is CellState.RUNNING and event.attempt <= cell.attempt:
        return f"cell {cell.cell}: attempt {event.attempt} after attempt {cell.attempt}"
    return ""


def explain_illegal_instance(instance: InstanceRow | None, event: events.InstanceChanged) -> str:
    """Why the instance may not make this change; empty when it may."""
    before = None if instance is None else instance.state
    if event.state in INSTANCE_TRANSITIONS[before]:
        return ""
    return f"instance {event.instance}: {before or 'unknown'} -> {event.state}"
