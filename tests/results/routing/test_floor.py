"""specs/load_floor.md: what a log says of the bonus, and questions that are answered only by numbers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from results.records.estimate import Estimate
from results.records.turns import RoutedEngine
from results.report.page import split_judgements
from results.routing.decision_points import judge_decision_points
from results.routing.floor_facts import (
    DecodeRequests,
    Rules,
    SessionFacts,
    TransportFacts,
    collect_transport_facts,
    floor_facts,
)
from results.routing.floor_measurements import fix_of, measure_load_floor
from results.routing.load_floor import NO_FIX, TTFT_RATIO, FloorVariant, LoadFloor, QuarantinePair
from results.routing.transfers import Moved
from results.statistics.judgement import Judgement, Outcome, correct_together
from results.statistics.student import find_p_value
from tests.results.routing.logs import Log, facts_of_logs, moved, spread
from tests.results.routing.synthetic import Truth, World, cell_record, records

pytestmark = pytest.mark.usefixtures("trials_differ_by_a_hair")

WORLD = World(sessions=10, turns=2, trials=3, instances=3)
BONUS = {"load_floor_bonus": 200}


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
        SessionFacts("s", 3, direct=1, best_tokens=3200, chosen_tokens=1920, counted=3, counted_best_tokens=3200,
                     served_tokens=1820),
        SessionFacts("t", 1, direct=0, best_tokens=320, chosen_tokens=320, counted=1, counted_best_tokens=320,
                     served_tokens=320),
    )  # fmt: skip


def test_a_pick_whose_tokens_were_not_counted_is_in_neither_sum() -> None:
    log = Log()
    log.pick(0, "s", "b", cached={"b": 1000}, counted=900)
    unknown = moved("a", "b", purpose="handover", prefix=2000, external=None)
    log.pick(1, "s", "b", prefill="a", cached={"b": 500}, counted=2000, transfer=unknown)
    record = cell_record(WORLD, Truth("kv_aware"), 0, records(WORLD, Truth("kv_aware")))
    (session,) = floor_facts(replace(record, engines=(engine("b", "both"),)), log.records).sessions
    assert (session.requests, session.counted, session.best_tokens) == (2, 1, 1500)
    assert (session.counted_best_tokens, session.served_tokens) == (1000, 900)


@pytest.mark.parametrize(
    ("parameters", "fix"),
    [
        ({}, NO_FIX),
        ({"sticky_bonus": 5, "load_floor_bonus": 0, "overlap_discount": "off"}, NO_FIX),
        (BONUS, "Q2.B K=200 (mean)"),
        ({"load_floor_bonus": 50, "floor_form": "max"}, "Q2.B K=50 (max)"),
        ({**BONUS, "floor_gate": "per_worker"}, "Q2.B K=200 (mean, per worker)"),
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


def with_handovers(log: Log, status: str, count: int, *, external: int | None = 1600, took_s: float = 0.2) -> Log:
    """The log with this many more requests whose prompt was handed over, and ended so."""
    why = "no byte of the response to the decode request within 4 s" if status == "failed" else ""
    for place in range(count):
        sent = moved("x", "a", purpose="handover", external=external, status=status, reason=why, took_s=took_s)
        log.pick(100 + place, f"s{place % WORLD.sessions:03d}", "a", prefill="x", cached={"a": 1000}, counted=1600,
                 transfer=sent)  # fmt: skip
    return log


def lose_handovers(lost: int) -> Log:
    """A log of sessions on every D with ten handovers, of which this many failed."""
    return with_handovers(with_handovers(spread((4, 3, 3), 0.9), "failed", lost), "transferred", 10 - lost)


def rules(timeout_s: float, **others: Any) -> Mapping[str, Any]:
    return {"moves_kv": True, "transfer": {"timeout_s": timeout_s, "attempts": 2, **others}}


Variant = tuple[Mapping[str, Any], Log]
"""Parameters of a label, and the log of each of its trials."""


def measured_floor(
    variants: Mapping[str, Variant],
    routers: Mapping[str, Mapping[str, Any]] | None = None,
    kv_bytes: Mapping[str, int] | None = None,
    early: Collection[str] = (),
    roles: Mapping[str, Sequence[str]] | None = None,
) -> LoadFloor | None:
    """A run of these labels, three trials of the same log each; `routers`: what their cells say of the router;
    `kv_bytes`: of labels whose KV cache has its own size; `early`: labels whose replays met their hard stop; `roles`:
    of the instances of labels that have pools.
    """

    def list_engines(label: str) -> tuple[RoutedEngine, ...]:
        return tuple(engine(*one) for one in zip("abc", (roles or {}).get(label, ["both"] * 3), strict=True))

    facts, measurements = facts_of_logs(
        WORLD,
        "kv_aware",
        {label: [log] * WORLD.trials for label, (_, log) in variants.items()},
        lambda label: {
            "parameters": variants[label][0], "engines": list_engines(label), "router": (routers or {}).get(label, {}),
            "kv_cache_memory_bytes": (kv_bytes or {}).get(label),
            **({"replay": {"stop_reason": "hard_stop"}} if label in early else {}),
        },
    )  # fmt: skip
    return measure_load_floor(dict.fromkeys(variants, "kv_aware"), facts, measurements)


def floor_of(
    variants: Mapping[str, Variant],
    routers: Mapping[str, Mapping[str, Any]] | None = None,
    kv_bytes: Mapping[str, int] | None = None,
    early: Collection[str] = (),
    roles: Mapping[str, Sequence[str]] | None = None,
) -> LoadFloor:
    floor = measured_floor(variants, routers, kv_bytes, early, roles)
    assert floor is not None
    return floor


def answered(floor: LoadFloor) -> dict[str, Judgement]:
    return {one.judgement.name: one.judgement for one in judge_decision_points(floor)}


PLAIN: Variant = ({}, spread((5, 5, 0), 0.9))
"""A run without any fix, one D of which stays cold."""


def test_what_a_bonus_changes_is_measured() -> None:
    floor = floor_of({"plain": PLAIN, "bonus": (BONUS, spread((4, 3, 3), 0.9))})
    assert floor.reference == "plain"
    bonus = next(one for one in floor.variants if one.label == "bonus")
    assert bonus.values["least_share"].value == pytest.approx(0.3)
    assert bonus.values["direct_rate"].value == 0.5
    assert bonus.values["overlap_kept"].value == pytest.approx(0.9)
    assert bonus.differences["least_share"].value == pytest.approx(0.3)
    assert [share.value for share in bonus.shares.values()] == pytest.approx([0.4, 0.3, 0.3])
    assert "smallest share of the sessions 30.0 % [17.6, 42.4] (even 33 %" in answered(floor)["D3"].reason
    assert measured_floor({"plain": PLAIN}) is None, "without any fix there is no section"


@pytest.mark.parametrize(
    ("plain", "bonus", "other", "outcome", "why"),
    [
        (PLAIN, ((4, 3, 3), 0.9), {}, Outcome.UNDECIDED, "bonus works; none of the alternatives (Q2.A, C, D, E, F)"),
        (PLAIN, ((4, 3, 3), 0.9), {"cold": ({"cold_bonus": 200}, spread((4, 3, 3), 0.87))}, Outcome.HOLDS,
         "bonus works; better than cold (by overlap kept +3.0 pp ["),
        (PLAIN, ((4, 3, 3), 0.9), {"cold": ({"cold_bonus": 200}, spread((4, 3, 3), 0.87)),
                                   "first": ({"order": "inflight_first"}, spread((4, 3, 3), 0.9))}, Outcome.UNDECIDED,
         "better than cold (by overlap kept +3.0 pp"),
        (PLAIN, ((4, 3, 3), 0.9), {"material": ({"min_overlap_share": 0.3}, PLAIN[1])}, Outcome.HOLDS,
         "no alternative works"),
        (PLAIN, ((5, 5, 0), 0.9), {}, Outcome.FAILS, "under every bonus some D got too few sessions"),
        (PLAIN, ((4, 3, 3), 0.2), {}, Outcome.FAILS, "cost overlap"),
        (({}, spread((10, 0, 0), 1.0)), ((4, 3, 3), 0.97), {}, Outcome.UNDECIDED,
         "overlap kept 97.0 % [97.0, 97.0] (lower: -3.0 pp ["),
        (({}, spread((4, 3, 3), 0.9)), ((4, 3, 3), 0.9), {}, Outcome.UNDECIDED, "no D stayed cold either"),
    ],
)  # fmt: skip
def test_the_bonus_is_the_right_shape_where_it_brings_a_cold_d_its_share_and_every_other_does_worse(
    plain: Variant, bonus: tuple[tuple[int, int, int], float], other: Mapping[str, Variant], outcome: Outcome, why: str
) -> None:
    found = answered(floor_of({"plain": plain, "bonus": (BONUS, spread(*bonus)), **other}))["D3"]
    assert found.outcome == outcome
    assert why in found.reason


def test_alternatives_that_do_the_same_and_a_ttft_that_is_worse_leave_it_undecided() -> None:
    same = {name: Estimate(0.0, -0.01, 0.01, launches=3) for name in ("direct_rate", "overlap_kept", "lost_share")}
    same |= {TTFT_RATIO: Estimate(1.0, 0.9, 1.1, launches=3)}
    slow = {**same, TTFT_RATIO: Estimate(1.6, 1.5, 1.7, launches=3)}
    ahead = {**slow, "overlap_kept": Estimate(0.1, 0.05, 0.15, launches=3)}
    plain = variant("plain", **shares(COLD, None))
    other = variant("A", fix="Q2.A", **shares(EVEN, SAME))

    def asked(to_plain: Mapping[str, Estimate], to_other: Mapping[str, Estimate]) -> Judgement:
        against = {"plain": to_plain, "A": to_other}
        bonus = variant("B", parameters=BONUS, against=against, **shares(EVEN, SAME))
        return answered(run_of(plain, bonus, other))["D3"]

    level = asked(same, same)
    excluded = "effects below -10.0 % and above +10.0 % are excluded"
    assert level.outcome == Outcome.UNDECIDED
    assert level.reason.startswith(f"B works; not distinguishable from A (TTFT p90: {excluded}):")
    dear = asked(slow, {**ahead, TTFT_RATIO: same[TTFT_RATIO]})
    assert dear.outcome == Outcome.UNDECIDED
    better = "better than A (by overlap kept +10.0 pp [+5.0, +15.0])"
    assert f"{better}; TTFT p90 worse than plain (1.60 [1.50, 1.70] times)" in dear.reason
    behind = asked(same, slow)
    assert behind.outcome == Outcome.UNDECIDED
    assert "worse than A (by TTFT p90 1.60 [1.50, 1.70] times); TTFT p90 worse than A (1.60 [" in behind.reason
    launches = replace(slow[TTFT_RATIO], basis="sessions resampled, 1 trial", launches=1)
    assert ", within launches)" in asked({**same, TTFT_RATIO: launches}, same).reason


def test_where_too_few_requests_were_counted_the_questions_about_overlap_are_open() -> None:
    def uncounted(count: int) -> Log:
        return with_handovers(spread((4, 3, 3), 0.9), "transferred", count, external=None)

    for count, known in ((2, True), (3, False)):
        found = floor_of({
            "plain": PLAIN,
            "bonus": (BONUS, uncounted(count)),
            "50": ({"load_floor_bonus": 50}, uncounted(count)),
            "max": ({"load_floor_bonus": 200, "floor_form": "max"}, uncounted(count)),
            "cold": ({"cold_bonus": 200}, spread((4, 3, 3), 0.8)),
        })  # fmt: skip
        bonus = next(one for one in found.variants if one.label == "bonus")
        assert (bonus.counted, bonus.served, bonus.is_counted) == (60, 60 + 3 * count, known)
        assert bonus.values["overlap_kept"].value == pytest.approx(0.9), "what was not counted is no zero"
        assert (bonus.values["overlap_kept"].low is None) is not known
        open_points = {point for point, one in answered(found).items() if "overlap kept is not known" in one.reason}
        assert open_points == (set() if known else {"D3", "D5", "D6", "D7"})
        assert {answered(found)[point].outcome for point in open_points} <= {Outcome.OPEN}


def test_what_was_not_run_is_open_and_says_what_is_missing() -> None:
    found = floor_of({"bonus": (BONUS, spread((4, 3, 3), 0.9))})
    said = answered(found)
    assert {point for point, one in said.items() if one.outcome == Outcome.OPEN} == {
        "D1", "D2", "D3", "D4", "D5", "D6", "D7", "Q1", "Q1.D", "Q1.E",
    }  # fmt: skip
    assert "only K = 200 was run" in said["D6"].reason
    assert "no KV was moved in this run" in said["D2"].reason


NO_REQUESTS = DecodeRequests(0, None, 0)


def variant(label: str, **changes: Any) -> FloorVariant:
    values = dict.fromkeys(("least_share", "direct_rate", "overlap_kept", "ttft_p90_s", "lost_share"), Estimate(0.5))
    rules = Rules(None, None, "")
    whole = FloorVariant(
        label, NO_FIX, {}, 3, {}, values, {}, {}, rules, 100, 100, 100, 0, 0, 0, NO_REQUESTS, 0, 0, 0
    )  # fmt: skip
    return replace(whole, **changes)


QUIET = TransportFacts(0, 0, 0, 0, 0, 0)


def run_of(*variants: FloorVariant, transport: TransportFacts = QUIET) -> LoadFloor:
    return LoadFloor(variants[0].label, variants, transport, (), 50, 3)


def shares(least: Estimate, kept: Estimate | None) -> dict[str, Any]:
    values = dict.fromkeys(("direct_rate", "overlap_kept", "ttft_p90_s", "lost_share"), Estimate(0.5))
    return {"values": {"least_share": least, **values}, "differences": {} if kept is None else {"overlap_kept": kept}}


COLD, EVEN, MAYBE = (
    Estimate(value, low, high, launches=3) for value, low, high in ((0.0, 0.0, 0.0), (0.3, 0.3, 0.3), (0.2, 0.0, 0.4))
)
UNKNOWN = Estimate(None, reason="no decision log of a cell that counts can be read")
SAME, DEAR, UNSURE = (
    Estimate(value, low, high, launches=3)
    for value, low, high in ((0.0, -0.01, 0.01), (-0.3, -0.4, -0.2), (0.0, -0.3, 0.3))
)


@pytest.mark.parametrize(
    ("least", "kept", "d3", "d6"),
    [
        (EVEN, SAME, Outcome.UNDECIDED, Outcome.HOLDS),
        (COLD, SAME, Outcome.FAILS, Outcome.FAILS),
        (EVEN, DEAR, Outcome.FAILS, Outcome.FAILS),
        (MAYBE, SAME, Outcome.UNDECIDED, Outcome.UNDECIDED),
        (UNKNOWN, SAME, Outcome.UNDECIDED, Outcome.UNDECIDED),
        (EVEN, UNSURE, Outcome.UNDECIDED, Outcome.UNDECIDED),
        (EVEN, None, Outcome.UNDECIDED, Outcome.UNDECIDED),
        (MAYBE, DEAR, Outcome.FAILS, Outcome.FAILS),
    ],
)
def test_where_the_intervals_allow_both_the_answer_is_neither_yes_nor_no(
    least: Estimate, kept: Estimate | None, d3: Outcome, d6: Outcome
) -> None:
    found = run_of(
        variant("plain", **shares(COLD, None)),
        variant("200", parameters=BONUS, **shares(least, kept)),
        variant("9", parameters={"load_floor_bonus": 9}, **shares(COLD, SAME)),
    )
    assert (answered(found)["D3"].outcome, answered(found)["D6"].outcome) == (d3, d6)


def test_a_form_whose_shares_are_not_known_is_no_worse_form() -> None:
    found = run_of(
        variant("plain", **shares(COLD, None)),
        variant("mean", parameters=BONUS, **shares(EVEN, SAME)),
        variant("max", parameters={"load_floor_bonus": 200, "floor_form": "max"}, **shares(UNKNOWN, SAME)),
    )
    assert answered(found)["D5"].outcome == Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("ratio", "answer"),
    [
        (Estimate(0.7, 0.6, 0.8, launches=3), Outcome.HOLDS),
        (Estimate(1.3, 1.2, 1.4, launches=3), Outcome.FAILS),
        (Estimate(1.1, 0.8, 1.4, launches=3), None),
    ],
)
def test_of_two_forms_that_spread_the_one_that_costs_less_is_better(ratio: Estimate, answer: Outcome | None) -> None:
    mean = variant("mean", parameters=BONUS, against={"max": {TTFT_RATIO: ratio}},
                   **shares(EVEN, SAME))  # fmt: skip
    most = variant("max", parameters={"load_floor_bonus": 200, "floor_form": "max"}, **shares(EVEN, SAME))
    said = answered(run_of(variant("plain", **shares(COLD, None)), mean, most))["D5"]
    assert said.outcome == (answer or Outcome.UNDECIDED)
    assert ("is better by TTFT p90" in said.reason) == (answer is not None)
    excluded = "TTFT p90 1.10 [0.800, 1.40] times (TTFT p90: effects below -20.0 % and above +40.0 % are excluded)"
    assert (excluded in said.reason) == (answer is None)


LEAST = {
    "even": Estimate(0.3, 0.28, 0.32, launches=3), "cold": Estimate(0.02, 0.0, 0.04, launches=3),
}  # fmt: skip
"""Smallest shares of a D, an even one being a third, with intervals that have a p."""


def of_form(form: str, k: int, least: str, **more: Any) -> FloorVariant:
    parameters = {"load_floor_bonus": k, "floor_form": form, **more}
    return variant(f"{form} {k}", parameters=parameters, **shares(LEAST[least], SAME))


def test_every_pair_of_forms_answers_and_the_first_one_not_alone() -> None:
    plain = variant("plain", **shares(COLD, None))
    at_200 = of_form("mean", 200, "even"), of_form("max", 200, "cold")
    at_50 = of_form("mean", 50, "cold"), of_form("max", 50, "cold")
    alone, beside = answered(run_of(plain, *at_200))["D5"], answered(run_of(plain, *at_50, *at_200))["D5"]
    assert (alone.outcome, beside.outcome) == (Outcome.HOLDS, Outcome.HOLDS)
    assert beside.reason.startswith("mean 200: smallest share"), "the pair that decides comes first"
    assert "neither spreads the sessions: mean 50: smallest share" in beside.reason
    assert alone.p is not None
    assert beside.p == pytest.approx(2 * alone.p), "one of two pairs may decide"
    turned = of_form("mean", 50, "cold"), of_form("max", 50, "even")
    both = answered(run_of(plain, *turned, *at_200))["D5"]
    assert (both.outcome, both.p) == (Outcome.UNDECIDED, 1.0)
    assert both.reason.startswith("two pairs contradict each other: ")


def test_two_forms_that_differ_in_another_fix_too_are_no_pair() -> None:
    plain = variant("plain", **shares(COLD, None))
    asked = answered(run_of(plain, of_form("mean", 200, "even"), of_form("max", 200, "cold", cold_bonus=9)))["D5"]
    assert asked.outcome == Outcome.OPEN


def test_more_cached_than_the_index_knew_lies_within_its_own_interval() -> None:
    found = floor_of({"plain": ({}, spread((5, 5, 0), 1.2)), "bonus": ({"load_floor_bonus": 2}, spread((5, 5, 0), 1))})
    kept = found.variants[0].values["overlap_kept"]
    assert kept.value == pytest.approx(1.2)
    assert kept.high == pytest.approx(1.2)


def test_failures_are_what_the_first_question_is_about() -> None:
    more = Estimate(0.3, 0.2, 0.4, launches=3)
    bonus = {"parameters": BONUS, "differences": {"completed_share": more}}
    helped = run_of(variant("plain", failed_turns=30), variant("bonus", **bonus))
    assert answered(helped)["D1"].outcome == Outcome.HOLDS
    same = {**bonus, "differences": {"completed_share": Estimate(0.0, -0.1, 0.1, launches=3)}}
    nothing = run_of(variant("plain"), variant("bonus", **same))
    assert answered(nothing)["D1"].outcome == Outcome.OPEN
    assert "nothing failed" in answered(nothing)["D1"].reason
    unsure = {**bonus, "differences": {"completed_share": Estimate(0.3, -0.2, 0.8, launches=3)}}
    assert answered(run_of(variant("plain", failed_turns=3), variant("b", **unsure)))["D1"].outcome == Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("before", "after", "answer"),
    [(8, 0, Outcome.HOLDS), (8, 4, Outcome.HOLDS), (4, 8, Outcome.FAILS), (0, 8, Outcome.FAILS),
     (4, 4, Outcome.UNDECIDED), (0, 0, Outcome.OPEN)],
)  # fmt: skip
def test_a_handover_that_failed_counts_although_its_turn_completed(before: int, after: int, answer: Outcome) -> None:
    found = floor_of({"plain": ({}, lose_handovers(before)), "bonus": (BONUS, lose_handovers(after))})
    plain = found.variants[0]
    assert (plain.failed_turns, plain.lost_transfers, plain.transfers) == (0, 3 * before, 30)
    said = answered(found)["D1"]
    assert said.outcome == answer
    assert f"plain: 0 of {plain.turns} turns failed, {3 * before} of 30 transfers failed or recomputed" in said.reason
    if before == 8:
        assert (f"{after / before:.2g} of the lost share" in said.reason, "not below 0.095" in said.reason) == (
            True, after > 0,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "answer", "point"),
    [(8, (0, 4), Outcome.HOLDS, "holds"), (8, (4, 2), Outcome.FAILS, "fails"), (0, (4, 0), Outcome.OPEN, "")],
)
def test_whether_the_load_floor_alone_ends_the_lost_transfers(
    before: int, after: tuple[int, int], answer: Outcome, point: str
) -> None:
    logs = [lose_handovers(lost) for lost in (before, *after)]
    less = {"load_floor_bonus": 50}
    variants: dict[str, Variant] = {"plain": ({}, logs[0]), "200": (BONUS, logs[1]), "50": (less, logs[2])}
    said = answered(floor_of(variants))["Q1"]
    assert (said.outcome, said.point) == (answer, point)
    assert (said.p == 1.0) == (answer == Outcome.OPEN), "an open one stays among those that are corrected together"
    assert ("no transfer was lost under 200:" in said.reason) == (answer == Outcome.HOLDS)


def test_a_bonus_beside_back_pressure_is_no_load_floor_alone() -> None:
    """Back-pressure is a fix of Q1 too: what it saves, the load floor does not."""
    both = {**BONUS, "backpressure_above": 0.9}
    arms: dict[str, Variant] = {
        "plain": ({}, lose_handovers(8)), "bonus": (BONUS, lose_handovers(4)), "both": (both, lose_handovers(0)),
    }  # fmt: skip
    said = answered(floor_of(arms))["Q1"]
    assert said.outcome == Outcome.FAILS
    assert "both:" not in said.reason
    beside = {
        one.what: one for one in judge_decision_points(floor_of({name: arms[name] for name in ("plain", "both")}))
    }
    for point in ("D1", "Q1"):
        assert (beside[point].judgement.outcome, beside[point].judgement.p) == (Outcome.OPEN, None)
        assert beside[point].over == "plain"


def test_lost_transfers_that_no_interval_distinguishes_are_undecided_and_the_point_is_beside() -> None:
    unsure = {"lost_share": Estimate(-0.1, -0.3, 0.1, launches=3)}
    bonus = variant("b", parameters=BONUS, differences=unsure)
    said = answered(run_of(variant("plain", transfers=20, lost_transfers=2), bonus))
    assert (said["Q1"].outcome, said["Q1"].point) == (Outcome.UNDECIDED, "holds")
    assert (said["D1"].outcome, said["D1"].point) == (Outcome.UNDECIDED, "holds")
    excluded = "-10.0 pp [-30.0, +10.0] (differences below -30.0 pp and above +10.0 pp are excluded)"
    for name in ("D1", "Q1"):
        assert f"not distinguishable: b against plain: transfers failed or recomputed {excluded}" in said[name].reason
    assert {name for name, one in said.items() if one.point} <= {"D1", "D2", "D3", "D5", "D6", "Q1", "Q1.D"}


@pytest.mark.parametrize(
    ("without", "paused", "outcome"),
    [(8, 2, Outcome.HOLDS), (2, 8, Outcome.FAILS), (4, 4, Outcome.UNDECIDED), (0, 0, Outcome.OPEN)],
)
def test_back_pressure_is_judged_against_the_arm_without_a_fix(without: int, paused: int, outcome: Outcome) -> None:
    pressure = {"backpressure_above": 0.9}
    arms: dict[str, Variant] = {"plain": ({}, lose_handovers(without)), "paused": (pressure, lose_handovers(paused))}
    said = answered(floor_of(arms))["Q1.E"]
    assert said.outcome == outcome
    assert said.p is not None
    assert (said.p == 1.0) == (outcome in (Outcome.UNDECIDED, Outcome.OPEN)), "one of the family, whatever it shows"
    assert ("nothing failed without back-pressure" in said.reason) == (outcome is Outcome.OPEN)


def test_back_pressure_beside_another_fix_or_without_the_plain_arm_answers_nothing() -> None:
    both = {**BONUS, "backpressure_above": 0.9}
    for arms in ({"plain": ({}, lose_handovers(8)), "both": (both, lose_handovers(2))},
                 {"paused": ({"backpressure_above": 0.9}, lose_handovers(2))}):  # fmt: skip
        said = answered(floor_of(arms))["Q1.E"]
        assert (said.outcome, said.p) == (Outcome.OPEN, None)
        assert "back-pressure alone and without a fix" in said.reason


def test_refusals_answer_whether_they_are_counted() -> None:
    assert answered(run_of(variant("plain", rejects=9, reject_moves=2)))["D4"].outcome == Outcome.HOLDS
    assert answered(run_of(variant("plain", rejects=2)))["D4"].outcome == Outcome.UNDECIDED
    one_trial = replace(run_of(variant("plain", rejects=9, reject_moves=2)), trials=1)
    assert answered(one_trial)["D4"].outcome == Outcome.UNDECIDED


def test_failures_and_quarantines_answer_the_window() -> None:
    def log(*found: tuple[str, str, float, str]) -> list[Moved]:
        return [
            Moved("s", moved("a", target, took_s=took_s, status=status, reason=reason))
            for target, status, took_s, reason in found
        ]

    facts = collect_transport_facts([
        log(
            ("b", "failed", 120, "no answer within 120 s"), ("b", "failed", 1, "HTTP 500"),
            ("b", "refused", 0, "quarantined for 10.0 s more (HTTP 500)"), ("b", "transferred", 45, ""),
            ("c", "refused", 0, "quarantined for 3 s more"), ("c", "transferred", 1, ""),
        ),
        log(("c", "refused", 0, "quarantined for 3 s more"), ("b", "transferred", 1, "")),
    ])  # fmt: skip
    assert facts == TransportFacts(8, 3, 2, 3, 3, 2)
    said = answered(run_of(variant("plain"), transport=facts))["Q1.D"]
    assert (said.outcome, said.p) == (Outcome.OPEN, None), "closed pairs that moved KV again are no comparison"
    assert "differ in the rules of quarantine alone; 2 transfers of the run failed" in said.reason


def test_the_window_is_judged_by_two_arms_that_differ_in_the_quarantine_alone() -> None:
    def ask(closed_at_once: int, **others: Any) -> Judgement:
        window = {"failures_to_quarantine": 3, "window_s": 60.0}
        once = {"failures_to_quarantine": 1, "window_s": 60.0, "quarantine_s": 1e5}
        routers = {"plain": rules(4, **window), "bonus": rules(4, **window), "hair": rules(4, **once, **others)}
        lost = {"plain": lose_handovers(2), "bonus": lose_handovers(2), "hair": lose_handovers(closed_at_once)}
        floor = floor_of({name: (BONUS if name == "bonus" else {}, log) for name, log in lost.items()}, routers)
        return answered(floor)["Q1.D"]

    for lost, outcome, point in ((8, Outcome.HOLDS, "holds"), (0, Outcome.FAILS, "fails")):
        said = ask(lost)
        assert (said.outcome, said.point) == (outcome, point)
        assert said.p is not None
        assert "plain (failures_to_quarantine=3, window_s=60.0) - hair (failures_to_quarantine=1," in said.reason
    level = ask(2)
    assert (level.outcome, level.p) == (Outcome.UNDECIDED, 1.0)
    assert ask(8, attempts=9).outcome == Outcome.OPEN, "they differ in more than the quarantine"


def of_timeouts(short: Log, long: Log, early: Collection[str] = (), **others: Any) -> LoadFloor:
    return floor_of(
        {"bonus": (BONUS, spread((4, 3, 3), 0.9)), "plain": ({}, short), "patient": ({}, long)},
        {"bonus": rules(4), "plain": rules(4), "patient": rules(15, **others)},
        early=early,
    )


SHORT = with_handovers(with_handovers(spread((5, 5, 0), 0.9), "failed", 6), "transferred", 4)
LONG = with_handovers(spread((5, 5, 0), 0.9), "transferred", 10, took_s=8.0)
"""Decode requests that the short arm gave up on take longer than its timeout in the long one."""


def test_a_timeout_is_judged_by_two_arms_that_differ_in_it_alone() -> None:
    found = of_timeouts(SHORT, LONG)
    (pair,) = found.timeouts
    assert (pair.short, pair.short_s, pair.long, pair.long_s) == ("plain", 4, "patient", 15)
    assert (pair.short_decode_requests.timed_out, pair.over_short) == (18, 30)
    assert pair.long_decode_requests.longest_s == pytest.approx(6.0)
    assert pair.lost_share.value == pytest.approx(-0.6)
    said = answered(found)["D2"]
    assert said.outcome == Outcome.HOLDS
    assert "plain (at 4 s): 12 decode requests brought their KV, the longest in 0.15 s, 18 timed out" in said.reason
    assert [one.label for one in found.compared] == ["plain", "bonus"], "an arm of other rules is compared in D2 alone"
    assert found.reference == "plain"


def test_an_arm_with_other_pools_or_another_reserved_output_differs_in_more_than_the_timeout() -> None:
    arms: dict[str, Variant] = {"bonus": (BONUS, PLAIN[1]), "plain": ({}, SHORT), "patient": ({}, LONG)}
    reserving: Mapping[str, Any] = {**rules(15), "reserved_output": 200}
    routers: dict[str, Mapping[str, Any]] = {"bonus": rules(4), "plain": rules(4), "patient": reserving}
    assert not floor_of(arms, routers).timeouts
    reserves: dict[str, Mapping[str, Any]] = {"bonus": reserving, "plain": rules(15), "patient": rules(15)}
    assert [one.label for one in floor_of(arms, reserves).compared] == ["plain", "patient"]
    pools = {"patient": ("prefill", "decode", "decode")}
    arms["patient"] = {}, with_handovers(spread((0, 5, 5), 0.9), "transferred", 10, took_s=8.0)
    apart = floor_of(arms, {**routers, "patient": rules(15)}, roles=pools)
    assert [one.instances for one in apart.variants] == [3, 3, 2]
    assert not apart.timeouts
    whole = floor_of(arms, dict.fromkeys(arms, rules(4)), roles=pools)
    assert [one.label for one in whole.compared] == ["plain", "bonus"]


def test_an_arm_whose_slow_trials_do_not_count_decides_nothing_and_says_why() -> None:
    """Its replays met their hard stop: the trials that are left are the faster ones."""
    floor = of_timeouts(SHORT, LONG, early=("plain",))
    said = answered(floor)["D2"]
    assert (said.outcome, said.p) == (Outcome.UNDECIDED, 1.0)
    why = "-60.0 pp (no interval: in 3 of 3 trials of plain the replay ended early, and the others are the faster ones"
    assert why in said.reason
    assert all(share.low is None for share in floor.variants[0].shares.values())


def test_a_timeout_or_a_window_that_changes_nothing_says_what_is_excluded() -> None:
    (pair,) = of_timeouts(SHORT, LONG).timeouts
    unsure = replace(pair, lost_share=Estimate(-0.02, -0.08, 0.04, launches=3))
    floor = replace(of_timeouts(SHORT, LONG), timeouts=(unsure,))
    said = answered(floor)["D2"]
    assert said.outcome == Outcome.UNDECIDED
    assert "-2.0 pp [-8.0, +4.0] (differences below -8.0 pp and above +4.0 pp are excluded)" in said.reason
    quarantine = QuarantinePair("hair", "plain", "1", "3", unsure.lost_share)
    failing = replace(floor, quarantines=(quarantine,), transport=TransportFacts(8, 3, 2, 3, 3, 2))
    window = answered(failing)["Q1.D"]
    assert window.outcome == Outcome.UNDECIDED
    assert "(differences below -8.0 pp and above +4.0 pp are excluded)" in window.reason


def test_only_the_decode_request_is_held_against_the_timeout() -> None:
    """A transfer of 5 s whose decode request took 3.75 s would not have timed out at 4 s."""
    log = with_handovers(spread((5, 5, 0), 0.9), "transferred", 10, took_s=5.0)
    found = of_timeouts(log, log)
    assert found.timeouts[0].over_short == 0
    said = answered(found)["D2"]
    assert (said.outcome, "made no difference" in said.reason) == (Outcome.UNDECIDED, True)


def test_without_such_arms_the_timeout_is_open_and_says_this_runs_own() -> None:
    log = with_handovers(spread((5, 5, 0), 0.9), "transferred", 10)
    found = floor_of({"plain": ({}, log), "b": ({"load_floor_bonus": 9}, log)}, {"plain": rules(4), "b": rules(4)})
    said = answered(found)["D2"]
    assert said.outcome == Outcome.OPEN
    assert "differ in transfer.timeout_s alone; all (at 4 s): 60 decode requests" in said.reason
    assert not of_timeouts(log, log, attempts=9).timeouts, "they differ in more than the timeout"


def test_where_all_differences_are_distinguishable_the_sessions_are_enough() -> None:
    decided = Estimate(0.3, 0.2, 0.4, launches=3)  # as a difference, and as a ratio
    names = ("direct_rate", "overlap_kept", TTFT_RATIO)

    def asked(**found: Estimate) -> Judgement:
        bonus = variant("b", parameters={"load_floor_bonus": 1}, differences=dict.fromkeys(names, decided) | found)
        return answered(run_of(variant("plain"), bonus))["D7"]

    assert asked().outcome == Outcome.HOLDS
    unsure = asked(direct_rate=Estimate(0.3, -0.2, 0.4, launches=3))
    assert (unsure.outcome, unsure.p) == (Outcome.UNDECIDED, 1.0)
    assert "2 of 3 differences" in unsure.reason
    assert "needs a run with them" in unsure.reason


def test_an_alternative_whose_tokens_were_not_counted_says_nothing_of_the_differences_of_the_bonuses() -> None:
    decided = Estimate(0.3, 0.2, 0.4, launches=3)  # as a difference, and as a ratio
    differences = dict.fromkeys(("direct_rate", "overlap_kept", TTFT_RATIO), decided)
    bonus = variant("b", parameters={"load_floor_bonus": 1}, differences=differences)
    for counted, outcome in (({"plain": 50}, Outcome.OPEN), ({"cold": 50}, Outcome.HOLDS)):
        plain = variant("plain", counted=counted.get("plain", 100))
        cold = variant("cold", fix="Q2.A", counted=counted.get("cold", 100))
        assert answered(run_of(plain, bonus, cold))["D7"].outcome == outcome


def test_what_was_run_is_corrected_together_whatever_its_data_say() -> None:
    """Of two runs with the same arms, one of which lost nothing, both correct over as many."""

    def names_with_p(floor: LoadFloor) -> set[str]:
        return {name for name, one in answered(floor).items() if one.p is not None}

    other: dict[str, Variant] = {"50": ({"load_floor_bonus": 50}, PLAIN[1])}
    calm, bad = (
        floor_of({"plain": ({}, lose_handovers(lost)), "b": (BONUS, lose_handovers(0)), **other}) for lost in (0, 8)
    )
    assert names_with_p(calm) == names_with_p(bad) == {"D1", "D3", "D6", "D7", "Q1"}
    assert names_with_p(floor_of({"b": (BONUS, lose_handovers(0))})) == set(), "without arms there is nothing to test"


def test_two_timeouts_that_contradict_each_other_decide_nothing() -> None:
    found = of_timeouts(SHORT, LONG)
    (pair,) = found.timeouts
    worse = replace(pair, lost_share=Estimate(0.5, 0.4, 0.6, launches=3))
    for pairs, outcome in (((pair, pair), Outcome.HOLDS), ((pair, worse), Outcome.UNDECIDED)):
        assert answered(replace(found, timeouts=pairs))["D2"].outcome == outcome


SMALL = 16 << 20
"""Bytes of a KV cache that is not the preset's."""


def test_each_load_is_judged_by_its_own_arms_and_all_are_corrected_together() -> None:
    """With the preset's KV cache the bonus saves transfers, with the smaller one it loses them."""
    arms: dict[str, Variant] = {
        "plain": ({}, lose_handovers(8)),
        "bonus": (BONUS, lose_handovers(2)),
        "plain small": ({}, lose_handovers(2)),
        "bonus small": (BONUS, lose_handovers(8)),
    }
    found = floor_of(arms, kv_bytes={"plain small": SMALL, "bonus small": SMALL})
    said = answered(found)
    assert len(said) == 2 * 10
    preset, small = said["D1, as the preset"], said["D1, KV cache 16 MiB"]
    assert (preset.outcome, small.outcome) == (Outcome.HOLDS, Outcome.FAILS)
    assert "small" not in preset.reason
    assert {name for name, one in said.items() if one.p is not None} == {
        f"{point}, {load}" for point in ("D1", "D3", "D7", "Q1") for load in ("as the preset", "KV cache 16 MiB")
    }
    assert all("after Holm over 8" in one.reason for one in correct_together([*said.values()]) if one.alone)
    compared = {one.label: set(one.against) for one in found.variants if one.differences}
    assert compared == {"bonus": {"plain"}, "bonus small": {"plain small"}}, "the arms of their own load"


def test_arms_under_two_loads_are_not_compared() -> None:
    """A smaller KV cache would make the bonus lose transfers; it is no bonus that does."""
    arms: dict[str, Variant] = {
        "plain": ({}, lose_handovers(2)),
        "200": (BONUS, lose_handovers(8)),
        "max": ({"load_floor_bonus": 200, "floor_form": "max"}, lose_handovers(8)),
    }
    one_load = answered(floor_of(arms))
    assert (one_load["D1"].outcome, one_load["D5"].p is None) == (Outcome.FAILS, False)
    said = answered(floor_of(arms, kv_bytes={"200": SMALL, "max": SMALL}))
    assert {name.partition(", ")[2] for name in said} == {"KV cache 16 MiB"}, "without a fix no load is judged"
    for point in ("D1", "D3", "D7", "Q1"):
        assert (said[f"{point}, KV cache 16 MiB"].outcome, said[f"{point}, KV cache 16 MiB"].p) == (Outcome.OPEN, None)
    assert "under one load" in said["D1, KV cache 16 MiB"].reason
    assert said["D5, KV cache 16 MiB"].p is not None, "both forms ran under it"
    apart = answered(floor_of(arms, kv_bytes={"max": SMALL}))
    assert {one.p for name, one in apart.items() if name.startswith("D5")} == {None}
    assert apart["D1, as the preset"].outcome == Outcome.FAILS


def test_decision_points_under_several_rates_are_named_by_them() -> None:
    load = {"time_scale": 0.01, "kv_cache_memory_bytes": None, "trace": ""}
    arms = [
        variant(f"{fix} {scale}", fix=fix, parameters=parameters, load={**load, "time_scale": scale})
        for scale in (0.01, 0.02)
        for fix, parameters in ((NO_FIX, dict[str, Any]()), ("Q2.B", BONUS))
    ]
    assert [name for name in answered(run_of(*arms)) if name.startswith("D1")] == [
        "D1, time_scale 0.01", "D1, time_scale 0.02",
    ]  # fmt: skip


def test_timeouts_and_quarantines_are_judged_under_one_load() -> None:
    arms: dict[str, Variant] = {
        "bonus": (BONUS, PLAIN[1]), "plain": ({}, SHORT), "patient": ({}, LONG), "closing": ({}, LONG),
    }  # fmt: skip
    routers = {
        "bonus": rules(4, failures_to_quarantine=3),
        "plain": rules(4, failures_to_quarantine=3),
        "patient": rules(15, failures_to_quarantine=3),
        "closing": rules(4, failures_to_quarantine=1),
    }
    one_load = answered(floor_of(arms, routers))
    assert (one_load["D2"].outcome, one_load["Q1.D"].outcome) == (Outcome.HOLDS, Outcome.FAILS)
    apart = answered(floor_of(arms, routers, {"plain": SMALL}))
    assert {name.partition(", ")[2] for name in apart} == {"as the preset"}
    for point in ("D2", "Q1.D"):
        judgement = apart[f"{point}, as the preset"]
        assert (judgement.outcome, judgement.p, "alone" in judgement.reason) == (Outcome.OPEN, None, True)
    beside = answered(floor_of(arms, routers, dict.fromkeys(("plain", "patient", "closing"), SMALL)))
    assert beside["D2, KV cache 16 MiB"].outcome == Outcome.HOLDS, "although no fix ran under it"
    assert beside["Q1.D, KV cache 16 MiB"].outcome == Outcome.FAILS


@pytest.mark.parametrize(("least", "which"), [(EVEN, "50, 100"), (COLD, "none")])
def test_a_grid_without_the_asked_k_leaves_it_open(least: Estimate, which: str) -> None:
    """No smaller K says that the asked one fails."""
    both = [variant(f"{k}", parameters={"load_floor_bonus": k}, **shares(least, SAME)) for k in (50, 100)]
    said = answered(run_of(variant("plain", **shares(COLD, None)), *both))["D6"]
    assert (said.outcome, said.p) == (Outcome.OPEN, None)
    assert said.reason.startswith(f"K = 200 was not run; K = {which} of 50, 100 do")


def test_one_of_several_arms_with_the_asked_k_decides_only_where_none_contradicts_it_and_by_their_number() -> None:
    def of_k(label: str, k: int, least: str, **more: Any) -> FloorVariant:
        parameters = {"load_floor_bonus": k, **more}
        return variant(label, parameters=parameters, **shares(LEAST[least], SAME))

    def ask(*arms: FloorVariant) -> Judgement:
        return answered(run_of(variant("plain", **shares(COLD, None)), of_k("50", 50, "cold"), *arms))["D6"]

    works = of_k("200", 200, "even")
    alone, same = ask(works), ask(works, of_k("200, active", 200, "even", assigned="active"))
    assert (alone.outcome, same.outcome) == (Outcome.HOLDS, Outcome.HOLDS)
    assert alone.p is not None
    assert same.p == pytest.approx(2 * alone.p), "either may satisfy it"
    both = ask(works, of_k("200, active", 200, "cold", assigned="active"))
    assert (both.outcome, both.p) == (Outcome.UNDECIDED, 1.0)
    assert both.reason.startswith("two arms with K = 200 contradict each other: ")


def test_a_grid_has_one_form() -> None:
    asked = {"load_floor_bonus": 100}
    forms = [variant(form, parameters=asked | {"floor_form": form}, **shares(EVEN, SAME)) for form in ("max", "mean")]
    mixed = answered(run_of(variant("plain", **shares(COLD, None)), *forms))["D6"]
    assert "only K = " in mixed.reason


def test_a_grid_with_the_asked_k_goes_before_a_longer_one_without_it() -> None:
    longer = [variant(f"{k}", parameters={"load_floor_bonus": k}, **shares(COLD, SAME)) for k in (50, 100, 400)]
    asked = [
        variant(f"max {k}", parameters={"load_floor_bonus": k, "floor_form": "max"}, **shares(EVEN, SAME))
        for k in (100, 200)
    ]
    said = answered(run_of(variant("plain", **shares(COLD, None)), *longer, *asked))["D6"]
    assert said.outcome == Outcome.HOLDS
    assert said.reason.startswith("K = 100, 200 of 100, 200 do")


def test_a_bonus_with_the_specifications_gate_is_another_shape() -> None:
    """A grid of K has one gate, and so have the two forms that are compared."""
    leaks = {**BONUS, "floor_gate": "per_worker"}
    small = variant("50", parameters={"load_floor_bonus": 50}, **shares(COLD, SAME))
    cold = variant("200", parameters=BONUS, **shares(COLD, SAME))
    spreads = variant("per worker", parameters=leaks, **shares(EVEN, SAME))
    most = variant("max", parameters={**leaks, "floor_form": "max"}, **shares(COLD, SAME))
    plain = variant("plain", **shares(COLD, None))
    beside = answered(run_of(plain, small, cold, spreads))
    assert beside["D6"].outcome == Outcome.FAILS
    assert "per worker" not in beside["D6"].reason
    assert beside["D5"].outcome == Outcome.OPEN
    assert "both forms were not run at one K and one gate" in beside["D5"].reason
    alone = answered(run_of(plain, cold, spreads))["D6"]
    assert alone.reason.startswith("only K = 200 was run with this form and gate: a grid needs two or more")
    assert all("one gate" in beside[name].rule for name in ("D5", "D6"))
    assert answered(run_of(plain, cold, most))["D5"].outcome == Outcome.OPEN
    assert answered(run_of(plain, cold, spreads, most))["D5"].outcome == Outcome.HOLDS


def test_one_launch_answers_no_decision_point() -> None:
    once = {name: replace(value, launches=1) for name, value in shares(EVEN, SAME)["values"].items()}
    kept = {name: replace(value, launches=1) for name, value in shares(EVEN, SAME)["differences"].items()}
    both = [variant(f"{k}", parameters={"load_floor_bonus": k}, values=once, differences=kept) for k in (50, 200)]
    floor = replace(run_of(variant("plain", **shares(COLD, None)), *both), trials=1)
    assert (answered(floor)["D6"].outcome, answered(floor)["D6"].point) == (Outcome.UNDECIDED, "holds")
    pair = QuarantinePair("hair", "plain", "", "", Estimate(-0.3, -0.4, -0.2, launches=1))
    failed = replace(floor, transport=TransportFacts(8, 3, 2, 3, 3, 2), quarantines=(pair,))
    assert (answered(failed)["Q1.D"].outcome, answered(failed)["Q1.D"].point) == (Outcome.UNDECIDED, "holds")


def test_a_decision_point_that_does_not_stand_among_all_of_the_run_is_undecided() -> None:
    """By itself D1 holds (p = 0.02 of one comparison of two); beside other claims it has to be clearer."""
    fewer = Estimate(0.3, 0.14, 0.46, launches=3)
    bonus = {"parameters": BONUS, "differences": {"completed_share": fewer}}
    d1 = answered(run_of(variant("plain", failed_turns=30), variant("bonus", **bonus)))["D1"]
    alone = find_p_value(fewer, 0.0)
    assert alone is not None
    assert d1.outcome == Outcome.HOLDS
    assert d1.p == pytest.approx(2 * alone, rel=1e-3), "lost transfers or turns"
    beside = [replace(d1, name=str(number)) for number in range(3)]
    corrected = correct_together([d1, *beside])[0]
    assert (corrected.outcome, corrected.alone) == (Outcome.UNDECIDED, Outcome.HOLDS)
    assert answered(run_of(variant("plain"), variant("bonus", **bonus)))["D4"].p is None, "it counts"


def test_what_no_engine_model_shows_is_open_in_a_simulation_with_the_reason() -> None:
    floor = run_of(variant("plain"), variant("b", parameters=BONUS))
    real, simulated = ([one.judgement for one in judge_decision_points(floor, simulated=yes)] for yes in (False, True))
    assert simulated[: len(real)] == real
    rest = simulated[len(real) :]
    assert [one.name for one in rest] == ["Q1.A", "Q1.B", "Q2.G"]
    assert {(one.outcome, one.label, one.p) for one in rest} == {(Outcome.OPEN, "not testable", None)}
    assert all(one.reason for one in rest)


def arms_of_every_rule() -> LoadFloor:
    """Arms for every decision point, with labels as long as a preset's."""
    worse = lose_handovers(6)
    variants: dict[str, Variant] = {
        "overlap first": ({}, lose_handovers(8)),
        "overlap first, timeout 30 s": ({}, worse),
        "overlap first, timeout 30 s, hair-trigger": ({}, lose_handovers(9)),
        "A: cold bonus 200": ({"cold_bonus": 200}, spread((4, 3, 3), 0.8)),
        "B: floor 200": (BONUS, lose_handovers(2)),
        "B: floor 200, max": ({"load_floor_bonus": 200, "floor_form": "max"}, lose_handovers(4)),
        "B: floor 50": ({"load_floor_bonus": 50}, lose_handovers(3)),
        "Q1.E: back-pressure": ({"backpressure_above": 0.9}, lose_handovers(5)),
    }
    window = {"failures_to_quarantine": 3, "window_s": 60.0, "quarantine_s": 10.0}
    routers = dict.fromkeys(variants, rules(120, **window))
    routers["overlap first, timeout 30 s"] = rules(30, **window)
    routers["overlap first, timeout 30 s, hair-trigger"] = rules(30, **{**window, "failures_to_quarantine": 1})
    return floor_of(variants, routers)


def sentences_of(judgements: Sequence[Judgement]) -> dict[str, str]:
    answers, questions = split_judgements(judgements, lambda _: "", 1)
    return {one.name: one.text for one in answers} | {one.name: one.text for one in questions}


@pytest.mark.parametrize("others", [0, 40], ids=["alone", "corrected with others"])
def test_the_page_shows_the_intervals_that_decided(others: int) -> None:
    """Also where the page cuts the reason: nothing says that what an interval decided was counted."""
    points = [one.judgement for one in judge_decision_points(arms_of_every_rule())]
    among = [replace(points[0], name=f"other {number}", p=1e-9) for number in range(others)]
    judged = [one for one in correct_together([*points, *among])[: len(points)] if one.outcome != Outcome.OPEN]
    tested = {one.name for one in judged if one.p is not None}
    assert tested >= {"D1", "D2", "D3", "D5", "D6", "D7", "Q1", "Q1.D", "Q1.E"}
    texts = sentences_of(judged)
    for name in tested:
        assert re.search(r" \[[-+]?[0-9.]+, [-+]?[0-9.]+\]", texts[name]), texts[name]
        assert "no interval" not in texts[name]


def test_the_numbers_of_a_bonus_have_their_bounds() -> None:
    said = answered(arms_of_every_rule())
    lost = "B: floor 200 against overlap first: transfers failed or recomputed -60.0 pp ["
    assert lost in said["D1"].reason
    assert "6 of 30 transfers failed or recomputed (20.0 % [" in said["Q1"].reason
    for point in ("D3", "D5", "D6"):
        assert re.search(r"smallest share of the sessions 30\.0 % \[\d+\.\d, \d+\.\d\] \(even 33 %", said[point].reason)
    assert re.search(r"B: floor 200 against B: floor 200, max: direct to D [^;]+ \[[^]]+\]", said["D5"].reason)
    assert re.search(r"the least clear: B: floor [^;]+ \[[^]]+\]", said["D7"].reason)


def test_decision_points_name_the_arms_that_they_are_judged_over() -> None:
    over = {one.what: one.over for one in judge_decision_points(arms_of_every_rule())}
    assert over["D1"] == "B: floor 200, B: floor 200, max, B: floor 50, overlap first"
    assert over["D2"] == "overlap first, overlap first, timeout 30 s"
    assert over["D5"] == "B: floor 200, B: floor 200, max"
    assert over["D6"] == "B: floor 200, B: floor 50"
    assert over["Q1.E"] == "Q1.E: back-pressure, overlap first"
    without = {one.what: one.over for one in judge_decision_points(run_of(variant("plain")))}
    assert (without["D1"], without["D2"]) == ("plain", "")


def test_refusals_are_counted_and_the_page_says_so() -> None:
    said = answered(run_of(variant("plain", rejects=9, reject_moves=2)))["D4"]
    assert sentences_of([said])["D4"].endswith("(no interval: counted, not sampled).")
