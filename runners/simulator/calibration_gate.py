"""The calibration gate: a fitted engine model against the cells that were held out of its fit.

Pure: numbers in, judgements out. Intervals over the loads and the launches of these cells decide.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from results.records.count import format_count
from results.records.estimate import Estimate
from results.records.percent import format_percent
from results.routing.metrics import find_metric
from results.statistics.estimates import compute_student_quantile
from results.statistics.judgement import Judgement, Outcome, take_point
from results.statistics.trials import MIN_PAIRED, Measured, Trial, estimate
from runners.simulator.gates import hold_against, join_outcomes

BIAS_LIMIT = 0.05
MAPE_ABOVE_REPETITION = 0.05
"""Share by which the mean absolute error may exceed that of a real cell against its own repetition: five points."""


@dataclass(frozen=True, slots=True)
class HeldOutCell:
    """One metric of a real cell that gave no fit, held against its simulation."""

    launch: str
    """Name of the launch that it was measured on, which no launch of another run has."""
    error: float
    """Simulated over measured, less 1."""

    @property
    def log_ratio(self) -> float:
        """Logarithm of simulated over measured. Noise of a real cell raises the mean of `error`, not that of this."""
        return math.log1p(self.error)


@dataclass(frozen=True, slots=True)
class RepeatedCell(HeldOutCell):
    """One whose load was measured again in an independent launch."""

    repetition: float
    """Mean absolute error of its real repetitions against it."""

    @property
    def excess(self) -> float:
        """By how much its absolute error is above that of its repetitions."""
        return abs(self.error) - self.repetition


@dataclass(frozen=True, slots=True)
class LoadErrors:
    """The cells of one load that gave no fit.

    They are one sample: what the model misses of a load, it misses in each of its cells.
    """

    cells: tuple[HeldOutCell, ...]
    """At least one."""

    @property
    def repeated(self) -> tuple[RepeatedCell, ...]:
        return tuple(cell for cell in self.cells if isinstance(cell, RepeatedCell))

    @property
    def bias(self) -> float:
        """The geometric mean of simulated over measured, less 1."""
        return math.expm1(statistics.fmean(cell.log_ratio for cell in self.cells))

    @property
    def size(self) -> float:
        """The mean absolute error."""
        return statistics.fmean(abs(cell.error) for cell in self.cells)

    @property
    def repetition(self) -> float:
        """As `size`, of a real cell. Raises StatisticsError for a load that was measured once."""
        return statistics.fmean(cell.repetition for cell in self.repeated)


def judge_errors(metric: str, loads: Sequence[LoadErrors], near_saturation: Sequence[LoadErrors] = ()) -> Judgement:
    """The simulation of loads that it was not fitted to, held against real cells' repetitions of the same loads.

    Those near saturation are reported and not judged.
    """
    title = find_metric(metric).title
    name = f"calibration of {title}"
    claim = f"A fitted engine model predicts {title} of cells that it was not fitted to."
    rule = (
        "over the loads that are not near saturation, each the mean of its cells, the whole interval of the bias is "
        f"within {format_percent(BIAS_LIMIT)} on both sides, and that of the mean error less a real cell's against its "
        f"own repetition at most {MAPE_ABOVE_REPETITION * 100:g} points; fails where one of the two is wholly beyond. "
        "The intervals hold what varies between loads and between launches"
    )
    apart, repeated = _describe_apart(near_saturation), [one for one in loads if one.repeated]
    if not repeated:
        lacking = _name_lacking(loads, near_saturation)
        text = f"{lacking}: there is nothing to hold the error against{apart}"
        return Judgement(name, claim, rule, Outcome.OPEN, text)
    bias = _average([[(cell.launch, cell.log_ratio) for cell in one.cells] for one in loads]).transform(math.expm1)
    size = _average([[(cell.launch, abs(cell.error)) for cell in one.cells] for one in loads])
    repetition = _average([[(cell.launch, cell.repetition) for cell in one.repeated] for one in repeated])
    excess = _average([[(cell.launch, cell.excess) for cell in one.repeated] for one in repeated])
    limits = ((bias, -BIAS_LIMIT, BIAS_LIMIT), (excess, -math.inf, MAPE_ABOVE_REPETITION))
    why = _explain_no_verdict(loads, repeated)
    outcome = Outcome.UNDECIDED if why else join_outcomes([hold_against(*one) for one in limits])
    why = why or "; ".join(dict.fromkeys(one.reason for one in (bias, excess) if one.reason))
    text = (
        f"bias {bias.percent()}, mean error {format_percent(size.value or 0.0, 1)}, of a real cell against its own "
        f"repetition {format_percent(repetition.value or 0.0, 1)}, difference {excess.points()}, over "
        f"{_count_loads(loads)}, {len(repeated)} of them with a repetition{apart}"
    )
    return Judgement(
        name,
        claim,
        rule,
        outcome,
        f"{why}: {text}" if why else text,
        bias,
        {"mean error": size, "repetition": repetition, "excess": excess},
        quantity="bias",
        point=str(join_outcomes([hold_against(take_point(one), least, most) for one, least, most in limits])),
    )


_LaunchValue = tuple[str, float]
"""The launch of a cell, and a number of that cell."""


def _name_lacking(loads: Sequence[LoadErrors], near_saturation: Sequence[LoadErrors]) -> str:
    """Why no load that may be judged has a repetition."""
    if not loads:
        return "every held-out load is near saturation" if near_saturation else "no cell was held out of the fit"
    twice = any(one.repeated for one in near_saturation)
    return "every load that was measured twice is near saturation" if twice else "no load was measured twice"


def _average(loads: Sequence[Sequence[_LaunchValue]]) -> Estimate:
    """The mean over loads, each the mean of its cells, with an interval from MIN_PAIRED loads and launches on.

    A launch that is faster than others is so under every load: means of loads do not show that spread. The interval
    adds the two as independent, each by Student's t, and counts the noise of a cell in both.
    """
    means = [statistics.fmean(value for _, value in own) for own in loads]
    over_loads = estimate(_make_measured(dict(enumerate(means))))
    launches = len({launch for own in loads for launch, _ in own})
    shared, half = _spread_of_launches(loads, means)
    over = f"over {format_count(len(loads), 'load', 'loads')} and {format_count(launches, 'launch', 'launches')}"
    if over_loads.value is None or over_loads.low is None or over_loads.high is None:
        return replace(over_loads, basis=over)
    if half is None:
        count = format_count(shared, "launch shares", "launches share")
        reason = f"{count} a load with another: an interval needs {MIN_PAIRED}"
        return replace(over_loads, low=None, high=None, reason=reason, basis=over)
    low = over_loads.value - math.hypot(over_loads.value - over_loads.low, half)
    high = over_loads.value + math.hypot(over_loads.high - over_loads.value, half)
    return replace(over_loads, low=low, high=high, basis=over)


def _spread_of_launches(loads: Sequence[Sequence[_LaunchValue]], means: Sequence[float]) -> tuple[int, float | None]:
    """The number of launches that share a load with another, and half the width of the interval that the spread of
    launches alone gives the mean over loads; None below MIN_PAIRED of them. `means`: of each load.

    A launch's effect is its mean deviation from the means of the loads that it shares: from the mean of a load of its
    own it cannot deviate. Its weight is its share of the mean over all loads.
    """
    deviations: defaultdict[str, list[float]] = defaultdict(list)
    weights: defaultdict[str, float] = defaultdict(float)
    for own, mean in zip(loads, means, strict=True):
        is_shared = len({launch for launch, _ in own}) > 1
        for launch, value in own:
            if is_shared:
                deviations[launch].append(value - mean)
            weights[launch] += 1 / (len(own) * len(loads))
    count = len(deviations)
    if count < MIN_PAIRED:
        return count, None
    spread = statistics.stdev(statistics.fmean(own) for own in deviations.values())
    error = spread * math.sqrt(math.fsum(weight**2 for weight in weights.values()))
    return count, compute_student_quantile(count - 1) * error


def _count_loads(loads: Sequence[LoadErrors]) -> str:
    cells = format_count(sum(len(one.cells) for one in loads), "cell", "cells")
    launches = format_count(len({cell.launch for one in loads for cell in one.cells}), "launch", "launches")
    return f"{format_count(len(loads), 'load', 'loads')} ({cells} of {launches})"


def _explain_no_verdict(loads: Sequence[LoadErrors], repeated: Sequence[LoadErrors]) -> str:
    """Too few loads or launches to see by how much these differ; empty where there are enough."""
    few = [format_count(len(loads), "held-out load", "held-out loads")] if len(loads) < MIN_PAIRED else []
    if len(repeated) < MIN_PAIRED:
        few.append(f"{format_count(len(repeated), 'held-out load', 'held-out loads')} with a repetition")
    launches = len({cell.launch for one in repeated for cell in one.repeated})
    if launches < MIN_PAIRED:
        few.append(f"{format_count(launches, 'launch', 'launches')} with a repetition")
    return f"{' and '.join(few)}, a verdict needs {MIN_PAIRED}" if few else ""


def _describe_apart(loads: Sequence[LoadErrors]) -> str:
    if not loads:
        return ""
    bias, mape = (statistics.fmean(values) for values in zip(*((one.bias, one.size) for one in loads), strict=True))
    return (
        f"; not judged: {_count_loads(loads)} near saturation, bias {format_percent(bias, 1, signed=True)}, mean error "
        f"{format_percent(mape, 1)}"
    )


def _make_measured(values: Mapping[int, float]) -> Measured:
    """Numbers whose spread alone gives an interval: nothing is drawn within one of them."""
    return Measured({number: Trial(value, 1, _explain_no_draws) for number, value in values.items()})


def _explain_no_draws() -> str:
    return f"an interval needs {MIN_PAIRED} of them"
