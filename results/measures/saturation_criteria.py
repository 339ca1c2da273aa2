"""The three saturation criteria, applied to one cell (specs/connector_tax, "Saturation criteria")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from results.measures.summary import CellSummary

THROUGHPUT, QUEUE, GROWTH = 1, 2, 3
CRITERIA: Mapping[int, str] = {
    THROUGHPUT: "effective throughput / rate",
    QUEUE: "p50 of requests waiting",
    GROWTH: "growth of TTFT p90 over half the rate",
}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Beyond these a criterion fires (strictly)."""

    throughput_ratio: float = 0.95
    waiting_p50: float = 1.0
    ttft_p90_growth: float = 1.5


SPECIFIED = Thresholds()


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion at one cell. `fired` is None where it is unknown, and `reason` says why."""

    number: int
    name: str
    measured: float | None
    threshold: float
    fired: bool | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class CellSaturation:
    """Whether one cell was saturated, and by what."""

    cell: str
    config: str
    rate_per_s: float
    trial: int
    saturated: bool | None
    """True: a criterion fired. False: throughput and queue were both measured and nothing fired. None: otherwise."""
    criteria: tuple[Criterion, ...]
    reason: str | None = None
    """Why `saturated` is None."""

    @property
    def fired(self) -> tuple[int, ...]:
        """Numbers of the criteria that fired."""
        return tuple(criterion.number for criterion in self.criteria if criterion.fired)


def judge_alone(summary: CellSummary, thresholds: Thresholds = SPECIFIED) -> CellSaturation:
    """As `judge`, where half the rate was not measured."""
    return judge(summary, None, thresholds)


def judge(summary: CellSummary, half: CellSummary | None, thresholds: Thresholds = SPECIFIED) -> CellSaturation:
    """The three criteria at one cell; `half` is the same config's cell at half the rate, where it was measured.

    A degraded cell is no evidence about the engine: its client sent less than was asked, so every criterion is open.
    """
    criteria = (
        _judge_throughput(summary, thresholds.throughput_ratio),
        _judge_queue(summary, thresholds.waiting_p50),
        _judge_growth(summary, half, thresholds.ttft_p90_growth),
    )
    saturated, reason = _judge_criteria(summary, criteria)
    return CellSaturation(
        cell=summary.cell,
        config=summary.config,
        rate_per_s=summary.rate_per_s,
        trial=summary.trial,
        saturated=saturated,
        criteria=criteria,
        reason=reason,
    )


def _judge_criteria(summary: CellSummary, criteria: tuple[Criterion, ...]) -> tuple[bool | None, str | None]:
    if summary.degraded:
        return None, f"degraded, so not evidence about the engine: {summary.degraded}"
    if any(criterion.fired for criterion in criteria):
        return True, None
    blind = [criterion for criterion in criteria if criterion.fired is None and criterion.number != GROWTH]
    if blind:
        return None, "; ".join(f"{criterion.name}: {criterion.reason}" for criterion in blind)
    return False, None


def _judge_throughput(summary: CellSummary, threshold: float) -> Criterion:
    ratio = summary.estimate("throughput_ratio")
    fired = ratio.value < threshold if ratio.value is not None else None
    return _make_criterion(THROUGHPUT, summary, ratio.value, threshold, fired, ratio.reason)


def _judge_queue(summary: CellSummary, threshold: float) -> Criterion:
    waiting = summary.estimate("waiting_p50")
    fired = waiting.value > threshold if waiting.value is not None else None
    return _make_criterion(QUEUE, summary, waiting.value, threshold, fired, waiting.reason)


def _judge_growth(summary: CellSummary, half: CellSummary | None, threshold: float) -> Criterion:
    if half is None:
        why = f"half the rate ({summary.rate_per_s / 2:g} req/s) was not measured"
        return _make_criterion(GROWTH, summary, None, threshold, None, why)
    if half.degraded:
        return _make_criterion(
            GROWTH, summary, None, threshold, None, f"the cell at half the rate is degraded: {half.degraded}"
        )
    ours, theirs = summary.estimate("ttft_p90_s"), half.estimate("ttft_p90_s")
    if ours.value is None or theirs.value is None or theirs.value <= 0:
        why = f"{ours.reason}" if ours.value is None else f"at half the rate: {theirs.reason or 'TTFT p90 is zero'}"
        return _make_criterion(GROWTH, summary, None, threshold, None, why)
    ratio = ours.value / theirs.value
    return _make_criterion(GROWTH, summary, ratio, threshold, ratio > threshold, None)


def _make_criterion(
    number: int, summary: CellSummary, measured: float | None, threshold: float, fired: bool | None, reason: str | None
) -> Criterion:
    if summary.degraded:
        return Criterion(number, CRITERIA[number], measured, threshold, None, "the cell is degraded")
    return Criterion(number, CRITERIA[number], measured, threshold, fired, reason if fired is None else None)
