"""What the analysis of a lifecycle run is told: frozen into the run's plan as `inputs.grid.analysis`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Choices of an analysis; a report states those that change its numbers."""

    subtract_half_step: bool = False
    """Take half of the decode instance's median step off `d_promotion`: on average a signal waits so long for the step
    under way (specs/pd_lifecycle, "Risks & Mitigations"). An idle engine polls instead, so it is off unless asked."""
    link_gbps: float | None = None
    """What the link can carry, 10^9 bits per second: 200 for the specification's RDMA; None = not known."""
    knee_share: float = 0.9
    """The knee is the smallest size with this share of the asymptotic bandwidth."""
    min_new_tokens: int = 4000
    """The specification's "N >= 4k" of success criterion 2."""


DEFAULT = Settings()
