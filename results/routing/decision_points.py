"""The decision points of specs/load_floor.md, each answered from what a run measured, or open with what is missing.

Their rules are in `bonus_rules` and `transport_rules`; here are what they ask, and the p-value of a whole rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from results.records.estimate import unknown
from results.records.percent import format_percent
from results.routing.bonus_rules import (
    DEFAULT_K,
    DISTINGUISHED_BY,
    OVERLAP_WITHIN,
    count_back_pressure,
    count_compared,
    count_compared_alone,
    count_default_k,
    judge_back_pressure,
    judge_default_k,
    judge_fewer_failures,
    judge_form,
    judge_lossless,
    judge_sessions,
    judge_shape,
    name_back_pressure,
    name_bonuses,
    name_bonuses_alone,
    name_forms,
    name_grid,
    name_shapes,
    pair_forms,
)
from results.routing.load_floor import LoadFloor, change_floor_level, split_by_load, take_floor_points
from results.routing.loads import LoadJudgement, judge_under_load, judge_whole_run, list_arms
from results.routing.transport_rules import (
    judge_quarantines,
    judge_refusals,
    judge_timeouts,
    name_quarantines,
    name_timeouts,
)
from results.statistics.judgement import COUNTED, SEVERAL, Judgement, Outcome, explain_few_launches
from results.statistics.student import find_p_of_rule


@dataclass(frozen=True, slots=True)
class DecisionPoint:
    """One question of the specification, and how a run answers it."""

    name: str
    claim: str
    default: str
    """The specification's."""
    rule: str
    judge: Callable[[LoadFloor], tuple[Outcome, str]]
    """Applies the rule: the outcome, and why."""
    name_arms: Callable[[LoadFloor], Sequence[str]]
    """The labels whose numbers the rule reads."""
    count_chances: Callable[[LoadFloor], int] | None = None
    """Comparisons of which any one may satisfy the rule (Bonferroni), 0 where the run has no arms for one; None = the
    rule counts and has no p-value."""
    has_point: bool = True
    """The rule can go by the values alone: not one that counts, or that asks for intervals."""


def judge_decision_points(floor: LoadFloor, *, simulated: bool = False) -> tuple[LoadJudgement, ...]:
    """Every decision point in the specification's order, under each load by itself; not yet corrected together.

    `simulated`: followed by the fixes that the engine model cannot show.
    """
    points = tuple(
        judge_under_load(
            one.name,
            _judge_point_of(one, own),
            (arm.label for arm in own.variants),
            load,
            list_arms(filter(None, one.name_arms(own))),
        )
        for load, own in split_by_load(floor).items()
        for one in DECISION_POINTS
    )
    return (*points, *(judge_whole_run(one.name, one) for one in NOT_SIMULATED)) if simulated else points


def _judge_point_of(one: DecisionPoint, floor: LoadFloor) -> Judgement:
    """One point under one load; open, with the reason, where the run has no decision logs."""
    prior = f"the specification's default: {one.default}"
    if why := floor.no_logs:
        return Judgement(one.name, one.claim, one.rule, Outcome.OPEN, why, unknown(why), prior=prior)
    p, point = _find_p(one, floor), _judge_point(one, floor)
    measured = COUNTED if one.count_chances is None else SEVERAL
    return Judgement(one.name, one.claim, one.rule, *one.judge(floor), measured, prior=prior, p=p, point=point)


def _find_p(one: DecisionPoint, floor: LoadFloor) -> float | None:
    """The p-value of the whole rule; None where it counts, or the run has no arms for it.

    1 where the data leave it open: then it stays in the family that is corrected together.
    """
    chances = one.count_chances(floor) if one.count_chances else 0
    if not chances or explain_few_launches(floor.trials):
        return None
    p = find_p_of_rule(lambda level: one.judge(change_floor_level(floor, level))[0])
    return min(1.0, p * chances)


def _judge_point(one: DecisionPoint, floor: LoadFloor) -> str:
    """The outcome by the values alone; empty where there is none."""
    outcome = one.judge(take_floor_points(floor))[0] if one.has_point else Outcome.OPEN
    return "" if outcome is Outcome.OPEN else str(outcome)


def _name_all(floor: LoadFloor) -> list[str]:
    return [one.label for one in floor.variants]


DECISION_POINTS = (
    DecisionPoint(
        "D1",
        "The load floor comes first, before the transport.",
        "yes",
        "with the bonus distinguishably fewer transfers are lost or more turns completed than without, and neither is "
        "worse; fails for the opposite",
        judge_fewer_failures,
        name_bonuses_alone,
        lambda floor: 2 * count_compared_alone(floor),
    ),
    DecisionPoint(
        "D2",
        "A transfer timeout of 120 s is better than 30 s.",
        "yes",
        "of two policies that differ in transfer.timeout_s alone, the longer distinguishably loses fewer transfers; "
        "fails where it loses more; undecided where two such pairs contradict each other",
        judge_timeouts,
        name_timeouts,
        lambda floor: len(floor.timeouts),
    ),
    DecisionPoint(
        "D3",
        "The graduated load-floor bonus (Q2.B) is the right shape.",
        "Q2.B",
        f"the bonus gives every D a share and keeps the overlap within {format_percent(OVERLAP_WITHIN)}, kv_aware "
        "without it does not, every alternative is distinguishably worse or does not work, and TTFT p90 is not worse",
        judge_shape,
        name_shapes,
        lambda floor: count_compared(floor) * len(DISTINGUISHED_BY) * max(1, len(floor.compared)),
    ),
    DecisionPoint(
        "D4",
        "Admission refusals are counted where they happen (Q2.G).",
        "yes",
        "a pick was sent elsewhere because of a counted refusal",
        judge_refusals,
        _name_all,
        has_point=False,
    ),
    DecisionPoint(
        "D5",
        "The deficit is measured against the mean, rather than as K (max - mine) / max.",
        "defer",
        "at one K and one gate the form with the mean spreads the sessions and the other does not, or both do and it "
        "is distinguishably better; fails for the opposite; undecided where two such pairs contradict each other",
        judge_form,
        name_forms,
        lambda floor: len(DISTINGUISHED_BY) * len(pair_forms(floor)),
    ),
    DecisionPoint(
        "D6",
        f"K = {DEFAULT_K:g} is reasonable.",
        "try 200 first",
        f"K = {DEFAULT_K:g}, of two or more K of one form and one gate, spreads the sessions and keeps the overlap",
        judge_default_k,
        name_grid,
        count_default_k,
    ),
    DecisionPoint(
        "D7",
        "This many sessions are enough.",
        "the same subset",
        "every difference to kv_aware without a fix is distinguishable from none",
        judge_sessions,
        name_bonuses,
        lambda floor: int(count_compared(floor) > 0),
        has_point=False,
    ),
    DecisionPoint(
        "Q1",
        "The load floor alone ends the lost transfers (Q1.F): the transport needs no fix.",
        "Q1.F first",
        "transfers were lost without the bonus, and with one none is, distinguishably fewer; fails where under every "
        "bonus some are, distinguishably from none",
        judge_lossless,
        name_bonuses_alone,
        count_compared_alone,
    ),
    DecisionPoint(
        "Q1.D",
        "It is better to close a pair after several failures in a window and to probe it again than after one.",
        "avoid for now",
        "of two policies that differ in the rules of quarantine alone, the one that closes a pair after more failures "
        "distinguishably loses fewer transfers; fails where it loses more; undecided where two such pairs contradict "
        "each other",
        judge_quarantines,
        name_quarantines,
        lambda floor: len(floor.quarantines),
    ),
    DecisionPoint(
        "Q1.E",
        "Back-pressure from the router keeps a decode instance from the state in which transfers are lost.",
        "off; Q1.F first",
        "with back-pressure alone distinguishably fewer transfers are lost or more turns completed than without a fix, "
        "and neither is worse; fails for the opposite",
        judge_back_pressure,
        name_back_pressure,
        lambda floor: 2 * count_back_pressure(floor),
    ),
)


def _leave_open(name: str, claim: str, default: str, reason: str) -> Judgement:
    prior = f"the specification's default: {default}"
    rule = "not judged in a simulation"
    label, needs = "not testable", "a run on real engines"
    return Judgement(name, claim, rule, Outcome.OPEN, reason, unknown(reason), label=label, prior=prior, needs=needs)


NOT_SIMULATED = (
    _leave_open(
        "Q1.A", "Eviction ahead of need keeps the scheduler free for transfers.", "open question",
        "the engine model evicts a block when it needs one, which takes no time: there is no stall to avoid",
    ),
    _leave_open(
        "Q1.B", "Eviction on a thread of its own keeps the scheduler free for transfers.", "avoid for now",
        "eviction takes no time in the engine model, on no thread",
    ),
    _leave_open(
        "Q2.G", "Refusals are counted where they happen, as a backstop.", "yes, beside Q2.B",
        "simulated engines queue what has no room and refuse nothing, so nothing is counted (D4)",
    ),
)  # fmt: skip
