"""Cells with just the numbers that a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results.connector_tax.summary import CellSummary, Shape
from results.records.estimate import Estimate

SHAPE = Shape(512, 32)


def make_cell(
    config: str,
    rate_per_s: float = 4.0,
    *,
    phase: str = "A",
    trial: int = 0,
    shape: Shape = SHAPE,
    degraded: str = "",
    t_start_unix_s: float = 0.0,
    settings: Mapping[str, Any] | None = None,
    step_timing: Mapping[str, Any] | None = None,
    **values: float | None,
) -> CellSummary:
    """A cell of one minute. `values`: by name; None = unknown."""
    name = f"{phase}/{config}/{rate_per_s:g}/{shape}/t{trial}"
    return CellSummary(
        cell=name, config=config, phase=phase, trial=trial, rate_per_s=rate_per_s, shape=shape, arrival="constant",
        seed=1, window_s=60.0, t_start_unix_s=t_start_unix_s, t_end_unix_s=t_start_unix_s + 60, attempt=1,
        stop_reason="complete", counts={"completed": 200},
        values={key: Estimate(value, reason=None if value is not None else "lost") for key, value in values.items()},
        degraded=degraded, fidelity={}, step_timing=step_timing or {}, path=name, settings=settings or {},
    )  # fmt: skip
