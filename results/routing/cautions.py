"""What must be known before any number of a `routing` run is read: too few trials, and cells that stalled."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.routing.summary import RoutedSummary
from results.statistics.judgement import few_launches
from results.statistics.trials import MIN_PAIRED

STALLED = 5.0
"""A cell stands out where its TTFT p90 is more than this many times the median of its policy's other trials."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A cell whose TTFT stands out among the trials of its own policy."""

    label: str
    trial: int
    cell: str
    ttft_p90_s: float
    others_s: tuple[float, ...]
    """TTFT p90 of the policy's other trials, in their order."""

    @property
    def times(self) -> float:
        """How many times the median of the others."""
        return self.ttft_p90_s / statistics.median(self.others_s)


def stalls(cells: Sequence[RoutedSummary]) -> tuple[Stall, ...]:
    """Cells more than STALLED times as slow as their policy's other trials, in the order given; degraded ones apart."""
    known = [
        (cell, value)
        for cell in cells
        if not cell.degraded and (value := cell.estimate("ttft_p90_s").value) is not None
    ]
    found = []
    for cell, value in known:
        others = tuple(time for other, time in known if other.label == cell.label and other is not cell)
        if others and value > STALLED * statistics.median(others):
            found.append(Stall(cell.label, cell.trial, cell.cell, value, others))
    return tuple(found)


def few_trials(trials: int) -> str:
    """Why a run with this many trials per policy calls no policy better than another; empty where it may."""
    if not 0 < trials < MIN_PAIRED:
        return ""
    return f"{few_launches(trials, 'policy').capitalize()}. No policy is called better than another."


def short_labels(trials: Mapping[str, int]) -> tuple[str, ...]:
    """Labels with fewer trials than a verdict needs, in a run where another has enough."""
    if max(trials.values(), default=0) < MIN_PAIRED:
        return ()
    return tuple(label for label, count in trials.items() if count < MIN_PAIRED)
