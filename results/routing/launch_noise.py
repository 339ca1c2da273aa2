"""How far two launches of one policy differ: sigma of log TTFT p90, and the trials that a named difference takes."""

from __future__ import annotations

import math

import msgspec

from results.routing.analyse import RoutingAnalysis
from results.statistics.blocks import BlockFit, fit_blocks, launches_for
from results.statistics.judgement import few_launches
from results.statistics.trials import MIN_PAIRED

NAMED_EFFECT = 0.10
"""The difference of two policies that trials are planned for, never the one that was observed."""
NOISE_OF = "ttft_p90_s"


class LaunchNoise(msgspec.Struct, frozen=True):
    """`launch_noise` of `verdicts.json`."""

    metric: str
    sigma: float
    """Of the logarithm."""
    degrees: int
    trials: int


def fit_noise(analysis: RoutingAnalysis) -> BlockFit | str:
    """log TTFT p90 = trial + policy + residual, over the cells that count."""
    launches: dict[str, dict[int, float]] = {}
    for label in analysis.labels:
        values = {cell.trial: cell.estimate(NOISE_OF).value for cell in analysis.counted(label)}
        launches[label] = {trial: math.log(value) for trial, value in values.items() if value}
    if analysis.trials < MIN_PAIRED:
        return few_launches(analysis.trials, "policy") if analysis.trials else "nothing was measured"
    return fit_blocks(launches, (analysis.baseline,))


def measure_noise(analysis: RoutingAnalysis) -> LaunchNoise | None:
    """None where `fit_noise` gives a reason."""
    fit = fit_noise(analysis)
    return None if isinstance(fit, str) else LaunchNoise(NOISE_OF, fit.sigma, fit.degrees, analysis.trials)


def plan_trials(sigma: float, policies: int) -> int | None:
    """The fewest trials that show NAMED_EFFECT between a policy and the first of them; None = more than can be."""
    return launches_for(math.log1p(NAMED_EFFECT), sigma, max(policies - 1, 1), references=1)
