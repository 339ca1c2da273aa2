"""Shares of sessions that are the same in every trial: how sure a count is, and what the decision points make of it."""

from __future__ import annotations

import math

import pytest

from results.records.turns import RoutedEngine
from results.routing.decision_points import judge_decision_points
from results.routing.floor_measurements import measure_load_floor
from results.routing.measurements import estimate_count_interval, estimate_level_interval, make_trial_of_number
from results.statistics.judgement import Outcome, correct_together
from results.statistics.trials import Measured
from tests.results.routing.logs import facts_of_logs, spread
from tests.results.routing.synthetic import World

SESSIONS = 60


def counted(counts: list[int]) -> Measured:
    """This many of the sessions, trial by trial."""
    return Measured({trial: make_trial_of_number(count / SESSIONS, SESSIONS) for trial, count in enumerate(counts)})


@pytest.mark.parametrize("trials", [3, 5, 10, 20])
def test_the_interval_covers_a_count_that_moves_by_one_session(trials: int) -> None:
    """Exactly, over all outcomes: a trial has 15 sessions, or 16 with this probability."""
    worst = {estimate_count_interval: 1.0, estimate_level_interval: 1.0}
    for percent in range(101):
        chance = percent / 100
        covered = dict.fromkeys(worst, 0.0)
        for more in range(trials + 1):
            of = counted([15] * (trials - more) + [16] * more)
            weight = math.comb(trials, more) * chance**more * (1 - chance) ** (trials - more)
            for interval in covered:
                bounds = interval(of)
                if bounds.low is not None and not bounds.excludes((15 + chance) / SESSIONS):
                    covered[interval] += weight
        worst = {interval: min(least, covered[interval]) for interval, least in worst.items()}
    assert worst[estimate_count_interval] >= 0.95
    assert worst[estimate_level_interval] < 0.2, "the spread of the trials alone"


def test_a_count_that_varies_has_its_own_spread_and_a_share_stays_within_its_bounds() -> None:
    wide = counted([10, 15, 20])
    assert estimate_count_interval(wide) == estimate_level_interval(wide, most=1.0)
    none, every = (estimate_count_interval(counted([count] * 5)) for count in (0, SESSIONS))
    assert (none.low, every.high) == (0.0, 1.0)
    half = 2.7764 * 0.5 / SESSIONS / math.sqrt(5)
    assert none.high == pytest.approx(half, rel=1e-4)
    assert none.reason is None
    assert estimate_count_interval(counted([15, 15])).low is None, "two trials give no interval"


def test_decision_points_are_decided_where_each_trial_spreads_the_sessions_alike() -> None:
    world = World(sessions=SESSIONS, turns=2, trials=5, instances=3)
    engines = tuple(RoutedEngine(name, "both", "", None, "spawn", 16, 1000, 0.0, 0.0) for name in "abc")
    parameters = {
        "plain": {}, "50": {"load_floor_bonus": 50}, "200": {"load_floor_bonus": 200},
        "max": {"load_floor_bonus": 200, "floor_form": "max"}, "cold": {"cold_bonus": 200},
    }  # fmt: skip
    shares = {"plain": (60, 0, 0), "50": (20, 20, 20), "200": (20, 20, 20), "max": (60, 0, 0), "cold": (60, 0, 0)}
    logs = {
        label: [spread(own, 0.9 + 0.001 * trial * place) for trial in range(world.trials)]
        for place, (label, own) in enumerate(shares.items())
    }
    facts, measurements = facts_of_logs(
        world, "kv_aware", logs, lambda label: {"parameters": parameters[label], "engines": engines}
    )
    floor = measure_load_floor(dict.fromkeys(parameters, "kv_aware"), facts, measurements)
    assert floor is not None
    judged = correct_together([one.judgement for one in judge_decision_points(floor)])
    points = {one.name: one for one in judged}
    assert {name: points[name].outcome for name in ("D3", "D5", "D6")} == dict.fromkeys(
        ("D3", "D5", "D6"), Outcome.HOLDS
    )
