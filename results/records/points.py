"""One simulated point of a search for the fewest instances: a policy, a size of the fleet, a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PointRecord:
    """A file of `results/points/`: written whole, so that it is its own commit mark."""

    label: str
    """What tables call the policy."""
    instances: int
    """Size of the fleet."""
    prefill_instances: int
    """That only prefill, the others only decode; 0 = every instance does both."""
    trial: int
    """From 0: its trace and its step noise."""
    trace_sha256: str
    """Checksum of the trace's file."""
    turns: int
    """Turns of the trace."""
    completed: int
    """Turns that were completed."""
    values: Mapping[str, float | None]
    """`ttft_p90` and so on, in seconds, over all turns of the trace: one that did not complete counts as never served.
    None = the percentile is such a turn."""
    simulated: str
    """The engine model: nothing was measured."""
    simulation_s: float
    """What it took of the host's time."""
