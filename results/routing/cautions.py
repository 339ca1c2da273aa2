"""What a reader must know before any number of a `routing` run: too few trials, and cells that stalled."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from results.routing.analyze import RoutingAnalysis
from results.routing.summary import RoutedSummary
from results.statistics.judgement import explain_few_launches
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


def find_stalls(cells: Sequence[RoutedSummary]) -> tuple[Stall, ...]:
    """Cells more than STALLED times as slow as their policy's other trials, in the order given; no degraded cells."""
    known = [
        (cell, value)
        for cell in cells
        if not cell.degraded and (value := cell.estimate("ttft_p90_s").value) is not None
    ]
    stalls = []
    for cell, value in known:
        others = tuple(time for other, time in known if other.label == cell.label and other is not cell)
        if others and value > STALLED * statistics.median(others):
            stalls.append(Stall(cell.label, cell.trial, cell.cell, value, others))
    return tuple(stalls)


def explain_no_verdict(trials: int) -> str:
    """Why a run with this many trials per policy calls no policy better than another; empty where it may."""
    if not 0 < trials < MIN_PAIRED:
        return ""
    return f"{explain_few_launches(trials, 'policy').capitalize()}. No policy is called better than another."


def describe_spread(analysis: RoutingAnalysis) -> str:
    """What varies from trial to trial, and so what an interval over trials holds."""
    if analysis.facts.simulated and analysis.trials_differ:
        return "what varies between traces: each trial replays a trace and step times of its own"
    if analysis.facts.simulated:
        return "what a model of the noise of single steps varies, not between traces: every trial replays one trace"
    return "what varies between launches and over the run, not between traces: every trial replays the same sessions"


def list_cautions(analysis: RoutingAnalysis) -> list[tuple[str, str]]:
    """Rows of the table: what, and why."""
    cautions = []
    if analysis.facts.simulated:
        why = f"no engine ran. The engine model: {analysis.facts.simulated}; docs/simulator.md says what it leaves out"
        cautions.append(("simulated", why))
    if explain_no_verdict(analysis.trials):
        why = (
            f"{analysis.trials} per policy: brackets hold what varies between sessions, not between launches. No "
            "verdict, no p-value, and every claim that needs an interval stays undecided"
        )
        cautions.append(("trials", why))
    counted = {label: len(analysis.counted(label)) for label in analysis.labels}
    if max(counted.values(), default=0) >= MIN_PAIRED:
        alone = "it is compared with no other policy"
        for label, count in counted.items():
            why = analysis.selected.get(label, "")
            if count < MIN_PAIRED:
                few = f"fewer than {MIN_PAIRED} trials that count: {alone}"
                cautions.append((label, f"{few}; {why}" if why else few))
            elif why:
                cautions.append((label, f"{alone}: {why}"))
    for stall in find_stalls(analysis.cells):
        others = ", ".join(f"{1e3 * time:.0f}" for time in stall.others_s)
        why = (
            f"stalled: TTFT p90 {1e3 * stall.ttft_p90_s:.0f} ms, {stall.times:.1f} times the median of the policy's "
            f"other trials ({others} ms). It is in every mean and interval of {stall.label}: look at cell "
            f"{stall.cell} before the policy is judged by them"
        )
        cautions.append((f"{stall.label}, trial {stall.trial}", why))
    return cautions
