"""What a simulation has to show against real runs before a number of it is quoted: calibration, APC and rank.

Pure: numbers in, judgements out. Where the runs hold too little for a gate, it is open, and says what is missing.
Calibration and APC are decided by intervals: over the loads and launches of cells that were held out of the fit, and
over trials.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from results.records.count import format_count
from results.records.estimate import Estimate
from results.records.percent import format_percent
from results.routing.metrics import metric_named
from results.statistics.blocks import Together
from results.statistics.estimates import DRAWS, LEVEL, bound_draws, student_quantile
from results.statistics.independent import subtract_means
from results.statistics.judgement import Judgement, Outcome, take_point
from results.statistics.pairwise import judge_against_best
from results.statistics.trials import MIN_PAIRED, Measured, Trial, estimate

BIAS_LIMIT = 0.05
MAPE_ABOVE_REPETITION = 0.05
"""Share by which the mean absolute error may exceed that of a real cell against its own repetition: five points."""
APC_LIMIT = 0.02
"""Shares: two points."""
FEWEST_POLICIES = 6
FEWEST_LOADS = 3
_SEED = 20260101

Values = Mapping[str, Mapping[int, float]]
"""One metric under one load: by policy and trial."""


@dataclass(frozen=True, slots=True)
class LoadValues:
    """One metric under one load, real and simulated."""

    load: str
    real: Values
    simulated: Values

    @property
    def policies(self) -> tuple[str, ...]:
        """Both have them."""
        return tuple(policy for policy in self.real if self.real[policy] and self.simulated.get(policy))

    def take_logarithms(self) -> LoadValues:
        """Logarithms of times; what is not above 0 is left out."""
        real, simulated = (
            {
                policy: {trial: math.log(value) for trial, value in trials.items() if value > 0}
                for policy, trials in values.items()
            }
            for values in (self.real, self.simulated)
        )
        return LoadValues(self.load, real, simulated)


@dataclass(frozen=True, slots=True)
class HeldOutCell:
    """One metric of a real cell that gave no fit, held against its simulation."""

    launch: str
    """Name of the launch that it was measured on, which no launch of another run has."""
    error: float
    """Simulated over measured, less 1."""
    repetition: float | None = None
    """Mean absolute error of its real repetitions against it; None = it has none."""

    @property
    def log_ratio(self) -> float:
        """Logarithm of simulated over measured. Noise of a real cell raises the mean of `error`, not that of this."""
        return math.log1p(self.error)


@dataclass(frozen=True, slots=True)
class LoadErrors:
    """The cells of one load that gave no fit.

    They are one sample: what the model misses of a load, it misses in each of its cells.
    """

    cells: tuple[HeldOutCell, ...]
    """At least one."""

    @property
    def repeated(self) -> tuple[HeldOutCell, ...]:
        """Those that have a repetition."""
        return tuple(cell for cell in self.cells if cell.repetition is not None)

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
        return statistics.fmean(cell.repetition for cell in self.cells if cell.repetition is not None)


@dataclass(frozen=True, slots=True)
class Contention:
    """How much longer a token takes on the engines of a real run than on simulated ones; nothing is claimed by it.

    Engines that share the cores of one host slow each other; a model that was fitted to one engine does not know it.
    """

    load: str
    policies: int
    factor: float
    """Real over simulated mean over the trials, the geometric mean over the policies."""
    lowest: float
    highest: float
    """The highest ratio of any policy."""


@dataclass(frozen=True, slots=True)
class Flip:
    """Two policies that real runs tell apart, and whose order the simulation turns round."""

    load: str
    lower: str
    """By the real runs."""
    higher: str
    p_value: float
    """p in the real runs, over every two policies under every load at once."""


@dataclass(frozen=True, slots=True)
class Rank:
    """The order of the policies in one metric, over all loads."""

    metric: str
    loads: int
    policies: int
    """The fewest of any load."""
    pairs: int
    """Pairs of two policies under one load."""
    told_apart: int
    """By the real runs."""
    flips: tuple[Flip, ...]
    tau: float | None
    """Kendall's, over the pairs within a load."""
    tau_low: float | None
    tau_high: float | None
    reason: str = ""
    """Why it is not judged; empty = it is."""

    @property
    def judgement(self) -> Judgement:
        title = metric_named(self.metric).title
        name = f"rank of {title}"
        claim = f"The simulation orders the policies by {title} as real runs do."
        rule = (
            "every pair of policies that real runs tell apart under one load keeps its sign; intervals of every two "
            "policies at once (Tukey and Kramer), corrected for the number of loads"
        )
        if self.reason:
            return Judgement(name, claim, rule, Outcome.OPEN, self.reason)
        agreeing = self.told_apart - len(self.flips)
        interval = f"{self.tau:.2f} [{self.tau_low:.2f}, {self.tau_high:.2f}]"
        text = (
            f"{agreeing} of {self.told_apart} pairs that real runs tell apart keep their sign; Kendall's tau {interval}"
        )
        return Judgement(name, claim, rule, held(not self.flips), text)


def held(holds: bool) -> Outcome:
    """Outcome of a gate that was judged."""
    return Outcome.HOLDS if holds else Outcome.FAILS


def judge_errors(metric: str, loads: Sequence[LoadErrors], near_saturation: Sequence[LoadErrors] = ()) -> Judgement:
    """The simulation of loads that it was not fitted to, held against real cells' repetitions of the same loads.

    Those near saturation are reported and not judged.
    """
    title = metric_named(metric).title
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
    bias = _average([_take_values(one.cells, lambda cell: cell.log_ratio) for one in loads]).transform(math.expm1)
    size = _average([_take_values(one.cells, lambda cell: abs(cell.error)) for one in loads])
    repetition = _average([_take_values(one.repeated, lambda cell: cell.repetition or 0.0) for one in repeated])
    excess = _average([_take_values(one.repeated, _exceed_repetition) for one in repeated])
    limits = ((bias, -BIAS_LIMIT, BIAS_LIMIT), (excess, -math.inf, MAPE_ABOVE_REPETITION))
    why = _why_no_verdict(loads, repeated)
    outcome = Outcome.UNDECIDED if why else _join_outcomes([_hold_against(*one) for one in limits])
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
        point=str(_join_outcomes([_hold_against(take_point(one), least, most) for one, least, most in limits])),
    )


_LaunchValue = tuple[str, float]
"""The launch of a cell, and a number of that cell."""


def _take_values(cells: Iterable[HeldOutCell], take: Callable[[HeldOutCell], float]) -> list[_LaunchValue]:
    return [(cell.launch, take(cell)) for cell in cells]


def _exceed_repetition(cell: HeldOutCell) -> float:
    """By how much its error is above that of its repetitions, which it has."""
    return abs(cell.error) - (cell.repetition or 0.0)


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
    over_loads = estimate(_as_measured(dict(enumerate(means))))
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
    return count, student_quantile(count - 1) * error


def _count_loads(loads: Sequence[LoadErrors]) -> str:
    cells = format_count(sum(len(one.cells) for one in loads), "cell", "cells")
    launches = format_count(len({cell.launch for one in loads for cell in one.cells}), "launch", "launches")
    return f"{format_count(len(loads), 'load', 'loads')} ({cells} of {launches})"


def _why_no_verdict(loads: Sequence[LoadErrors], repeated: Sequence[LoadErrors]) -> str:
    """Too few loads or launches to see by how much these differ; empty where there are enough."""
    few = [format_count(len(loads), "held-out load", "held-out loads")] if len(loads) < MIN_PAIRED else []
    if len(repeated) < MIN_PAIRED:
        few.append(f"{format_count(len(repeated), 'held-out load', 'held-out loads')} with a repetition")
    launches = len({cell.launch for one in repeated for cell in one.repeated})
    if launches < MIN_PAIRED:
        few.append(f"{format_count(launches, 'launch', 'launches')} with a repetition")
    return f"{' and '.join(few)}, a verdict needs {MIN_PAIRED}" if few else ""


def _hold_against(measured: Estimate, least: float, most: float) -> Outcome:
    """Whether the whole interval is within both limits, or wholly beyond one."""
    if measured.low is None or measured.high is None:
        return Outcome.UNDECIDED
    if measured.low > most or measured.high < least:
        return Outcome.FAILS
    return Outcome.HOLDS if least <= measured.low and measured.high <= most else Outcome.UNDECIDED


def _join_outcomes(outcomes: Collection[Outcome]) -> Outcome:
    """Outcome of a rule over several intervals: all must hold, and one that fails is enough."""
    if Outcome.FAILS in outcomes:
        return Outcome.FAILS
    return Outcome.UNDECIDED if Outcome.UNDECIDED in outcomes else Outcome.HOLDS


def _describe_apart(loads: Sequence[LoadErrors]) -> str:
    if not loads:
        return ""
    bias, mape = (statistics.fmean(values) for values in zip(*((one.bias, one.size) for one in loads), strict=True))
    return (
        f"; not judged: {_count_loads(loads)} near saturation, bias {format_percent(bias, 1, signed=True)}, mean error "
        f"{format_percent(mape, 1)}"
    )


def judge_apc(loads: Sequence[LoadValues]) -> Judgement:
    """The share of prompt tokens that came from caches, of every policy under every load.

    Real and simulated trials share nothing but the load, so their means are compared as those of independent samples.
    """
    claim = "The simulation has the APC of real runs."
    rule = (
        f"for every policy under every load the whole interval of the difference is within {APC_LIMIT * 100:g} points; "
        "fails where one is wholly beyond. The intervals hold together (Bonferroni)"
    )
    values = {
        f"{policy} ({load.load})": (list(load.real[policy].values()), list(load.simulated[policy].values()))
        for load in loads
        for policy in load.policies
    }
    if not values:
        text = "no policy was both measured and simulated under one load"
        return Judgement("APC", claim, rule, Outcome.OPEN, text)
    level = 1 - (1 - LEVEL) / len(values)
    off = {name: subtract_means(*own, level=level) for name, own in values.items()}
    outcomes = {name: _hold_against(one, -APC_LIMIT, APC_LIMIT) for name, one in off.items()}
    outcome = _join_outcomes(outcomes.values())
    deciding = [name for name in off if outcomes[name] is outcome]
    worst = max(deciding, key=lambda name: abs(off[name].value or 0.0))
    counted = f"{len(deciding)} of {format_count(len(off), 'cell', 'cells')}"
    reason = f"{outcome} in {counted}, the most {off[worst].points()}, of {worst}"
    few = sum(off[name].n < MIN_PAIRED for name in deciding)
    if few:
        reason += f"; {few} with fewer than {MIN_PAIRED} real or simulated trials, which give no verdict"
    elif off[worst].reason:
        reason += f" ({off[worst].reason})"
    point = _join_outcomes([_hold_against(take_point(one), -APC_LIMIT, APC_LIMIT) for one in off.values()])
    quantity = "simulated - real"
    return Judgement("APC", claim, rule, outcome, reason, off[worst], off, quantity=quantity, point=str(point))


def measure_contention(loads: Sequence[LoadValues]) -> tuple[Contention, ...]:
    """From a latency that no queue is in (TPOT p50), under each load."""
    measured = []
    for load in loads:
        ratios = [
            _mean(load.real[policy]) / simulated
            for policy in load.policies
            if (simulated := _mean(load.simulated[policy])) > 0
        ]
        if ratios:
            factor = statistics.geometric_mean(ratios)
            measured.append(Contention(load.load, len(ratios), factor, min(ratios), max(ratios)))
    return tuple(measured)


def judge_rank(metric: str, loads: Sequence[LoadValues]) -> Rank:
    """Whether the simulation orders the policies as real runs do. Of times, `loads` has the logarithms."""
    pairs = list(_list_pairs(loads))
    tested = {(index, *pair): bounds for index, load in enumerate(loads) for pair, bounds in _test_pairs(load).items()}
    apart = [pair for pair in pairs if pair in tested and _is_told_apart(tested[pair], len(loads))]
    flips = tuple(
        _describe_flip(loads[pair[0]], *pair[1:], min(1.0, tested[pair].p * len(loads)))
        for pair in apart
        if _sign(loads[pair[0]].real, *pair[1:]) * _sign(loads[pair[0]].simulated, *pair[1:]) <= 0
    )
    policies = min((len(load.policies) for load in loads), default=0)
    reason = _why_not_judged(len(loads), policies, len(tested), len(apart))
    tau = _measure_tau(loads, pairs)
    low, high = _draw_tau(loads, pairs) if tau is not None else (None, None)
    return Rank(metric, len(loads), policies, len(pairs), len(apart), flips, tau, low, high, reason)


def _why_not_judged(loads: int, policies: int, tested: int, apart: int) -> str:
    if policies < FEWEST_POLICIES or loads < FEWEST_LOADS:
        return (
            f"{policies} policies under {loads} loads were both measured and simulated; {FEWEST_POLICIES} policies and "
            f"{FEWEST_LOADS} loads are the least"
        )
    if not tested:
        return f"no pair of policies has {MIN_PAIRED} trials in common"
    return "" if apart else f"real runs tell none of the {tested} pairs apart"


PairOf = tuple[int, str, str]
"""Index of the load, and two policies."""


def _list_pairs(loads: Sequence[LoadValues]) -> Iterator[PairOf]:
    for index, load in enumerate(loads):
        for first, second in combinations(load.policies, 2):
            yield index, first, second


def _test_pairs(load: LoadValues) -> dict[tuple[str, str], Together]:
    """The first less the second policy in the real trials, for every two that can be compared, in the order of pairs.

    As the report of a run finds the best policy: one residual for all, and bounds that hold for every two at once.
    """
    real = {policy: load.real[policy] for policy in load.policies if len(load.real[policy]) >= MIN_PAIRED}
    tested: dict[tuple[str, str], Together] = {}
    for second in real:
        fitted = judge_against_best(real, second)
        if not isinstance(fitted, str):
            tested |= {(first, second): bounds for first, bounds in fitted.items()}
    return {pair: tested[pair] for pair in combinations(load.policies, 2) if pair in tested}


def _is_told_apart(bounds: Together, loads: int) -> bool:
    """By bounds without 0, and a p-value that holds for all loads at once (Bonferroni)."""
    return (bounds.low > 0 or bounds.high < 0) and bounds.p * loads <= 1 - LEVEL


def _as_measured(values: Mapping[int, float]) -> Measured:
    """Numbers whose spread alone gives an interval: nothing is drawn within one of them."""
    return Measured({number: Trial(value, 1, _no_draws) for number, value in values.items()})


def _no_draws() -> str:
    return f"an interval needs {MIN_PAIRED} of them"


def _sign(values: Values, first: str, second: str) -> int:
    difference = _mean(values[first]) - _mean(values[second])
    return (difference > 0) - (difference < 0)


def _mean(trials: Mapping[int, float]) -> float:
    return statistics.fmean(trials.values())


def _describe_flip(load: LoadValues, first: str, second: str, p: float) -> Flip:
    lower, higher = (first, second) if _sign(load.real, first, second) < 0 else (second, first)
    return Flip(load.load, lower, higher, p)


def _measure_tau(loads: Sequence[LoadValues], pairs: Sequence[PairOf]) -> float | None:
    if not pairs:
        return None
    agreeing = sum(
        _sign(loads[index].real, first, second) * _sign(loads[index].simulated, first, second)
        for index, first, second in pairs
    )
    return agreeing / len(pairs)


def _draw_tau(loads: Sequence[LoadValues], pairs: Sequence[PairOf]) -> tuple[float, float]:
    """The middle 95 % of tau with the trials of both sides drawn again, the same ones for all policies of a load."""
    rng = np.random.default_rng(_SEED)
    agreeing = np.zeros(DRAWS)
    for index, load in enumerate(loads):
        own = [(first, second) for place, first, second in pairs if place == index]
        if own:
            real, simulated = (_draw_means(values, load.policies, rng) for values in (load.real, load.simulated))
            for first, second in own:
                agreeing += np.sign(real[first] - real[second]) * np.sign(simulated[first] - simulated[second])
    return bound_draws(agreeing / len(pairs))


def _draw_means(values: Values, policies: Sequence[str], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """DRAWS means of each policy over trials that are drawn with replacement."""
    trials = sorted(set().union(*(values[policy].keys() for policy in policies)))
    weights = rng.multinomial(len(trials), [1 / len(trials)] * len(trials), size=DRAWS).astype(np.float64)
    means = {}
    for policy in policies:
        known = np.array([trial in values[policy] for trial in trials])
        numbers = np.array([values[policy].get(trial, 0.0) for trial in trials])
        total = weights[:, known].sum(axis=1)
        drawn = weights @ numbers / np.where(total > 0, total, 1.0)
        means[policy] = np.where(total > 0, drawn, _mean(values[policy]))
    return means
