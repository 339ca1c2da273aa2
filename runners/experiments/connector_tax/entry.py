"""`connector-tax` for the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runners.campaign.experiment import Experiment
from runners.experiments.connector_tax.grid import EXPERIMENT, Grid
from runners.experiments.connector_tax.plan import draft_plan

if TYPE_CHECKING:
    from runners.campaign.context import RunContext
    from runners.experiments.connector_tax.experiment import ConnectorTax


def _cell_runner(grid: Grid, context: RunContext) -> ConnectorTax:
    from runners.experiments.connector_tax.experiment import ConnectorTax  # it loads the analysis; a plan needs none

    return ConnectorTax(grid, context)


ENTRY = Experiment(
    name=EXPERIMENT,
    draft_plan=draft_plan,
    cell_runner=_cell_runner,
    option_help={"configs": "only these (repeatable), `plain` among them", "settings": "e.g. `min_completed=100`"},
)
