"""A row of `MANIFEST.tsv`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """One config of a run; an empty text is not known."""

    date: str
    """Date of the config's folder."""
    config: str
    status: str
    """`ran` (a cell was finished), `SKIP` (its pre-flight failed, or an operator skipped all its cells), or `not
    run`."""
    skip_reason: str
    """Reason of its pre-flight or of the operator, or why no cell was finished."""
    vllm_version: str
    """As the engine's environment states it, as the next five."""
    vllm_sha: str
    """Commit of vLLM."""
    torch_version: str
    """As installed."""
    mooncake_version: str
    """As installed."""
    nixl_version: str
    """As installed."""
    lmcache_version: str
    """As installed."""
    gpu: str
    """As the driver names it."""
    launch_command: str
    """Command of the last launch, quoted for a shell."""
    result_directory: str
    """Below the run's folder."""
    step_timing_available: bool | None
    """Whether every finished cell has step timing; None where no cell was finished."""
    step_timing_reason: str
    """Why it is not available."""
    cells_done: int
    """Cells with a complete record."""
    cells_failed: int
    """Planned, tried, and never finished."""
    cells_dropped: int | None
    """Planned and never tried; None where the plan cannot be read."""
