"""The three criteria fire where the specification says, and the reference rates follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.connector_tax.saturation import choose_reference_rates, describe_knee, judge_cells, reference_rates
from results.connector_tax.saturation_criteria import GROWTH, QUEUE, THROUGHPUT, judge
from results.connector_tax.summary import CellSummary
from results.measures.engine_metrics import SAMPLES, WAITING, measure_server_values
from results.records.errors import ArtifactError
from results.records.estimate import Estimate
from results.records.reference_rates import REF_LOAD, REF_SAFE, CellSaturation, ReferenceRates
from results.records.schemas import CellRecord
from tests.results.connector_tax.cells import make_cell
from tests.results.connector_tax.synthetic import Behavior, Run, write_run


def cell(
    config: str = "plain",
    rate: float = 4.0,
    *,
    ratio: float | None = 1.0,
    specified: float | None = None,
    waiting: float | None = 0.0,
    ttft_p90_s: float | None = 0.2,
    **more: Any,
) -> CellSummary:
    """A Phase A cell with just the numbers the criteria read."""
    return make_cell(
        config, rate, cohort_ratio=ratio, throughput_ratio=specified or ratio, waiting_p50=waiting,
        ttft_p90_s=ttft_p90_s, **more,
    )  # fmt: skip


def curve(config: str, saturated: Sequence[bool | None], first_rate: float = 1.0) -> list[CellSummary]:
    """A config's cells at doubling rates; None = degraded."""
    return [
        cell(config, first_rate * 2**n, waiting=5.0 if state else 0.0, degraded="slow client" if state is None else "")
        for n, state in enumerate(saturated)
    ]


@pytest.mark.parametrize(
    ("summary", "half", "fired"),
    [
        (cell(), cell(rate=2.0), ()),
        (cell(ratio=0.949), cell(rate=2.0), (THROUGHPUT,)),
        (cell(ratio=0.95), cell(rate=2.0), ()),
        (cell(waiting=1.5), cell(rate=2.0), (QUEUE,)),
        (cell(waiting=1.0), cell(rate=2.0), ()),
        (cell(ttft_p90_s=0.31), cell(rate=2.0), (GROWTH,)),
        (cell(ttft_p90_s=0.30), cell(rate=2.0), ()),
        (cell(ratio=0.5, waiting=9.0, ttft_p90_s=2.0), cell(rate=2.0), (THROUGHPUT, QUEUE, GROWTH)),
    ],
)
def test_each_criterion_fires_strictly_beyond_its_threshold(
    summary: CellSummary, half: CellSummary, fired: tuple[int, ...]
) -> None:
    found = judge(summary, half)
    assert found.fired == fired
    assert found.saturated is bool(fired)
    assert [criterion.number for criterion in found.criteria] == [1, 2, 3]
    assert [criterion.threshold for criterion in found.criteria] == [0.95, 1.0, 1.5]


def test_each_criterion_keeps_what_it_measured() -> None:
    found = judge(cell(ratio=0.9, waiting=3.0, ttft_p90_s=0.5), cell(rate=2.0, ttft_p90_s=0.25))
    assert [criterion.measured for criterion in found.criteria] == [0.9, 3.0, 2.0]


def test_growth_needs_half_the_rate() -> None:
    growth = judge(cell(ttft_p90_s=9.0)).criteria[2]
    assert (growth.fired, growth.measured) == (None, None)
    assert growth.reason == "half the rate (2 req/s) was not measured"
    assert judge(cell(ttft_p90_s=9.0)).saturated is False
    growth = judge(cell(ttft_p90_s=9.0), cell(rate=2.0, degraded="slow client")).criteria[2]
    assert growth.fired is None
    assert "degraded" in str(growth.reason)
    growth = judge(cell(), cell(rate=2.0, ttft_p90_s=None)).criteria[2]
    assert "lost" in str(growth.reason)


def test_requests_still_running_at_the_window_s_end_are_no_saturation() -> None:
    """91 of 96 completions inside the window, nothing waiting: what was sent came back as fast as it was sent."""
    found = judge(cell(ratio=0.995, specified=91 / 96))
    assert found.saturated is False
    throughput = found.criteria[0]
    assert (throughput.measured, throughput.fired) == (0.995, False)
    assert (throughput.specified, throughput.specified_fired) == (91 / 96, True)
    assert found.specified_fired == (THROUGHPUT,)


def test_rates_that_an_older_run_chose_follow_from_the_specification_s_rules() -> None:
    cells = [cell(rate=1.0), cell(rate=2.0, ratio=0.995, specified=91 / 96), cell(rate=4.0, waiting=9.0)]
    assert reference_rates(cells).ref_load_per_s == 2.0
    assert reference_rates(cells, specified=True).ref_load_per_s == 1.0


def test_a_cut_cohort_is_judged_by_its_upper_bound() -> None:
    values = {**cell().values, "cohort_ratio": Estimate(None, high=0.7, reason="9 requests were cut")}
    assert judge(replace(cell(), values=values)).fired == (THROUGHPUT,)
    values["cohort_ratio"] = Estimate(None, high=0.99, reason="9 requests were cut")
    open_ = judge(replace(cell(), values=values))
    assert open_.saturated is None
    assert "9 requests were cut" in str(open_.reason)


@pytest.mark.parametrize(
    ("ours", "fired"),
    [
        (Estimate(0.40, 0.38, 0.42), True),
        (Estimate(0.34, 0.25, 0.45), None),
        (Estimate(0.20, 0.19, 0.21), False),
        (Estimate(None, 9.0, None, reason="cut"), True),
        (Estimate(None, 0.25, None, reason="cut"), None),
    ],
)
def test_growth_fires_where_its_whole_interval_is_beyond(ours: Estimate, fired: bool | None) -> None:
    half = replace(cell(rate=2.0), values={**cell().values, "ttft_p90_s": Estimate(0.2, 0.19, 0.21)})
    found = judge(replace(cell(), values={**cell().values, "ttft_p90_s": ours}), half)
    growth = found.criteria[2]
    assert growth.fired is fired
    assert found.saturated is bool(fired)
    if ours.value is not None:
        assert growth.low is not None
        assert growth.high is not None
        assert growth.low < ours.value / 0.2 < growth.high
        assert growth.specified_fired is (ours.value / 0.2 > 1.5)


def test_a_degraded_cell_says_nothing_about_the_engine() -> None:
    found = judge(cell(ratio=0.5, waiting=9.0, degraded="slow client"), cell(rate=2.0))
    assert found.saturated is None
    assert found.fired == ()
    assert "slow client" in str(found.reason)


def test_a_cell_whose_queue_was_not_seen_is_not_called_clear() -> None:
    found = judge(cell(waiting=None))
    assert found.saturated is None
    assert "lost" in str(found.reason)
    assert judge(cell(waiting=None, ratio=0.5)).saturated is True


@pytest.mark.parametrize(
    ("samples", "fired"),
    [
        ([0, 0], False),
        ([9], None),
        ([9, 9], None),
        ([9, 9, 9], True),
        ([0, 9, 9, 9, 9], None),
        ([0, 9, 9, 9, 9, 9], True),
        ([0, 0, 0, 0, 9, 9], False),
    ],
)
def test_a_queue_seen_in_few_samples_is_judged_only_where_they_agree(samples: list[float], fired: bool | None) -> None:
    """Six samples are the fewest that bound a median; from there on it decides, as specified."""
    begin = 10**18
    scrapes = pd.DataFrame({"t_ns": [begin + n * 10**9 for n in range(len(samples))], **dict.fromkeys(SAMPLES, 0.0)})
    scrapes[WAITING] = [float(sample) for sample in samples]
    record = cast(CellRecord, SimpleNamespace(t_window_start_ns=begin, t_window_end_ns=begin + 10**10))
    values = {**cell().values, "waiting_p50": measure_server_values(scrapes, record)["waiting_p50"]}
    found = judge(replace(cell(), values=values))
    queue = found.criteria[1]
    assert (queue.fired, queue.n, found.saturated) == (fired, len(samples), fired)
    assert queue.specified_fired is (float(np.median(samples)) > 1), "the specification knows no such bound"
    if fired is None:
        wanted = f"{len(samples)} samples are too few for a 95 % interval of p50 (needs 6)"
        assert wanted in str(found.reason)


def test_reference_rates_are_the_highest_below_the_first_saturation() -> None:
    found = reference_rates([
        *curve("plain", [False, False, False, True]), *curve("mooncake_both", [False, False, True, True]),
    ])  # fmt: skip
    assert (found.ref_safe_per_s, found.ref_load_per_s) == (2.0, 4.0)
    assert "mooncake_both" in found.ref_safe_reason
    assert "4 req/s" in found.ref_safe_reason
    assert "plain" in found.ref_load_reason
    by_config = {scan.config: scan for scan in found.configs}
    assert by_config["mooncake_both"].saturation_rate_per_s == 4.0
    assert by_config["mooncake_both"].fired == (QUEUE,)
    assert by_config["plain"].saturation_rate_per_s == 8.0


def test_where_nothing_saturates_the_grid_is_the_limit() -> None:
    found = reference_rates(curve("plain", [False, False]))
    assert found.ref_safe_per_s == 2.0
    assert found.ref_safe_reason == "nothing saturated up to the highest rate measured"


def test_a_reference_rate_below_degraded_rates_says_that_those_are_not_known() -> None:
    found = reference_rates([*curve("plain", [False, False, None]), *curve("nixl_both", [False, False, False])])
    assert found.ref_load_per_s == 2.0
    assert found.ref_load_reason.startswith("nothing saturated up to 2 req/s; at each higher rate a cell is degraded")
    none = reference_rates(curve("plain", [None, None]))
    assert none.ref_load_reason.startswith("no rate of Phase A is clear for plain: at every rate a cell is degraded")


def test_a_config_saturates_above_the_grid_only_where_its_highest_rate_is_known_to_be_clear() -> None:
    curves: dict[str, list[bool | None]] = {
        "plain": [False, False, False],
        "noop_connector": [False, None, False],
        "nixl_both": [False, False, None],
        "lmcache_only": [False, False],
        "mooncake_both": [False, None, True],
    }
    rates = reference_rates([one for config, states in curves.items() for one in curve(config, states)])
    assert {config: describe_knee(rates, config) for config in (*curves, "mooncake_producer")} == {
        "plain": "above the grid",
        "noop_connector": "above the grid",
        "nixl_both": "not known",
        "lmcache_only": "not known",
        "mooncake_both": "4 req/s",
        "mooncake_producer": "not known",
    }


def test_there_may_be_no_reference_rate_and_then_a_reason() -> None:
    found = reference_rates([*curve("plain", [True, True]), *curve("nixl_both", [False, False])])
    assert (found.ref_safe_per_s, found.ref_load_per_s) == (None, None)
    assert "plain" in found.ref_safe_reason
    found = reference_rates(curve("nixl_both", [False, False]))
    assert (found.ref_safe_per_s, found.ref_load_per_s) == (2.0, None)
    assert found.explain_rate(REF_LOAD) == "plain was not measured in Phase A"
    assert reference_rates([]).ref_safe_per_s is None


def test_a_config_that_did_not_complete_phase_a_has_no_vote_and_is_named() -> None:
    broken = [one for one in curve("mooncake_both", [False, False, True]) if one.rate_per_s != 2.0]
    found = reference_rates([*curve("plain", [False, False, False]), *broken])
    assert found.ref_safe_per_s == 4.0
    assert "mooncake_both has no vote: not measured at 2 req/s" in found.ref_safe_reason


def test_a_config_that_broke_above_its_saturation_has_completed_what_matters() -> None:
    short = [one for one in curve("mooncake_both", [False, True, True]) if one.rate_per_s != 4.0]
    assert reference_rates([*curve("plain", [False, False, False]), *short]).ref_safe_per_s == 1.0


def test_trials_of_a_rate_decide_together() -> None:
    trials = [cell(rate=2.0, waiting=waiting, trial=n) for n, waiting in enumerate((0.0, 0.0, 5.0))]
    assert reference_rates([cell(rate=1.0), *trials]).ref_load_per_s == 2.0
    trials = [replace(one, values=cell(waiting=5.0).values) for one in trials[:2]] + trials[2:]
    assert reference_rates([cell(rate=1.0), *trials]).ref_load_per_s == 1.0


def launch_twice(ratios: Sequence[float | None]) -> list[CellSummary]:
    """A confirm stage of plain at 2 and 4 req/s: a launch per ratio of TTFT p90; None = it is not known at 4 req/s."""
    slower = [cell(rate=2.0, phase="confirm", trial=trial) for trial in range(len(ratios))]
    loaded = [
        cell(phase="confirm", trial=trial, ttft_p90_s=None if ratio is None else 0.2 * ratio)
        for trial, ratio in enumerate(ratios)
    ]
    return [*slower, *loaded]


def judge_loaded(cells: Sequence[CellSummary]) -> list[CellSaturation]:
    judged = judge_cells(cells)
    assert not any(one.saturated for one in judged if one.rate_per_s == 2.0)
    return [one for one in judged if one.rate_per_s == 4.0]


def test_confirmed_launches_judge_the_growth_of_ttft_together() -> None:
    loaded = judge_loaded(launch_twice([1.9, 2.0, 2.2]))
    assert [one.fired for one in loaded] == [(GROWTH,)] * 3
    growth = loaded[0].criteria[2]
    assert growth.measured == pytest.approx((1.9 * 2.0 * 2.2) ** (1 / 3))
    assert growth.low is not None
    assert 1.5 < growth.low < 1.9
    calm = judge_loaded(launch_twice([1.0, 1.1, 1.05]))
    assert [(one.saturated, one.criteria[2].fired) for one in calm] == [(False, False)] * 3


@pytest.mark.parametrize(
    ("ratios", "reason"),
    [
        ([1.2, 2.0, 1.9], "its interval holds the threshold"),
        ([2.0, 2.0], "2 launches measured TTFT p90 at both rates; an interval needs 3"),
        ([2.0], "1 launch measured TTFT p90 at both rates; an interval needs 3"),
        ([2.0, None, 2.0], "TTFT p90 is not known in 1 of 3 launches"),
    ],
)
def test_where_launches_do_not_agree_or_lack_the_growth_is_open(ratios: list[float | None], reason: str) -> None:
    for one in judge_loaded(launch_twice(ratios)):
        assert (one.saturated, one.criteria[2].fired, one.criteria[2].reason) == (False, None, reason)


def test_degraded_launches_and_other_rates_take_no_part_in_the_growth() -> None:
    cells = [*launch_twice([2.0, 2.0, 2.1]), cell(phase="confirm", trial=3, ttft_p90_s=9.0, degraded="slow client")]
    cells.append(cell(rate=2.0, phase="confirm", trial=3))
    judged = judge_loaded(cells)
    assert [one.saturated for one in judged] == [True, True, True, None]
    assert judged[0].criteria[2].measured == pytest.approx((2.0 * 2.0 * 2.1) ** (1 / 3))
    apart = [replace(one, rate_per_s=3.0 * one.rate_per_s) if one.rate_per_s == 4.0 else one for one in cells]
    assert all("half the rate" in (one.criteria[2].reason or "") for one in judge_cells(apart) if one.trial < 3)


def test_a_growth_at_the_threshold_seldom_fires() -> None:
    rng, runs = np.random.default_rng(0), 1000
    fired = sum(
        judge_cells(launch_twice(list(1.5 * np.exp(0.15 * rng.standard_normal(5)))))[-1].criteria[2].fired is True
        for _ in range(runs)
    )
    assert fired / runs <= 0.025 + 3 * (0.025 * 0.975 / runs) ** 0.5


states = st.lists(st.sampled_from([True, False, None]), min_size=4, max_size=4)


@given(states, states)
def test_ref_safe_never_exceeds_ref_load_and_both_are_clear(plain: list[bool | None], other: list[bool | None]) -> None:
    found = reference_rates([*curve("plain", plain), *curve("nixl_both", other)])
    rates = [1.0, 2.0, 4.0, 8.0]
    for name, voters in ((REF_SAFE, (plain, other)), (REF_LOAD, (plain,))):
        chosen = found.rate(name)
        clear = [
            rate
            for place, rate in enumerate(rates)
            if all(voter[place] is False and True not in voter[:place] for voter in voters)
        ]
        assert chosen == (clear[-1] if clear else None)
        assert found.explain_rate(name)
    if found.ref_safe_per_s is not None:
        assert found.ref_load_per_s is not None
        assert found.ref_safe_per_s <= found.ref_load_per_s


def test_the_choice_survives_json_and_damage_is_an_error() -> None:
    found = reference_rates([*curve("plain", [False, None, True]), *curve("nixl_both", [False, True, True])])
    assert ReferenceRates.from_json(found.to_json()) == found
    with pytest.raises(ArtifactError, match="damaged"):
        ReferenceRates.from_json(found.to_json()[:100])


def test_the_knee_of_a_run_folder_is_found(tmp_path: Path) -> None:
    configs = {"plain": Behavior(knee_per_s=8), "mooncake_both": Behavior(knee_per_s=4)}
    write_run(tmp_path, Run(configs, rates_per_s=(1, 2, 4, 8), steps=0))
    found = choose_reference_rates(tmp_path)
    assert (found.ref_safe_per_s, found.ref_load_per_s) == (2.0, 4.0)
    (mooncake, plain) = sorted(found.configs, key=lambda scan: scan.config)
    assert (mooncake.saturation_rate_per_s, plain.saturation_rate_per_s) == (4.0, 8.0)
    assert {THROUGHPUT, QUEUE, GROWTH} == set(plain.fired)
    strict = choose_reference_rates(tmp_path, {"throughput_ratio": 1.5})
    assert strict.ref_safe_per_s is None
    assert strict.thresholds.throughput_ratio == 1.5
