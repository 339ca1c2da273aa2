"""Drift is found where a config is measured against itself at another time, and only there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from results.connector_tax.drift import measure_drifts
from results.connector_tax.summary import CellSummary
from results.measures.drift import Drift, DriftVerdict
from tests.results.statistics.in_memory import SIMULATIONS, Truth, as_promised, covers, summary

CONFIGS = ("plain", "noop_connector", "mooncake_both", "nixl_both", "lmcache_only")


def run(
    growth_per_h: float,
    *,
    trials: int = 3,
    configs: tuple[str, ...] = CONFIGS,
    launch_sigma: float = 0.01,
    seed: int = 0,
) -> list[CellSummary]:
    """A run whose latencies grow by a share an hour; configs differ, and each launch by `launch_sigma`."""
    rng = np.random.default_rng(seed)
    cells, started_s = [], 0.0
    for trial in range(trials):
        for config in rng.permutation(configs):
            launch = np.exp(launch_sigma * rng.standard_normal())
            for rate in (1.0, 2.0):
                slow = launch * (1 + growth_per_h) ** (started_s / 3600) * (1 + configs.index(str(config)))
                values = {"ttft_p50_s": 0.2 * slow * rate, "tpot_p50_s": 0.01 * slow}
                truth = Truth(str(config), rate_per_s=rate)
                cells.append(summary(truth, trial, values=values, t_start_unix_s=started_s))
                started_s += 600
    return cells


def ttft(cells: list[CellSummary]) -> Drift:
    found = {row.series: row for row in measure_drifts(cells)}
    assert set(found) == {"ttft_p50_s", "tpot_p50_s"}
    return found["ttft_p50_s"]


@SIMULATIONS
def test_a_known_drift_lies_in_its_interval_and_is_detected(seeds: Sequence[int]) -> None:
    found = [ttft(run(0.05, seed=seed)) for seed in seeds]
    assert as_promised(covers(row.slope_per_h, 0.05) for row in found)
    assert all(row.verdict == DriftVerdict.DETECTED for row in found)
    assert ttft(run(0.05)).span_h == 29 * 600 / 3600
    assert ttft(run(0.05)).reason == "30 cells of 5 configs, cells repeated in trials"


@SIMULATIONS
def test_a_steady_run_has_none_as_often_as_promised(seeds: Sequence[int]) -> None:
    assert as_promised(ttft(run(0.0, seed=seed)).verdict == DriftVerdict.NOT_DETECTED for seed in seeds)


def test_one_trial_is_judged_by_the_loads_two_phases_share() -> None:
    first = run(0.05, trials=1)
    later = [
        summary(
            Truth(cell.config, phase="B", rate_per_s=2.0),
            values={name: (cell.value(name) or 0) * 1.05**4 for name in ("ttft_p50_s", "tpot_p50_s")},
            t_start_unix_s=cell.t_start_unix_s + 4 * 3600,
        )
        for cell in first
        if cell.rate_per_s == 2.0
    ]
    found = ttft([*first, *later])
    assert found.slope_per_h.value == pytest.approx(0.05)
    assert found.verdict == DriftVerdict.DETECTED
    assert "what differs between the phases for another reason counts too" in found.reason


def test_without_repeats_or_with_too_few_configs_it_is_not_testable_and_says_why() -> None:
    alone = ttft(run(0.05, trials=1))
    assert (alone.verdict, alone.slope_per_h.value, alone.span_h) == (DriftVerdict.NOT_TESTABLE, None, None)
    assert alone.reason == "0 of the configs have a load that was measured twice; it needs 4"
    two = ttft(run(0.05, configs=CONFIGS[:2]))
    assert two.verdict == DriftVerdict.NOT_TESTABLE
    assert two.reason == "2 of the configs have a load that was measured twice; it needs 4"
    assert ttft([]).verdict == DriftVerdict.NOT_TESTABLE
