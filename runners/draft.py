"""From a wish to a draft: what every experiment makes of what the user asked for, before an engine is looked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.profile import ConnectorConfig, Profile
from runners.plan import Sum
from state.run import RunPlan

if TYPE_CHECKING:  # the campaign and what a cell needs are for the run process, not for a plan
    from runners.campaign import Experiment
    from runners.context import RunContext


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for, as given on the command line."""

    experiment: str
    profile: str
    preset: str = "full"
    configs: tuple[str, ...] = ()
    """Empty = those of the preset."""
    seed: int | None = None
    engine_python: Path | None = None
    trials: int | None = None
    """None = as the preset says."""
    port: int | None = None
    """First port of the engines; None = the profile's."""
    policies: tuple[str, ...] = ()
    """Routing policies, by name, label or file; empty = those of the preset."""
    settings: tuple[str, ...] = ()
    """`KEY=VALUE` over the preset's own."""
    trace: str = ""
    """A trace file; empty = as the preset says."""


@dataclass(frozen=True, slots=True)
class Draft:
    """An experiment's answer to a wish."""

    profile: Profile
    """As the experiment runs it: a preset may give its engines other settings."""
    seed: int
    configs: tuple[ConnectorConfig, ...]
    ports: int
    """How many ports in a row, from the profile's first one, its engines take at once."""
    inputs: Mapping[str, Any]
    """What shapes its numbers, besides profile and engine; JSON values only."""
    sums: tuple[Sum, ...]
    """The arithmetic of its time estimate."""
    plan: Callable[[Mapping[str, Any]], RunPlan]
    """The frozen plan over all inputs."""
    experiment: Callable[[RunContext], Experiment]
    """What runs its cells."""
    notes: tuple[str, ...] = ()
    """What sets single cells apart beyond their labels; shown with the plan."""
