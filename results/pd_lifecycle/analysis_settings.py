"""Settings of the analysis of a lifecycle run: `inputs.grid.analysis` in the run's plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """The report states every setting that changes its numbers."""

    subtract_half_step: bool = False
    """Subtract half of the decode instance's median step from `d_promotion`: the mean wait of a signal for a step
    (specs/pd_lifecycle, "Risks & Mitigations"). Worthwhile where the decode instance serves other requests too; an idle
    one polls instead, so it is off by default. The report says which it was (results.pd_lifecycle.half_step)."""
    link_gbps: float | None = None
    """Bandwidth of the link, 10^9 bits per second: 200 for the specification's RDMA; None = unknown."""
    knee_share: float = 0.9
    """The knee is the smallest size with this share of the asymptotic bandwidth."""
    min_new_tokens: int = 4000
    """The specification's "N >= 4k" of success criterion 2."""


DEFAULT = Settings()
