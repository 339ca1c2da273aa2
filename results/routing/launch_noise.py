"""How far two launches of one policy differ: sigma of log TTFT p90, and the trials that a named difference takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from results.routing.analyze import RoutingAnalysis
from results.statistics.block_model import find_noisy
from results.statistics.blocks import fit_blocks
from results.statistics.estimates import bound_sigma
from results.statistics.judgement import explain_few_launches
from results.statistics.pairwise import find_launches_for_pair
from results.statistics.trials import MIN_PAIRED

NAMED_EFFECT = 0.10
"""The difference of two policies that trials are planned for, never the one that was observed."""
NOISE_OF = "ttft_p90_s"


class TrialNoise(msgspec.Struct, frozen=True):
    """`launch_noise` of `verdicts.json`."""

    metric: str
    """The metric whose noise it is."""
    sigma: float
    """Standard deviation of the logarithm."""
    degrees: int
    """Degrees of freedom of sigma."""
    trials: int
    """The most that a policy has."""


@dataclass(frozen=True, slots=True)
class Noise:
    sigma: float
    """Standard deviation of the logarithm of TTFT p90, around trial + policy."""
    low: float
    high: float
    """Bounds of sigma (chi-square)."""
    degrees: int
    noisy: tuple[str, ...]
    """Policies that vary significantly more than the others: they are no part of sigma."""


def fit_noise(analysis: RoutingAnalysis) -> Noise | str:
    """Fit log TTFT p90 = trial + policy + residual over the cells that count; or why it is not known."""
    launches: dict[str, dict[int, float]] = {}
    for label in analysis.labels:
        values = {cell.trial: cell.estimate(NOISE_OF).value for cell in analysis.counted(label)}
        launches[label] = {trial: math.log(value) for trial, value in values.items() if value}
    if analysis.trials < MIN_PAIRED:
        return explain_few_launches(analysis.trials, "policy") if analysis.trials else "nothing was measured"
    noisy = find_noisy(launches)
    calm = {label: by_trial for label, by_trial in launches.items() if by_trial and label not in noisy}
    fit = fit_blocks(calm, tuple(calm)[:1] or (analysis.baseline,))
    if isinstance(fit, str):
        return fit
    return Noise(fit.sigma, *bound_sigma(fit.sigma**2, fit.degrees), fit.degrees, tuple(noisy))


def measure_noise(analysis: RoutingAnalysis) -> TrialNoise | None:
    """None where `fit_noise` gives a reason."""
    fit = fit_noise(analysis)
    return None if isinstance(fit, str) else TrialNoise(NOISE_OF, fit.sigma, fit.degrees, analysis.trials)


def plan_trials(sigma: float, policies: int) -> int | None:
    """The fewest trials that tell two policies apart which differ by NAMED_EFFECT; None = more than can be planned."""
    return find_launches_for_pair(math.log1p(NAMED_EFFECT), sigma, max(policies, 2))
