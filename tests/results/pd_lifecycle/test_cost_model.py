"""Known costs are recovered, intervals cover what they should, and what cannot be fitted says why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from results.pd_lifecycle.bandwidth_curve import compute_bandwidth
from results.pd_lifecycle.cost_model import Costs, fit_costs
from results.pd_lifecycle.summary import collect_config_values
from results.pd_lifecycle.transfer_regression import Transfers, collect_transfers, fit_least_squares, solve_each
from results.records.estimate import Estimate, unknown
from results.records.lifecycle import RequestConfig
from results.statistics.estimates import Samples
from tests.results.pd_lifecycle.synthetic import Truth, grid, seen
from tests.results.statistics.in_memory import bounds, covers

SIZES = (512, 2048, 4096, 8192, 16384, 32768)
ALPHA, BETA = 0.5, 0.8


def _transfers(seed: int, *, noise: float = 0.1, per_size: int = 12, alpha: float = ALPHA) -> Transfers:
    """Spread in proportion to the duration, as real transfers."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(SIZES)), per_size)
    size = np.array(SIZES, dtype=np.float64)[group] * 512
    ms = (alpha + BETA * size / 1e6) * np.exp(noise * rng.standard_normal(size.size) - noise**2 / 2)
    return _made(size, ms, np.full(size.size, 2.0), group)


def _made(
    size: Samples, ms: Samples, operations: Samples, group: np.ndarray, cell: np.ndarray | None = None
) -> Transfers:
    """Each transfer is a cell of its own unless `cell` says otherwise."""
    cells, nothing = np.arange(size.size) if cell is None else cell, np.full(size.size, np.nan)
    launch = np.zeros(size.size, dtype=np.int64)
    return Transfers(size, ms, 8 * size / ms / 1e6, operations, group, SIZES, cells, nothing, launch)


def test_repetitions_of_a_cell_are_no_independent_transfers() -> None:
    """What a whole cell is slower by widens the interval as much as if each cell had one transfer."""
    covered = {"cells": 0, "transfers": 0}
    for seed in range(60):
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(len(SIZES)), 12)
        cell = np.repeat(np.arange(group.size // 3), 3)
        size = np.array(SIZES, dtype=np.float64)[group] * 512
        noise = 0.2 * np.repeat(rng.standard_normal(group.size // 3), 3) + 0.01 * rng.standard_normal(group.size)
        ms = (ALPHA + BETA * size / 1e6) * (1 + noise)
        for name, cells in (("cells", cell), ("transfers", None)):
            costs = _fit(_made(size, ms, np.full(size.size, 2.0), group, cells))
            covered[name] += covers(costs.relative.beta_ms_per_mb, BETA)
    assert covered["cells"] >= 53
    assert covered["transfers"] <= 48


def _join(launches: Sequence[Transfers]) -> Transfers:
    """The transfers of launches of one length as those of one run."""
    parts: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in launches])
             for name in ("bytes", "ms", "gbps", "operations", "size", "run_delay_ms")}  # fmt: skip
    count = launches[0].n
    launch, cell = np.repeat(np.arange(len(launches)), count), np.arange(len(launches) * count)
    return replace(launches[0], **parts, launch=launch, cell=cell)


def test_from_three_launches_on_each_is_fitted_by_itself() -> None:
    launches = [_transfers(seed, alpha=alpha) for seed, alpha in enumerate((0.4, 0.5, 0.6))]
    both = _join(launches)
    costs, each = _fit(both), [_fit(one).relative.alpha_ms.value or 0.0 for one in launches]
    alpha = costs.relative.alpha_ms
    assert alpha.value == pytest.approx(np.mean(each))
    assert alpha.launches == 3
    assert (alpha.high or 0.0) - (alpha.value or 0.0) == pytest.approx(4.302653 * np.std(each, ddof=1) / math.sqrt(3))
    assert costs.ordinary.r2.high is not None
    assert costs.ordinary.r2.high <= 1.0
    assert {point.gbps.launches for point in costs.curve} == {3}
    two = replace(both, launch=np.minimum(both.launch, 1))
    assert _fit(two).relative.alpha_ms.launches == 1


def test_a_bandwidth_is_the_inverse_of_the_launches_mean_beta() -> None:
    """The mean of their bandwidths would favor the fast launch. 1 / beta falls with beta: the bounds are swapped."""
    launches = [_slow_down(_transfers(seed), by) for seed, by in enumerate((0.9, 1.0, 1.1))]
    costs = _fit(_join(launches))
    beta, bandwidth = costs.relative.beta_ms_per_mb, costs.relative.bandwidth_gbps
    low, high = bounds(beta)
    assert bandwidth.value == pytest.approx(8 / (beta.value or 1.0))
    assert bounds(bandwidth) == pytest.approx((8 / high, 8 / low))
    assert bandwidth.launches == 3
    each = [_fit(one).relative.bandwidth_gbps.value or 0.0 for one in launches]
    assert (bandwidth.value or 0.0) < 0.999 * float(np.mean(each))
    assert costs.knee.asymptote_gbps.value == pytest.approx(bandwidth.value)
    last, of_each = costs.curve[-1].gbps, [_fit(one).curve[-1].gbps.value or 1.0 for one in launches]
    assert last.value == pytest.approx(3 / sum(1 / one for one in of_each)), "medians by size alike"
    assert last.excludes(0)


def test_the_measured_knee_over_launches_is_that_of_the_medians_in_the_table() -> None:
    """One launch of three is 6 % slower: it moves the asymptote, and not the median of all transfers of a size."""
    launches = [_slow_down(_transfers(seed, alpha=0.4147, noise=0.001), by) for seed, by in enumerate((1.0, 1.0, 1.06))]
    costs = _fit(_join(launches))
    shares = [point.of_asymptote or 0.0 for point in costs.curve]
    assert shares[3] == pytest.approx(0.89, abs=0.003)
    assert costs.knee.measured_bytes == 16384 * 512, "the first of the table's shares above 90 %"
    alphas = [_fit(one).knee.alpha_ms or 0.0 for one in launches]
    assert costs.knee.alpha_ms == pytest.approx(np.mean(alphas))


def test_a_knee_over_launches_states_why_launches_lack_it() -> None:
    launches = [_transfers(seed, alpha=alpha, noise=0.01) for seed, alpha in enumerate((0.5, 0.5, -0.2))]
    assert _fit(launches[2]).knee.bytes.value is None
    why = _fit(launches[2]).knee.bytes.reason
    costs = _fit(_join(launches))
    assert costs.knee.bytes.value is not None, "all transfers together have one"
    assert costs.knee.bytes.reason == f"2 of 3 launches have this number: {why}"
    six = _transfers(0, noise=0.01, per_size=1)
    assert _fit(six).knee.asymptote_gbps.value is not None
    knee = _fit(replace(six, launch=np.arange(six.n) // 2)).knee
    assert (knee.asymptote_gbps.value, knee.bytes.value) == (None, None)
    assert "2 counted transfers" in knee.reason, "each of the three launches has two"


def test_a_size_and_a_share_over_launches_have_no_bound_below_zero_but_a_coefficient_may() -> None:
    costs = _fit(_join([_transfers(seed, alpha=alpha, noise=0.01) for seed, alpha in enumerate((0.05, 0.05, 2.0))]))
    assert costs.knee.bytes.value is not None
    assert costs.knee.bytes.low == 0
    assert costs.relative.alpha_ms.low is not None
    assert costs.relative.alpha_ms.low < 0, "the intercept of a line"
    noisy = _fit(_join([_transfers(seed, noise=noise) for seed, noise in enumerate((0.01, 1.5, 1.5))]))
    assert noisy.ordinary.r2.value is not None
    assert (noisy.ordinary.r2.low, noisy.ordinary.r2.high) == (0, 1)


def _slow_down(transfers: Transfers, by: float) -> Transfers:
    return replace(transfers, ms=transfers.ms * by, gbps=transfers.gbps / by)


def test_a_bandwidth_says_what_its_beta_says() -> None:
    unbounded = compute_bandwidth(Estimate(0.5, -0.1, 1.6, 9, basis="over 3 launches", launches=3))
    assert unbounded == Estimate(16.0, 5.0, None, 9, basis="over 3 launches", launches=3)
    assert compute_bandwidth(Estimate(0.5, n=3, reason="one cell")).reason == "one cell"
    assert compute_bandwidth(unknown("2 sizes")).reason == "2 sizes"
    assert compute_bandwidth(Estimate(-0.5)).value is None


def _fit(found: Transfers, link_gbps: float | None = None) -> Costs:
    return fit_costs(found, link_gbps=link_gbps, knee_share=0.9)


def test_known_costs_and_the_knee_are_recovered() -> None:
    costs = fit_costs(collect_transfers(tuple(grid(Truth(), sizes=SIZES))), link_gbps=20.0, knee_share=0.9)
    assert costs.relative.alpha_ms.value == pytest.approx(ALPHA, rel=0.05)
    assert costs.relative.beta_ms_per_mb.value == pytest.approx(BETA, rel=0.02)
    assert costs.relative.bandwidth_gbps.value == pytest.approx(10.0, rel=0.02)
    assert costs.ordinary.beta_ms_per_mb.value == pytest.approx(BETA, rel=0.02)
    knee = 9 * ALPHA / BETA * 1e6
    assert costs.knee.bytes.value == pytest.approx(knee, rel=0.06)
    assert costs.knee.asymptote_gbps.value == pytest.approx(10.0, rel=0.02)
    assert costs.knee.operations == "2 operations each"
    assert costs.knee.measured_bytes == 16384 * 512, "of the measured sizes, the first beyond 5.6 MB"
    assert (costs.ordinary.r2.value or 0.0) > 0.99
    shares = [point.of_asymptote for point in costs.curve]
    assert shares == sorted(shares, key=lambda share: share or 0.0)
    assert costs.curve[-1].of_link == pytest.approx((costs.curve[-1].gbps.value or 0.0) / 20.0)


def test_warm_ups_and_discarded_transfers_are_not_fitted() -> None:
    records = tuple(grid(Truth(), sizes=SIZES))
    assert collect_transfers(records).n == sum(record.repetition > 2 for record in records)


def test_the_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Of 95 % intervals; the seeds are fixed, so is the count."""
    inside = {"alpha": 0, "beta": 0, "ordinary": 0, "knee": 0}
    runs = 120
    for seed in range(runs):
        costs = _fit(_transfers(seed))
        for name, estimate, truth in (
            ("alpha", costs.relative.alpha_ms, ALPHA),
            ("beta", costs.relative.beta_ms_per_mb, BETA),
            ("ordinary", costs.ordinary.beta_ms_per_mb, BETA),
            ("knee", costs.knee.bytes, 9 * ALPHA / BETA * 1e6),
        ):
            inside[name] += covers(estimate, truth)
    assert all(count >= 0.90 * runs for count in inside.values()), inside


def test_weights_tell_the_small_cost_that_ordinary_squares_cannot() -> None:
    costs = _fit(_transfers(1))
    widths = [(one.alpha_ms.high or 0.0) - (one.alpha_ms.low or 0.0) for one in (costs.relative, costs.ordinary)]
    assert widths[0] < widths[1] / 3


def test_what_cannot_be_fitted_says_why() -> None:
    few = _fit(
        collect_transfers(tuple(grid(Truth(), contexts=(0,), sizes=(512, 2048, 4096), lengths=(1,), repetitions=3)))
    )
    assert "3 counted transfers" in (few.relative.alpha_ms.reason or "")
    two = _fit(collect_transfers(tuple(grid(Truth(), sizes=(512, 2048)))))
    assert "2 sizes" in (two.relative.alpha_ms.reason or "")
    assert two.knee.bytes.value is None
    assert len(two.curve) == 2, "the bandwidths stand all the same"
    none = _fit(collect_transfers(()))
    assert none.curve == ()


def test_single_transfers_of_each_size_have_no_bootstrap() -> None:
    costs = _fit(_transfers(5, per_size=1))
    assert costs.relative.alpha_ms.low is not None, "HC3 needs no repetition"
    assert costs.ordinary.r2.low is None
    assert "nothing to resample" in (costs.ordinary.r2.reason or "")


def test_operations_have_a_cost_only_where_they_vary_on_their_own() -> None:
    same = _fit(_transfers(7)).with_operations
    assert "2 write operations" in (same.alpha_ms.reason or "")
    base = _transfers(7, noise=0.01)
    together = _made(base.bytes, base.ms, base.bytes / 65_536, base.size)
    assert "cannot be separated" in (_fit(together).with_operations.alpha_ms.reason or "")
    assert _fit(together).knee.operations == "15.3 operations per 10^6 bytes"
    rng = np.random.default_rng(0)
    operations = rng.integers(1, 200, base.n).astype(np.float64)
    apart = _made(base.bytes, base.ms + 0.01 * operations, operations, base.size)
    gamma = _fit(apart).with_operations.gamma_ms
    assert gamma is not None
    assert gamma.value == pytest.approx(0.01, rel=0.1)
    uncounted = _made(base.bytes, base.ms, np.full(base.n, math.nan), base.size)
    assert "not counted" in (_fit(uncounted).with_operations.alpha_ms.reason or "")


def test_a_bandwidth_that_falls_again_has_no_measured_knee() -> None:
    base = _transfers(9, noise=0.01)
    slow = np.where(base.size == 5, 1.15, 1.0) * base.ms
    costs = _fit(_made(base.bytes, slow, base.operations, base.size))
    assert costs.knee.measured_bytes is None
    assert "followed by larger ones with less" in costs.knee.reason or "no measured size" in costs.knee.reason


def test_hc3_equals_its_definition() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(1, 10, 30)
    y = 2 + 3 * x + x * rng.standard_normal(30)
    design = np.column_stack([np.ones(30), x])
    bread = np.linalg.inv(design.T @ design)
    errors = (y - design @ bread @ design.T @ y) / (1 - np.diag(design @ bread @ design.T))
    covariance = bread @ design.T @ np.diag(errors**2) @ design @ bread
    slope = fit_least_squares([x], y, np.ones(30))[1]
    low, high = bounds(slope)
    t = 2.048407  # 97.5 % of Student's t with 28 degrees of freedom
    assert (high - low) / 2 == pytest.approx(t * math.sqrt(covariance[1, 1]), rel=1e-5)


def test_a_limit_that_the_medians_exceed_is_none() -> None:
    base = _transfers(9, noise=0.01, per_size=40)
    assert _fit(base).knee.asymptote_gbps.value is not None
    slow = np.where(np.arange(base.n) % 5 == 0, 6.0, 1.0) * base.ms
    costs = _fit(_made(base.bytes, slow, base.operations, base.size))
    assert costs.knee.asymptote_gbps.value is None
    assert costs.knee.bytes.value is None
    assert "of the line's asymptote" in costs.knee.reason
    assert costs.relative.bandwidth_gbps.value is None
    assert "sizes exceed it" in (costs.ordinary.bandwidth_gbps.reason or "")
    assert all(point.of_asymptote is None for point in costs.curve)


def test_operations_that_cost_time_of_their_own_leave_no_limit() -> None:
    """Half of the transfers of each size have so large a number of operations that these take the time."""
    base = _transfers(4, noise=0.05, per_size=40)
    operations = np.where(np.arange(base.n) % 2, 2.0, base.bytes / 32_768)
    costs = _fit(_made(base.bytes, base.ms + 0.05 * operations, operations, base.size))
    gamma = costs.with_operations.gamma_ms
    assert gamma is not None
    assert bounds(gamma)[0] > 0
    assert costs.knee.asymptote_gbps.value is None
    assert costs.knee.bytes.value is None
    assert "a write operation adds 0.0499" in costs.knee.reason
    assert costs.curve[0].operations == pytest.approx((2 + 512 * 512 / 32_768) / 2)


def test_the_launches_decide_whether_an_operation_has_a_cost() -> None:
    """Each launch shows its own cost surely; three that differ show none, and three that agree do."""

    def launch(seed: int, gamma_ms: float) -> Transfers:
        base = _transfers(seed, noise=0.02, per_size=40)
        operations = np.where(np.arange(base.n) % 2, 2.0, base.bytes / 32_768)
        return _made(base.bytes, base.ms + gamma_ms * operations, operations, base.size)

    differing = _join([launch(seed, gamma_ms) for seed, gamma_ms in enumerate((0.012, 0.0, 0.006))])
    together = _fit(replace(differing, launch=np.zeros(differing.n, dtype=np.int64)))
    assert together.with_operations.gamma_ms is not None
    assert together.with_operations.gamma_ms.excludes(0), "by the spread over cells"
    costs = _fit(differing)
    assert costs.with_operations.gamma_ms is not None
    assert not costs.with_operations.gamma_ms.excludes(0)
    assert "a write operation adds" in together.knee.reason
    assert "a write operation adds" not in costs.knee.reason
    agreeing = _fit(_join([launch(seed, gamma_ms) for seed, gamma_ms in enumerate((0.050, 0.051, 0.049))]))
    assert agreeing.with_operations.gamma_ms is not None
    assert agreeing.knee.asymptote_gbps.value is None
    assert f"a write operation adds {agreeing.with_operations.gamma_ms.text(3)} ms" in agreeing.knee.reason


def test_operations_without_a_cost_leave_the_limit_where_it_is() -> None:
    base = _transfers(9, noise=0.05, per_size=40)
    operations = np.where(np.arange(base.n) % 2, 2.0, base.bytes / 32_768)
    knee = _fit(_made(base.bytes, base.ms, operations, base.size)).knee
    assert knee.asymptote_gbps.value == pytest.approx(10.0, rel=0.05)
    assert knee.bytes.value == pytest.approx(9 * ALPHA / BETA * 1e6, rel=0.15)
    assert "operations per 10^6 bytes" in knee.operations


def test_weighted_draws_are_solved_as_one_by_one() -> None:
    rng = np.random.default_rng(5)
    x, z = rng.uniform(1, 10, 20), rng.uniform(0, 3, 20)
    y, weights = 2 + 3 * x - z + rng.standard_normal(20), rng.uniform(0.1, 2, (3, 20))
    for row, actual in zip(weights, solve_each([x, z], y, weights), strict=True):
        known = [one.value for one in fit_least_squares([x, z], y, row)]
        assert actual == pytest.approx(known)


def test_the_r2_of_other_sets_of_the_transfers_stand_beside() -> None:
    base = _transfers(6, noise=0.02)
    assert _fit(base).spread.slow == 0
    slow = base.ms.copy()
    slow[:3] *= 300.0
    costs = _fit(_made(base.bytes, slow, base.operations, base.size, base.size))
    assert (costs.ordinary.r2.value or 0.0) < 0.5
    assert costs.spread.slow == 3
    assert (costs.spread.without_slow.value or 0.0) > 0.99
    assert (costs.spread.medians.value or 0.0) > 0.99
    assert costs.spread.run_delay_ms.value is None


def test_the_bandwidth_is_the_records_own() -> None:
    """Two writes with a pause between them: the pause is in rdma_transfer, and in no bandwidth."""
    one = seen(Truth(noise=0.0), RequestConfig(0, 512, 1)).record()
    split = replace(one, transfer_detail=replace(one.transfer_detail, rdma_write_ms=3.0, effective_bw_gbps=1.5))
    transfers = collect_transfers([split])
    assert transfers.gbps.tolist() == [1.5]
    assert transfers.ms.tolist() == [one.breakdown_ms["rdma_transfer"]]
    moved = one.transfer_detail.bytes_transferred or 0
    assert collect_config_values([split], 1)["bw_gbps"].value == pytest.approx(8 * moved / 3.0 / 1e6)
