"""What a simulation has to show against real runs before a number of it is quoted: APC and rank.

Pure: numbers in, judgements out. Where the runs hold too little for a gate, it is open, and says what is missing. The
third gate of numbers is `calibration_gate`. Contention is no gate: `measure_contention` reports it, nothing judges it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from results.records.count import format_count
from results.records.estimate import Estimate
from results.routing.metrics import find_metric
from results.statistics.blocks import Together
from results.statistics.estimates import DRAWS, LEVEL, bound_draws
from results.statistics.independent import subtract_means
from results.statistics.judgement import Judgement, Outcome, take_point
from results.statistics.pairwise import judge_against_best
from results.statistics.trials import MIN_PAIRED

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
        title = find_metric(self.metric).title
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


def hold_against(measured: Estimate, least: float, most: float) -> Outcome:
    """Whether the whole interval is within both limits, or wholly beyond one."""
    if measured.low is None or measured.high is None:
        return Outcome.UNDECIDED
    if measured.low > most or measured.high < least:
        return Outcome.FAILS
    return Outcome.HOLDS if least <= measured.low and measured.high <= most else Outcome.UNDECIDED


def join_outcomes(outcomes: Collection[Outcome]) -> Outcome:
    """Outcome of a rule over several intervals: all must hold, and one that fails is enough."""
    if Outcome.FAILS in outcomes:
        return Outcome.FAILS
    return Outcome.UNDECIDED if Outcome.UNDECIDED in outcomes else Outcome.HOLDS


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
    outcomes = {name: hold_against(one, -APC_LIMIT, APC_LIMIT) for name, one in off.items()}
    outcome = join_outcomes(outcomes.values())
    deciding = [name for name in off if outcomes[name] is outcome]
    worst = max(deciding, key=lambda name: abs(off[name].value or 0.0))
    counted = f"{len(deciding)} of {format_count(len(off), 'cell', 'cells')}"
    reason = f"{outcome} in {counted}, the most {off[worst].points()}, of {worst}"
    few = sum(off[name].n < MIN_PAIRED for name in deciding)
    if few:
        reason += f"; {few} with fewer than {MIN_PAIRED} real or simulated trials, which give no verdict"
    elif off[worst].reason:
        reason += f" ({off[worst].reason})"
    point = join_outcomes([hold_against(take_point(one), -APC_LIMIT, APC_LIMIT) for one in off.values()])
    quantity = "simulated - real"
    return Judgement("APC", claim, rule, outcome, reason, off[worst], off, quantity=quantity, point=str(point))


def measure_contention(loads: Sequence[LoadValues]) -> tuple[Contention, ...]:
    """From a latency that no queue is in (TPOT p50), under each load."""
    measured = []
    for load in loads:
        ratios = [
            _compute_mean(load.real[policy]) / simulated
            for policy in load.policies
            if (simulated := _compute_mean(load.simulated[policy])) > 0
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
        if _find_sign(loads[pair[0]].real, *pair[1:]) * _find_sign(loads[pair[0]].simulated, *pair[1:]) <= 0
    )
    policies = min((len(load.policies) for load in loads), default=0)
    reason = _explain_not_judged(len(loads), policies, len(tested), len(apart))
    tau = _measure_tau(loads, pairs)
    low, high = _draw_tau(loads, pairs) if tau is not None else (None, None)
    return Rank(metric, len(loads), policies, len(pairs), len(apart), flips, tau, low, high, reason)


def _explain_not_judged(loads: int, policies: int, tested: int, apart: int) -> str:
    if policies < FEWEST_POLICIES or loads < FEWEST_LOADS:
        counts = f"{format_count(policies, 'policy', 'policies')} under {format_count(loads, 'load', 'loads')}"
        return (
            f"{counts} were both measured and simulated; {FEWEST_POLICIES} policies and {FEWEST_LOADS} loads are the "
            "least"
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


def _find_sign(values: Values, first: str, second: str) -> int:
    difference = _compute_mean(values[first]) - _compute_mean(values[second])
    return (difference > 0) - (difference < 0)


def _compute_mean(trials: Mapping[int, float]) -> float:
    return statistics.fmean(trials.values())


def _describe_flip(load: LoadValues, first: str, second: str, p: float) -> Flip:
    lower, higher = (first, second) if _find_sign(load.real, first, second) < 0 else (second, first)
    return Flip(load.load, lower, higher, p)


def _measure_tau(loads: Sequence[LoadValues], pairs: Sequence[PairOf]) -> float | None:
    if not pairs:
        return None
    agreeing = sum(
        _find_sign(loads[index].real, first, second) * _find_sign(loads[index].simulated, first, second)
        for index, first, second in pairs
    )
    return agreeing / len(pairs)


def _draw_tau(loads: Sequence[LoadValues], pairs: Sequence[PairOf]) -> tuple[float, float]:
    """The middle 95 % of tau with the trials of both sides drawn again, the same ones for all policies of a load."""
    rng = np.random.default_rng(_SEED)
    agreeing = np.zeros(DRAWS)
    for index, load in enumerate(loads):
        own = [pair[1:] for pair in pairs if pair[0] == index]
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
        means[policy] = np.where(total > 0, drawn, _compute_mean(values[policy]))
    return means
