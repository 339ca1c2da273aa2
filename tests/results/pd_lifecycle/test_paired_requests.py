"""Pairs: an order effect cancels and is reported, and significance at many sizes is corrected for their number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from results.pd_lifecycle import verdicts
from results.pd_lifecycle.overheads import find_break_evens, measure_overheads
from results.pd_lifecycle.paired_requests import (
    COMBINED,
    OVERHEAD,
    TTFT,
    balance_orders,
    compare_output_lengths,
    measure_order_effects,
)
from results.pd_lifecycle.summary import collect_config_values
from results.pd_lifecycle.transfer_regression import fit_least_squares
from results.records.events import LifecycleMeasured
from results.records.lifecycle import LifecycleRecord, RequestConfig
from results.statistics.judgement import Outcome
from state.lifecycle import LifecycleView, fold_request_into_lifecycle, list_overheads
from tests.results.pd_lifecycle.synthetic import Truth, grid, seen
from tests.results.statistics.in_memory import covers

SIZES = (512, 2048, 8192)


def _paired(
    rng: np.random.Generator, *, overhead_ms: float = 0.0, by_length_ms: float = 0.0, noise_ms: float = 3.0
) -> Iterator[LifecycleRecord]:
    """A grid whose TTFTs are drawn: `by_length_ms` is the spread between output lengths of one (C, N)."""
    one = seen(Truth(noise=0.0), RequestConfig(0, 512, 1)).record()
    for context in (0, 4096, 8192):
        for size in SIZES:
            for length in (1, 8, 32):
                shift = by_length_ms * rng.standard_normal()
                for repetition in (3, 4, 5):
                    overhead = overhead_ms + shift + noise_ms * rng.standard_normal()
                    colo = 100.0 + rng.standard_normal()
                    times = {TTFT: colo + overhead, OVERHEAD: overhead}
                    first = (repetition + length) % 2 == 1
                    yield replace(
                        one,
                        config=RequestConfig(context, size, length),
                        repetition=repetition,
                        more_ms={**one.more_ms, **times},
                        colo=replace(one.colo, ttft_ms=colo, first=first),
                    )


def test_both_orders_count_alike_however_often_each_was_taken() -> None:
    taken, order = np.array([10.0, 12.0, 11.0, 30.0]), np.array([1.0, 1.0, 1.0, -1.0])
    balanced = balance_orders(taken, order)
    assert balanced.mean.value == pytest.approx((11.0 + 30.0) / 2)
    assert balanced.order.value == pytest.approx(11.0 - 30.0)
    assert balanced.dof == 2


def test_it_is_the_constant_of_least_squares_with_the_order_as_a_column() -> None:
    rng = np.random.default_rng(3)
    order = np.array([1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    taken = 20 + 4 * order + rng.standard_normal(7)
    balanced = balance_orders(taken, order)
    constant, slope = fit_least_squares([order], taken, np.ones(7))
    assert (balanced.mean.value, balanced.order.value) == pytest.approx((constant.value, 2 * (slope.value or 0.0)))
    design = np.column_stack([np.ones(7), order])
    left = taken - design @ np.linalg.lstsq(design, taken, rcond=None)[0]
    error = np.sqrt(left @ left / 5 * np.linalg.inv(design.T @ design)[0, 0])
    assert balanced.mean.high == pytest.approx(constant.value + stats.t.ppf(0.975, 5) * error)
    assert balanced.p == pytest.approx(2 * stats.t.sf(abs(constant.value or 0.0) / error, 5))


def test_one_order_alone_says_so() -> None:
    balanced = balance_orders(np.array([1.0, 2.0, 3.0]), np.array([-1.0, -1.0, -1.0]))
    assert balanced.mean.value == 2.0
    assert "one order only" in (balanced.mean.basis or "")
    assert balanced.order.value is None
    blind = balance_orders(np.array([1.0, 2.0, 3.0]), np.array([-1.0, 0.0, 1.0]))
    assert blind.mean.value == 2.0
    assert blind.order.value is None
    assert balance_orders(np.array([]), np.array([])).mean.value is None


def test_a_known_order_effect_cancels_and_is_recovered() -> None:
    """The second of a pair takes 6 ms longer: 6 ms less in one difference, 6 ms more in the other."""
    quiet = Truth(noise=0.0, jitter_ms=0.001)
    plain, moved = (tuple(grid(replace(quiet, order_ms=by), sizes=SIZES, repetitions=6)) for by in (0.0, 6.0))
    for without, with_effect in zip(measure_overheads(plain), measure_overheads(moved), strict=True):
        assert with_effect.overhead_ms.value == pytest.approx(without.overhead_ms.value, abs=0.01)
    effects = {(one.name, one.prior_context): one.effect_ms for one in measure_order_effects(moved)}
    assert effects[OVERHEAD, None].value == pytest.approx(12.0, abs=0.01)
    assert effects[TTFT, None].value == pytest.approx(6.0, abs=0.01)
    assert effects[COMBINED, 4096].value == pytest.approx(-6.0, abs=0.01)
    assert effects[OVERHEAD, None].low == pytest.approx(12.0, abs=0.01)
    criterion = verdicts.judge_overhead(measure_overheads(moved), (), measure_order_effects(moved))
    assert "order effect, cancelled here (combined first minus handover first): 12.0" in criterion.reason


def test_an_order_effect_over_launches_is_as_uncertain_as_they_differ() -> None:
    """Every (C, N) of a launch has its effect: 12 (C, N) that agree say nothing of another launch."""
    quiet = Truth(noise=0.0, jitter_ms=0.001)
    records = [
        replace(one, trial=trial)
        for trial, by in enumerate((2.0, 6.0, 10.0))
        for one in grid(replace(quiet, order_ms=by), sizes=SIZES, repetitions=6)
    ]
    (over_all, *_) = measure_order_effects(records)
    assert (over_all.name, over_all.prior_context) == (OVERHEAD, None)
    effect = over_all.effect_ms
    assert effect.value == pytest.approx(12.0, abs=0.01)
    assert effect.low == pytest.approx(12.0 - 4.302653 * 8 / math.sqrt(3), abs=0.05)
    assert (effect.launches, effect.n) == (3, 2 * len(SIZES))
    (alone, *_) = measure_order_effects([one for one in records if one.trial == 1])
    assert alone.effect_ms.low == pytest.approx(12.0, abs=0.01)


def test_an_order_effect_over_launches_is_over_the_sizes_that_every_launch_has() -> None:
    """The effect is 6 ms at N = 512 and 30 ms at N = 8192: a launch without the latter does not differ for that."""
    quiet = Truth(noise=0.0, jitter_ms=0.001)
    records = [
        replace(one, trial=trial)
        for trial in range(3)
        for size, by in ((512, 3.0), (8192, 15.0))
        for one in grid(replace(quiet, order_ms=by), contexts=(0,), sizes=(size,), repetitions=6, seed=trial)
        if trial < 2 or size == 512
    ]
    (over_all, *_) = measure_order_effects(records)
    effect = over_all.effect_ms
    assert (over_all.name, effect.n, effect.launches) == (OVERHEAD, 1, 3)
    assert effect.value == pytest.approx(6.0, abs=0.01)
    assert effect.high == pytest.approx(6.0, abs=0.05)
    apart = [one for one in records if (one.trial == 2) == (one.config.current_new_tokens == 512)]
    (nowhere, *_) = measure_order_effects(apart)
    assert nowhere.effect_ms.reason == "no (C, N) has both orders in every launch"


def test_the_summary_the_map_and_the_console_have_one_estimator() -> None:
    records = [record for record in grid(Truth(order_ms=6.0), contexts=(0,), sizes=(512,), lengths=(32,))]
    (cell,) = measure_overheads(records)
    row = collect_config_values([record for record in records if record.counted], 1)
    assert row["pdsep_overhead"].value == pytest.approx(cell.overhead_ms.value)
    assert row["client_ttft"].value == pytest.approx(cell.pdsep_ttft_ms.value)
    assert row["colo_ttft"].value == pytest.approx(cell.colo_ttft_ms.value)
    assert cell.overhead_ms.value == pytest.approx((cell.pdsep_ttft_ms.value or 0) - (cell.colo_ttft_ms.value or 0))
    view: LifecycleView | None = None
    for record in records:
        event = LifecycleMeasured(
            "sweep/a", 0, 512, 32, record.repetition, warmup=record.warmup, ttft_ms=record.client_ttft_ms,
            colo_ttft_ms=record.colo.ttft_ms, colo_first=record.colo.first,
        )  # fmt: skip
        view = fold_request_into_lifecycle(view, event, 1.0, 1)
    assert view is not None
    (shown,) = list_overheads(view)
    assert shown.overhead_ms == pytest.approx(cell.overhead_ms.value)


def test_no_sign_is_significant_where_there_is_no_overhead() -> None:
    """Nine (C, N) at 95 % each would be significant somewhere in a third of the grids."""
    runs, opened, significant, single = 120, 0, 0, 0
    for seed in range(runs):
        cells = measure_overheads(tuple(_paired(np.random.default_rng(seed))))
        criterion = verdicts.judge_overhead(cells, find_break_evens(cells))
        opened += criterion.outcome is Outcome.UNDECIDED
        significant += any(cell.sign is not None for cell in cells)
        single += any((cell.overhead_ms.low or 0.0) > 0 or (cell.overhead_ms.high or 0.0) < 0 for cell in cells)
    assert opened >= 0.95 * runs
    assert significant <= 0.09 * runs, "5 % and what 120 grids may differ from it"
    assert single > 3 * significant, "the intervals are those of single sizes"


def test_a_real_overhead_is_significant_everywhere() -> None:
    cells = measure_overheads(tuple(_paired(np.random.default_rng(1), overhead_ms=20.0)))
    assert {cell.sign for cell in cells} == {1}


def test_output_lengths_that_differ_are_no_independent_repetitions() -> None:
    """Without it the intervals would hold the truth in half of the cases."""
    inside = total = 0
    for seed in range(60):
        cells = measure_overheads(tuple(_paired(np.random.default_rng(seed), by_length_ms=4.0, noise_ms=2.0)))
        inside += sum(covers(cell.overhead_ms, 0) for cell in cells)
        total += len(cells)
    assert inside >= 0.9 * total


def test_the_f_of_the_output_lengths_is_that_of_an_analysis_of_variance() -> None:
    rng = np.random.default_rng(2)
    taken, length = rng.standard_normal(12), np.repeat([1.0, 8.0, 32.0], 4)
    actual = compare_output_lengths(taken, np.full(12, -1.0), length)
    known = stats.f_oneway(*(taken[length == one] for one in (1.0, 8.0, 32.0)))
    assert (actual.f, actual.p) == pytest.approx((known.statistic, known.pvalue))
    assert compare_output_lengths(taken, np.ones(12), np.ones(12)).f is None
    assert compare_output_lengths(np.zeros(12), np.ones(12), length).f is None


def test_pairs_that_all_agree_do_not_give_a_p_of_zero() -> None:
    orders = np.array([1.0, -1.0, 1.0, -1.0])
    assert balance_orders(np.full(4, 3.0), orders).p == 2.0**-3
    assert balance_orders(np.zeros(4), orders).p == 1.0
