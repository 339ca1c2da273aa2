"""The wire between a simulation's process and its parent: the task, what it reports meanwhile, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from results.records.samples import PromptCounters
from results.records.simulation_spec import SIMULATION_SPEC_VERSION, SimulationSpec, upgrade_simulation_spec_from_1
from results.records.turns import EngineSample
from runners.child_process import ChildLine, read_spec
from runners.errors import RunnerError
from runners.load.replay_messages import ReplayOutcome, ReplayTick
from runners.router.messages import RouterOutcome, RouterTick


class SimulationError(RunnerError):
    """Nothing was simulated."""


class SimulationTask(msgspec.Struct, frozen=True):
    """One line of the standard input of a simulation's process."""

    spec: str
    """The file of a SimulationSpec."""
    pace: float = 0.0
    """As `simulate` has it."""


class SimulationTick(msgspec.Struct, frozen=True):
    """How a simulation stands, about once per second of the host's time, and at its end."""

    replay: ReplayTick
    router: RouterTick
    engines: tuple[EngineSample, ...]


class SimulationOutcome(msgspec.Struct, frozen=True):
    """How a simulation ended."""

    replay: ReplayOutcome
    router: RouterOutcome
    counters: Mapping[str, PromptCounters]
    """By instance, since the start."""


class SimulationLine(ChildLine[SimulationTick], frozen=True, omit_defaults=True):
    """One line of the simulation's standard output: exactly one field is set."""

    outcome: SimulationOutcome | None = None


def read_simulation_spec(path: Path) -> SimulationSpec:
    """The spec in a JSON file. Raises SimulationError naming the file and the field that is wrong."""
    upgrades = {1: upgrade_simulation_spec_from_1}
    return read_spec(path, SimulationSpec, "simulation spec", SimulationError, SIMULATION_SPEC_VERSION, upgrades)
