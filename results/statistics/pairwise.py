"""Every two configs compared over launches, where the same launches choose the best one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy import special  # not scipy.stats, which takes two seconds to import

from results.statistics.block_model import BlockModel, Launches, compute_own_differences, find_noisy, fit_model
from results.statistics.blocks import POWER, Together, contrast_config_apart, find_fewest_launches
from results.statistics.estimates import LEVEL, Samples, compute_student_quantile, standard_error
from results.statistics.largest_t import compute_pairs_critical, compute_pairs_p


def judge_against_best(launches: Launches, best: str) -> Mapping[str, Together] | str:
    """Every config less `best`, with bounds that hold for every two configs at once; or why there are none.

    The same launches choose the best one, so the intervals must cover the difference of any two (Tukey, 1953; Kramer,
    Biometrics 12, 1956, for unequal numbers of launches): if no two configs differ, with 95 % none is distinguishable
    from the best. Configs whose launches vary significantly more than the others' are apart and share the error as in
    `fit_blocks`: with k of m apart, the bounds of the others hold at 1 - (1 - level)(m - k)/m, and those of a pair with
    one of the k at 1 - (1 - level)/m: beside its noise, which of the others is the best matters little. Few launches do
    not show every config that varies more, so bounds are at least as wide as a pair's own differences make them, by
    itself. Configs without a launch are left out, as are those apart whose differences have no spread.
    """
    measured = {config: by_block for config, by_block in launches.items() if by_block}
    if best not in measured:
        return f"{best} was not measured"
    names = [best, *(name for name in measured if name != best)]
    whole = fit_model(names, measured)
    if isinstance(whole, str):
        return whole
    apart = find_noisy(measured)
    pooled = [name for name in names if name not in apart]
    model = fit_model(pooled, measured) if apart else whole
    together: dict[str, Together] = {}
    for name in names[1:]:
        if isinstance(model, BlockModel) and best in pooled and name in pooled:
            own = compute_own_differences(measured[name], [measured[best]])
            together[name] = _contrast_pair(model, name, best, own, len(pooled) / len(names))
        else:
            alone = contrast_config_apart(compute_own_differences(measured[name], [measured[best]]), len(names))
            if alone is not None and alone.together is not None:
                together[name] = alone.together
    return together


def _contrast_pair(model: BlockModel, name: str, best: str, own: Samples, part: float) -> Together:
    """`own`: the config less the best in each block; `part`: of the family's error that the model's pairs share."""
    (difference,), variance = model.compare(np.array([model.make_weights(name) - model.make_weights(best)]))
    error = math.sqrt(float(variance[0, 0]))
    half = compute_pairs_critical(model.spread, model.degrees, 1 - (1 - LEVEL) * part) * error
    p = min(1.0, compute_pairs_p(model.spread, model.degrees, difference / error) / part)
    low, high = difference - half, difference + half
    if own.size < 2 or not own.any():
        return Together(low, high, p)
    middle, own_half = float(own.mean()), compute_student_quantile(own.size - 1) * standard_error(own)
    return Together(min(low, middle - own_half), max(high, middle + own_half), p)


def compute_detectable_pair(sigma: float, launches: int, configs: int) -> float:
    """As `detectable_effect`, of any two of the configs, judged as `judge_against_best` does."""
    degrees = (launches - 1) * (configs - 1)
    if degrees < 1:
        return math.inf
    quantile = float(special.stdtrit(degrees, POWER))
    return (compute_pairs_critical(np.eye(configs), degrees) + quantile) * sigma * math.sqrt(2 / launches)


def find_launches_for_pair(effect: float, sigma: float, configs: int) -> int | None:
    """The fewest launches per config that detect this difference of two; None above MAX_PLANNED_LAUNCHES."""
    return find_fewest_launches(effect, lambda count: compute_detectable_pair(sigma, count, configs))
