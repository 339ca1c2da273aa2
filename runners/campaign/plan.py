"""The frozen plan: its fingerprint, what changed between two plans, and the arithmetic of its time estimate."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import msgspec

from results.records.plan import CellPlan, RunPlan, StagePlan
from state.model import RunView
from state.run import CELL_ENDED


@dataclass(frozen=True, slots=True)
class Sum:
    """One line of the time estimate's arithmetic."""

    stage: str
    text: str
    seconds: float


def freeze_plan(
    *,
    experiment: str,
    profile: str,
    preset: str,
    configs: Sequence[str],
    seed: int,
    stages: Sequence[StagePlan],
    cells: Sequence[CellPlan],
    inputs: Mapping[str, Any],
) -> RunPlan:
    """A plan with its estimate summed and its fingerprint taken; a stage without a cell is left out."""
    used = {cell.stage for cell in cells}
    stages = tuple(stage for stage in stages if stage.stage in used)
    return RunPlan(
        experiment=experiment,
        profile=profile,
        preset=preset,
        configs=tuple(configs),
        seed=seed,
        stages=stages,
        cells=tuple(cells),
        estimated_s=round(sum(cell.estimated_s for cell in cells), 1),
        inputs=inputs,
        fingerprint=compute_fingerprint(inputs, seed, stages, cells),
    )


def compute_fingerprint(
    inputs: Mapping[str, Any], seed: int, stages: Sequence[StagePlan], cells: Sequence[CellPlan]
) -> str:
    """SHA-256 over the canonical JSON of everything that shapes numbers; estimates and labels do not."""
    shaping = {
        "inputs": inputs,
        "seed": seed,
        "stages": [stage.stage for stage in stages],
        "cells": [[cell.cell, cell.stage, cell.kind, cell.config, cell.params, cell.trial] for cell in cells],
    }
    return hashlib.sha256(msgspec.json.encode(shaping, order="sorted")).hexdigest()


def diff_inputs(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """One line for every dotted key whose values differ, e.g. `engine.vllm: 0.32.0 -> 0.33.0`.

    The rows of a list that has as many as before have their number in the key: `grid.policies.0.time_scale`.
    """
    for key in sorted({*old, *new}):
        name = f"{prefix}{key}"
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from diff_inputs(before, after, f"{name}.")
        elif _is_table(before) and _is_table(after) and len(before) == len(after):
            yield from diff_inputs(dict(_number_rows(before)), dict(_number_rows(after)), f"{name}.")
        elif _convert_to_json(before) != _convert_to_json(after):  # a stored plan has lists where a new one has tuples
            yield f"{name}: {_shorten_value(before)} -> {_shorten_value(after)}"


def _is_table(value: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    return isinstance(value, list | tuple) and all(isinstance(row, Mapping) for row in value)


def _number_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((str(number), row) for number, row in enumerate(rows))


def find_changes_for_rest(view: RunView, new: RunPlan) -> str:
    """`find_changes` since the run was planned; empty where no cell is left that they could affect."""
    is_left = any(cell.state not in CELL_ENDED for cell in view.cells.values())
    return find_changes(view.plan, new) if is_left else ""


def find_changes(old: RunPlan, new: RunPlan) -> str:
    """The changes from `old` to `new` that affect the numbers; empty where there are none.

    The fingerprint of `old` is computed again: names in it may have changed since it was stored. An old plan may have
    more cells: an older version measured more, without an effect on the other cells.
    """
    planned = {cell.cell for cell in new.cells}
    names = {cell.stage for cell in new.cells}
    cells = [cell for cell in old.cells if cell.cell in planned]
    stages = [stage for stage in old.stages if stage.stage in names]
    inputs = _drop_estimates(old.inputs)
    if compute_fingerprint(inputs, old.seed, stages, cells) == new.fingerprint:
        return ""
    return "; ".join(diff_inputs(inputs, new.inputs)) or "stages or cells are laid out differently"


def _drop_estimates(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inputs without the profile's `cold_start_s`: older versions stored it, and it shapes estimates alone."""
    profile = inputs.get("profile")
    launch = profile.get("launch") if isinstance(profile, Mapping) else None
    if not isinstance(profile, Mapping) or not isinstance(launch, Mapping):
        return inputs
    launch = {name: value for name, value in launch.items() if name != "cold_start_s"}
    return {**inputs, "profile": {**profile, "launch": launch}}


def _convert_to_json(value: object) -> object:
    return msgspec.json.decode(msgspec.json.encode(value))


def _shorten_value(value: object) -> str:
    if value is None:
        return "(absent)"
    text = msgspec.json.encode(value).decode() if not isinstance(value, str) else value
    return text if len(text) <= 80 else text[:77] + "..."


def format_duration(seconds: float) -> str:
    """`45 s`, `9 min 30 s` or `4 h 52 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
