"""What a cell asks of a router and of a replay, live or simulated: the same for every policy but for the policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from launch.profile import Model
from results.records.layout import TrialLayout
from results.records.load_specs import ReplaySpec
from results.records.plan import CellPlan
from results.records.router_spec import InstanceSpec, Prewarm, RouterSpec, TransferRules
from runners.experiments.routing.grid import Grid


def make_router_spec(
    cell: CellPlan, grid: Grid, instances: Sequence[InstanceSpec], folder: Path, prewarm: Prewarm | None = None
) -> RouterSpec:
    """`folder`: of the attempt, which gets the decision log and, of a live router, the instance events."""
    return RouterSpec(
        instances=tuple(instances),
        policy=cell.params["policy"],
        parameters=cell.params["parameters"],
        decisions_path=str(TrialLayout(folder).decisions),
        events_path=str(TrialLayout(folder).instance_events) if grid.simulation is None else "",
        index=grid.router.index,
        prewarm=prewarm,
        transfer=msgspec.convert(cell.params["transfer"], TransferRules),
        reserved_output=cell.params.get("reserved_output", "max_tokens"),  # a plan of a version that always reserved it
    )


def make_replay_spec(
    cell: CellPlan, grid: Grid, model: Model, url: str, trace: Path, block_tokens: int, folder: Path
) -> ReplaySpec:
    """`url`: of the router. `block_tokens`: of its instances' KV caches."""
    return ReplaySpec(
        url=url,
        model=model.served_name,
        trace_path=str(trace),
        requests_path=str(TrialLayout(folder).metrics),
        seed=cell.params["replay_seed"],
        vocab_low=model.vocab_low,
        vocab_high=model.vocab_high,
        block_tokens=block_tokens,
        **(msgspec.structs.asdict(grid.replay) | {"time_scale": cell.params.get("time_scale", grid.replay.time_scale)}),
    )
