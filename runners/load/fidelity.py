"""Did the client keep its own schedule? A cell where it did not says more about the client than about the engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from results.records.load_specs import LoadOptions


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How faithfully the client offered what was scheduled for the measured window. None = no arrival fell into it."""

    lateness_p50_s: float | None
    """Lateness = moment an arrival was handled (sent, or dropped at the cap) - its scheduled time."""
    lateness_p90_s: float | None
    lateness_p99_s: float | None
    lateness_max_s: float | None
    requested_rate_per_s: float | None
    """Arrivals scheduled inside the window per second."""
    achieved_rate_per_s: float | None
    """Arrivals handled inside the window per second. Drops at the cap count: they are the engine's doing."""
    achieved_ratio: float | None
    client_cpu_share: float | None
    """CPU seconds of the load process per second of the window."""
    degraded: bool
    reason: str
    """Which limits were passed; empty when none was."""


@dataclass(frozen=True, slots=True)
class WindowCounts:
    """What the client did inside the measured window."""

    scheduled: int
    handled: int
    window_s: float
    cpu_s: float | None


def judge_fidelity(lateness_ns: NDArray[np.int64], counts: WindowCounts, limits: LoadOptions) -> Fidelity:
    """The verdict over the lateness of every arrival scheduled inside the window."""
    if not len(lateness_ns) or counts.scheduled == 0 or counts.window_s <= 0:
        reason = "no arrival fell into the measured window"
        return Fidelity(None, None, None, None, None, None, None, None, degraded=True, reason=reason)
    p50, p90, p99 = (float(value) / 1e9 for value in np.quantile(lateness_ns, (0.5, 0.9, 0.99), method="higher"))
    ratio = counts.handled / counts.scheduled
    share = None if counts.cpu_s is None else counts.cpu_s / counts.window_s
    reasons = []
    if p99 > limits.lateness_p99_s:
        reasons.append(f"lateness p99 {p99 * 1e3:.3g} ms is above {limits.lateness_p99_s * 1e3:.3g} ms")
    if ratio < limits.achieved_ratio:
        reasons.append(f"{ratio:.3f} of the scheduled arrivals were handled in time, below {limits.achieved_ratio:.3f}")
    if share is not None and share > limits.client_cpu_share:
        reasons.append(f"the client used {share:.2f} of a core, above {limits.client_cpu_share:.2f}")
    return Fidelity(
        lateness_p50_s=p50,
        lateness_p90_s=p90,
        lateness_p99_s=p99,
        lateness_max_s=float(lateness_ns.max()) / 1e9,
        requested_rate_per_s=counts.scheduled / counts.window_s,
        achieved_rate_per_s=counts.handled / counts.window_s,
        achieved_ratio=ratio,
        client_cpu_share=share,
        degraded=bool(reasons),
        reason="; ".join(reasons),
    )
