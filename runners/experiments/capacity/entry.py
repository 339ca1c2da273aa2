"""`capacity` for the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runners.campaign.experiment import Experiment
from runners.experiments.capacity.plan import EXPERIMENT, CapacityGrid, draft_plan

if TYPE_CHECKING:
    from runners.campaign.context import RunContext
    from runners.experiments.capacity.experiment import Capacity


def _make_cell_runner(grid: CapacityGrid, context: RunContext) -> Capacity:
    from runners.experiments.capacity.experiment import Capacity  # it loads the analysis; a plan needs none

    return Capacity(grid, context)


ENTRY = Experiment(
    name=EXPERIMENT,
    draft_plan=draft_plan,
    cell_runner=_make_cell_runner,
    option_help={
        "policies": "size only for these (repeatable)",
        "settings": "e.g. `search.slo=ttft_p90=2s,tpot_p90=50ms` or `search.max_instances=16`",
        "trials": "simulate N traces at each point",
        "engine": "by default the preset's",
        "on": "the points of the search",
        "instances": "to begin the search with",
        "trace": "whole, at its own pace",
    },
)
