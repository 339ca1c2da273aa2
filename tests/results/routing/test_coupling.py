"""The loop of specs/ear section 2.3: a known slope is found again, and the algebra is the specification's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.measures.turns import SessionTimes, Turns, measure_session_times
from results.records.estimate import Estimate
from results.routing.coupling import (
    Coupling,
    Curve,
    Loop,
    compute_gain,
    compute_specified_curve,
    fit_couplings,
    measure_loop,
    predict_curve,
    predict_wall_s,
    why_no_loop,
)
from results.routing.metrics import find_metric
from results.routing.summary import summarize_loaded_cell
from tests.results.routing.synthetic import Truth, World, loaded, measured, measurements_of, records, turns_from
from tests.results.statistics.in_memory import SIMULATIONS, as_promised, covers

WORLD = World(sessions=32, turns=5, gap_s=0.8, random_gaps=True, turn_sigma=0.05, session_sigma=0.05)
COUPLED = Truth("unified", slope_s=0.02)


def _loop(world: World, *truths: Truth) -> tuple[Coupling, ...]:
    return fit_couplings(measured(world, truths), [truth.label for truth in truths])


@SIMULATIONS
@pytest.mark.parametrize(("trials", "slope_s"), [(1, 0.02), (3, 0.02), (1, 0.0)])
def test_a_known_slope_lies_in_its_interval_as_often_as_promised(
    trials: int, slope_s: float, seeds: Sequence[int]
) -> None:
    hits = []
    for seed in seeds:
        (row,) = _loop(replace(WORLD, seed=seed, trials=trials), replace(COUPLED, slope_s=slope_s))
        hits.append(covers(row.slope_s, slope_s))
    assert as_promised(hits)


def test_where_a_replay_ended_early_the_loop_has_no_interval() -> None:
    """The trials that are left are the faster ones."""
    (row,) = _loop(replace(WORLD, trials=4), replace(COUPLED, early=frozenset({1})))
    for one in (row.slope_s, row.service_s):
        assert one.value is not None
        assert (one.low, one.high) == (None, None)
        assert "in 1 of 4 trials of unified the replay ended early" in (one.reason or "")


def test_a_slope_holds_what_varies_between_sessions_however_many_trials_there_are() -> None:
    """Every trial replays the same sessions: what they happen to cost shifts the slope of all trials alike."""
    (row,) = _loop(WORLD, COUPLED)
    assert row.slope_s.basis == "the wider of over 3 trials and sessions resampled, 3 trials"


def test_the_terms_are_those_of_the_world() -> None:
    world = replace(WORLD, think_s=1.5, session_sigma=0.0, turn_sigma=0.0, random_gaps=False)
    loop = measure_loop(turns_from(records(world, Truth("a"))))
    assert not isinstance(loop, str)
    assert loop.arrivals_per_s == pytest.approx(1 / 0.8)
    assert loop.turns == pytest.approx(5)
    assert loop.service_s == pytest.approx(0.36)
    assert loop.think_s == pytest.approx(1.5 * 4 / 5)  # no pause after the last turn


def test_sessions_that_arrive_together_have_no_rate() -> None:
    (row,) = _loop(replace(WORLD, gap_s=0.0), COUPLED)
    assert row.arrivals_per_s.value is None
    assert row.gain.value is None
    assert "arrived at once" in (row.gain.reason or "")
    assert "arrived at once" in row.why_no_loop, "so that no claim takes it for a steady state"


def test_a_steady_number_of_sessions_says_nothing_of_a_slope() -> None:
    (row,) = _loop(replace(WORLD, gap_s=100.0, random_gaps=False), COUPLED)
    assert "never changed" in (row.slope_s.reason or "")


def test_a_loop_gain_of_one_or_more_has_no_equilibrium() -> None:
    gain = compute_gain(Estimate(1.2, 1.1, 1.3))
    assert gain.value is None
    assert "no equilibrium" in (gain.reason or "")


def test_sessions_that_pile_up_show_no_loop() -> None:
    """All arrive within two seconds, and each stays longer: Little's law does not hold for what was seen."""
    (row,) = _loop(replace(WORLD, gap_s=0.05), COUPLED)
    assert "no steady state" in row.why_no_loop
    for shown in (row.loop_gain, row.gain, row.equilibrium, row.sensitivity):
        assert shown.value is None
        assert shown.reason == row.why_no_loop
    assert row.slope_s.value is not None, "what was fitted stays"


def test_a_trial_whose_turns_cannot_be_read_shows_no_loop() -> None:
    """Its replay still states an amplification, which claims about the loop compare."""
    cells = [loaded(WORLD, COUPLED, trial) for trial in range(3)]
    found = measurements_of([cells[0], replace(cells[1], turns=None), cells[2]])
    (row,) = fit_couplings(found, ["unified"])
    assert "the turn records cannot be read" in row.why_no_loop
    assert "of 3 trials" in row.why_no_loop
    assert row.loop_gain.value is None
    assert len(found.get("unified", find_metric("amplification")).trials) == 3


def _held_back(turns: Turns, cap: int) -> Turns:
    """The same turns as a limit on sessions in flight would stamp them: due late, with the delay beside."""
    times = measure_session_times(turns)
    place = {name: number for number, name in enumerate(times.session)}
    late = np.array([max(0, place[str(name)] - cap + 1) * 0.1 for name in turns.session])
    return replace(
        turns,
        due_s=turns.due_s + late,
        send_s=turns.send_s + late,
        end_s=turns.end_s + late,
        numbers={**turns.numbers, "session_delay_s": late},
    )


def test_arrivals_are_the_traces_whatever_a_limit_held_back() -> None:
    turns = turns_from(records(WORLD, Truth("a")))
    capped = _held_back(turns, 4)
    assert measure_session_times(capped).arrival_s == pytest.approx(measure_session_times(turns).arrival_s)
    loop, free = measure_loop(capped), measure_loop(turns)
    assert not isinstance(loop, str)
    assert not isinstance(free, str)
    assert loop.arrivals_per_s == pytest.approx(free.arrivals_per_s)
    assert loop.held_back == pytest.approx(28 / 32, abs=1 / 32)
    assert loop.session_delay_s > 1
    assert why_no_loop(free) == ""
    assert "held back" in why_no_loop(loop)


def test_a_system_that_held_no_session_shows_no_loop() -> None:
    """All but the last one failed the moment they were sent."""
    empty = Loop(1.0, 1.0, 0.3, 0.0, 1.0, in_system=0.0, held_back=0.0, session_delay_s=0.0)
    assert why_no_loop(empty).startswith("no steady state")


def test_a_steady_state_obeys_littles_law() -> None:
    loop = measure_loop(turns_from(records(replace(WORLD, sessions=300), COUPLED)))
    assert not isinstance(loop, str)
    assert loop.in_system == pytest.approx(loop.arrivals_per_s * loop.turns * (loop.service_s + loop.think_s), rel=0.05)


def test_the_equilibrium_is_what_the_closed_loop_settles_at() -> None:
    world = replace(WORLD, sessions=300, trials=1)
    (row,) = _loop(world, COUPLED)
    settled = summarize_loaded_cell(loaded(world, COUPLED)).estimate("concurrency").value
    assert row.equilibrium.value == pytest.approx(settled, rel=0.05)


def _row(arrivals: float, turns: float, service: float, think: float, at: float, slope: float) -> Coupling:
    one = {name: Estimate(value) for name, value in (
        ("arrivals_per_s", arrivals), ("turns", turns), ("service_s", service), ("think_s", think),
        ("concurrency", at), ("slope_s", slope),
    )}  # fmt: skip
    none = Estimate(None)
    return Coupling(
        label="a", **one, in_system=none, held_back=none, session_delay_s=none, loop_gain=none, equilibrium=none,
        gain=none, sensitivity=none, why_no_loop="",
    )  # fmt: skip


@settings(deadline=None)
@given(st.floats(0.01, 0.15), st.floats(0.0, 20.0))
def test_the_curve_is_the_derivative_of_the_fixed_point(slope: float, think: float) -> None:
    """Moving every service time by a small share moves L by the curve's value times that share."""
    flow, at = 5.0, 4.0
    empty = 1.0

    def fixed(scale: float) -> float:
        return flow * (scale * empty + think) / (1 - flow * scale * slope)

    service = empty + slope * fixed(1.0)
    row = _row(0.25, 20, empty + slope * at, think, at, slope)
    found = compute_specified_curve(row, np.array([service]))
    assert not isinstance(found, str)
    share = 1e-6
    assert found[0] == pytest.approx((fixed(1 + share) - fixed(1 - share)) / (2 * share), rel=1e-3)


def test_a_slow_down_moves_the_sessions_that_are_served_not_those_that_pause() -> None:
    """With think time too, the number in the table is the derivative that the curve draws."""
    (row,) = _loop(replace(WORLD, sessions=300, trials=1, think_s=1.0), COUPLED)
    terms = (row.equilibrium, row.service_s, row.slope_s, row.concurrency, row.gain, row.sensitivity)
    settled, service, slope, at, gain, moved = (float(term.value or 0.0) for term in terms)
    found = compute_specified_curve(row, np.array([service + slope * (settled - at)]))
    assert not isinstance(found, str)
    assert moved == pytest.approx(found[0])
    assert moved < 0.6 * settled * gain, "most of the sessions pause"


def test_no_feedback_draws_no_curve() -> None:
    found = compute_specified_curve(_row(0.25, 20, 2.0, 0.0, 10.0, -0.01), np.array([2.0]))
    assert isinstance(found, str)
    assert "no feedback" in found


times = st.integers(1, 12).flatmap(
    lambda n: st.tuples(*(st.lists(st.floats(0, 20), min_size=n, max_size=n) for _ in range(3)))
)


def _times(found: tuple[list[float], list[float], list[float]]) -> SessionTimes:
    arrival, busy, idle = (np.array(part) for part in found)
    return SessionTimes(tuple(map(str, range(arrival.size))), arrival, arrival, busy, idle)


@settings(deadline=None)
@given(times, st.floats(0.5, 3), st.integers(0, 4))
def test_slower_turns_never_end_earlier_and_a_cap_never_helps(
    found: tuple[list[float], list[float], list[float]], slower: float, cap: int
) -> None:
    one = _times(found)
    free = predict_wall_s(one, slower, 0)
    assert free == pytest.approx(float((one.arrival_s + slower * one.busy_s + one.idle_s).max()))
    assert predict_wall_s(one, slower, cap) >= free - 1e-9
    assert predict_wall_s(one, slower * 1.5, cap) >= predict_wall_s(one, slower, cap) - 1e-9
    if cap == 1:
        assert predict_wall_s(one, slower, 1) >= float((slower * one.busy_s + one.idle_s).sum()) - 1e-9


def test_the_prediction_passes_through_the_policy_it_starts_from() -> None:
    world = replace(WORLD, trials=3)
    truths = (Truth("round_robin", ttft_s=0.5, slope_s=0.02), COUPLED)
    found = measured(world, truths)
    cells = {(truth.label, trial): loaded(world, truth, trial) for truth in truths for trial in range(3)}
    rows = fit_couplings(found, ["round_robin", "unified"])
    predicted = predict_curve(found, rows, cells)
    assert isinstance(predicted, Curve)
    assert predicted.label == "unified"
    own = np.mean([cells["unified", trial].record.replay["amplification"] for trial in range(3)])
    service = next(row for row in rows if row.label == "unified").service_s.value or 0.0
    assert np.interp(service, predicted.service_s, predicted.kinematic) == pytest.approx(own, rel=1e-3)
    assert np.interp(service, predicted.service_s, predicted.specified) == pytest.approx(own, rel=1e-2)
    assert (np.diff(predicted.kinematic) >= -1e-12).all()
