"""Every two configs compared: none is called worse than the best by chance more often than stated."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from results.statistics.block_model import Launches
from results.statistics.blocks import Together, find_launches_for
from results.statistics.largest_t import compute_dunnett_critical
from results.statistics.pairwise import compute_detectable_pair, find_launches_for_pair, judge_against_best
from tests.results.statistics.made_launches import CONFIGS, SIGMA, degrees_of, draw, equicorrelated, pairs_half


def best_of(launches: Launches) -> str:
    return min(launches, key=lambda name: float(np.mean(list(launches[name].values()))))


def against_best(launches: Launches, best: str = "") -> Mapping[str, Together]:
    """Against the best of these launches, unless another is named."""
    compared = judge_against_best(launches, best or best_of(launches))
    assert not isinstance(compared, str)
    return compared


@pytest.mark.parametrize("blocks", [3, 8])
def test_of_configs_that_do_not_differ_none_is_told_apart_from_the_best(blocks: int) -> None:
    """The best is chosen from the same launches: Dunnett's bounds would be left too often."""
    rng = np.random.default_rng([1953, blocks])
    narrower = compute_dunnett_critical(equicorrelated(len(CONFIGS) - 1, 1 / 2), degrees_of(blocks)) / pairs_half(
        blocks
    )
    found = by_dunnett = 0
    for _ in range(1000):
        compared = against_best(draw(rng, blocks))
        middles = [((one.high + one.low) / 2, (one.high - one.low) / 2) for one in compared.values()]
        found += any(middle > half for middle, half in middles)
        by_dunnett += any(middle > narrower * half for middle, half in middles)
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)
    assert found / 1000 <= limit < by_dunnett / 1000


def test_a_config_that_differs_is_told_apart_from_the_best_and_the_bounds_hold_its_difference() -> None:
    rng = np.random.default_rng(7)
    apart, hits = [], []
    for _ in range(300):
        compared = against_best(draw(rng, 5, {"noop": -0.6, "nixl": 0.4}), "noop")
        apart += [one.low > 0 for one in compared.values()]
        hits.append(compared["nixl"].low <= 1.0 <= compared["nixl"].high)
    assert np.mean(apart) > 0.95
    assert np.mean(hits) >= 0.98  # of one of 36 pairs


def test_the_best_is_compared_where_launches_are_missing_and_one_config_is_noisy() -> None:
    rng = np.random.default_rng(9)
    launches = {name: dict(own) for name, own in draw(rng, 5, {"noop": -1.0}).items()}
    del launches["multi"][3], launches["noop"][0]
    launches["nixl"] = {block: float(value + rng.normal(0, 1.0)) for block, value in launches["nixl"].items()}
    compared = against_best({**launches, "lmcache": {}}, "noop")
    assert set(compared) == {*CONFIGS} - {"noop", "lmcache"}
    assert compared["nixl"].high - compared["nixl"].low > 1.5 * (compared["mooncake"].high - compared["mooncake"].low)
    assert judge_against_best({"a": {0: 1.0, 1: 1.0}, "b": {0: 2.0, 1: 2.0}}, "a") == (
        "all blocks agree to the last digit: nothing tells how two launches of one config differ"
    )
    assert judge_against_best({"a": {}, "b": {0: 2.0}}, "a") == "a was not measured"


def test_one_noisy_config_widens_no_other_and_is_told_apart_no_more_often() -> None:
    rng = np.random.default_rng(11)
    found, quiet, pooled = 0, [], []
    for _ in range(1000):
        launches = {name: dict(own) for name, own in draw(rng, 5).items()}
        compared = against_best(launches)
        launches["nixl"] = {block: value + float(rng.normal(0, 5 * SIGMA)) for block, value in launches["nixl"].items()}
        beside = against_best(launches)
        found += any(one.low > 0 for one in beside.values())
        name = next(name for name in ("noop", "mooncake", "multi") if name in compared and name in beside)
        pooled.append(compared[name].high - compared[name].low)
        quiet.append(beside[name].high - beside[name].low)
    assert found / 1000 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)
    assert np.median(quiet) < 1.25 * np.median(pooled)


def test_trials_are_planned_for_any_two_of_the_policies() -> None:
    needed = find_launches_for_pair(math.log(1.1), 0.1, 9)
    assert needed is not None
    assert compute_detectable_pair(0.1, needed, 9) <= math.log(1.1) < compute_detectable_pair(0.1, needed - 1, 9)
    assert needed > (find_launches_for(math.log(1.1), 0.1, 8, references=1) or 0)
    assert math.isinf(compute_detectable_pair(0.1, 1, 9))
    assert find_launches_for_pair(1e-6, 0.1, 9) is None
