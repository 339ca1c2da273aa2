"""The numbers of one measured cell, as every table, verdict and report reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from results.records.estimate import Estimate, unknown
from results.records.frames import Gap


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """What each request asks for. Shapes are in the order of reports: by input, then by output length."""

    input_tokens: int
    """Prompt length."""
    output_tokens: int
    """Output length."""

    def __str__(self) -> str:
        return f"{self.input_tokens}x{self.output_tokens}"


@dataclass(frozen=True, slots=True)
class ConfigAtRate:
    """What one cell measures: a config at a rate."""

    cell: str
    config: str
    phase: str
    """`A`, `B`, `Bp` (B') or `confirm`."""
    trial: int
    rate_per_s: float
    """As requested."""


@dataclass(frozen=True, slots=True)
class CellSummary(ConfigAtRate):
    """One measured cell. `docs/analysis.md` defines every value."""

    shape: Shape
    """What each request asks for."""
    arrival: str
    """The arrival process, e.g. `poisson`."""
    seed: int | None
    """Seed of schedule and prompts; None = not recorded."""
    window_s: float
    """Length of the measured window."""
    t_start_unix_s: float
    """Intended time of the first arrival, by the wall clock."""
    attempt: int
    stop_reason: str
    """`complete`, or `hard_stop` where the longest duration came first."""
    counts: Mapping[str, int | None]
    """Requests due in the window: completed, failed, dropped, cut; warmup (due before it); steps, empty_steps."""
    values: Mapping[str, Estimate]
    """By name with its unit, e.g. `ttft_p90_s`, `throughput_ratio`, `engine_step_p50_us`."""
    degraded: str
    """Why it takes no part in comparisons (`explain_degraded`); empty where it does."""
    fidelity: Mapping[str, Any]
    """How the client kept its schedule, as in the cell's record."""
    step_timing: Mapping[str, Any]
    """available, reason, unavailable_fields, records_lost, worker_join_ratio."""
    path: str
    """The cell record's file, below the run's folder."""
    gaps: tuple[Gap, ...] = field(default_factory=tuple)
    """What of the cell's artifacts is missing or damaged."""
    t_end_unix_s: float | None = None
    """When the measured window ended."""
    instance: str = ""
    """The launch it was measured on; empty = not recorded."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What vLLM settled on for the engine; empty = not recorded."""
    gpu: Mapping[str, Any] = field(default_factory=dict)
    """As in the cell's record; empty = not recorded."""

    def estimate(self, name: str) -> Estimate:
        """The value called `name`; one that no cell of this kind has is unknown, not an error."""
        return self.values.get(name, unknown("not measured in this cell"))

    def value(self, name: str) -> float | None:
        """The plain value, None where it was not measured."""
        return self.estimate(name).value


def is_at_rate(rate_per_s: float, reference_per_s: float | None) -> bool:
    """Whether a rate equals the reference rate up to rounding; False where there is no reference rate."""
    return reference_per_s is not None and math.isclose(rate_per_s, reference_per_s, rel_tol=1e-6)
