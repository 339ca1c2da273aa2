"""Differences of policies: known effects lie in their intervals, and no more is said than the pairs allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from results.records.estimate import Estimate
from results.routing.comparison_tables import WINNERS
from results.routing.loads import Load
from results.routing.measurements import (
    MIN_SESSIONS,
    Measurements,
    compute_log_of_ratio,
    estimate_mean_interval,
    estimate_ratio_interval,
    find_odd_cells,
)
from results.routing.metrics import HEADLINE, Metric, find_metric, list_metrics
from results.routing.pairs import (
    Standing,
    _measure_loss,
    compare_labels,
    compare_turns,
    compare_two,
    find_pair,
    make_sort_key,
    rank_labels,
)
from results.routing.read import LoadedCell
from results.routing.shown import format_difference, format_ratio
from results.routing.summary import summarize_loaded_cell
from results.statistics.blocks import Together
from results.statistics.estimates import Samples
from results.statistics.judgement import Verdict
from tests.results.routing.synthetic import Truth, World, loaded, measured, measurements_of, records, turns_from
from tests.results.statistics.in_memory import SIMULATIONS, as_promised, bounds, covers

WORLD = World(sessions=24, turns=4)
FAST, SLOW = Truth("round_robin"), Truth("unified", ttft_s=0.3)
MEAN = find_metric("ttft_mean_s")


@pytest.fixture(scope="module")
def three() -> Measurements:
    """Both policies in three trials."""
    return measured(WORLD, (FAST, SLOW))


def _of(world: World, *truths: Truth) -> Measurements:
    return measured(world, truths or (FAST, SLOW))


def _difference(found: Measurements, metric: Metric = MEAN) -> Estimate:
    """What `unified` has more than `round_robin`."""
    return estimate_mean_interval(found.difference("unified", "round_robin", metric))


def _standing(found: Measurements, metric: str, *labels: str) -> Standing:
    return next(row for row in rank_labels(found, [Load(labels)]) if row.metric == metric)


def _expected(world: World) -> float:
    """SLOW - FAST in the mean over these very sessions, which are drawn once."""
    costs = np.exp(world.session_sigma * np.random.default_rng([world.seed, 1]).standard_normal(world.sessions))
    return 0.1 * float(costs.mean()) * float(np.exp(world.turn_sigma**2 / 2))


@SIMULATIONS
@pytest.mark.parametrize("trials", [1, 3])
def test_a_known_difference_lies_in_its_interval_as_often_as_promised(trials: int, seeds: Sequence[int]) -> None:
    worlds = (replace(WORLD, trials=trials, seed=seed) for seed in seeds)
    assert as_promised([covers(_difference(_of(world)), _expected(world)) for world in worlds])


@SIMULATIONS
def test_only_trials_hold_what_varies_between_launches(seeds: Sequence[int]) -> None:
    """With launches that differ by a fifth, sessions of one trial promise too much and five trials do not."""

    def hits_of(trials: int) -> list[bool]:
        worlds = (replace(WORLD, sessions=12, trials=trials, seed=seed, launch_sigma=0.2) for seed in seeds)
        return [covers(_difference(_of(world)), _expected(world) * float(np.exp(0.02))) for world in worlds]

    assert not as_promised(hits_of(1))
    assert as_promised(hits_of(5))


def test_an_interval_says_what_it_covers() -> None:
    for trials, basis in (
        (1, "sessions resampled, 1 trial"),
        (2, "sessions resampled, 2 trials"),
        (3, "over 3 trials"),
    ):
        assert _difference(_of(replace(WORLD, trials=trials))).basis == basis


def test_pairing_takes_out_what_sessions_cost_everywhere() -> None:
    """Sessions differ by a factor of two; the difference of two policies on the same sessions hardly varies."""
    found = _of(replace(WORLD, trials=1, session_sigma=0.7))
    low, high = bounds(_difference(found))
    alone = [bounds(estimate_mean_interval(found.get(label, MEAN))) for label in ("unified", "round_robin")]
    assert high - low < 0.5 * sum(above - below for below, above in alone)


def test_a_number_of_whole_cells_has_an_interval_from_trials_alone() -> None:
    amplification = find_metric("amplification")
    one = _difference(_of(replace(WORLD, trials=1)), amplification)
    assert one.value is not None
    assert one.low is None
    assert "needs 3 trials" in (one.reason or "")
    bounds(_difference(_of(WORLD), amplification))


def slowed(factors: Sequence[float]) -> Measurements:
    """Two policies in trials whose launches slow one of them by these factors."""
    world = replace(WORLD, trials=len(factors))
    cells = [loaded(world, FAST, trial) for trial in range(len(factors))]
    for trial, factor in enumerate(factors):
        cells.append(loaded(world, replace(SLOW, ttft_s=FAST.ttft_s * factor), trial))
    return measurements_of(cells)


def test_times_are_judged_by_their_ratio_which_one_slow_launch_does_not_hide() -> None:
    """Three, four and eight times as slow: every launch says so, and the interval of the difference covers zero."""
    row = compare_two(slowed((3.0, 4.0, 8.0)), "unified", "round_robin", MEAN)
    assert bounds(row.difference)[0] < 0
    assert row.ratio is not None
    assert row.ratio.value == pytest.approx((3 * 4 * 8) ** (1 / 3), rel=0.05)
    assert bounds(row.ratio)[0] > 1
    assert (row.verdict, row.higher_in, row.lower_in) == (Verdict.HIGHER, 3, 0)
    assert row.p_value is not None
    assert row.p_value < 0.05
    assert format_ratio(row).startswith("4.")


def test_three_launches_that_agree_but_vary_widely_give_no_verdict_and_are_said_to_agree() -> None:
    """They vary too much for the ratio to be distinguishable: that all agree is reported, and is no verdict."""
    row = compare_two(slowed((17.0, 6.0, 129.0)), "unified", "round_robin", MEAN)
    assert row.verdict == Verdict.NOT_DISTINGUISHABLE
    assert format_ratio(row).endswith(" n.d., higher in all 3")
    assert format_ratio(row.turned()).endswith(" n.d., lower in all 3")


@SIMULATIONS
def test_a_known_ratio_lies_in_its_interval_as_often_as_promised(seeds: Sequence[int]) -> None:
    hits = []
    for seed in seeds:
        world = replace(WORLD, trials=4, seed=seed, launch_sigma=0.2, turn_sigma=0.0)
        found = estimate_ratio_interval(_of(world).log_ratio("unified", "round_robin", MEAN))
        hits.append(covers(found, SLOW.ttft_s / FAST.ttft_s))
    assert as_promised(hits)


def test_a_pair_turned_round_says_the_same(three: Measurements) -> None:
    found = compare_labels(three, ["round_robin", "unified"])
    for measure in list_metrics():
        turned = find_pair(found, "round_robin", "unified", measure.name)
        again = compare_two(three, "round_robin", "unified", measure)
        assert turned is not None
        assert turned.verdict == again.verdict
        assert (turned.higher_in, turned.lower_in) == (again.higher_in, again.lower_in)
        assert turned.difference.value == pytest.approx(again.difference.value)
        assert bounds(turned.difference) == pytest.approx(bounds(again.difference))
        if turned.ratio is not None and again.ratio is not None and again.ratio.value is not None:
            assert bounds(turned.ratio) == pytest.approx(bounds(again.ratio))


@pytest.mark.parametrize("trials", [1, 2])
def test_within_a_launch_or_two_no_policy_is_distinguishable_from_another(trials: int) -> None:
    found = _of(replace(WORLD, trials=trials))
    row = compare_two(found, "unified", "round_robin", MEAN)
    assert bounds(row.difference)[0] > 0  # the sessions of these launches leave no doubt
    assert (row.verdict, row.p_value) == (None, None)
    assert "(within launches)" in format_difference(row.difference, MEAN)
    for standing in rank_labels(found, [Load(("round_robin", "unified"))]):
        assert (standing.behind, standing.alone) == ((), False)


def test_few_sessions_are_not_resampled() -> None:
    found = _difference(_of(replace(WORLD, sessions=MIN_SESSIONS - 1, trials=1)))
    assert found.low is None
    assert "too few to resample" in (found.reason or "")


def test_turns_that_one_policy_failed_are_in_neither_side() -> None:
    slow_turns = frozenset(range(24))
    failing = replace(SLOW, failed=slow_turns)
    one = replace(WORLD, trials=1)
    row = compare_two(_of(one, FAST, failing), "unified", "round_robin", MEAN)
    assert (row.common_turns, row.lost_turns) == (96 - 24, 24)
    ours, theirs = loaded(one, failing).turns, loaded(one, FAST).turns
    assert ours is not None
    assert theirs is not None
    kept = ~np.isin(theirs.index, list(slow_turns))
    assert row.difference.value == pytest.approx(np.nanmean(ours.ttft_s) - theirs.ttft_s[kept].mean())


def test_records_that_lack_turns_are_paired_by_index() -> None:
    one = replace(WORLD, trials=1)
    cells = [loaded(one, FAST), loaded(one, SLOW)]
    turns = records(one, SLOW)[24:]
    short = replace(cells[1], turns=turns_from(turns))
    found = Measurements([cells[0], short], [summarize_loaded_cell(cell) for cell in (cells[0], short)])
    assert found.common_turns("unified", "round_robin", "ttft_s") == (72, 24)


def test_a_degraded_cell_takes_no_part_and_is_the_reason() -> None:
    late = replace(SLOW, degraded={0: "the client was late"})
    found = _difference(_of(replace(WORLD, trials=1), FAST, late))
    assert found.value is None
    assert "the client was late" in (found.reason or "")
    assert _difference(_of(WORLD, FAST, late)).basis == "sessions resampled, 2 trials"


@pytest.mark.parametrize(
    ("late", "trials", "why"),
    [
        ({0: "late"}, 4, ""),
        ({0: "late", 3: "late"}, 8, ""),
        ({0: "late", 3: "late"}, 5, "2 of 5 trials of unified are degraded, and the others may be the faster ones"),
    ],
)
def test_the_trials_left_of_several_degraded_ones_decide_nothing(
    late: Mapping[int, str], trials: int, why: str
) -> None:
    """What takes the client's CPU degrades its own slow trials."""
    found = _of(replace(WORLD, trials=trials), FAST, replace(SLOW, degraded=late))
    row = compare_two(found, "unified", "round_robin", find_metric("ttft_p90_s"))
    standing = _standing(found, "ttft_p90_s", "round_robin", "unified")
    assert row.ratio is not None
    assert (row.ratio.value or 0.0) > 1
    assert (row.verdict, row.p_value is None) == ((None, True) if why else (Verdict.HIGHER, False))
    assert ((row.ratio.reason or "").startswith(why), row.ratio.low is None) == (True, bool(why))
    assert (standing.behind, standing.unjudged) == (((), ("unified",)) if why else (("unified",), ()))
    assert why in standing.why


def test_where_a_replay_ended_early_the_other_trials_are_the_faster_ones_and_decide_nothing() -> None:
    """Nor is a policy the best by them."""
    found = _of(replace(WORLD, trials=5), replace(FAST, early=frozenset({2})), SLOW, Truth("sticky", ttft_s=0.302))
    why = "in 1 of 5 trials of round_robin the replay ended early, and the others are the faster ones; a higher"
    for metric in (find_metric("ttft_p90_s"), find_metric("amplification"), MEAN):
        row = compare_two(found, "unified", "round_robin", metric)
        assert (row.verdict, row.p_value) == (None, None), metric.name
        assert (row.difference.low, (row.difference.reason or "").startswith(why)) == (None, True), metric.name
    assert found.difference("round_robin", "unified", MEAN).no_interval.startswith(why)
    standing = _standing(found, "ttft_p90_s", "round_robin", "sticky", "unified")
    assert (standing.best in ("sticky", "unified"), standing.unjudged) == (True, ("round_robin",))
    assert why in standing.why
    (turns,) = (one for one in compare_turns(found, ["round_robin", "unified"]) if one.series == "ttft_s")
    assert (turns.median.low, turns.faster.low) == (None, None)


def test_cells_of_another_trace_or_seed_are_not_paired() -> None:
    cells = [loaded(WORLD, FAST), loaded(WORLD, SLOW)]
    other = replace(cells[1].record, trace={**cells[1].record.trace, "sha256": "1" * 64})
    odd = [cells[0], LoadedCell(other, cells[1].turns, None, (), cells[1].path)]
    found = Measurements(odd, [summarize_loaded_cell(cell) for cell in odd]).difference("unified", "round_robin", MEAN)
    assert not found.trials
    assert "another trace" in found.reason
    assert list(find_odd_cells(odd)) == [cells[1].path]


def test_turn_by_turn_says_how_many_turns_were_faster() -> None:
    row = next(
        row
        for row in compare_turns(_of(replace(WORLD, trials=1)), ["round_robin", "unified"])
        if row.series == "ttft_s"
    )
    assert (row.first, row.second) == ("unified", "round_robin")
    assert row.median.value is not None
    assert row.median.value > 0.05
    assert row.faster.value is not None
    assert row.faster.value < 0.05
    low, high = bounds(row.faster)
    assert 0 <= low <= row.faster.value <= high <= 1


def test_a_winner_is_alone_only_where_all_others_are_distinguishably_worse() -> None:
    third = Truth("sticky", ttft_s=0.302)
    found = _of(replace(WORLD, trials=8), FAST, SLOW, third)
    standing = {row.metric: row for row in rank_labels(found, [Load(("round_robin", "sticky", "unified"))])}
    assert set(standing) == set(HEADLINE)
    p50 = standing["ttft_p50_s"]
    assert (p50.best, p50.alone, p50.behind) == ("round_robin", True, ("sticky", "unified"))
    assert not standing["tpot_p90_s"].alone  # all three decode alike
    assert p50.losses == {}
    assert not _standing(_of(WORLD, SLOW, third), "ttft_p50_s", "sticky", "unified").alone


def test_what_is_not_distinguishable_from_the_best_names_the_loss_that_is_excluded() -> None:
    found = _of(replace(WORLD, trials=8), FAST, Truth("sticky"), SLOW)
    row = _standing(found, "ttft_p50_s", "round_robin", "sticky", "unified")
    assert (row.best, row.level, tuple(row.losses)) == ("round_robin", ("sticky",), ("sticky",))
    low, high = bounds(row.losses["sticky"])
    assert low <= 0 < high < 0.2
    (column,) = (column for column in WINNERS.columns if column.heading == "not distinguishable")
    assert column.show(row) == f"sticky ({1 + high:.2f})"
    loss = _measure_loss(Together(-0.03, 0.01, 0.5), find_metric("apc"), trials=8)
    assert bounds(loss) == (-0.01, 0.03), "a lower APC is a loss"
    assert column.show(replace(row, metric="apc", losses={"sticky": loss})) == "sticky (3.0 pp)"
    assert column.show(replace(row, losses={"sticky": replace(loss, high=-0.001)})) == "sticky", "it is no worse"


@pytest.mark.parametrize("names", [("round_robin", "unified"), ("unified", "round_robin")])
def test_the_ranking_takes_the_differences_that_were_computed_before(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those whose best policy is the one that the other was taken from."""
    counts = {"calls": 0}

    def count_ratio(ours: Samples, theirs: Samples) -> Samples:
        counts["calls"] += 1
        return compute_log_of_ratio(ours, theirs)

    monkeypatch.setattr("results.routing.measurements.compute_log_of_ratio", count_ratio)
    found = _of(WORLD)
    compare_labels(found, names)
    before = counts["calls"]
    assert before > 0
    standing = _standing(found, "ttft_p50_s", *names)
    assert counts["calls"] == before
    assert standing.behind == ("unified",)


def test_one_policy_far_behind_is_told_apart_by_the_residual_of_all() -> None:
    """Three trials and five policies: its own three differences, corrected for every comparison, would not do."""
    near = [Truth(name, ttft_s=0.3) for name in ("lmetric", "sticky", "unified")]
    found = _of(WORLD, FAST, *near, Truth("ear", ttft_s=0.9))
    assert "ear" in _standing(found, "ttft_p90_s", "round_robin", "lmetric", "sticky", "unified", "ear").behind


def test_a_policy_of_too_few_trials_is_not_judged_and_the_reason_is_stated() -> None:
    lost = replace(SLOW, degraded={0: "the client was late"})
    found = _of(WORLD, FAST, lost, Truth("sticky", ttft_s=0.302))
    row = _standing(found, "ttft_p90_s", "round_robin", "sticky", "unified")
    assert (row.unjudged, row.alone) == (("unified",), False)
    assert "the client was late" in row.why


def test_two_lucky_trials_are_not_the_best() -> None:
    lucky = replace(FAST, label="lucky", degraded={0: "the client was late"})
    found = _of(WORLD, lucky, SLOW, Truth("sticky", ttft_s=0.302))
    row = _standing(found, "ttft_p50_s", "lucky", "sticky", "unified")
    assert (row.best in ("sticky", "unified"), row.unjudged) == (True, ("lucky",))


def test_a_policy_that_failed_its_slow_turns_is_not_the_best_of_those_that_served_them() -> None:
    """Over its own turns it has the lower mean; over those of both it is the slower one."""
    served = Truth("sticky", ttft_s=0.2)
    costs = loaded(WORLD, served).turns
    assert costs is not None
    slowest = frozenset(int(turn) for turn in np.argsort(costs.ttft_s)[-48:])
    failing = Truth("unified", ttft_s=0.22, failed=slowest)
    found = _of(WORLD, served, failing)
    p90 = find_metric("ttft_p90_s")
    own = [float(found.get(label, p90).values.mean()) for label in ("sticky", "unified")]
    assert own[1] < own[0]
    assert _standing(found, p90.name, "sticky", "unified").best == "sticky"


def test_a_replay_without_the_work_of_its_failed_turns_has_no_amplification_and_neither_do_its_other_trials() -> None:
    """Else a policy that fails its slow turns ends sooner, or is judged by the trials in which it failed fewest."""
    losing = Truth("static_pd", failed=frozenset(range(24)))
    found = _of(WORLD, FAST, losing)
    amplification = find_metric("amplification")
    assert compare_two(found, "static_pd", FAST.label, amplification).verdict is None
    assert "24 of 96 turns failed" in found.get("static_pd", amplification).reason
    cells = [loaded(WORLD, truth, trial) for truth in (FAST, Truth("static_pd")) for trial in range(4)]
    cells[-1] = loaded(WORLD, losing, 3)
    ratio = compare_two(measurements_of(cells), "static_pd", FAST.label, amplification).ratio
    assert ratio is not None
    assert (ratio.low, ratio.launches) == (None, 3)
    assert "1 of 4 trials have none: static_pd, trial 3: 24 of 96 turns failed" in (ratio.reason or "")


def test_more_cache_hits_win_although_they_are_the_higher_number() -> None:
    better = Truth("unified", hit_share=0.99)
    found = _of(WORLD, Truth("round_robin", hit_share=0.5), better)
    assert _standing(found, "apc", "round_robin", "unified").best == "unified"


def test_policies_stand_in_the_order_of_the_specification() -> None:
    names = [("mine", "mine"), ("unified x=2", "unified"), ("sticky", "sticky"), ("round_robin", "round_robin")]
    found = [label for label, _ in sorted(names, key=lambda item: make_sort_key(*item))]
    assert found == ["round_robin", "sticky", "unified x=2", "mine"]
