"""A run as JSON values: what `tracon status --json` prints, from the view that everything else shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from state.events import STEP_BUCKETS_US
from state.lifecycle import lifecycle_json
from state.migrations import migrations_json
from state.model import AttemptView, CellView, InstanceView, RunView, StageView
from state.routing import routing_json
from state.run import CellState
from state.view import elapsed_s, eta_s, progress


def to_json(view: RunView, now_unix_s: float) -> dict[str, Any]:
    """The run as JSON values: what `tracon status --json` prints. Null = not measured."""
    how_far = progress(view)
    return {
        "run": view.run,
        "experiment": view.plan.experiment,
        "profile": view.plan.profile,
        "preset": view.plan.preset,
        "configs": list(view.plan.configs),
        "seed": view.plan.seed,
        "fingerprint": view.plan.fingerprint,
        "tracon_version": view.tracon_version,
        "state": str(view.state),
        "reason": view.reason,
        "pause": view.pause,
        "pid": view.row.pid,
        "created_unix_s": view.created_unix_s,
        "started_unix_s": view.started_unix_s,
        "ended_unix_s": view.ended_unix_s,
        "elapsed_s": elapsed_s(view, now_unix_s),
        "eta_s": eta_s(view, now_unix_s),
        "estimated_s": view.plan.estimated_s,
        "progress": how_far._asdict(),
        "cell_counts": _count_json(view.counts),
        "current_cells": [cell.cell for cell in view.current_cells],
        "stages": [_stage_json(stage) for stage in view.stages],
        "cells": [_cell_json(cell) for cell in view.cells.values()],
        "instances": [_instance_json(instance) for instance in view.instances.values()],
        "routing": None if view.routing is None else routing_json(view.routing),
        "migrations": None if view.migrations is None else migrations_json(view.migrations),
        "lifecycle": None if view.lifecycle is None else lifecycle_json(view.lifecycle),
        "requests": [asdict(request) for request in view.requests.values()],
        "last_seq": view.last_seq,
        "last_t_unix_s": view.last_t_unix_s,
    }


def _count_json(counts: Mapping[CellState, int]) -> dict[str, int]:
    return {str(state): count for state, count in counts.items()}


def _stage_json(stage: StageView) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "title": stage.title,
        "state": str(stage.state),
        "reason": stage.reason,
        "started_unix_s": stage.started_unix_s,
        "ended_unix_s": stage.ended_unix_s,
        "cell_counts": _count_json(stage.counts),
        "cells": list(stage.cells),
    }


def _cell_json(cell: CellView) -> dict[str, Any]:
    plan = cell.plan
    return {
        "cell": cell.cell,
        "stage": plan.stage,
        "kind": plan.kind,
        "config": plan.config,
        "label": plan.label,
        "trial": plan.trial,
        "params": dict(plan.params),
        "state": str(cell.state),
        "attempt": cell.attempt,
        "reason": cell.reason,
        "degraded": cell.degraded,
        "fraction": cell.fraction,
        "note": cell.note,
        "estimated_s": plan.estimated_s,
        "observed_s": cell.observed_s,
        "started_unix_s": cell.started_unix_s,
        "ended_unix_s": cell.ended_unix_s,
        "summary": dict(cell.summary),
        "attempts": [_attempt_json(attempt) for attempt in cell.attempts],
    }


def _attempt_json(attempt: AttemptView) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "state": str(attempt.state),
        "reason": attempt.reason,
        "started_unix_s": attempt.started_unix_s,
        "ended_unix_s": attempt.ended_unix_s,
        "spent_s": attempt.spent_s,
    }


def _instance_json(instance: InstanceView) -> dict[str, Any]:
    return {
        "instance": instance.instance,
        "config": instance.config,
        "state": str(instance.state),
        "reason": instance.reason,
        "pid": instance.pid,
        "pgid": instance.pgid,
        "url": instance.url,
        "started_by": instance.started_by,
        "started_unix_s": instance.started_unix_s,
        "ready_unix_s": instance.ready_unix_s,
        "ended_unix_s": instance.ended_unix_s,
        "latest": _latest_json(instance),
        "step_histogram": _histogram_json(instance.step_counts_total),
    }


def _latest_json(instance: InstanceView) -> dict[str, Any] | None:
    if instance.latest is None:
        return None
    numbers = asdict(instance.latest)
    del numbers["instance"], numbers["step_counts"]
    return {"t_unix_s": instance.latest_unix_s, **numbers}


def _histogram_json(counts: tuple[int, ...]) -> dict[str, Any] | None:
    """Steps per bucket since the instance started; the last count is of steps above the last edge."""
    return {"upper_edges_us": list(STEP_BUCKETS_US), "counts": list(counts)} if counts else None
