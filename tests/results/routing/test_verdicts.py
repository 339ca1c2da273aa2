"""The specification's rows and claims: found by policy and parameters, judged by intervals, honest where not run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from results.records.estimate import Estimate
from results.records.run_folder import RunFacts
from results.routing.metrics import find_metric
from results.routing.migrations import PolicyMigrations
from results.routing.moves import Moves
from results.routing.pairs import Pair
from results.routing.recomputing import AgainstArm, AgainstRecomputing
from results.routing.scale import ONE_TURN, TOO_SMALL, Scale, measure_scale
from results.routing.specification import (
    AFFINITY_ONLY,
    FULL,
    MIGRATION_ONLY,
    Setting,
    SpecifiedRow,
    list_threshold_settings,
    make_ablation_rows,
    make_end_to_end_rows,
    name_ear_part,
)
from results.routing.verdicts import LOAD_ONLY, UNIFIED, Arms, judge_claims
from results.statistics.judgement import Judgement, Outcome, Verdict, correct_together, judged
from tests.results.routing.synthetic import Truth, World, loaded

LARGE = Scale(8, shares_cores=False, hot_sessions=64, hot_turns=20, max_inflight_sessions=0)
SMALL = Scale(2, shares_cores=True, hot_sessions=2, hot_turns=1, max_inflight_sessions=32)
EAR: Mapping[str, Any] = {"hot_tokens": 100, "cooldown_s": 5.0}
STAYS: Mapping[str, Any] = {**EAR, "migration": False}
LEAVES: Mapping[str, Any] = {**EAR, "affinity": False}


@pytest.mark.parametrize(
    ("policy", "parameters", "part"),
    [
        ("ear", EAR, FULL),
        ("ear", STAYS, AFFINITY_ONLY),
        ("ear", LEAVES, MIGRATION_ONLY),
        ("ear", {**STAYS, "affinity": False}, ""),
        ("sticky", {}, ""),
    ],
)
def test_the_parts_of_ear_are_known_by_their_parameters(policy: str, parameters: Mapping[str, Any], part: str) -> None:
    assert name_ear_part(policy, parameters) == part


def labels_of(rows: Sequence[SpecifiedRow]) -> dict[str, str]:
    return {row.name: row.label for row in rows}


def test_without_a_second_turn_no_claim_about_sessions_is_judged() -> None:
    """A trace of single requests has no session to keep or to move: sticky is a dispatch by chance there."""
    labels, one_turn = labels_of(ROWS), replace(LARGE, follows_sessions=False)
    pairs = in_order()
    followed, single = (judge_order(pairs, scale) for scale in (LARGE, one_turn))
    assert followed["log: unified keeps more than sticky"].outcome.is_decided
    for name, claim in single.items():
        keeps = name not in ("log: LMetric has soft affinity", "log: LMetric before load_only")
        assert (claim.outcome == Outcome.OPEN and "has one turn" in claim.reason and claim.p is None) == keeps, name
    ablations = [one for name, one in judge(labels, pairs, scale=one_turn).items() if "ablation" in name]
    assert ablations
    assert all("has one turn" in one.reason for one in ablations)


def test_what_a_run_lacks_carries_the_label_of_the_claim_that_it_leaves_open() -> None:
    one_turn = replace(LARGE, follows_sessions=False)
    claims = judge(labels_of(ROWS), in_order(), scale=one_turn)
    assert claims["ablation: affinity only keeps locality"].label == ONE_TURN
    lacks = {
        "trace": one_turn.lacks,
        "trace and a limit": replace(one_turn, max_inflight_sessions=32).lacks,
        "instances and trace": replace(one_turn, instances=2).lacks,
        "rate": replace(LARGE, no_loop={"every session of the trace has one turn": "no steady state"}).lacks_loop(
            "every session of the trace has one turn"
        ),
    }
    assert {name: lack.label for name, lack in lacks.items()} == {
        "trace": ONE_TURN, "trace and a limit": ONE_TURN, "instances and trace": TOO_SMALL, "rate": TOO_SMALL,
    }  # fmt: skip
    assert not LARGE.lacks


def test_rows_are_found_whatever_they_are_called_and_stay_where_they_were_not_run() -> None:
    policies = {"load-balance": "round_robin", "x": "kv_linear", "mine": "ear"}
    rows = {row.name: row for row in make_end_to_end_rows(policies, {"mine": EAR})}
    assert list(rows) == ["load-balance", "LMetric", "kvcache+load", "sticky", "static PD-disagg", "EAR"]
    assert (rows["load-balance"].label, rows["EAR"].label) == ("load-balance", "mine")
    assert (rows["kvcache+load"].label, rows["sticky"].label) == ("x", "")


def test_no_setting_of_a_grid_stands_for_a_row_of_the_specification() -> None:
    parameters = {"a": EAR, "b": {**EAR, "hot_tokens": 7}, "x": {"weight": 1}, "y": {"weight": 2}}
    policies = {"a": "ear", "b": "ear", "x": "kv_linear", "y": "kv_linear"}
    rows = {row.name: row for row in make_end_to_end_rows(policies, parameters)}
    for name, labels in (("EAR", ("a", "b")), ("kvcache+load", ("x", "y"))):
        assert (rows[name].label, rows[name].others) == ("", labels)
    assert judge(labels_of(make_ablation_rows(policies, parameters)), []) == {}  # and none is judged by it


def test_of_several_pools_the_even_ones_are_the_specifications() -> None:
    policies = {"4P+4D": "static_pd", "6P+2D": "static_pd"}
    rows = {row.name: row for row in make_end_to_end_rows(policies, {}, even={"4P+4D"})}
    assert (rows["static PD-disagg"].label, rows["static PD-disagg"].others) == ("4P+4D", ("6P+2D",))
    assert make_end_to_end_rows(policies, {})[-2].label == ""


def test_of_several_settings_the_ablated_one_is_whole_ears_row() -> None:
    parameters = {"first": {**EAR, "hot_tokens": 7}, "same": EAR, "stays": STAYS}
    rows = {row.name: row for row in make_ablation_rows(dict.fromkeys(parameters, "ear"), parameters)}
    assert (rows[FULL].label, rows[FULL].others) == ("same", ("first",))
    assert rows[AFFINITY_ONLY].label == "stays"
    assert rows[MIGRATION_ONLY].label == ""


def test_a_grid_is_of_settings_that_differ_in_the_thresholds_alone() -> None:
    parameters: dict[str, Mapping[str, Any]] = {
        "a": {"hot_tokens": 200, "cooldown_s": 1},
        "b": {"hot_tokens": 100, "cooldown_s": 1},
        "other": {"hot_tokens": 300, "cooldown_s": 1, "tie": "name"},
        "stays": STAYS,
    }
    found = list_threshold_settings(dict.fromkeys(parameters, "ear"), parameters)
    assert found == (Setting(100, 1, "b"), Setting(200, 1, "a"))
    assert list_threshold_settings({"a": "ear"}, parameters) == ()


def compare_two(name: str, first: str, second: str, low: float, high: float) -> Pair:
    """One whose interval is over trials; of times, of their ratio."""
    found = Estimate((low + high) / 2, low, high, basis="over 3 trials", launches=3)
    times = find_metric(name).is_time
    ratio = replace(found, value=math.exp((low + high) / 2), low=math.exp(low), high=math.exp(high))
    return Pair(
        name, first, second, found, Estimate(1.0), None, judged(found), None, None, ratio=ratio if times else None
    )


def moves(*thrash: tuple[str, Estimate, tuple[str, ...]], took: tuple[AgainstRecomputing, ...] = ()) -> Moves:
    found = tuple(
        PolicyMigrations(label, 3, 10, 5, {}, {}, {"thrash_rate": rate}, (), sessions, "")
        for label, rate, sessions in thrash
    )
    return Moves((), found, (), took)


ROWS = make_ablation_rows(
    {"ear": "ear", "stays": "ear", "leaves": "ear"}, {"ear": EAR, "stays": STAYS, "leaves": LEAVES}
)


def judge(
    labels: Mapping[str, str], pairs: Sequence[Pair], of: Moves | None = None, scale: Scale = LARGE
) -> dict[str, Judgement]:
    """The claims of a run with one load, corrected together."""
    claims = [one.judgement for one in judge_claims([Arms(labels, scale)], pairs, of or moves())]
    return {one.name: one for one in correct_together(claims)}


def judged_claims(pairs: list[Pair], found: Moves) -> dict[str, Outcome]:
    return {name: one.outcome for name, one in judge(labels_of(ROWS), pairs, found).items()}


def test_the_ablation_is_supported_where_the_intervals_say_so_whichever_way_a_pair_stands() -> None:
    pairs = [
        compare_two("apc", "ear", "stays", -0.02, 0.01),  # stays - ear lies in [-0.01, 0.02]
        compare_two("worker_ttft_p90_median_s", "ear", "stays", -0.5, -0.1),
        compare_two("apc", "leaves", "ear", -0.4, -0.2),
    ]
    assert set(judged_claims(pairs, moves()).values()) == {Outcome.HOLDS}


def test_it_is_refuted_or_undecided_where_they_say_that() -> None:
    pairs = [
        compare_two("apc", "stays", "ear", -0.30, -0.20),
        compare_two("worker_ttft_p90_median_s", "stays", "ear", -0.5, -0.1),
        compare_two("apc", "leaves", "ear", -0.4, 0.2),
    ]
    assert list(judged_claims(pairs, moves()).values()) == [Outcome.FAILS, Outcome.FAILS, Outcome.UNDECIDED]
    assert set(judged_claims([], moves()).values()) == {Outcome.OPEN}


CALM, STILL = Estimate(0.0, n=9), Estimate(None, reason="no session migrated")


def judge_thrashing(*policies: tuple[str, Estimate, tuple[str, ...]]) -> Judgement:
    """The one claim about all policies."""
    (claim,) = (one for name, one in judge({}, [], moves(*policies)).items() if "thrashing" in name)
    return claim


def test_one_session_that_thrashes_refutes_that_none_does_and_its_policy_is_named() -> None:
    claim = judge_thrashing(("calm", CALM, ()), ("busy", Estimate(0.2, n=10), ("s1", "s2")), ("still", STILL, ()))
    assert claim.outcome == Outcome.FAILS
    assert claim.reason == (
        "of 19 migrated sessions some did: under busy s1, s2; under calm none did; "
        "not counted: still (no session migrated)"
    )
    assert claim.measured.value == pytest.approx(2 / 19)
    assert claim.measured.n == 19
    assert claim.numbers["calm"] == CALM


def test_where_no_policy_thrashes_that_is_one_claim_over_all() -> None:
    claim = judge_thrashing(*((str(number), CALM, ()) for number in range(9)))
    assert (claim.outcome, claim.measured.value, claim.measured.n) == (Outcome.HOLDS, 0.0, 81)
    assert claim.reason.startswith("none of 81 migrated sessions did, under 9 policies; the cooldown gate refuses it")
    assert "under 1 and 2;" in judge_thrashing(("1", CALM, ()), ("2", CALM, ())).reason


def test_without_a_migrated_session_whether_one_thrashes_is_open() -> None:
    claim = judge_thrashing(("still", STILL, ()))
    assert (claim.outcome, claim.reason) == (Outcome.OPEN, "not counted: still (no session migrated)")
    assert "no thrashing" not in judge({}, [])


def test_one_launch_judges_no_claim() -> None:
    found = replace(compare_two("apc", "stays", "ear", -0.30, -0.20).difference, launches=1)
    within = Pair("apc", "stays", "ear", found, Estimate(1.0), None, judged(found), None, None)
    assert list(judged_claims([within], moves()).values()) == [Outcome.UNDECIDED, Outcome.OPEN, Outcome.OPEN]


SLOW = Estimate(0.1, 0.05, 0.15, launches=3)
SOME = Estimate(0.1)
FITTED = AgainstRecomputing("ear", SOME, SOME, SOME, SOME, SOME, SLOW, Verdict.HIGHER)
FASTER = AgainstArm("ear, KV not moved", 9, 9, SOME, SOME, Estimate(0.5, 0.4, 0.6, launches=3), SOME, Verdict.LOWER)


@pytest.mark.parametrize(
    ("took", "outcome"),
    [
        (FITTED, Outcome.FAILS),
        (replace(FITTED, verdict=None, withheld="the fit explains 30 % of the variance"), Outcome.UNDECIDED),
        (replace(FITTED, arm=FASTER), Outcome.HOLDS),
        (replace(FITTED, arm=replace(FASTER, verdict=None)), Outcome.UNDECIDED),
    ],
)
def test_moving_kv_is_judged_by_the_arm_that_computes_it_again_else_by_the_fit(
    took: AgainstRecomputing, outcome: Outcome
) -> None:
    judgements = judge(labels_of(ROWS), [], moves(took=(took,)))
    (claim,) = (one for name, one in judgements.items() if name.startswith("transfer against"))
    assert claim.outcome == outcome
    assert took.withheld in claim.reason


def test_a_claim_that_does_not_stand_among_all_claims_is_undecided() -> None:
    """Alone each is decided (p = 0.03); three of them ask for more."""
    pairs = [
        compare_two("apc", "stays", "ear", -0.10, -0.055),
        compare_two("worker_ttft_p90_median_s", "stays", "ear", 0.05, 0.5),
        compare_two("apc", "leaves", "ear", -0.4, -0.03),
    ]
    claims = judge(labels_of(ROWS), pairs)
    interferes = claims["ablation: affinity only interferes"]
    assert interferes.outcome == Outcome.UNDECIDED
    assert "by itself it holds, corrected it does not" in interferes.reason
    assert interferes.alone == Outcome.HOLDS
    assert (interferes.p or 1) < 0.05 < (interferes.p_corrected or 0)
    (alone,) = (one for one in judge(labels_of(ROWS), pairs[2:]).values() if one.outcome == Outcome.HOLDS)
    assert alone.name == "ablation: migration only loses locality"


def test_what_two_instances_on_shared_cores_cannot_settle_says_what_would() -> None:
    labels = labels_of(ROWS) | {"sticky": "sticky", UNIFIED: "unified"}
    pairs = [
        compare_two("worker_ttft_p90_median_s", "stays", "ear", -0.5, -0.4),
        compare_two("worker_ttft_p90_median_s", "sticky", "unified", 0.5, 0.6),
    ]
    large, small = (judge(labels, pairs, scale=scale) for scale in (LARGE, SMALL))
    assert large["ablation: affinity only interferes"].outcome == Outcome.FAILS
    assert large["3.3: sticky slows every instance"].outcome == Outcome.HOLDS
    for name in ("ablation: affinity only interferes", "3.3: sticky slows every instance", "C3: EAR dominates"):
        assert (small[name].outcome, small[name].label) == (Outcome.OPEN, "not testable at this scale")
        for part in ("2 instances that share a host's cores", "8 or more", "10 or more", "no limit"):
            assert part in small[name].reason
        for part in ("8 or more instances with compute of their own", "10 or more turns", "no limit on sessions"):
            assert part in small[name].needs


BASELINES = ("load-balance", "LMetric", "kvcache+load", "sticky", "static PD-disagg")
WITH_BASELINES = labels_of(ROWS) | {name: name for name in BASELINES}


def paper(*pairs: Pair) -> dict[str, Outcome]:
    return {name: one.outcome for name, one in judge(WITH_BASELINES, pairs).items()}


def test_the_papers_own_claims_are_judged() -> None:
    found = paper(
        compare_two("amplification", "ear", "load-balance", -0.9, -0.8),
        compare_two("apc", "sticky", "LMetric", 0.2, 0.21),
        compare_two("ttft_p50_s", "static PD-disagg", "load-balance", -0.52, -0.5),
    )
    assert found["C1: dispatch coupling"] == Outcome.HOLDS
    assert found["3.1: load balance loses locality"] == Outcome.HOLDS
    assert found["3.2: static pools meet the KV wall"] == Outcome.FAILS
    assert found["C3: EAR dominates"] == Outcome.UNDECIDED


LOOPING = (
    compare_two("amplification", "ear", "load-balance", -0.9, -0.8),
    compare_two("ttft_p50_s", "static PD-disagg", "load-balance", 0.5, 0.52),
)
OF_LOOP = ("C1: dispatch coupling", "3.2: static pools meet the KV wall")


def judge_loop(scale: Scale) -> dict[str, Judgement]:
    names = ("load-balance", "static PD-disagg")
    return judge(labels_of(ROWS) | {name: name for name in names}, LOOPING, scale=scale)


def test_claims_about_the_load_of_the_system_need_instances_of_their_own_and_a_loop() -> None:
    assert {judge_loop(LARGE)[name].outcome for name in OF_LOOP} == {Outcome.HOLDS}
    no_loop = {"load-balance": "a limit on sessions in flight held back 40 % of the sessions", "ear": ""}
    small, held_back = (SMALL, "it takes 8 or more", None), (replace(LARGE, no_loop=no_loop), "held back 40 %", 1.0)
    for scale, part, p in (small, held_back):
        for name in OF_LOOP:
            claim = judge_loop(scale)[name]
            assert (claim.outcome, claim.label, claim.p) == (Outcome.OPEN, "not testable at this scale", p)
            assert part in claim.reason
    assert "preset `steady`" in claim.reason, "what would test it"
    simulated = judge_loop(replace(LARGE, no_loop=no_loop, simulated=True))[OF_LOOP[0]]
    assert "preset `steady`" not in simulated.reason, "its rates are too high for simulated fleets"
    assert "preset `fleet-light`" in simulated.reason
    assert "preset `fleet-light`" in simulated.needs


def test_what_the_data_leave_untestable_stays_among_the_claims_that_are_corrected_together() -> None:
    """Else a run whose queues grow would ask less of its other claims than one whose queues do not."""
    collapsed = replace(LARGE, no_loop={"load-balance": "no steady state"})
    keeps = compare_two("apc", "stays", "ear", -0.0001, 0.0001)  # the smallest p, which the whole family multiplies
    names = labels_of(ROWS) | {"load-balance": "load-balance", "static PD-disagg": "static PD-disagg"}

    def ask(scale: Scale) -> float | None:
        return judge(names, [*LOOPING, keeps], scale=scale)["ablation: affinity only keeps locality"].p_corrected

    steady, unsteady = ask(LARGE), ask(collapsed)
    assert steady == unsteady
    alone = judge(names, [keeps])["ablation: affinity only keeps locality"].p_corrected
    assert (steady or 0) > 2 * (alone or 1)


@pytest.mark.parametrize("lacking", [{"hot_sessions": 3}, {"hot_turns": 2}, {"max_inflight_sessions": 32}])
def test_what_the_trace_or_the_plan_rules_out_was_not_tested_and_asks_no_more_of_the_others(
    lacking: Mapping[str, Any],
) -> None:
    labels = WITH_BASELINES | {UNIFIED: UNIFIED}
    keeps = compare_two("apc", "stays", "ear", -0.0001, 0.0001)  # the smallest p, which the whole family multiplies
    slower = [
        compare_two("worker_ttft_p90_median_s", "stays", "ear", 0.5, 0.501),
        compare_two("worker_ttft_p90_median_s", "sticky", UNIFIED, 0.5, 0.501),
        compare_two("ttft_p90_s", "ear", "load-balance", -0.5, -0.499),
    ]
    claims = judge(labels, [keeps, *slower], scale=replace(LARGE, **lacking))
    for name in ("ablation: affinity only interferes", "3.3: sticky slows every instance", "C3: EAR dominates"):
        assert (claims[name].outcome, claims[name].p) == (Outcome.OPEN, None), name
    alone = judge(labels, [keeps])["ablation: affinity only keeps locality"]
    assert claims["ablation: affinity only keeps locality"].p_corrected == alone.p_corrected


def test_interference_and_the_gain_over_lmetric_need_a_steady_state() -> None:
    labels = labels_of(ROWS) | IN_ORDER
    pairs = [
        *in_order(),
        compare_two("worker_ttft_p90_median_s", "stays", "ear", 0.5, 0.501),
        compare_two("worker_ttft_p90_median_s", "sticky", UNIFIED, 0.5, 0.501),
    ]
    steady = judge(labels, pairs)
    slow = dict.fromkeys(("stays", "sticky", "LMetric"), "no steady state")
    unsteady = judge(labels, pairs, scale=replace(LARGE, no_loop=slow))
    turned = {name for name, one in unsteady.items() if (one.outcome, steady[name].outcome) != (one.outcome,) * 2}
    assert turned == {
        "ablation: affinity only interferes", "3.3: sticky slows every instance", "log: unified gains little",
    }  # fmt: skip
    assert {unsteady[name].outcome for name in turned} == {Outcome.OPEN}


def test_an_arm_whose_queue_grows_says_nothing_of_the_transfers() -> None:
    took = replace(FITTED, arm=FASTER)
    for label in (took.label, FASTER.other):
        scale = replace(LARGE, no_loop={label: "no steady state"})
        claim = judge(labels_of(ROWS), [], moves(took=(took,)), scale)[f"transfer against recomputing: {took.label}"]
        assert (claim.outcome, claim.reason) == (Outcome.OPEN, f"{label}: no steady state")
        by_fit = judge(labels_of(ROWS), [], moves(took=(FITTED,)), scale)
        assert by_fit[f"transfer against recomputing: {took.label}"].outcome == Outcome.FAILS


def test_static_pools_of_each_split_are_judged_by_themselves() -> None:
    pairs = [
        compare_two("ttft_p50_s", "4P+4D", "load-balance", 2.0, 2.01),
        compare_two("ttft_p50_s", "pools of six", "load-balance", -0.52, -0.5),
    ]
    wall, uneven = "kv-wall", {"6P+2D": "pools of six"}
    of_six = f"{wall}, 6P+2D"
    labels = {"load-balance": "load-balance", "static PD-disagg": "4P+4D"}
    claims = {one.what: one.judgement for one in judge_claims([Arms(labels, LARGE, uneven)], pairs, moves())}
    assert {name: one.outcome for name, one in claims.items()} == {wall: Outcome.HOLDS, of_six: Outcome.FAILS}
    assert "(6P+2D) is higher" in claims[of_six].claim
    assert "specified: 62 to 72" in claims[wall].point
    assert "specified: no number of its own" in claims[of_six].point
    alone = labels | {"static PD-disagg": "pools of six"}
    assert [one.what for one in judge_claims([Arms(alone, LARGE, uneven)], pairs, moves())] == [of_six]


IN_ORDER = {name: name for name in ("LMetric", "sticky", UNIFIED, LOAD_ONLY)}


def judge_order(pairs: Sequence[Pair], scale: Scale = LARGE) -> dict[str, Judgement]:
    """The claims of specs/routing_log."""
    return {name: one for name, one in judge(IN_ORDER, pairs, scale=scale).items() if name.startswith("log: ")}


def in_order(sign: int = 1) -> list[Pair]:
    """Pairs whose intervals confirm the order in APC and latency; `sign` -1: reverse it."""
    above = [("LMetric", LOAD_ONLY, "apc"), (UNIFIED, "sticky", "apc"), ("sticky", "LMetric", "ttft_p90_s"),
             (LOAD_ONLY, "LMetric", "ttft_p90_s"), ("LMetric", UNIFIED, "ttft_p90_s"),
             ("LMetric", UNIFIED, "e2e_mean_s"), ("LMetric", UNIFIED, "e2e_p90_s")]  # fmt: skip
    low, high = sorted((0.1 * sign, 0.101 * sign))
    return [compare_two(metric, first, second, low, high) for first, second, metric in above]


@pytest.mark.parametrize(("sign", "outcome"), [(1, Outcome.HOLDS), (-1, Outcome.FAILS)])
def test_each_step_of_the_logs_order_is_judged_with_the_number_that_a_specification_has(
    sign: int, outcome: Outcome
) -> None:
    claims = judge_order(in_order(sign))
    steps = {name: one for name, one in claims.items() if "like" not in name and "little" not in name}
    assert len(steps) == 7
    assert {one.outcome for one in steps.values()} == {outcome}
    ttft = claims["log: unified before LMetric, TTFT p90"]
    ratio = "0.904" if sign > 0 else "1.11"
    specified = "8.034 s and 9.331 s, -13.9 %, of unified's predecessor; outside the interval"
    assert ttft.point == f"{outcome}: {ratio} times (specified: {specified})"
    specified = "56.9 % and 54.1 % (specs/ear 3.1); outside the interval"
    assert claims["log: LMetric has soft affinity"].point.endswith(f"(specified: {specified})")


@pytest.mark.parametrize(("sign", "outcome"), [(-1, Outcome.HOLDS), (1, Outcome.FAILS)])
def test_lmetric_is_held_against_the_linear_cost_that_the_log_began_with(sign: int, outcome: Outcome) -> None:
    low, high = sorted((0.5 * sign, 0.52 * sign))
    pairs = [compare_two(metric, "LMetric", "kvcache+load", low, high) for metric in ("ttft_p90_s", "e2e_p90_s")]
    claims = judge({name: name for name in ("LMetric", "kvcache+load")}, pairs)
    assert {claims[f"log: LMetric before linear, {of}"].outcome for of in ("TTFT p90", "E2E p90")} == {outcome}


def test_the_order_in_latency_needs_instances_of_their_own_and_no_more() -> None:
    """With a limit on sessions in flight too, which is a track of the log."""
    limited = judge_order(in_order(), replace(LARGE, max_inflight_sessions=64))
    assert {one.label for one in limited.values()} == {""}
    small = judge_order(in_order(), SMALL)
    assert small["log: LMetric has soft affinity"].outcome == Outcome.HOLDS
    testable = {name for name, one in small.items() if one.label != "not testable at this scale"}
    assert testable == {
        "log: LMetric has soft affinity", "log: unified keeps more than sticky", "log: LMetric places like unified",
    }  # fmt: skip


def test_under_several_loads_each_claim_is_judged_by_itself_and_named_after_its_load() -> None:
    slow = {"load-balance": "load-balance x", FULL: "ear x"}
    pairs = [LOOPING[0], compare_two("amplification", "ear x", "load-balance x", 0.8, 0.9)]
    loads = [
        Arms({"load-balance": "load-balance", FULL: "ear"}, LARGE, load="rate 1"), Arms(slow, LARGE, load="rate 2"),
    ]  # fmt: skip
    claims = {one.judgement.name: one.judgement.outcome for one in judge_claims(loads, pairs, moves())}
    assert claims == {
        "C1: dispatch coupling, rate 1": Outcome.HOLDS,
        "C1: dispatch coupling, rate 2": Outcome.FAILS,
    }, "and what the load lacks arms for is not there"


def test_the_scale_is_counted_from_the_turns() -> None:
    cells = [loaded(World(sessions=10, turns=4, instances=2), Truth("a"))]
    scale = measure_scale(cells, RunFacts("a", shares_cores=True), {})
    assert (scale.instances, scale.shares_cores, scale.hot_sessions, scale.hot_turns) == (2, True, 5, 4.0)
    assert scale.max_inflight_sessions == 0
