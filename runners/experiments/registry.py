"""The experiments there are, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launch.profile import Profile
from runners.draft import Draft, Wish
from runners.errors import RunnerError
from runners.experiments import (
    connector_tax_grid,
    connector_tax_plan,
    pd_lifecycle_grid,
    pd_lifecycle_plan,
    routing_grid,
    routing_plan,
)

DRAFTS: Mapping[str, Callable[[Wish, Profile], Draft]] = {
    connector_tax_grid.EXPERIMENT: connector_tax_plan.draft,
    routing_grid.EXPERIMENT: routing_plan.draft,
    pd_lifecycle_grid.EXPERIMENT: pd_lifecycle_plan.draft,
}


def draft_of(wish: Wish, profile: Profile) -> Draft:
    """The experiment's answer to the wish. Raises RunnerError or LaunchError naming what is wrong with it."""
    if wish.experiment not in DRAFTS:
        raise RunnerError(f"unknown experiment {wish.experiment!r}", remedy=f"choose one of: {', '.join(DRAFTS)}")
    return DRAFTS[wish.experiment](wish, profile)
