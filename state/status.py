"""A run as JSON values: what `tracon status --json` prints, from the view that everything else shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from results.records.events import STEP_BUCKETS_US, CellState
from state.lifecycle import make_lifecycle_json
from state.migrations import make_migrations_json
from state.model import CellView, InstanceView, RunView, StageView
from state.routing import make_routing_json
from state.view import compute_elapsed_s, estimate_eta_s, progress


def to_json(view: RunView, now_unix_s: float) -> dict[str, Any]:
    """The run as JSON values. Null = not measured."""
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
        "created_unix_s": view.row.created_unix_s,
        "started_unix_s": view.row.started_unix_s,
        "ended_unix_s": view.row.ended_unix_s,
        "elapsed_s": compute_elapsed_s(view, now_unix_s),
        "eta_s": estimate_eta_s(view, now_unix_s),
        "estimated_s": view.plan.estimated_s,
        "progress": progress(view)._asdict(),
        "cell_counts": _count_json(view.counts),
        "current_cells": [cell.cell for cell in view.current_cells],
        "stages": [_make_stage_json(view, stage) for stage in view.stages],
        "cells": [_make_cell_json(cell) for cell in view.cells.values()],
        "instances": [_make_instance_json(instance) for instance in view.instances.values()],
        "routing": None if view.routing is None else make_routing_json(view.routing),
        "migrations": None if view.migrations is None else make_migrations_json(view.migrations),
        "lifecycle": None if view.lifecycle is None else make_lifecycle_json(view.lifecycle),
        "gpus": [asdict(sample) for sample in view.gpus],
        "requests": [asdict(request) for request in view.requests.values()],
        "last_seq": view.last_seq,
        "last_t_unix_s": view.last_t_unix_s,
    }


def _count_json(counts: Mapping[CellState, int]) -> dict[str, int]:
    return {str(state): count for state, count in counts.items()}


STAGE_FIELDS = ("stage", "title", "reason", "started_unix_s", "ended_unix_s")
PLAN_FIELDS = ("stage", "kind", "config", "label", "trial", "params", "estimated_s")
CELL_FIELDS = (
    "cell", "state", "attempt", "reason", "degraded", "fraction", "note", "observed_s", "started_unix_s",
    "ended_unix_s", "summary",
)  # fmt: skip
ATTEMPT_FIELDS = ("attempt", "state", "reason", "started_unix_s", "ended_unix_s", "spent_s")
INSTANCE_FIELDS = (
    "instance", "config", "state", "reason", "pid", "pgid", "url", "started_by", "started_unix_s", "ready_unix_s",
    "ended_unix_s",
)  # fmt: skip


def _pick_fields(source: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _make_stage_json(view: RunView, stage: StageView) -> dict[str, Any]:
    state, counts = view.find_stage_state(stage), _count_json(stage.counts)
    return {**_pick_fields(stage, STAGE_FIELDS), "state": state, "cell_counts": counts, "cells": list(stage.cells)}


def _make_cell_json(cell: CellView) -> dict[str, Any]:
    attempts = [_pick_fields(attempt, ATTEMPT_FIELDS) for attempt in cell.attempts]
    return {**_pick_fields(cell, CELL_FIELDS), **_pick_fields(cell.plan, PLAN_FIELDS), "attempts": attempts}


def _make_instance_json(instance: InstanceView) -> dict[str, Any]:
    return {
        **_pick_fields(instance, INSTANCE_FIELDS),
        "latest": _make_latest_json(instance),
        "step_histogram": _make_histogram_json(instance.step_counts_total),
    }


def _make_latest_json(instance: InstanceView) -> dict[str, Any] | None:
    if instance.latest is None:
        return None
    numbers = asdict(instance.latest)
    del numbers["instance"], numbers["step_counts"]
    return {"t_unix_s": instance.latest_unix_s, **numbers}


def _make_histogram_json(counts: tuple[int, ...]) -> dict[str, Any] | None:
    """Steps per bucket since the instance started; the last count is of steps above the last edge."""
    return {"upper_edges_us": list(STEP_BUCKETS_US), "counts": list(counts)} if counts else None
