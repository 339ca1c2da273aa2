"""The questions of specs/ear 5.5: trends over skew and KV pool, and thresholds with a best value between two others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from results.registry import compare_runs
from results.routing.analyze import analyze
from results.routing.loads import Load
from results.routing.scale import Scale
from results.routing.specification import FULL, Setting
from results.routing.sweep_claims import judge_sweeps
from results.routing.verdicts import STATIC_PD, STICKY, Arms
from results.statistics.judgement import Judgement, Outcome
from results.statistics.trials import Measured, Trial, combine
from tests.results.routing.synthetic import Truth, World, report_text, write_run

LARGE = Scale(8, shares_cores=False, hot_sessions=64, hot_turns=20, max_inflight_sessions=0)
SKEW, POOL = "5.5: skew widens sticky's distance to EAR", "5.5: a smaller KV pool slows static pools"
NOISE = (0.98, 1.01, 1.0, 1.02, 0.99)
"""A factor of each trial."""
MIB, GIB = 1 << 20, 1 << 30
EAR = {"hot_tokens": 100, "cooldown_s": 5.0}


class Table:
    """Stands for Measurements: TTFT p90 of every label in five trials."""

    def __init__(self, loads: Mapping[str, Mapping[str, object]], times: Mapping[str, Sequence[float]]) -> None:
        self._loads, self._times = loads, times

    def load(self, label: str) -> Mapping[str, object]:
        return self._loads[label]

    def log_ratio(self, first: str, second: str, _metric: object) -> Measured:
        logs = [
            Measured({trial: Trial(math.log(s), 100, lambda: "") for trial, s in enumerate(self._times[label])})
            for label in (first, second)
        ]
        return combine(lambda one, other: one - other, *logs)


def make_times(seconds: float, shift: int = 0, trials: int = 5) -> list[float]:
    """`shift`: by how many trials the noise is moved, so that two labels do not vary alike."""
    return [seconds * NOISE[(shift + trial) % 5] for trial in range(trials)]


def judge_ratios(
    row: str, axis: str, ratios: Mapping[float, float], *, trials: int = 5, unsteady: Iterable[str] = ()
) -> dict[str, Judgement]:
    """`ratios`: the policy's TTFT p90 as a multiple of EAR's, by the load's position."""
    loads: list[Load] = []
    arms: list[Arms] = []
    by_label: dict[str, Mapping[str, object]] = {}
    times: dict[str, Sequence[float]] = {}
    for number, (at, ratio) in enumerate(ratios.items()):
        labels = f"policy {number}", f"ear {number}"
        loads.append(Load(labels, "a load", at if axis == "trace" else None))
        rest = {"time_scale": 1.0, "kv_cache_memory_bytes": None, "trace": ""}
        own = rest | {axis: str(number) if axis == "trace" else round(at * GIB)}
        by_label |= dict.fromkeys(labels, own)
        times |= {labels[0]: make_times(2 * ratio, number, trials), labels[1]: make_times(2, 2 * number + 1, trials)}
        scale = Scale(8, False, 64, 20, 0, dict.fromkeys(unsteady, "no steady state"))
        arms.append(Arms({row: labels[0], FULL: labels[1]}, scale))
    judged = judge_sweeps(loads, arms, (), Table(by_label, times))  # type: ignore[arg-type]
    return {one.judgement.name: one.judgement for one in judged}


@pytest.mark.parametrize(
    ("ratios", "outcome"),
    [
        ({0.1: 1.1, 0.45: 1.5, 0.6: 2.0}, Outcome.HOLDS),
        ({0.6: 1.1, 0.45: 1.5, 0.1: 2.0}, Outcome.FAILS),
        ({0.1: 1.5, 0.45: 1.5, 0.6: 1.5}, Outcome.UNDECIDED),
    ],
)
def test_stickys_distance_is_a_trend_over_the_skew_in_whatever_order_the_loads_stand(
    ratios: Mapping[float, float], outcome: Outcome
) -> None:
    judgement = judge_ratios(STICKY, "trace", ratios)[SKEW]
    assert judgement.outcome == outcome
    assert judgement.p is not None
    assert "times at 10 % in 1 % of the sessions" in judgement.reason
    first, *_ = judgement.reason.split("; ")
    assert re.search(r": [0-9.]+ \[[0-9.]+, [0-9.]+\] times from the least to the most skewed trace$", first)


def test_the_trend_is_the_change_of_a_line_from_the_first_position_to_the_last() -> None:
    judgement = judge_ratios(STICKY, "trace", {0.2: 1.0, 0.4: 2.0, 0.6: 4.0})[SKEW]
    assert judgement.measured.value == pytest.approx(4.0, rel=0.03)


@pytest.mark.parametrize(("largest", "outcome"), [(1.0, Outcome.HOLDS), (9.0, Outcome.FAILS)])
def test_static_pools_fall_behind_as_the_pool_of_an_instance_shrinks(largest: float, outcome: Outcome) -> None:
    judgement = judge_ratios(STATIC_PD, "kv_cache_memory_bytes", {9.6: 3.0, 38.4: largest})[POOL]
    assert judgement.outcome == outcome
    assert "3.00 [2.91, 3.09] times at 9.6 GiB" in judgement.reason


def test_two_trials_or_one_load_with_a_steady_state_decide_no_trend() -> None:
    rising = {0.1: 1.1, 0.6: 2.0}
    assert judge_ratios(STICKY, "trace", rising, trials=2)[SKEW].outcome == Outcome.UNDECIDED
    unsteady = judge_ratios(STICKY, "trace", rising, unsteady=["policy 1"])[SKEW]
    assert (unsteady.outcome, unsteady.p) == (Outcome.OPEN, 1.0), "one of the family, whatever the data show"
    few = judge_ratios(STICKY, "trace", rising, trials=2, unsteady=["policy 1"])[SKEW]
    assert (few.outcome, few.p) == (Outcome.OPEN, None), "no trial gave an interval"
    assert "no ratio at 60 % in 1 % of the sessions: policy 1: no steady state" in unsteady.reason
    assert unsteady.needs == LARGE.sustained


@pytest.mark.parametrize(("largest", "outcome"), [(1.0, Outcome.HOLDS), (9.0, Outcome.OPEN)])
def test_beside_a_wall_the_other_loads_may_show_the_claim_and_not_its_opposite(
    largest: float, outcome: Outcome
) -> None:
    ratios = {19.2: 50.0, 28.8: 3.0, 38.4: largest}
    judgement = judge_ratios(STATIC_PD, "kv_cache_memory_bytes", ratios, unsteady=["policy 0"])[POOL]
    assert judgement.outcome == outcome
    assert "no ratio at 19.2 GiB: policy 0: no steady state" in judgement.reason
    assert list(judgement.numbers) == ["28.8 GiB", "38.4 GiB"]


def test_one_load_has_no_trend_and_loads_that_differ_twice_are_none() -> None:
    assert judge_ratios(STICKY, "trace", {0.1: 1.1}) == {}
    assert judge_ratios(STATIC_PD, "trace", {0.1: 1.1, 0.6: 2.0}) == {}


def write_pools(folder: Path, *sizes_mib: int) -> Path:
    """A run of static pools and EAR with each of these KV pools."""
    sizes = [(f"kv_cache_memory_bytes={size * MIB}", size * MIB) for size in sizes_mib]
    truths = [
        *(Truth(f"pools {text}", "static_pd", 0.3, prefill=1, kv_cache_memory_bytes=size) for text, size in sizes),
        *(Truth(f"EAR {text}", "ear", 0.1, parameters=EAR, kv_cache_memory_bytes=size) for text, size in sizes),
    ]
    return write_run(folder, World(sessions=20, turns=4), truths)


def test_a_run_with_several_kv_pools_has_the_claim_in_its_report(tmp_path: Path) -> None:
    analysis = analyze(write_pools(tmp_path, 8, 16))
    (claim,) = (one.judgement for one in analysis.claims_by_load if one.what == "kv-pool")
    assert (claim.name, claim.label) == (POOL, "not testable at this scale"), "two instances"
    assert len(claim.numbers) == 2
    assert claim.claim in report_text(analysis)


def test_the_claim_over_other_kv_pools_is_another_question(tmp_path: Path) -> None:
    comparison = compare_runs(write_pools(tmp_path / "two", 8, 16), write_pools(tmp_path / "three", 8, 16, 32))
    (pool,) = (one for one in comparison.incomparable if one.name == POOL)
    assert [at.count("; ") + 1 for at in (pool.first_at, pool.second_at)] == [2, 3]
    assert pool.second_at.startswith(pool.first_at), "from the smallest pool to the largest"
    assert POOL not in {one.name for one in comparison.verdicts}


def judge_grid(times: Mapping[tuple[float, float], float], scale: Scale = LARGE) -> dict[str, Judgement]:
    """`times`: TTFT p90 by hot_tokens and cooldown_s."""
    settings = tuple(Setting(*key, f"ear {key}") for key in times)
    labels = tuple(one.label for one in settings)
    spread = {f"ear {key}": make_times(seconds, number) for number, (key, seconds) in enumerate(times.items())}
    judged = judge_sweeps([Load(labels)], [Arms({}, scale)], settings, Table({}, spread))  # type: ignore[arg-type]
    return {one.judgement.name.partition(" has")[0]: one.judgement for one in judged}


@pytest.mark.parametrize(
    ("by_hot", "outcome"),
    [
        ({1000: 3.0, 4000: 2.0, 16000: 3.0}, Outcome.HOLDS),
        ({1000: 3.0, 4000: 2.0, 16000: 1.5}, Outcome.FAILS),
        ({1000: 2.0, 4000: 2.0, 16000: 2.0}, Outcome.UNDECIDED),
        ({1000: 3.0, 2000: 2.5, 4000: 2.0, 16000: 3.0}, Outcome.HOLDS),
        ({1000: 3.0, 2000: 2.5, 4000: 1.0, 16000: 1.5}, Outcome.HOLDS),
    ],
)
def test_a_threshold_has_a_best_value_between_two_worse_ones(by_hot: Mapping[float, float], outcome: Outcome) -> None:
    grid = {(hot, cool): seconds for hot, seconds in by_hot.items() for cool in (10.0, 30.0)}
    claims = judge_grid(grid)
    assert list(claims) == ["5.5: hot_tokens"], "two cooldowns have none between them"
    assert claims["5.5: hot_tokens"].outcome == outcome
    assert (claims["5.5: hot_tokens"].p or 1.0) < 0.05 or outcome is Outcome.UNDECIDED


def test_a_cooldown_is_judged_over_the_values_of_hot_tokens() -> None:
    grid = {(hot, cool): hot * cool for hot in (1.0, 2.0) for cool in (10.0, 30.0, 120.0)}
    claims = judge_grid(grid)
    assert list(claims) == ["5.5: cooldown_s"]
    claim = claims["5.5: cooldown_s"]
    assert claim.outcome == Outcome.FAILS
    assert "10 is distinguishably better than every value between: 10 against 30 0.33" in claim.reason


def test_two_instances_that_share_cores_have_no_best_threshold() -> None:
    small = Scale(2, shares_cores=True, hot_sessions=2, hot_turns=1, max_inflight_sessions=0)
    claim = judge_grid({(hot, 10.0): 2.0 for hot in (1.0, 2.0, 3.0)}, small)["5.5: hot_tokens"]
    assert (claim.outcome, claim.p, claim.label) == (Outcome.OPEN, None, "not testable at this scale")
