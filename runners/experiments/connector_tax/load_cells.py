"""A load cell of the plan: what is sent, how long that takes, and the number that makes its prompts unique."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.profile import Capacity
from results.records.phase_names import CONFIRM_TAG
from results.records.plan import CellPlan
from runners.experiments.connector_tax.grid import Grid, Shape
from runners.experiments.connector_tax.sustainable import expected_cell_s

OWN_RATE = "own_rate"
PHASE_A, PHASE_B, PHASE_B_PRIME, PHASE_CONFIRM = "A", "B", "Bp", CONFIRM_TAG
STAGE_OF = {PHASE_A: "phase-a", PHASE_B: "phase-b", PHASE_B_PRIME: "phase-b", PHASE_CONFIRM: "confirm"}
FOLDER_OF = {**STAGE_OF, PHASE_B_PRIME: "phase-b-prime"}
"""First part of a cell's id."""
CELLS_PER_BLOCK = 1_000
"""Cells of one phase and trial get numbers from a block of this size: no two cells of a run share a prompt."""


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """The load of one cell."""

    phase: str
    stem: str
    label: str
    shape: Shape
    rate: float | str
    """req/s, or the name of a reference rate."""
    expected_rate_per_s: float
    """For the time estimate."""
    min_completed: int

    @property
    def params(self) -> Mapping[str, Any]:
        input_tokens, output_tokens = self.shape
        rate = {"rate": self.rate} if isinstance(self.rate, str) else {"rate_per_s": self.rate}
        return {"input_tokens": input_tokens, "output_tokens": output_tokens, **rate}


def plan_shape(grid: Grid, phase: str, shape: Shape, reference: str) -> PlannedLoad:
    """A shape at a reference rate or, where Phase B states one, at its own; stem and label name the rate where several
    loads of the phase have this shape."""
    name, stem = "{} x {}".format(*shape), "{}x{}".format(*shape)
    own = grid.phase_b.find_own_rate(shape)
    suffix = f"-{reference if own is None else OWN_RATE}" if phase == PHASE_CONFIRM else ""
    if own is not None:
        label = f"{name} at {own.rate_per_s:g} req/s"
        enough = own.min_completed or grid.min_completed
        return PlannedLoad(phase, stem + suffix, label, shape, own.rate_per_s, own.rate_per_s, enough)
    label = name if phase == PHASE_B else f"{name} at {reference}"
    expected = grid.expect_rate(reference)
    return PlannedLoad(phase, stem + suffix, label, shape, reference, expected, grid.min_completed)


@dataclass(frozen=True, slots=True)
class LoadPlanner:
    """Makes the load cells of a run, and estimates their time."""

    grid: Grid
    seed: int
    release_wait_s: float
    capacity: Capacity

    @property
    def engine_s(self) -> float:
        """Seconds of an engine's start and release."""
        return self.grid.engine_start_s + self.release_wait_s

    def estimate_s(self, load: PlannedLoad) -> float:
        """Seconds of a cell with this load, without its engine's start."""
        return expected_cell_s(self.grid, self.capacity, load.expected_rate_per_s, load.shape, load.min_completed)

    def make_cell(self, config: str, load: PlannedLoad, *, trial: int, cell_index: int, is_first: bool) -> CellPlan:
        """The cell of one config. `is_first`: of its engine, whose start and release are in its time.

        Arrivals and prompts depend on seed and cell index, never on the config: all configs see the same ones.
        """
        grid = self.grid
        params: dict[str, Any] = {
            "phase": load.phase,
            "stem": load.stem if trial == 0 else f"{load.stem}_t{trial}",
            "load_seed": self.seed,
            "cell_index": cell_index,
            "arrival": grid.arrival,
            "warmup_s": grid.warmup_s,
            "min_duration_s": grid.min_duration_s,
            "min_completed": load.min_completed,
            "hard_stop_factor": grid.hard_stop_factor,
            "inflight_cap": grid.inflight_cap,
            "drain_s": grid.drain_s,
            "lateness_p99_s": grid.fidelity.lateness_p99_s,
            "achieved_ratio": grid.fidelity.achieved_ratio,
        }
        suffix = "" if trial == 0 else f"/t{trial}"
        return CellPlan(
            cell=f"{FOLDER_OF[load.phase]}/{config}/{load.stem}{suffix}",
            stage=STAGE_OF[load.phase],
            kind="load",
            config=config,
            label=load.label,
            params={**params, **load.params},
            estimated_s=self.estimate_s(load) + (self.engine_s if is_first else 0.0),
            trial=trial,
        )
