"""What a reader sees of a run: one frozen view, folded from the journal by one pure reducer.

The console, `tracon status` and a replay use it; reports are computed from files. Histories are bounded: an instance
keeps its last `HISTORY_SAMPLES` seconds, the feed its last `FEED_LINES` lines; everything older is in the journal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from results.records import events
from results.records.events import AttemptState, CellState, RunState
from state import changes
from state.events import LIVE_KINDS, Recorded
from state.feed_lines import FeedLine, make_alarm_lines, make_feed_line
from state.lifecycle import fold_request_into_lifecycle
from state.migrations import count_refusals_of_line, find_failed_migrations, fold_step_into_migrations
from state.model import AttemptView, CellView, InstanceView, RunRow, RunView, StageView, count_cells
from state.routing import find_begun_and_ended, fold_migration_into_routing, fold_sample_into_routing
from state.run import CELL_ENDED

HISTORY_SAMPLES = 900
"""Seconds of live numbers held per instance: 15 minutes."""
FEED_LINES = 200
"""Lines of the feed in the view."""


def fold(view: RunView, recorded: Recorded) -> RunView:
    """The view after one more event. An event of an unknown kind moves `last_seq` and the feed only."""
    changed = _change_view(view, recorded)
    lines = _make_lines(view, changed, recorded)
    if lines:
        changed |= {"feed": (*view.feed, *lines)[-FEED_LINES:], "feed_total": view.feed_total + len(lines)}
    return replace(view, last_seq=recorded.seq, last_t_unix_s=recorded.t_unix_s, **changed)


def list_new_feed_lines(before: RunView, after: RunView) -> tuple[FeedLine, ...]:
    """The lines of the feed that came between two views of one run, as far as they are held."""
    new = after.feed_total - before.feed_total
    return after.feed[-new:] if new else ()


def _make_lines(view: RunView, changed: Mapping[str, Any], recorded: Recorded) -> tuple[FeedLine, ...]:
    """An event's lines of the feed: one; none for what comes once a second and for what would flood it."""
    event = recorded.event
    if isinstance(event, events.RouterSampled) and "routing" in changed:
        return make_alarm_lines(*find_begun_and_ended(view.routing, changed["routing"]), recorded.t_unix_s)
    if isinstance(event, LIVE_KINDS) or (isinstance(event, events.LifecycleMeasured) and not event.discarded):
        return ()
    line = make_feed_line(recorded)
    if isinstance(event, events.MigrationChanged) and event.phase == "refused" and event.cell in view.cells:
        stands_for = count_refusals_of_line(view.migrations, event, view.cells[event.cell].attempt)
        if stands_for is None:
            return ()
        line = line if stands_for == 1 else replace(line, text=f"{line.text} (and {stands_for - 1} more since)")
    return (line,)


def _change_view(view: RunView, recorded: Recorded) -> dict[str, Any]:
    match recorded.event:
        case (
            events.InstanceSampled() | events.RouterSampled() | events.GpusSampled() | events.CellProgressed()
        ) as event:
            return _change_live(view, event, recorded.t_unix_s)
        case events.CellChanged() as event:
            return _change_cell(view, event, recorded.t_unix_s)
        case events.InstanceChanged() as event:
            return _change_instance(view, event, recorded.t_unix_s)
        case events.StageChanged() as event:
            return _change_stage(view, event, recorded.t_unix_s)
        case events.RunChanged() | events.RunTaken() | events.PaceChosen() as event:
            return _change_run(view, event, recorded)
        case events.RequestSubmitted() | events.RequestAnswered() as event:
            return _change_request(view, event, recorded)
        case events.RunPlanned() as event:
            return _begin_view(event, recorded)
        case events.MigrationChanged() | events.LifecycleMeasured() as event:
            return _change_measured(view, event, recorded.t_unix_s)
    return {}


def _change_run(
    view: RunView, event: events.RunChanged | events.RunTaken | events.PaceChosen, recorded: Recorded
) -> dict[str, Any]:
    match event:
        case events.RunChanged():
            return {"row": changes.change_run(view.row, event, recorded.t_unix_s, view.last_t_unix_s, recorded.seq)}
        case events.RunTaken():
            return {"row": changes.change_run_owner(view.row, event)}
    return {"pace": event.pace}


def _change_measured(
    view: RunView, event: events.MigrationChanged | events.LifecycleMeasured, t_unix_s: float
) -> dict[str, Any]:
    cell = view.cells.get(event.cell)
    if cell is None:
        return {}
    if isinstance(event, events.LifecycleMeasured):
        return {"lifecycle": fold_request_into_lifecycle(view.lifecycle, event, t_unix_s, cell.attempt)}
    return {
        "migrations": fold_step_into_migrations(view.migrations, event, cell.attempt),
        "routing": fold_migration_into_routing(view.routing, event, cell.attempt),
    }


def _begin_view(event: events.RunPlanned, recorded: Recorded) -> dict[str, Any]:
    cells = {cell.cell: CellView(cell.cell, cell) for cell in event.plan.cells}
    stages = []
    for stage in event.plan.stages:
        own = tuple(cell.cell for cell in event.plan.cells if cell.stage == stage.stage)
        counts = count_cells(cells[cell] for cell in own)
        stages.append(StageView(stage.stage, title=stage.title, cells=own, counts=counts))
    row = RunRow(created_unix_s=recorded.t_unix_s, changed_seq=recorded.seq)
    known = {"run": event.run, "plan": event.plan, "tracon_version": event.tracon_version}
    return {**known, "row": row, "stages": tuple(stages), "cells": cells}


def _change_request(
    view: RunView, event: events.RequestSubmitted | events.RequestAnswered, recorded: Recorded
) -> dict[str, Any]:
    if isinstance(event, events.RequestSubmitted):
        request = changes.make_submitted_request(event, recorded.t_unix_s, recorded.seq)
    elif event.request in view.requests:
        request = changes.note_answered_request(view.requests[event.request], event, recorded.t_unix_s)
    else:
        return {}
    return {"requests": {**view.requests, event.request: request}}


def _change_live(
    view: RunView,
    event: events.InstanceSampled | events.RouterSampled | events.GpusSampled | events.CellProgressed,
    t_unix_s: float,
) -> dict[str, Any]:
    if isinstance(event, events.GpusSampled):
        return {"gpus": event.samples, "gpus_unix_s": t_unix_s}
    if isinstance(event, events.InstanceSampled):
        return _add_sample(view, event, t_unix_s)
    before = view.cells.get(event.cell)
    if before is None:
        return {}
    if isinstance(event, events.RouterSampled):
        failed = find_failed_migrations(view.migrations, event.cell)
        return {"routing": fold_sample_into_routing(view.routing, event, t_unix_s, before.attempt, failed)}
    after = changes.note_cell_progress(before, event)
    return {} if after is before else {"cells": {**view.cells, event.cell: after}}


def _add_sample(view: RunView, event: events.InstanceSampled, t_unix_s: float) -> dict[str, Any]:
    before = view.instances.get(event.instance)
    if before is None:
        return {}
    after = replace(
        before,
        latest=event,
        latest_unix_s=t_unix_s,
        history=(*before.history[1 - HISTORY_SAMPLES :], (t_unix_s, event)),
        step_counts_total=_add_counts(before.step_counts_total, event.step_counts),
    )
    return {"instances": {**view.instances, event.instance: after}}


def _add_counts(total: tuple[int, ...], counts: tuple[int, ...]) -> tuple[int, ...]:
    if len(total) != len(counts):
        return total or counts
    return tuple(map(int.__add__, total, counts))


def _change_cell(view: RunView, event: events.CellChanged, t_unix_s: float) -> dict[str, Any]:
    before = view.cells.get(event.cell)
    if before is None:
        return {}
    after = changes.change_cell(before, event, t_unix_s, changes.compute_active_s(view.row, t_unix_s))
    cells = {**view.cells, event.cell: after}
    stages = (_recount_cells(stage, cells) if stage.stage == before.plan.stage else stage for stage in view.stages)
    return {"cells": cells, "stages": tuple(stages)}


def _recount_cells(stage: StageView, cells: Mapping[str, CellView]) -> StageView:
    return replace(stage, counts=count_cells(cells[cell] for cell in stage.cells))


def _change_stage(view: RunView, event: events.StageChanged, t_unix_s: float) -> dict[str, Any]:
    stages = tuple(
        changes.change_stage(stage, event, t_unix_s) if stage.stage == event.stage else stage for stage in view.stages
    )
    return {"stages": stages}


def _change_instance(view: RunView, event: events.InstanceChanged, t_unix_s: float) -> dict[str, Any]:
    new = InstanceView(event.instance, event.config, event.state, started_unix_s=t_unix_s)
    before = view.instances.get(event.instance, new)
    after = replace(
        changes.change_instance(before, event, t_unix_s),
        start_ticks=before.start_ticks if event.start_ticks is None else event.start_ticks,
        host=event.host or before.host,
        pid_namespace=event.pid_namespace or before.pid_namespace,
        devices=event.devices or before.devices,
    )
    return {"instances": {**view.instances, event.instance: after}}


class Progress(NamedTuple):
    """How far a run is."""

    ended: int
    """Cells that ask for no more work: done, failed or skipped."""
    total: int
    fraction: float
    """0..1 of the plan's estimated time (of its cells where nothing was estimated), running cells' share included."""


def progress(view: RunView) -> Progress:
    """How far the run is."""
    cells = view.cells.values()
    ended = sum(cell.state in CELL_ENDED for cell in cells)
    return Progress(ended, len(cells), progress_fraction([(cell.plan.estimated_s, cell.fraction) for cell in cells]))


def progress_fraction(cells: list[tuple[float, float]]) -> float:
    """0..1 from each cell's (estimated seconds, fraction of it behind us)."""
    total_s = sum(estimated for estimated, _ in cells)
    if total_s <= 0:
        return sum(fraction for _, fraction in cells) / len(cells) if cells else 0.0
    return sum(estimated * fraction for estimated, fraction in cells) / total_s


def compute_elapsed_s(view: RunView, now_unix_s: float) -> float:
    """Seconds the run has been running; without pauses and the time that no process ran it."""
    return changes.compute_active_s(view.row, now_unix_s)


def estimate_eta_s(view: RunView, now_unix_s: float) -> float | None:
    """Seconds of running still to come: 0 for a run that is done, None for one that failed.

    The estimate of each cell left, times observed/estimated over the cells of its kind that are done (1 before the
    first: how long a check takes says nothing about a load), plus for each that waits what went by between cells so
    far. An attempt in which others ended counts too, by the fraction that was done: the time was theirs as well. So
    does the cell that runs where the run has a pace, of which no estimate is; cells of a kind that has none done are
    scaled as all others were then.
    """
    if view.state in (RunState.DONE, RunState.FAILED):
        return 0.0 if view.state is RunState.DONE else None
    left = [cell for cell in view.cells.values() if cell.state not in CELL_ENDED]
    now_active_s = compute_elapsed_s(view, now_unix_s)
    scales = _compute_scales(view, now_active_s)
    unknown = scales[None] if view.pace else 1.0
    work_s = sum(_estimate_left_s(cell, scales.get(cell.plan.kind, unknown), now_active_s) for cell in left)
    waiting = sum(cell.state is CellState.PENDING for cell in left)
    return work_s + _estimate_between_s(view, now_active_s) * waiting


def _compute_scales(view: RunView, now_active_s: float) -> dict[str | None, float]:
    """observed/estimated seconds of the cells so far by kind; under None over all of them."""
    observed: dict[str | None, list[float]] = {None: [0.0, 0.0]}
    begins_unix_s = sorted(attempt.started_unix_s for cell in view.cells.values() for attempt in cell.attempts)
    for cell in view.cells.values():
        took_s, share = _observe_cell(cell, begins_unix_s, now_active_s, has_pace=view.pace > 0)
        if (took_s or share) and cell.plan.estimated_s > 0:
            for kind in (None, cell.plan.kind):
                sums = observed.setdefault(kind, [0.0, 0.0])
                sums[0] += took_s
                sums[1] += cell.plan.estimated_s * share
    return {kind: took / estimated if estimated > 0 else 1.0 for kind, (took, estimated) in observed.items()}


def _observe_cell(
    cell: CellView, begins_unix_s: Sequence[float], now_active_s: float, *, has_pace: bool
) -> tuple[float, float]:
    """Seconds to hold against estimates, and the share of its own estimate that was done in them.

    `begins_unix_s`: of all attempts of the run, in order.
    """
    took_s, share = 0.0, 0.0
    for attempt in cell.attempts:
        others_began = _have_others_begun(attempt, begins_unix_s)
        if attempt.spent_s is not None:
            is_done = attempt.state is AttemptState.DONE
            took_s += attempt.spent_s if is_done or others_began else 0.0
            share += is_done
        elif others_began or (has_pace and cell.fraction):
            # by the share that is done: extrapolated to its whole, a cell's first second would outweigh all others
            took_s += max(0.0, now_active_s - attempt.started_active_s)
            share += cell.fraction
    return took_s, share


def _have_others_begun(attempt: AttemptView, begins_unix_s: Sequence[float]) -> bool:
    """Whether another attempt began after this one and before its end."""
    following = bisect_right(begins_unix_s, attempt.started_unix_s)
    return following < len(begins_unix_s) and (
        attempt.ended_unix_s is None or begins_unix_s[following] < attempt.ended_unix_s
    )


def _estimate_left_s(cell: CellView, scale: float, now_active_s: float) -> float:
    expected_s = cell.plan.estimated_s * scale
    if cell.state is not CellState.RUNNING:
        return expected_s
    if cell.fraction > 0:
        return expected_s * (1 - cell.fraction)
    return max(0.0, expected_s - (now_active_s - cell.attempts[-1].started_active_s))


def _estimate_between_s(view: RunView, now_active_s: float) -> float:
    """Seconds per ended attempt in which no cell was being measured (engines starting and stopping)."""
    attempts = [attempt for cell in view.cells.values() for attempt in cell.attempts]
    ended = [attempt for attempt in attempts if attempt.spent_s is not None]
    if not ended:
        return 0.0
    running_s = sum(now_active_s - attempt.started_active_s for attempt in attempts if attempt.spent_s is None)
    measured_s = sum(attempt.spent_s or 0.0 for attempt in ended) + running_s
    return max(0.0, now_active_s - measured_s) / len(attempts)
