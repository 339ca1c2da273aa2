"""specs/load_floor.md: what a log says of the bonus, and questions that are answered only by numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from results.routing.floor_answers import Answer, FloorAnswer, floor_answers
from results.routing.floor_facts import SessionFacts, floor_facts
from results.routing.load_floor import (
    NO_FIX,
    FloorVariant,
    LoadFloor,
    TransportFacts,
    fix_of,
    load_floor,
    transport_facts,
)
from results.routing.logs import LogFacts, log_facts
from results.routing.measure import Measurements
from results.routing.record import RoutedEngine
from results.routing.summary import summary_of
from results.routing.transfers import Moved
from results.statistics import Estimate
from tests.results.routing.logs import Log, moved
from tests.results.routing.synthetic import Truth, World, cell_record, loaded, records

WORLD = World(sessions=10, turns=2, trials=3, instances=3)


def engine(name: str, role: str) -> RoutedEngine:
    return RoutedEngine(name, role, "", None, "spawn", 16, 1000, 0.0, 0.0)


def test_what_each_d_got_and_what_became_of_the_overlap() -> None:
    """Pools: a prefills, b and c decode."""
    log = Log()
    log.pick(0, "s", "b", prefill="a", cached={"a": 900, "b": 0}, counted=2000,
             transfer=moved("a", "b", purpose="handover", prefix=2000, external=2000))  # fmt: skip
    log.pick(1, "s", "b", owner="b", cached={"b": 1600, "c": 320}, counted=1500)
    log.pick(2, "s", "c", owner="b", cached={"b": 1600, "c": 320}, counted=320)
    log.pick(3, "t", "b", cached={"b": 320}, counted=320)
    record = replace(
        cell_record(WORLD, Truth("kv_aware"), 0, records(WORLD, Truth("kv_aware"))),
        engines=(engine("a", "prefill"), engine("b", "decode"), engine("c", "decode")),
    )
    found = floor_facts(record, log.records)
    assert found.placed == {"b": 2, "c": 0}
    assert found.sessions == (
        SessionFacts("s", requests=3, direct=1, best_tokens=3200, chosen_tokens=1920, served_tokens=1820),
        SessionFacts("t", requests=1, direct=0, best_tokens=320, chosen_tokens=320, served_tokens=320),
    )


@pytest.mark.parametrize(
    ("parameters", "fix"),
    [
        ({}, NO_FIX),
        ({"sticky_bonus": 5, "load_floor_bonus": 0, "overlap_discount": "off"}, NO_FIX),
        ({"load_floor_bonus": 200}, "Q2.B K=200 (mean)"),
        ({"load_floor_bonus": 50, "floor_form": "max"}, "Q2.B K=50 (max)"),
        ({"cold_bonus": 9}, "Q2.A"),
        ({"order": "inflight_first"}, "Q2.C"),
        ({"overlap_discount": "largest"}, "Q2.D (largest)"),
        ({"prewarm_tokens": 64}, "Q2.E"),
        ({"min_overlap_share": 0.2}, "Q2.F"),
        ({"migration_reject_threshold": 0}, "without Q2.G"),
        ({"backpressure_above": 0.9, "load_floor_bonus": 1}, "Q2.B K=1 (mean) + Q1.E"),
    ],
)
def test_a_fix_is_known_by_its_parameters(parameters: Mapping[str, Any], fix: str) -> None:
    assert fix_of(parameters) == fix


def spread(shares: tuple[int, int, int], kept: float) -> Log:
    """Ten sessions, so many on each instance; each comes again and finds `kept` of what its instance held."""
    log = Log()
    names = [name for name, count in zip("abc", shares, strict=True) for _ in range(count)]
    for place, name in enumerate(names):
        log.pick(place, f"s{place:03d}", name, counted=0)
        log.pick(50 + place, f"s{place:03d}", name, owner=name, cached={name: 1000}, counted=int(1000 * kept))
    return log


def floor_of(variants: Mapping[str, tuple[Mapping[str, Any], Log]]) -> LoadFloor | None:
    """A run of these labels, three trials of the same log each."""
    facts: dict[str, dict[int, LogFacts]] = {}
    cells = []
    for label, (parameters, log) in variants.items():
        for trial in range(WORLD.trials):
            cell = loaded(WORLD, Truth(label, "kv_aware"), trial)
            engines = tuple(engine(name, "both") for name in "abc")
            cell = replace(
                cell, record=replace(cell.record, parameters=parameters, engines=engines), path=f"{label}{trial}"
            )
            facts.setdefault(label, {})[trial] = log_facts(cell, log.records)
            cells.append(cell)
    measurements = Measurements(cells, [summary_of(cell) for cell in cells])
    return load_floor(dict.fromkeys(variants, "kv_aware"), facts, measurements)


def answered(found: LoadFloor) -> dict[str, FloorAnswer]:
    return {one.point: one for one in floor_answers(found)}


def test_the_bonus_that_brings_a_cold_d_its_share_is_the_right_shape() -> None:
    found = floor_of({
        "plain": ({}, spread((5, 5, 0), 0.9)),
        "bonus": ({"load_floor_bonus": 200}, spread((4, 3, 3), 0.9)),
    })  # fmt: skip
    assert found is not None
    assert found.reference == "plain"
    bonus = next(one for one in found.variants if one.label == "bonus")
    assert bonus.values["least_share"].value == pytest.approx(0.3)
    assert bonus.values["direct_rate"].value == 0.5
    assert bonus.values["overlap_kept"].value == pytest.approx(0.9)
    assert bonus.differences["least_share"].value == pytest.approx(0.3)
    assert [share.value for share in bonus.shares.values()] == pytest.approx([0.4, 0.3, 0.3])
    said = answered(found)
    assert said["D3"].answer == Answer.YES
    assert "smallest share of the sessions 30.0% (even 33%" in said["D3"].text
    assert "none of the alternatives" in said["D3"].text


def test_a_bonus_that_leaves_a_d_cold_or_costs_overlap_is_not() -> None:
    cold = floor_of({"plain": ({}, spread((5, 5, 0), 0.9)), "bonus": ({"load_floor_bonus": 2}, spread((5, 5, 0), 0.9))})
    assert cold is not None
    assert answered(cold)["D3"].answer == Answer.NO
    dear = floor_of(
        {"plain": ({}, spread((5, 5, 0), 0.9)), "bonus": ({"load_floor_bonus": 900}, spread((4, 3, 3), 0.2))}
    )
    assert dear is not None
    assert answered(dear)["D3"].answer == Answer.NO
    assert "cost overlap" in answered(dear)["D3"].text


def test_a_little_less_overlap_is_no_cost() -> None:
    found = floor_of({
        "plain": ({}, spread((10, 0, 0), 1.0)), "bonus": ({"load_floor_bonus": 200}, spread((4, 3, 3), 0.97)),
    })  # fmt: skip
    assert found is not None
    assert answered(found)["D3"].answer == Answer.YES
    assert "overlap kept 97.0% (lower)" in answered(found)["D3"].text


def test_where_nothing_was_cold_the_question_stays_undecided() -> None:
    found = floor_of(
        {"plain": ({}, spread((4, 3, 3), 0.9)), "bonus": ({"load_floor_bonus": 200}, spread((4, 3, 3), 0.9))}
    )
    assert found is not None
    assert answered(found)["D3"].answer == Answer.UNDECIDED


def test_without_any_fix_there_is_no_section() -> None:
    assert floor_of({"plain": ({}, spread((5, 5, 0), 0.9))}) is None


def test_what_was_not_run_is_open_and_says_what_is_missing() -> None:
    found = floor_of({"bonus": ({"load_floor_bonus": 200}, spread((4, 3, 3), 0.9))})
    assert found is not None
    said = answered(found)
    assert {point for point, one in said.items() if one.answer == Answer.OPEN} == {
        "D1", "D2", "D3", "D4", "D5", "D6", "D7", "Q1.D",
    }  # fmt: skip
    assert "only K = 200 was run" in said["D6"].text
    assert "no KV was moved in this run" in said["D2"].text


def test_both_forms_and_a_grid_of_k_are_compared_where_they_were_run() -> None:
    found = floor_of({
        "plain": ({}, spread((5, 5, 0), 0.9)),
        "mean 50": ({"load_floor_bonus": 50}, spread((5, 5, 0), 0.9)),
        "mean 200": ({"load_floor_bonus": 200}, spread((4, 3, 3), 0.9)),
        "max 200": ({"load_floor_bonus": 200, "floor_form": "max"}, spread((5, 4, 1), 0.9)),
    })  # fmt: skip
    assert found is not None
    said = answered(found)
    assert said["D5"].answer == Answer.YES
    assert said["D6"].answer == Answer.YES
    assert said["D6"].text.startswith("K = 200 of 50, 200 do")


def variant(label: str, **changes: Any) -> FloorVariant:
    values = dict.fromkeys(("least_share", "direct_rate", "overlap_kept", "ttft_p90_s"), Estimate(0.5))
    whole = FloorVariant(label, NO_FIX, {}, 3, {}, values, {}, 100, 0, 0, 0, 0, 0, 0)
    return replace(whole, **changes)


QUIET = TransportFacts(0, 0, 0, 0, 0, 0, 0, None, 0)


def run_of(*variants: FloorVariant, transport: TransportFacts = QUIET) -> LoadFloor:
    return LoadFloor(variants[0].label, variants, transport, 50, 3)


def shares(least: Estimate, kept: Estimate | None) -> dict[str, Any]:
    values = dict.fromkeys(("direct_rate", "overlap_kept", "ttft_p90_s"), Estimate(0.5))
    return {"values": {"least_share": least, **values}, "differences": {} if kept is None else {"overlap_kept": kept}}


COLD, EVEN, MAYBE = Estimate(0.0, 0.0, 0.0), Estimate(0.3, 0.3, 0.3), Estimate(0.2, 0.0, 0.4)
UNKNOWN = Estimate(None, reason="no decision log of a cell that counts can be read")
SAME, DEAR, UNSURE = Estimate(0.0, -0.01, 0.01), Estimate(-0.3, -0.4, -0.2), Estimate(0.0, -0.3, 0.3)


@pytest.mark.parametrize(
    ("least", "kept", "d3", "d6"),
    [
        (EVEN, SAME, Answer.YES, Answer.YES),
        (COLD, SAME, Answer.NO, Answer.NO),
        (EVEN, DEAR, Answer.NO, Answer.NO),
        (MAYBE, SAME, Answer.UNDECIDED, Answer.UNDECIDED),
        (UNKNOWN, SAME, Answer.UNDECIDED, Answer.UNDECIDED),
        (EVEN, UNSURE, Answer.UNDECIDED, Answer.UNDECIDED),
        (EVEN, None, Answer.UNDECIDED, Answer.UNDECIDED),
        (MAYBE, DEAR, Answer.NO, Answer.NO),
    ],
)
def test_what_the_intervals_do_not_tell_is_neither_yes_nor_no(
    least: Estimate, kept: Estimate | None, d3: Answer, d6: Answer
) -> None:
    found = run_of(
        variant("plain", **shares(COLD, None)),
        variant("200", parameters={"load_floor_bonus": 200}, **shares(least, kept)),
        variant("9", parameters={"load_floor_bonus": 9}, **shares(COLD, SAME)),
    )
    assert (answered(found)["D3"].answer, answered(found)["D6"].answer) == (d3, d6)


def test_a_form_whose_shares_are_not_known_is_no_worse_form() -> None:
    found = run_of(
        variant("plain", **shares(COLD, None)),
        variant("mean", parameters={"load_floor_bonus": 200}, **shares(EVEN, SAME)),
        variant("max", parameters={"load_floor_bonus": 200, "floor_form": "max"}, **shares(UNKNOWN, SAME)),
    )
    assert answered(found)["D5"].answer == Answer.UNDECIDED


def test_more_cached_than_the_index_knew_lies_within_its_own_interval() -> None:
    found = floor_of({"plain": ({}, spread((5, 5, 0), 1.2)), "bonus": ({"load_floor_bonus": 2}, spread((5, 5, 0), 1))})
    assert found is not None
    kept = found.variants[0].values["overlap_kept"]
    assert kept.value == pytest.approx(1.2)
    assert kept.high == pytest.approx(1.2)


def test_failures_are_what_the_first_question_is_about() -> None:
    bonus = {"parameters": {"load_floor_bonus": 200}, "differences": {"completed_share": Estimate(0.3, 0.2, 0.4)}}
    helped = run_of(variant("plain", failed_turns=30), variant("bonus", **bonus))
    assert answered(helped)["D1"].answer == Answer.YES
    nothing = run_of(variant("plain"), variant("bonus", **bonus))
    assert answered(nothing)["D1"].answer == Answer.OPEN
    assert "nothing failed" in answered(nothing)["D1"].text
    unsure = {**bonus, "differences": {"completed_share": Estimate(0.3, -0.2, 0.8)}}
    assert answered(run_of(variant("plain", failed_turns=3), variant("b", **unsure)))["D1"].answer == Answer.UNDECIDED


def test_refusals_answer_whether_they_are_counted() -> None:
    assert answered(run_of(variant("plain", rejects=9, reject_moves=2)))["D4"].answer == Answer.YES
    assert answered(run_of(variant("plain", rejects=2)))["D4"].answer == Answer.UNDECIDED


def test_transfers_answer_the_timeout_and_the_window() -> None:
    def log(*found: tuple[str, str, float, str]) -> list[Moved]:
        return [
            Moved("s", moved("a", target, took_s=took_s, status=status, reason=reason))
            for target, status, took_s, reason in found
        ]

    facts = transport_facts([
        log(
            ("b", "failed", 120, "no answer within 120 s"), ("b", "failed", 1, "HTTP 500"),
            ("b", "refused", 0, "quarantined for 10.0 s more (HTTP 500)"), ("b", "transferred", 45, ""),
            ("c", "refused", 0, "quarantined for 3 s more"), ("c", "transferred", 1, ""),
        ),
        log(("c", "refused", 0, "quarantined for 3 s more"), ("b", "transferred", 1, "")),
    ])  # fmt: skip
    assert facts == TransportFacts(8, 3, 2, 1, 3, 3, 2, 45.0, 1)
    said = answered(run_of(variant("plain"), transport=facts))
    assert said["D2"].answer == Answer.YES
    assert "1 took more than 30 s; 1 timed out" in said["D2"].text
    assert said["Q1.D"].answer == Answer.YES
    short = answered(run_of(variant("plain"), transport=replace(facts, over_30_s=0)))["D2"]
    assert short.answer == Answer.UNDECIDED
    assert "made no difference" not in short.text, "one timed out at the limit of this run"
    none = answered(run_of(variant("plain"), transport=replace(facts, over_30_s=0, timed_out=0)))["D2"]
    assert "made no difference" in none.text
