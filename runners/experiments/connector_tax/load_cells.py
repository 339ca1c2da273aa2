"""A load cell of the plan: what is sent, how long that takes, and what makes its prompts its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.profile import Capacity
from results.records.plan import CellPlan
from runners.experiments.connector_tax.grid import Grid
from runners.experiments.connector_tax.sustainable import expected_cell_s

REF_SAFE = "ref_safe"
REF_LOAD = "ref_load"
PHASE_A, PHASE_B, PHASE_B_PRIME, PHASE_CONFIRM = "A", "B", "Bp", "C"
STAGE_OF = {PHASE_A: "phase-a", PHASE_B: "phase-b", PHASE_B_PRIME: "phase-b", PHASE_CONFIRM: "confirm"}
FOLDER_OF = {**STAGE_OF, PHASE_B_PRIME: "phase-b-prime"}
"""First part of a cell's id."""
PLACES_PER_BLOCK = 1_000
"""Cells of one phase and trial get numbers from a block of this size: no two cells of a run share a prompt."""


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """What one cell sends."""

    phase: str
    stem: str
    label: str
    shape: tuple[int, int]
    """(input tokens, output tokens)."""
    rate: float | str
    """req/s, or the name of a reference rate."""
    expected_rate_per_s: float
    """For the time estimate."""

    @property
    def params(self) -> Mapping[str, Any]:
        input_tokens, output_tokens = self.shape
        rate = {"rate": self.rate} if isinstance(self.rate, str) else {"rate_per_s": self.rate}
        return {"input_tokens": input_tokens, "output_tokens": output_tokens, **rate}

    def estimate_s(self, grid: Grid, capacity: Capacity) -> float:
        """Seconds of the cell, without its engine's start."""
        return expected_cell_s(grid, capacity, self.expected_rate_per_s, self.shape)


def make_cell(
    grid: Grid,
    seed: int,
    config: str,
    load: PlannedLoad,
    *,
    trial: int,
    cell_index: int,
    engine_s: float,
    capacity: Capacity,
) -> CellPlan:
    """The cell of one config. `engine_s`: start and release of the engine, where this is its first cell.

    Arrivals and prompts depend on seed and cell index, never on the config: all configs see the same ones.
    """
    params: dict[str, Any] = {
        "phase": load.phase,
        "stem": load.stem if trial == 0 else f"{load.stem}_t{trial}",
        "load_seed": seed,
        "cell_index": cell_index,
        "arrival": grid.arrival,
        "warmup_s": grid.warmup_s,
        "min_duration_s": grid.min_duration_s,
        "min_completed": grid.min_completed,
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
        estimated_s=load.estimate_s(grid, capacity) + engine_s,
        trial=trial,
    )
