"""What is simulated, and how it ended: the wire between a simulation's process and its parent.

The router and the replay have the specs of live ones. The times of a simulation are its clock's.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from results.records.load_specs import ReplaySpec
from results.records.router_spec import RouterSpec
from results.records.samples import PromptCounters
from results.records.turns import EngineSample
from runners.child_process import ChildLine
from runners.errors import RunnerError
from runners.load.replay_messages import ReplayOutcome, ReplayTick
from runners.router.messages import RouterOutcome, RouterTick
from runners.simulator.engine import EngineModel
from runners.simulator.engine_file import Link

SPEC_VERSION = 1


class SimulationError(RunnerError):
    """Nothing was simulated."""


class SimulationSpec(msgspec.Struct, frozen=True):
    """One replay before one router, whose instances are a model."""

    router: RouterSpec
    """Its instances' URLs are names; `decisions_path` and the replay's `requests_path` are written as live. A
    fleet of hundreds takes hundreds of kB per decision: an empty `decisions_path` = no log."""
    replay: ReplaySpec
    models: Mapping[str, EngineModel]
    """By instance."""
    link: Link | None
    """Between any two instances; None = no KV can be moved."""
    samples_path: str
    """Where an EngineSample per instance and simulated second goes (JSONL)."""
    step_noise: float = 0.0
    """Standard deviation of the logarithm of a step's time; its draws depend on the replay's seed."""
    residuals: tuple[tuple[float, ...], ...] = ()
    """Steps take longer by the factors of one of these cells, in their order (`draw_residuals`); empty = by draws of
    `step_noise`."""
    contention: float = 0.0
    """A step takes this share longer for each other engine that computes when it begins: they share cores."""
    router_latency_s: float = 0.0
    """From a pick until the engine has the request, and the same for the requests that move KV. The view counts it from
    the pick on, as a live router's does. Requests do not queue in the router."""
    prewarm_tokens: int = 0
    """Every engine computes as many tokens of the trace's common prefix before the replay (specs/load_floor.md, Q2.E);
    0 = none. A live router's `prewarm` names tokens, which simulated prompts do not have."""


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
