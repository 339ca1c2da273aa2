"""Known shares, sums, amplification and trends are found again; where a side is missing its name stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from results.connector_tax.combined_taxes import (
    Additive,
    Additivity,
    Decomposition,
    TaxAmplification,
    add_up_taxes,
    amplify_taxes,
    decompose_taxes,
    find_reference_load,
    judge_sum,
    measure_nixl_gap,
)
from results.connector_tax.hypotheses import judge_input_trend
from results.connector_tax.measurements import Measurements
from results.connector_tax.summary import Shape
from results.connector_tax.tax import Metric
from results.connector_tax.trends import Trend, _fit_slope, _weigh_taxes, follow_trends
from results.records.estimate import Estimate
from results.records.reference_rates import REF_SAFE, ReferenceRates
from results.statistics.judgement import Outcome, Verdict
from results.statistics.trials import Measured, Trial, estimate
from tests.results.statistics.in_memory import (
    RATES,
    SHAPE,
    SIMULATIONS,
    Truth,
    as_promised,
    bounds,
    covers,
    measurements,
)

TTFT = Metric.TTFT_P90
_Row = TypeVar("_Row", Decomposition, Additivity, TaxAmplification)


def at_safe(taxes: Mapping[str, float], seed: int = 0, trials: Sequence[int] = (0,)) -> Measurements:
    """Each config's tax at ref_safe, of 400 requests that vary by 10 %."""
    everyone = {"plain": 0.0, **taxes}
    return measurements(
        [Truth(name, tax, requests=400, sigma=0.1, trials=trials) for name, tax in everyone.items()], seed
    )


def ttft_of(rows: Iterable[_Row]) -> _Row:
    """The only row about TTFT."""
    (found,) = [row for row in rows if row.metric == TTFT]
    return found


@SIMULATIONS
@pytest.mark.parametrize("trials", [(0,), (0, 1, 2, 3)])
def test_framework_and_implementation_make_up_the_tax(trials: Sequence[int], seeds: Sequence[int]) -> None:
    taxes = {"noop_connector": 0.10, "mooncake_both": 0.45}
    rows = [ttft_of(decompose_taxes(at_safe(taxes, seed, trials), RATES)) for seed in seeds]
    assert as_promised(covers(row.total, 0.45) for row in rows)
    assert as_promised(covers(row.framework, 0.10) for row in rows)
    assert as_promised(covers(row.implementation, 0.35) for row in rows)
    assert as_promised(covers(row.framework_share, 0.10 / 0.45) for row in rows)
    row = rows[0]
    assert row.config == "mooncake_both"
    assert row.total.value == pytest.approx((row.framework.value or 0) + (row.implementation.value or 0))


def test_plains_noise_is_in_both_parts_and_drawn_once() -> None:
    """What noop_connector and mooncake_both share is plain: its draws nearly cancel in their difference."""
    noisy = [
        Truth("plain", sigma=0.5),
        Truth("noop_connector", 0.1, sigma=0.01),
        Truth("mooncake_both", 0.2, sigma=0.01),
    ]
    row = ttft_of(decompose_taxes(measurements(noisy), RATES))
    widths = [high - low for low, high in map(bounds, (row.total, row.implementation))]
    assert widths[1] < widths[0] / 4


def test_without_the_framework_the_total_stands_alone() -> None:
    row = ttft_of(decompose_taxes(at_safe({"mooncake_both": 0.45}), RATES))
    assert row.total.value == pytest.approx(0.45, abs=0.1)
    for lacking in (row.framework, row.implementation, row.framework_share):
        assert (lacking.value, lacking.reason) == (None, "noop_connector was not measured at this load")


@SIMULATIONS
@pytest.mark.parametrize(("multi", "verdict"), [(0.40, Additive.LINEAR), (0.80, Additive.SUPER), (0.25, Additive.SUB)])
@pytest.mark.parametrize("trials", [range(4), range(6)])
def test_a_known_non_additivity_is_found(
    multi: float, verdict: Additive, trials: Sequence[int], seeds: Sequence[int]
) -> None:
    taxes = {"mooncake_both": 0.25, "lmcache_only": 0.15, "multi_mooncake_lmcache": multi}
    rows = [ttft_of(add_up_taxes(at_safe(taxes, seed, trials), RATES)) for seed in seeds]
    assert as_promised(covers(row.total, 0.40) for row in rows)
    assert as_promised(covers(row.excess, multi - 0.40) for row in rows)
    assert as_promised(covers(row.relative_excess, (multi - 0.40) / multi) for row in rows)
    judged_rows = [(row.verdict, row.reason) for row in rows]
    assert judged_rows.count((verdict, "")) >= 10
    assert {kind for kind, _ in judged_rows} <= {verdict, Additive.UNDECIDED}


def test_additivity_near_its_limit_is_undecided_and_says_which() -> None:
    assert judge_sum(Estimate(0.3, 0.2, 0.4, launches=3)) == (Additive.UNDECIDED, "the interval straddles +30 %")
    wide = Estimate(0.0, -0.5, 0.5, launches=3)
    assert judge_sum(wide) == (Additive.UNDECIDED, "the interval straddles -30 % and +30 %")
    assert judge_sum(Estimate(0.1, None, None, reason="9 samples", launches=3)) == (Additive.UNDECIDED, "9 samples")


def test_a_missing_part_of_the_sum_is_named() -> None:
    row = ttft_of(add_up_taxes(at_safe({"mooncake_both": 0.25}), RATES))
    assert row.verdict == Additive.UNDECIDED
    assert row.reason == "multi_mooncake_lmcache was not measured at this load"
    assert add_up_taxes(at_safe({"nixl_both": 0.25}), RATES) == ()


@SIMULATIONS
def test_the_gap_between_mooncake_and_nixl_is_found(seeds: Sequence[int]) -> None:
    taxes = {"mooncake_both": 0.45, "nixl_both": 0.38}
    assert as_promised(covers(estimate(measure_nixl_gap(at_safe(taxes, seed), RATES, TTFT)), 0.07) for seed in seeds)


@SIMULATIONS
def test_what_queueing_adds_is_found_per_config_and_shape(seeds: Sequence[int]) -> None:
    small = Shape(512, 256)
    once = [
        Truth("plain"), Truth("plain", rate_per_s=8), Truth("plain", phase="B", shape=small),
        Truth("plain", phase="Bp", rate_per_s=8, shape=small),
        Truth("nixl_both", 0.1), Truth("nixl_both", 0.9, rate_per_s=8),
        Truth("nixl_both", 0.2, "B", shape=small), Truth("nixl_both", 0.2, "Bp", 8, small),
    ]  # fmt: skip
    truths = [replace(truth, trials=range(4)) for truth in once]
    runs = [
        {row.phases: row for row in amplify_taxes(measurements(truths, seed), RATES) if row.metric == TTFT}
        for seed in seeds
    ]
    assert as_promised(covers(rows["A", "A"].amplification, 0.8) for rows in runs)
    assert as_promised(covers(rows["B", "Bp"].amplification, 0.0) for rows in runs)
    assert as_promised(rows["B", "Bp"].verdict == Verdict.NOT_DISTINGUISHABLE for rows in runs)
    assert all(rows["A", "A"].verdict == Verdict.HIGHER for rows in runs)
    assert (runs[0]["A", "A"].shape, runs[0]["B", "Bp"].shape) == (SHAPE, small)


def test_one_rate_for_both_references_amplifies_nothing_that_could_be_told() -> None:
    rates = ReferenceRates(4.0, 4.0, "", "")
    row = ttft_of(amplify_taxes(at_safe({"nixl_both": 0.1}), rates))
    assert (row.amplification.value, row.verdict) == (None, None)
    assert row.amplification.reason == "ref_load equals ref_safe (4 req/s)"


def grid(slope: float, *, trials: Sequence[int] = (0,), missing: Shape | None = None) -> list[Truth]:
    """mooncake_both's tax grows from 10 % by `slope` per doubling of each length."""
    shapes = [Shape(512 * 2**i, 64 * 2**o) for i in range(3) for o in range(3)]
    sizes = {shape: shape.input_tokens // 512 * (shape.output_tokens // 64) for shape in shapes}
    doublings = {shape: size.bit_length() - 1 for shape, size in sizes.items()}
    ours = [
        Truth("mooncake_both", 0.1 + slope * doublings[shape], "B", shape=shape, sigma=0.1, trials=trials)
        for shape in shapes
    ]
    plain = [Truth("plain", phase="B", shape=shape, sigma=0.1, trials=trials) for shape in shapes]
    return [truth for truth in (*plain, *ours) if truth.shape != missing or truth.config == "plain"]


def line(rows: Sequence[Trend], along: str, at: int | None) -> Trend:
    (row,) = [row for row in rows if (row.along, row.at) == (along, at)]
    return row


@SIMULATIONS
@pytest.mark.parametrize("slope", [0.0, 0.08, -0.03])
def test_a_known_slope_is_found_along_both_lengths(slope: float, seeds: Sequence[int]) -> None:
    runs = [follow_trends(measurements(grid(slope, trials=range(4)), seed)) for seed in seeds]
    for along, metric in (("input_tokens", TTFT), ("output_tokens", Metric.TPOT_P90)):
        means = [line(rows, along, None) for rows in runs]
        assert {mean.metric for mean in means} == {metric}
        assert as_promised(covers(mean.slope, slope) for mean in means)
        assert as_promised(all(covers(step, slope) for step in mean.steps) for mean in means)
        # at the shortest length, the mean over 0, 1 and 2 doublings of the other
        assert as_promised(covers(mean.taxes[0], 0.1 + slope) for mean in means)
    assert line(runs[0], "input_tokens", 64).lengths == (512, 1024, 2048)
    assert as_promised(covers(line(rows, "input_tokens", 64).slope, slope) for rows in runs)


def test_steps_hold_together_and_so_reach_further() -> None:
    row = line(follow_trends(measurements(grid(0.08))), "input_tokens", None)
    alone = bounds(row.slope)
    widths = [high - low for low, high in map(bounds, row.steps)]
    assert min(widths) > (alone[1] - alone[0])


def test_a_missing_shape_leaves_its_lines_unknown_with_its_name() -> None:
    rows = follow_trends(measurements(grid(0.08, missing=Shape(1024, 64))))
    assert line(rows, "input_tokens", 64).slope.reason == "mooncake_both was not measured at this load"
    assert line(rows, "input_tokens", None).slope.value is None
    assert line(rows, "input_tokens", 128).slope.value == pytest.approx(0.08, abs=0.03)


def at_own_rates(rate_of: Callable[[Shape], float]) -> list[Truth]:
    """A tax of 10 % at 4 req/s that grows by 20 points with every halving of the rate, whatever the lengths."""
    return [
        replace(
            truth,
            rate_per_s=(rate := rate_of(truth.shape)),
            tax=0.0 if truth.config == "plain" else 0.1 + 0.2 * math.log2(4 / rate),
        )
        for truth in grid(0.0, trials=range(4))
    ]


def test_a_length_at_another_rate_takes_no_part_in_a_trend_over_lengths() -> None:
    """Else the trend would be one over load."""
    rows = follow_trends(measurements(at_own_rates(lambda shape: 0.5 if shape.input_tokens == 2048 else 4.0)))
    for at in (64, 128, 256, None):
        row = line(rows, "input_tokens", at)
        assert (row.lengths, row.absent, row.rates_per_s) == ((512, 1024), (2048,), (4.0,))
        assert covers(row.slope, 0.0)
        assert f"2048x{at or 64}: at 0.5 req/s, other lengths at 4" in row.left_out
    along_outputs = line(rows, "output_tokens", 2048)
    assert (along_outputs.lengths, along_outputs.left_out) == ((64, 128, 256), ()), "one rate along this line"
    mean = line(rows, "output_tokens", None)
    assert (mean.lengths, mean.left_out, mean.rates_per_s) == ((64, 128, 256), (), (0.5, 4.0))
    assert covers(mean.taxes[0], 0.1 + 0.2)  # the mean over 10, 10 and 70 %, at every length


def test_of_one_shape_at_another_rate_the_lines_without_it_give_the_mean() -> None:
    rows = follow_trends(measurements(at_own_rates(lambda shape: 0.5 if shape == Shape(2048, 64) else 4.0)))
    mean = line(rows, "input_tokens", None)
    assert (mean.lengths, mean.absent, mean.rates_per_s) == ((512, 1024, 2048), (), (4.0,))
    assert covers(mean.taxes[2], 0.1)
    assert mean.left_out == ("2048x64: at 0.5 req/s, other lengths at 4",)
    assert line(rows, "input_tokens", 64).lengths == (512, 1024)


def test_lengths_of_which_no_two_have_one_rate_show_no_trend() -> None:
    rates = {512: 4.0, 1024: 1.0, 2048: 0.5}
    rows = follow_trends(measurements(at_own_rates(lambda shape: rates[shape.input_tokens])))
    row = line(rows, "input_tokens", None)
    assert row.slope.value is None
    assert "fewer than two lengths are left without saturation at one rate" in (row.slope.reason or "")
    assert judge_input_trend(row).outcome == Outcome.OPEN
    assert line(rows, "output_tokens", None).lengths == (64, 128, 256)


def test_a_slope_weighs_every_length_by_the_precision_of_its_tax() -> None:
    """With equal weights the middle one of three lengths would not count."""
    lengths, taxes = (512, 1024, 2048), [np.array([tax]) for tax in (0.0, 0.3, 0.2)]
    alike, precise_start = (_fit_slope(lengths, np.array([start, 1.0, 1.0])) for start in (1.0, 100.0))
    assert alike(*taxes)[0] == pytest.approx(0.1)
    assert precise_start(*taxes)[0] == pytest.approx((0.3 + 2 * 0.2) / 5, abs=0.005), "a line from the sure tax"


def test_a_large_tax_weighs_as_much_as_a_small_one_of_the_same_noise() -> None:
    """With weights by the interval of the tax itself the slope of taxes that grow is too small."""
    launches = np.exp([-0.1, 0.02, 0.12, -0.05])
    taxes = [
        Measured({number: Trial(float(of * (1 + tax) - 1), 100, lambda: "none") for number, of in enumerate(launches)})
        for tax in (0.05, 0.2, 0.8)
    ]
    weights = _weigh_taxes(taxes)
    assert weights / weights[0] == pytest.approx(np.ones(3))


def test_one_length_is_no_trend() -> None:
    assert follow_trends(measurements([Truth("plain", phase="B"), Truth("mooncake_both", phase="B")])) == ()


def test_without_a_reference_rate_its_reason_stands() -> None:
    rates = ReferenceRates(None, None, "no rate is clear", "plain was not measured")
    assert find_reference_load(at_safe({}), rates, REF_SAFE) == "there is no ref_safe: no rate is clear"
    row = ttft_of(decompose_taxes(at_safe({"nixl_both": 0.3}), rates))
    assert (row.total.value, row.total.reason) == (None, "there is no ref_safe: no rate is clear")
    lost = ReferenceRates(2.0, 2.0, "", "")
    assert find_reference_load(at_safe({}), lost, REF_SAFE) == "Phase A has no cell at ref_safe (2 req/s)"
