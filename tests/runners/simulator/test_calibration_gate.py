"""The calibration gate on errors whose answer is known."""

from __future__ import annotations

import math

import pytest

from results.statistics.judgement import Outcome
from runners.simulator.calibration_gate import HeldOutCell, LoadErrors, RepeatedCell, judge_errors

CLOSE = [0.01, -0.01, 0.005, -0.005]
"""Errors with a bias of 0 +- 1.5 %."""
REPEATS = [0.010, 0.012, 0.011]


def list_loads(
    errors: list[float], repeats: list[float], *, effects: tuple[float, ...] = (0.0, 0.0, 0.0)
) -> list[LoadErrors]:
    """A load for each error, with a cell in each launch; the first ones were measured again.

    `effects`: of the launches, each a factor less 1 on every simulated over measured.
    """
    again = dict(enumerate(repeats))

    def make_cell(launch: int, error: float, repetition: float | None) -> HeldOutCell:
        name = f"launch {launch}"
        return HeldOutCell(name, error) if repetition is None else RepeatedCell(name, error, repetition)

    return [
        LoadErrors(
            tuple(
                make_cell(launch, (1 + error) * (1 + effect) - 1, again.get(number))
                for launch, effect in enumerate(effects)
            )
        )
        for number, error in enumerate(errors)
    ]


HELD_AGAINST_REPEATS: dict[str, tuple[list[float], list[float], Outcome]] = {
    "within": (CLOSE, REPEATS, Outcome.HOLDS),
    "a bias of 4 % +- 3 %": ([0.02, 0.06, 0.03, 0.05], [0.03, 0.05, 0.04], Outcome.UNDECIDED),
    "a bias of 8 % +- 1 %": ([0.08, 0.085, 0.075, 0.08], [0.10, 0.12, 0.11], Outcome.FAILS),
    "as much below": ([-0.08, -0.085, -0.075, -0.08], [0.10, 0.12, 0.11], Outcome.FAILS),
    "farther than a repetition": ([0.20, -0.20, 0.21, -0.21], [0.02, 0.03, 0.025], Outcome.FAILS),
    "maybe farther than a repetition": ([0.06, -0.06] * 10, [0.0, 0.01, 0.02], Outcome.UNDECIDED),
    "as far as a repetition": ([0.06, -0.06] * 10, [0.04, 0.05, 0.06], Outcome.HOLDS),
    "a bias without a spread": ([0.08, 0.08, 0.08], [0.10, 0.12, 0.11], Outcome.UNDECIDED),
    "two loads within": ([0.04, -0.04], REPEATS, Outcome.UNDECIDED),
    "two loads beyond": ([0.06, 0.07], REPEATS, Outcome.UNDECIDED),
    "two repetitions": (CLOSE, REPEATS[:2], Outcome.UNDECIDED),
    "nothing held out": ([], [0.1], Outcome.OPEN),
    "nothing repeated": ([0.01], [], Outcome.OPEN),
}
"""Errors, repetitions, and what comes of both."""


@pytest.mark.parametrize("case", HELD_AGAINST_REPEATS)
def test_the_interval_of_the_errors_is_held_against_real_repetitions(case: str) -> None:
    errors, repeats, outcome = HELD_AGAINST_REPEATS[case]
    assert judge_errors("ttft_p90_s", list_loads(errors, repeats)).outcome is outcome


def test_a_calibration_gate_has_its_bias_with_the_interval_and_the_rule_on_the_values_alone() -> None:
    gate = judge_errors("ttft_p90_s", list_loads([0.02, 0.06, 0.03, 0.05], [0.03, 0.05, 0.04]))
    assert gate.point == "holds"
    assert gate.measured.value == pytest.approx(math.exp(sum(map(math.log1p, (0.02, 0.06, 0.03, 0.05))) / 4) - 1)
    assert (gate.measured.low, gate.measured.high) == pytest.approx((0.0113, 0.0694), abs=1e-3)
    assert gate.measured.basis == "over 4 loads and 3 launches"
    values = {name: number.value for name, number in gate.numbers.items()}
    assert values == pytest.approx({"mean error": 0.04, "repetition": 0.04, "excess": -0.01 / 3}, abs=1e-9)


def test_however_often_a_load_was_measured_it_is_one_sample() -> None:
    """Ten cells of each of two loads gave a verdict, and a narrow interval."""
    often = judge_errors("ttft_p90_s", list_loads(CLOSE, REPEATS, effects=(0.0,) * 10))
    few_cells = judge_errors("ttft_p90_s", list_loads(CLOSE, REPEATS))
    assert (often.measured.low, often.measured.high) == pytest.approx((few_cells.measured.low, few_cells.measured.high))
    assert "over 4 loads (40 cells of 10 launches), 3 of them with a repetition" in often.reason
    few = judge_errors("ttft_p90_s", list_loads(CLOSE[:2], REPEATS, effects=(0.0,) * 10))
    assert few.outcome is Outcome.UNDECIDED
    assert few.reason.startswith("2 held-out loads and 2 held-out loads with a repetition, a verdict needs 3")


def test_what_launches_differ_by_widens_the_interval_and_fewer_than_three_give_none() -> None:
    """Launches that are 12 % slower or faster under every load left the means of the loads alike: a bias of 0 held."""
    same = judge_errors("ttft_p90_s", list_loads(CLOSE, REPEATS))
    differ = judge_errors("ttft_p90_s", list_loads(CLOSE, REPEATS, effects=(0.12, 0.0, 1 / 1.12 - 1)))
    assert same.outcome is Outcome.HOLDS
    assert differ.outcome is not Outcome.HOLDS
    assert differ.measured.value == pytest.approx(same.measured.value, abs=1e-9)
    assert differ.measured.high == pytest.approx(math.exp(4.303 * math.log(1.12) / math.sqrt(3)) - 1, rel=0.02)
    few = judge_errors("ttft_p90_s", list_loads(CLOSE, REPEATS, effects=(0.0, 0.0)))
    assert few.outcome is Outcome.UNDECIDED
    assert few.measured.low is None
    assert few.reason.startswith("2 launches with a repetition, a verdict needs 3")


def test_a_load_of_one_launch_does_not_show_how_little_launches_differ() -> None:
    """A sweep measures its loads in one launch, which then is no farther from their means than 0."""
    shared = list_loads(CLOSE, REPEATS, effects=(0.12, 0.0, 1 / 1.12 - 1))
    sweep = [LoadErrors((RepeatedCell("sweep", error, 0.01),)) for error in CLOSE]
    bias = judge_errors("ttft_p90_s", [*shared, *sweep]).measured
    assert bias.basis == "over 8 loads and 4 launches"
    weight = math.sqrt(3 * (1 / 6) ** 2 + (1 / 2) ** 2)
    assert bias.high == pytest.approx(math.exp(4.303 * math.log(1.12) * weight) - 1, rel=0.02)
    apart = [LoadErrors((RepeatedCell(f"sweep {launch}", error, 0.01),)) for launch in range(3) for error in CLOSE]
    gate = judge_errors("ttft_p90_s", apart)
    assert (gate.outcome, gate.measured.low) == (Outcome.UNDECIDED, None)
    assert gate.reason.startswith("0 launches share a load with another: an interval needs 3: bias")


def test_noise_of_the_real_cells_alone_is_no_bias() -> None:
    """Real cells that are 30 % above and below an exact model: the mean of the errors would be +3.4 %."""
    loads = [
        LoadErrors(
            tuple(RepeatedCell(f"launch {number}", error, 0.3) for number, error in enumerate((0.3, 1 / 1.3 - 1)))
        )
        for _ in range(3)
    ]
    assert judge_errors("ttft_p90_s", loads).measured.value == pytest.approx(0.0, abs=1e-12)


def test_a_repetition_is_held_against_the_error_of_its_own_load() -> None:
    """Loads differ by far more than their cells: paired, the model is 1 to 3 points worse than a repetition of each."""
    errors, repeats = [0.02, -0.20, 0.40, -0.22], [0.01, 0.17, 0.38, 0.20]
    excess = judge_errors("ttft_p90_s", list_loads(errors, repeats)).numbers["excess"]
    assert excess.value == pytest.approx(0.02)
    assert (excess.low, excess.high) == pytest.approx((0.00701, 0.03299), abs=1e-4)


def test_too_few_loads_are_counted_and_their_values_shown() -> None:
    gate = judge_errors("ttft_p90_s", list_loads([0.06, 0.07], [0.10]))
    few = "2 held-out loads and 1 held-out load with a repetition, a verdict needs 3"
    assert gate.reason.startswith(f"{few}: bias +6.5 %, mean error 6.5 %")
    assert gate.point == "fails"
    assert gate.measured.value == pytest.approx(0.065, abs=1e-4)
    assert gate.measured.low is None


def test_loads_near_saturation_are_reported_and_not_judged() -> None:
    gate = judge_errors("ttft_p90_s", list_loads(CLOSE, REPEATS), near_saturation=list_loads([9.0, -0.5], []))
    assert gate.outcome is Outcome.HOLDS
    apart = "not judged: 2 loads (6 cells of 3 launches) near saturation, bias +425.0 %, mean error 475.0 %"
    assert f"over 4 loads (12 cells of 3 launches), 3 of them with a repetition; {apart}" in gate.reason


@pytest.mark.parametrize(
    ("loads", "near_saturation", "why"),
    [
        ([], [], "no cell was held out of the fit"),
        ([], list_loads([0.5], []), "every held-out load is near saturation"),
        (list_loads([0.1], []), [], "no load was measured twice"),
        (list_loads([0.1], []), list_loads([0.5], []), "no load was measured twice"),
        (list_loads([0.1], []), list_loads([0.5], [0.2]), "every load that was measured twice is near saturation"),
    ],
)
def test_without_a_repetition_to_judge_by_the_gate_is_open_and_states_why(
    loads: list[LoadErrors], near_saturation: list[LoadErrors], why: str
) -> None:
    gate = judge_errors("ttft_p90_s", loads, near_saturation)
    assert gate.outcome is Outcome.OPEN
    assert gate.reason.startswith(f"{why}: there is nothing to hold the error against")
