"""From three launches on the launch decides: its spread gives the intervals, and what all sizes share counts once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from results.pd_lifecycle import verdicts
from results.pd_lifecycle.first_repetitions import compare_first_repetitions
from results.pd_lifecycle.half_step import assess_half_step
from results.pd_lifecycle.overheads import (
    COMBINED_ENGINE,
    PLAIN_ENGINE,
    find_break_evens,
    find_p_of_signs,
    measure_grid_overheads,
    measure_overheads,
)
from results.pd_lifecycle.summary import values_of
from results.records.lifecycle import LifecycleRecord, RequestConfig
from results.statistics.judgement import Outcome
from tests.results.pd_lifecycle.synthetic import Truth, grid, seen

ONE = seen(Truth(noise=0.0), RequestConfig(0, 512, 1)).record()


def _launched(
    rng: np.random.Generator,
    *,
    launches: int = 3,
    overhead: float = 0.0,
    connector: float = 0.0,
    by_launch: float = 0.0,
    noise: float = 0.05,
    repetitions: int = 5,
    sizes: tuple[int, ...] = (512, 2048, 8192),
) -> Iterator[LifecycleRecord]:
    """TTFTs whose logarithms differ by these amounts; `by_launch` is what a launch's disaggregation is slower by."""
    for trial in range(launches):
        shift = by_launch * rng.standard_normal()
        for context in (0, 4096):
            for size in sizes:
                for repetition in range(1, repetitions + 1):
                    base = np.log(20 + size / 100)
                    plain, colo, ttft = np.exp(
                        base + np.array([0.0, connector, connector + overhead + shift]) + noise * rng.standard_normal(3)
                    )
                    order = (repetition + trial) % 2 == 1
                    times = {
                        "client_ttft": ttft, "pdsep_overhead": ttft - colo, "pdsep_overhead_vs_plain": ttft - plain,
                    }  # fmt: skip
                    yield replace(
                        ONE,
                        config=RequestConfig(context, size, 1),
                        trial=trial,
                        repetition=repetition,
                        warmup=repetition <= 2,
                        more_ms={**ONE.more_ms, **times},
                        colo=replace(ONE.colo, ttft_ms=colo, first=order),
                        plain=replace(ONE.colo, ttft_ms=plain, first=not order),
                    )


def test_the_overheads_over_both_engines_are_named_and_differ_by_the_connector() -> None:
    records = tuple(_launched(np.random.default_rng(1), overhead=0.5, connector=0.2, noise=0.01))
    combined, plain = measure_overheads(records), measure_overheads(records, plain=True)
    assert {cell.baseline for cell in combined} == {COMBINED_ENGINE}
    assert {cell.baseline for cell in plain} == {PLAIN_ENGINE}
    assert all(cell.sign == 1 and cell.overhead_ms.launches == 3 for cell in (*combined, *plain))
    for cell, other in zip(combined, plain, strict=True):
        assert cell.change.value == pytest.approx(np.expm1(0.5), abs=0.05)
        assert other.change.value == pytest.approx(np.expm1(0.7), abs=0.05)
        assert (cell.median_ms or 0.0) == pytest.approx(cell.overhead_ms.value, rel=0.1)
    changes = {(one.arm, one.baseline): one.change.value for one in measure_grid_overheads(records)}
    assert changes[COMBINED_ENGINE, PLAIN_ENGINE] == pytest.approx(np.expm1(0.2), abs=0.03)
    assert changes["handover", PLAIN_ENGINE] == pytest.approx(np.expm1(0.7), abs=0.03)


def test_one_launch_gives_no_verdict_and_says_what_would() -> None:
    records = tuple(_launched(np.random.default_rng(1), launches=1, overhead=0.5))
    cells = measure_overheads(records)
    criterion = verdicts.over_launches(verdicts.judge_overhead(cells, find_break_evens(cells)), 1)
    assert criterion.outcome is Outcome.UNDECIDED
    assert "`--trials 3` gives a verdict" in criterion.reason
    assert all(cell.change.low is None and cell.change.reason for cell in cells)
    assert all(one.change.low is None for one in measure_grid_overheads(records))


def test_launches_that_differ_do_not_make_an_overhead() -> None:
    """No overhead, launches that differ by 20 %: 5 % of runs may show a sign; repetitions alone show one in most."""
    shown = {3: 0, 1: 0}
    runs = 60
    for seed in range(runs):
        for launches in shown:
            rng = np.random.default_rng([seed, launches])
            cells = measure_overheads(tuple(_launched(rng, launches=launches, by_launch=0.2, noise=0.01)))
            shown[launches] += any(cell.sign is not None for cell in cells)
    assert shown[3] <= 0.05 * runs + 3 * np.sqrt(0.05 * 0.95 * runs), shown
    assert shown[1] > 0.4 * runs, "the launch as unit is what makes the difference"


def test_a_slow_repetition_moves_the_mean_and_not_what_decides() -> None:
    records = list(_launched(np.random.default_rng(2), overhead=0.5, noise=0.01, repetitions=12))
    slow = next(index for index, one in enumerate(records) if one.counted)
    one = records[slow]
    more = {**one.more_ms, "client_ttft": 900.0, "pdsep_overhead": 900.0 - (one.colo.ttft_ms or 0.0)}
    records[slow] = replace(one, more_ms=more)
    cell = measure_overheads(tuple(records))[0]
    assert (cell.overhead_ms.value or 0.0) > 2 * (cell.median_ms or 0.0)
    assert cell.change.value == pytest.approx(np.expm1(0.5), abs=0.1)


def test_the_values_of_a_configuration_are_over_its_launches() -> None:
    records = [one for one in _launched(np.random.default_rng(3), by_launch=0.3) if one.counted]
    own = [one for one in records if one.config.key == (0, 512, 1)]
    estimate = values_of(own)["client_ttft"]
    each = [values_of([one for one in own if one.trial == trial])["client_ttft"].value for trial in range(3)]
    assert estimate.value == pytest.approx(np.mean(np.array(each, dtype=np.float64)))
    assert (estimate.launches, estimate.n) == (3, 9)


def test_criterion_2_is_judged_over_the_launches() -> None:
    """Repetitions that agree say nothing of a launch: one of three has a fast link."""

    def launch(trial: int, alpha_ms: float) -> Iterator[LifecycleRecord]:
        truth = Truth(alpha_ms=alpha_ms, prefill_ms_per_token=0.001, noise=0.01)
        return (replace(one, trial=trial) for one in grid(truth, sizes=(4096, 8192), seed=trial))

    alike = [one for trial in range(3) for one in launch(trial, 40.0)]
    assert verdicts.judge_dominance(alike, 4000).outcome is Outcome.HOLDS
    differing = [one for trial, alpha in enumerate((40.0, 40.0, 0.01)) for one in launch(trial, alpha)]
    unsure = verdicts.judge_dominance(differing, 4000)
    assert unsure.outcome is Outcome.UNDECIDED
    sure = verdicts.judge_dominance(alike, 4000)
    assert 0 < (sure.p or 0) < 0.05 < (unsure.p or 0)
    assert verdicts.judge_dominance(alike[: len(alike) // 3], 4000).p is None, "one launch gives no p"


def test_criteria_that_compare_times_are_corrected_for_one_another() -> None:
    """Both signs at one (C, N) each: the p is that of the less certain one."""
    cells = measure_overheads(tuple(_launched(np.random.default_rng(4), overhead=0.5, noise=0.02)))
    assert find_p_of_signs(cells) == 1.0, "all are slower"
    assert cells[0].p is not None
    turned = [msgspec.structs.replace(cells[0], change=replace(cells[0].change, value=-0.3)), *cells[1:]]
    p = find_p_of_signs(turned)
    assert p is not None
    assert max(cell.p or 0 for cell in cells[:1]) <= p < 0.05
    judgement = verdicts.judge_overhead(turned, find_break_evens(turned))
    assert judgement.p == p
    assert verdicts.over_launches(judgement, 1).p is None


def test_the_first_repetitions_stand_beside_the_others() -> None:
    rows = {one.series: one for one in compare_first_repetitions(tuple(grid(Truth(noise=0.0, jitter_ms=0.001))))}
    assert rows["client_ttft"].cells == 16
    assert rows["rdma_transfer"].change.value is not None
    assert rows["rdma_transfer"].change.value > 1, "the first transfer of each cell is 40 ms longer"
    assert rows["colo_ttft"].change.value == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(("step_ms", "worthwhile", "words"), [(2.0, False, "idle and polls"), (3.0, True, "removes")])
def test_half_a_step_is_worthwhile_where_the_wait_is_for_one_step(step_ms: float, worthwhile: bool, words: str) -> None:
    assessed = assess_half_step(tuple(grid(Truth(step_ms=step_ms))))
    assert assessed.promotion_ms == pytest.approx(2.2)
    assert (assessed.worthwhile, assessed.requests) == (worthwhile, 48)
    assert words in assessed.text
    assert assess_half_step(()).worthwhile is None
