"""The frozen plan of a run: a row of `state.sqlite`, and `plan.json` beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from results.records.declaration import rename_fields

RENAMED_RULES = {"leg_priority": "priority"}
"""Rules of a KV transfer, `[router.transfer]` of a grid: old name to new."""
_RENAMED_PROOFS = {"prefill_leg": "prefill_request"}
_RENAMED_PARAMS: Mapping[str, Mapping[str, str]] = {
    "pd-lifecycle": {"place": "position"},
    "routing": {"place": "position"},
}
"""Parameters of each experiment's cells: old name to new. Those of a cell's policy, such as `place`, are deeper."""
_UNSTATED: Mapping[str, Mapping[str, Any]] = {
    "connector-tax": {"drain_s": 30.0, "slo": {"ttft_s": None, "tpot_s": None}},
    "pd-lifecycle": {"trials": 1},
}
"""Keys of each experiment's grid that older versions did not let a preset state, with the values that held."""
_UNSTATED_OF_LOAD = {"drain_s": 30.0}
"""The same for the parameters of a cell of kind `load`."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One barrier: no cell of a later stage starts before every cell of this one has ended."""

    stage: str
    """Short id, unique in the run, e.g. `phase-a`."""
    title: str
    """As an operator reads it."""


@dataclass(frozen=True, slots=True)
class CellPlan:
    """The smallest resumable unit of a run."""

    cell: str
    """Id, unique in the run and safe as a file name part after `/` became `_`, e.g. `phase-a/plain/r4`."""
    stage: str
    """Id of its stage."""
    kind: str
    """What the experiment does with it, e.g. `preflight`, `load`, `reference`, `analysis`."""
    config: str | None
    """The engine configuration it needs, None where no engine runs."""
    label: str
    """What an operator reads, e.g. `4 req/s` or `512 x 64`."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Everything that shapes its numbers; JSON values only."""
    estimated_s: float = 0.0
    """Duration."""
    trial: int = 0


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run will do, fixed before it starts."""

    experiment: str
    """Its registered name, e.g. `routing`."""
    profile: str
    """Model, hardware and scale, e.g. `cpu-tiny`."""
    preset: str
    """The grid's scale inside the profile, e.g. `full` or `demo`."""
    configs: tuple[str, ...]
    """In the order they run (randomized with `seed`)."""
    seed: int
    """Seed of every schedule, prompt and order."""
    stages: tuple[StagePlan, ...]
    """In the order they run."""
    cells: tuple[CellPlan, ...]
    """In the order they run."""
    estimated_s: float
    """Duration: the sum of the cells'."""
    inputs: Mapping[str, Any]
    """Everything that shapes numbers (profile, configs, grid, engine and probe versions); the fingerprint covers it."""
    fingerprint: str
    """SHA-256 over the canonical JSON of `inputs`, `seed`, stages and cells."""


def upgrade_plan(plan: RunPlan) -> RunPlan:
    """A plan of an older version with the present names, and with what it left unstated; its fingerprint stays."""
    inputs = _rename_all(plan.inputs)
    if "grid" in inputs:
        inputs["grid"] = {**_UNSTATED.get(plan.experiment, {}), **inputs["grid"]}
    return replace(plan, inputs=inputs, cells=tuple(_upgrade_cell(cell, plan.experiment) for cell in plan.cells))


def _upgrade_cell(cell: CellPlan, experiment: str) -> CellPlan:
    params = rename_fields(_rename_all(cell.params), _RENAMED_PARAMS.get(experiment, {}))
    return replace(cell, params={**(_UNSTATED_OF_LOAD if cell.kind == "load" else {}), **params})


def _rename_all(value: Any) -> Any:  # noqa: ANN401  # a JSON value
    if isinstance(value, Mapping):
        return {RENAMED_RULES.get(name, name): _rename_all(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rename_all(each) for each in value]
    if not isinstance(value, str):
        return value
    for old, new in RENAMED_RULES.items():
        value = value.replace(f"transfer.{old}=", f"transfer.{new}=")  # of `--set`
    return _RENAMED_PROOFS.get(value, value)


@dataclass(frozen=True, slots=True)
class AcceptedChanges:
    """A resume with --accept-changes: a row of the run's `accepted_changes.jsonl`."""

    t_unix_s: float
    """When the run process started."""
    changes: str
    """`key: before -> after`, joined by semicolons."""
