"""Configs compared over launches: known effects come back, and chance alone is called an effect as rarely as stated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from results.statistics.block_model import Launches
from results.statistics.blocks import (
    BlockFit,
    detectable_effect,
    draw_differences,
    estimate_sigma_without,
    find_launches_for,
    fit_blocks,
)
from results.statistics.largest_t import compute_dunnett_critical
from tests.results.statistics.made_launches import CONFIGS, REFERENCES, SIGMA, draw, equicorrelated

RUNS = 4000


def fitted(launches: Launches, apart: Sequence[str] = ()) -> BlockFit:
    fit = fit_blocks(launches, REFERENCES, apart=apart)
    assert isinstance(fit, BlockFit)
    return fit


def slowed(launches: Launches, speeds: Launches) -> Launches:
    """As if the host's speed came on top of everything else, proportionally."""
    return {
        config: {block: value + speeds[config][block] for block, value in own.items()}
        for config, own in launches.items()
    }


def test_what_follows_a_covariate_is_no_part_of_sigma_without_it() -> None:
    rng = np.random.default_rng(5)
    launches = draw(rng, 8)
    speeds = {name: {block: float(rng.normal(0, 3 * SIGMA)) for block in range(8)} for name in CONFIGS}
    quiet, noisy = fitted(launches), fitted(slowed(launches, speeds))
    without = estimate_sigma_without(noisy, speeds)
    assert without is not None
    assert noisy.sigma > 2.5 * quiet.sigma
    assert without == pytest.approx(quiet.sigma, rel=0.1)


def test_a_covariate_that_tells_nothing_leaves_sigma_and_one_that_is_not_there_is_not_used() -> None:
    rng = np.random.default_rng(6)
    fit = fitted(draw(rng, 8))
    chance = {name: {block: float(rng.normal()) for block in range(8)} for name in CONFIGS}
    assert estimate_sigma_without(fit, chance) == pytest.approx(fit.sigma, rel=0.05)
    by_block = {name: {block: float(block) for block in range(8)} for name in CONFIGS}
    assert estimate_sigma_without(fit, by_block) is None, "blocks have it already"
    del chance["nixl"][3]
    assert estimate_sigma_without(fit, chance) is None


def test_without_missing_launches_the_contrast_is_the_mean_difference_to_both_plains() -> None:
    launches = draw(np.random.default_rng(1), 4)
    fit = fitted(launches)
    mean = {name: math.fsum(values.values()) / 4 for name, values in launches.items()}
    base = (mean["plain"] + mean["plain_again"]) / 2
    assert fit.degrees == 3 * 8
    error = fit.sigma * math.sqrt(1.5 / 4)
    for name, contrast in fit.contrasts.items():
        assert contrast.difference == pytest.approx(mean[name] - base)
        assert contrast.together is not None
        half = stats.t.ppf(0.975, 24) * error * contrast.widening
        assert contrast.high - contrast.difference == pytest.approx(half)
        assert contrast.degrees == (24 if contrast.widening == 1 else 3)
        critical = compute_dunnett_critical(equicorrelated(7, 1 / 3), 24)
        assert contrast.difference - contrast.together.low == pytest.approx(critical * error * contrast.widening)
    assert fit.repeat is not None
    assert fit.repeat.difference == pytest.approx(mean["plain_again"] - mean["plain"])
    residual = [
        values[block] - mean[name] - math.fsum(launches[other][block] for other in CONFIGS) / 9
        + math.fsum(mean.values()) / 9
        for name, values in launches.items() for block in values
    ]  # fmt: skip
    assert fit.sigma == pytest.approx(math.sqrt(math.fsum(one * one for one in residual) / 24))


def test_a_missing_launch_leaves_the_others_comparable_inside_their_blocks() -> None:
    exact = {name: {block: 10.0 * block + place for block in range(4)} for place, name in enumerate(CONFIGS)}
    exact["multi"].pop(3)  # the block with the largest values
    exact["plain_again"].pop(0)
    exact["noop"][1] += 1e-3
    fit = fitted(exact)
    assert fit.contrasts["multi"].difference == pytest.approx(8 - 0.5, abs=2e-3)
    assert fit.contrasts["multi"].launches == 3


def test_a_block_that_ended_after_a_config_with_a_queue_leaves_the_others_comparable() -> None:
    """A run that is stopped leaves such a block; of the config apart the model has no launch there."""
    launches = draw(np.random.default_rng(7), 4)
    whole = fitted(launches, apart=("multi",))
    stopped = {name: {**own, **({4: 2.0} if name == "multi" else {})} for name, own in launches.items()}
    fit = fitted(stopped, apart=("multi",))
    assert fit.contrasts == whole.contrasts
    assert fit.degrees == whole.degrees


def test_a_config_alone_in_a_block_is_still_tested_for_noise_of_its_own() -> None:
    launches = {name: dict(own) for name, own in draw(np.random.default_rng(8), 5).items()}
    for block in range(5):
        launches["nixl"][block] += 0.8 * (-1) ** block
    widened = fitted(launches).contrasts["nixl"].widening
    launches["nixl"][5] = 0.0
    assert widened > 1
    assert fitted(launches).contrasts["nixl"].widening == pytest.approx(widened, rel=1e-6)


def test_a_config_that_shares_no_block_with_the_others_leaves_these_comparable() -> None:
    launches = draw(np.random.default_rng(9), 4)
    without = {name: own for name, own in launches.items() if name != "multi"}
    fit = fitted({**without, "multi": {4: 1.0}})
    assert fit.find("multi") is None
    assert fit.contrasts == fitted(without).contrasts
    again = {**without, "plain_again": {7: 1.0}}
    assert fitted(again).repeat is None, "nothing compares it with plain"
    assert set(fitted(again).contrasts) == set(fit.contrasts)


@pytest.mark.parametrize(
    ("launches", "why"),
    [
        ({"noop": {0: 1.0, 1: 2.0}}, "plain was not measured"),
        ({"plain": {0: 1.0}, "noop": {0: 2.0}}, "one launch per config"),
        ({"plain": {0: 1.0, 1: 2.0}, "noop": {2: 2.0, 3: 1.5}}, "shares no block"),
        ({"plain": {0: 1.0, 1: 1.0, 2: 1.0}, "noop": {0: 2.0, 1: 2.0, 2: 2.0}}, "agree to the last digit"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(launches: Launches, why: str) -> None:
    fit = fit_blocks(launches, REFERENCES)
    assert isinstance(fit, str)
    assert why in fit


def unequal(fit: BlockFit) -> bool:
    """Any config is called higher or lower."""
    return any(one.together is not None and one.together.low * one.together.high > 0 for one in fit.contrasts.values())


@pytest.mark.parametrize("blocks", [3, 5, 8])
def test_identical_configs_are_called_different_as_rarely_as_stated(blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    fits = [fitted(draw(rng, blocks)) for _ in range(RUNS)]
    error = math.sqrt(0.05 * 0.95 / RUNS)
    assert abs(np.mean([unequal(fit) for fit in fits]) - 0.05) <= 3 * error
    own = [one for fit in fits for one in fit.contrasts.values()]
    covered = np.mean([(one.own_low or 0.0) <= 0 <= (one.own_high or 0.0) for one in own])
    assert covered == pytest.approx(0.95, abs=3 * error)  # seven of a fit are not independent: the bound of one
    pooled = np.mean([one.low <= 0 <= one.high for one in own])
    assert pooled == pytest.approx(0.95, abs=3 * error)  # 0.952: see docs/analysis-connector-tax.md
    repeats = np.mean([fit.repeat is not None and fit.repeat.low <= 0 <= fit.repeat.high for fit in fits])
    assert abs(repeats - 0.95) <= 3 * error


def judge_by_one_launch(launches: Launches) -> bool:
    fit = fitted(
        {name: {0: values[0], 1: values[0] + 1e-3 * place} for place, (name, values) in enumerate(launches.items())}
    )
    return unequal(fit)


def judge_uncorrected(launches: Launches) -> bool:
    fit = fitted(launches)
    t = stats.t.ppf(0.975, fit.degrees) * fit.sigma * math.sqrt(1.5 / len(launches["plain"]))
    return any(abs(one.difference) > t for one in fit.contrasts.values())


def judge_unpaired(launches: Launches) -> bool:
    """Each config's own spread over the blocks stands in for the residual, with nine columns' degrees of freedom."""
    spread = math.sqrt(np.mean([np.var(list(launches[name].values()), ddof=1) for name in CONFIGS]))
    fit = fitted(launches)
    half = (
        compute_dunnett_critical(equicorrelated(7, 1 / 3), fit.degrees)
        * spread
        * math.sqrt(1.5 / len(launches["plain"]))
    )
    return any(abs(one.difference) > half for one in fit.contrasts.values())


@pytest.mark.parametrize("judge", [judge_by_one_launch, judge_uncorrected, judge_unpaired])
@pytest.mark.parametrize("blocks", [3, 5, 8])
def test_ways_that_are_wrong_are_told_apart_from_it(blocks: int, judge: Callable[[Launches], bool]) -> None:
    """The bounds of the test above are tight enough: one launch, no correction, no blocks each leave them."""
    rng = np.random.default_rng(blocks)
    runs = 600
    wrong = np.mean([judge(draw(rng, blocks)) for _ in range(runs)])
    assert abs(wrong - 0.05) > 3 * math.sqrt(0.05 * 0.95 / runs)


def test_an_effect_of_the_size_that_was_planned_for_is_found_with_the_planned_power() -> None:
    effect = detectable_effect(SIGMA, 8, 7)
    assert effect == pytest.approx(
        (compute_dunnett_critical(equicorrelated(7, 1 / 3), 56) + stats.t.ppf(0.8, 56)) * SIGMA * math.sqrt(1.5 / 8),
        rel=1e-3,
    )
    rng = np.random.default_rng(8)
    contrasts = [fitted(draw(rng, 8, {"nixl": effect})).contrasts["nixl"] for _ in range(1000)]
    found = np.mean([one.together is not None and one.together.low > 0 for one in contrasts])
    assert found == pytest.approx(0.8, abs=0.05)


def test_launches_are_planned_for_a_named_effect() -> None:
    needed = find_launches_for(math.log(1.1), 0.1, 7)
    assert needed is not None
    assert detectable_effect(0.1, needed, 7) <= math.log(1.1) < detectable_effect(0.1, needed - 1, 7)
    assert (find_launches_for(math.log(1.1), 0.1, 7, level=0.99) or 0) > needed
    assert find_launches_for(1e-6, 0.1, 7) is None
    assert math.isinf(detectable_effect(0.1, 1, 7))


@pytest.mark.parametrize(("blocks", "most"), [(3, 0.11), (8, 0.07)])
def test_a_config_whose_launches_vary_more_is_judged_by_its_own_spread(blocks: int, most: float) -> None:
    """With a sigma four times that of the others; by the residual of all, 19 % of these would be called different."""
    rng = np.random.default_rng(blocks)
    noisy, others = [], []
    for _ in range(RUNS // 2):
        launches = {name: dict(values) for name, values in draw(rng, blocks).items()}
        for block in range(blocks):
            launches["nixl"][block] += float(rng.normal(0, math.sqrt(15) * SIGMA))
        verdicts = {
            name: one.together is not None and one.together.low * one.together.high > 0
            for name, one in fitted(launches).contrasts.items()
        }
        noisy.append(verdicts.pop("nixl"))
        others.append(any(verdicts.values()))
    assert np.mean(noisy) < most
    assert np.mean(others) < 0.05


def queued(rng: np.random.Generator, blocks: int) -> Launches:
    """Two configs of which a queue makes the launches vary ten times as much as the others'."""
    launches = {name: dict(values) for name, values in draw(rng, blocks).items()}
    for name in ("nixl", "multi"):
        for block in range(blocks):
            launches[name][block] += float(rng.normal(0, 10 * SIGMA))
    return launches


def test_configs_apart_widen_no_other_and_are_judged_by_their_own_launches() -> None:
    launches = queued(np.random.default_rng(2), 5)
    fit = fitted(launches, apart=("nixl", "multi", "plain"))
    without = fitted({name: values for name, values in launches.items() if name not in ("nixl", "multi")})
    assert fit.sigma == without.sigma
    assert fit.sigma < 0.5 * fitted(launches).sigma
    for name, contrast in without.contrasts.items():
        assert (fit.contrasts[name].low, fit.contrasts[name].high) == (contrast.low, contrast.high)
    assert set(fit.apart) == {"nixl", "multi"}
    own = [launches["nixl"][b] - (launches["plain"][b] + launches["plain_again"][b]) / 2 for b in range(5)]
    known = stats.ttest_1samp(own, 0.0)
    interval = known.confidence_interval(0.95)
    nixl = fit.find("nixl")
    assert nixl is not None
    assert (nixl.low, nixl.high) == pytest.approx((interval.low, interval.high))
    assert nixl.together is not None
    assert nixl.together.p == pytest.approx(min(1.0, 7 * known.pvalue))
    drawn = draw_differences({0: fit})[0]
    assert tuple(np.quantile(drawn["nixl"], (0.025, 0.975))) == pytest.approx((interval.low, interval.high), rel=0.1)


def test_configs_apart_and_the_others_are_wrong_together_as_rarely_as_stated() -> None:
    """With the queued ones in the residual the others could hardly be called different at all."""
    rng, runs, blocks = np.random.default_rng(12), 400, 5
    wrong, pooled = [], []
    for _ in range(runs):
        launches = queued(rng, blocks)
        fit = fitted(launches, apart=("nixl", "multi"))
        bounds = [one.together for one in (*fit.contrasts.values(), *fit.apart.values()) if one.together is not None]
        wrong.append(any(one.low * one.high > 0 for one in bounds))
        others = [one.together for name, one in fitted(launches).contrasts.items() if name in fit.contrasts]
        pooled.append(any(one is not None and one.low * one.high > 0 for one in others))
    error = math.sqrt(0.05 * 0.95 / runs)
    assert abs(np.mean(wrong) - 0.05) <= 3 * error
    assert np.mean(pooled) < 0.05 - 3 * error, "a mutant that leaves them in has no power left"


def test_a_config_apart_without_two_launches_has_no_contrast() -> None:
    launches = {name: dict(values) for name, values in draw(np.random.default_rng(3), 4).items()}
    launches["multi"] = {1: 0.4}
    fit = fitted(launches, apart=("multi",))
    assert fit.find("multi") is None
    assert set(draw_differences({0: fit})[0]) == set(fit.contrasts)


def test_joint_draws_have_the_spread_of_the_contrasts_and_of_their_sums() -> None:
    fit = fitted(draw(np.random.default_rng(4), 5))
    draws = draw_differences({0: fit})[0]
    for name, contrast in fit.contrasts.items():
        low, high = np.quantile(draws[name], (0.025, 0.975))
        assert (low, high) == pytest.approx((contrast.low, contrast.high), abs=0.05 * (contrast.high - contrast.low))
    between = np.std(draws["nixl"] - draws["multi"]) / math.sqrt(fit.degrees / (fit.degrees - 2))
    assert between == pytest.approx(fit.sigma * math.sqrt(2 / 5), rel=0.03), "the reference cancels"


def test_a_missing_launch_leaves_the_own_bounds_around_the_difference() -> None:
    launches = {name: dict(values) for name, values in draw(np.random.default_rng(6), 5).items()}
    del launches["plain"][2], launches["nixl"][0], launches["plain_again"][4]
    contrast = fitted(launches).contrasts["nixl"]
    assert contrast.own_low is not None
    assert contrast.own_high is not None
    assert (contrast.own_low + contrast.own_high) / 2 == pytest.approx(contrast.difference)
    assert contrast.launches == 4
