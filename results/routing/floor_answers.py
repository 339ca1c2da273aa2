"""The decision points of specs/load_floor.md, each answered from what a run measured, or open with what is missing.

Pure functions of LoadFloor. The intervals decide: a difference that its interval does not tell from none is no answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from results.routing.floor_transport import TargetLegs, TimeoutPair
from results.routing.load_floor import BONUS, NO_FIX, NON_TRIVIAL, TTFT_RATIO, FloorVariant, LoadFloor
from results.routing.measure import judged
from results.statistics import Estimate
from results.tax import Verdict

OVERLAP_WITHIN = 0.05
"""Overlap-driven wins survive where at most so much less of the overlap is kept; the specification states no number."""
FORMS = ("mean", "max")
"""Of the bonus."""
DEFAULT_K = 200.0
FALL = 100 / 1054
"""Of the failures, by the specification's validation plan: from 1054 to less than 100."""
TOLD_BY = {
    "direct_rate": ("direct to D", Verdict.HIGHER, Verdict.LOWER),
    "overlap_kept": ("overlap kept", Verdict.HIGHER, Verdict.LOWER),
    TTFT_RATIO: ("TTFT p90", Verdict.LOWER, Verdict.HIGHER),
    "lost_share": ("transfers failed or recomputed", Verdict.LOWER, Verdict.HIGHER),
}
"""What one shape is told from another by: its name, and the verdicts that are better and worse."""


class Answer(StrEnum):
    """What a run says to a question."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"
    """It was measured, and the intervals tell nothing."""
    OPEN = "open"
    """This run did not measure it."""


@dataclass(frozen=True, slots=True)
class FloorAnswer:
    """One decision point."""

    point: str
    """`D1` to `D7`, `Q1.C`, `Q1.D`."""
    question: str
    default: str
    """The specification's, if nobody answers."""
    answer: Answer
    text: str
    """Why, in numbers."""


def floor_answers(found: LoadFloor) -> tuple[FloorAnswer, ...]:
    """Every decision point in the specification's order."""
    return (
        FloorAnswer("D1", "the load floor first, before the transport is touched?", "yes", *_d1(found)),
        FloorAnswer("D2", "a transfer timeout of 120 s instead of 30?", "yes", *_d2(found)),
        FloorAnswer("D3", "is the graduated load-floor bonus (Q2.B) the right shape?", "Q2.B", *_d3(found)),
        FloorAnswer("D4", "count admission refusals where they happen (Q2.G)?", "yes", *_d4(found)),
        FloorAnswer("D5", "deficit against the mean, rather than K (max - mine) / max?", "defer", *_d5(found)),
        FloorAnswer("D6", "is K = 200 reasonable?", "try 200 first", *_d6(found)),
        FloorAnswer("D7", "are this many sessions enough?", "the same subset", *_d7(found)),
        FloorAnswer(
            "Q1.D", "close a pair after failures in a window, and probe it again?", "avoid for now", *_q1d(found)
        ),
    )


def _d1(found: LoadFloor) -> tuple[Answer, str]:
    reference, fixed = _reference(found), _bonuses(found)
    if reference is None or not fixed:
        return Answer.OPEN, "it needs kv_aware with the bonus and without in one run"
    text = "; ".join((*map(_failures, (reference, *fixed)), *_fallen(reference, fixed)))
    fewer, more = Verdict.LOWER, Verdict.HIGHER
    lost, done = ([one.verdict(name) for one in fixed] for name in ("lost_share", "completed_share"))
    better, worse = fewer in lost or more in done, more in lost or fewer in done
    if better != worse:
        return (Answer.YES if better else Answer.NO), text
    if not reference.failed_turns + reference.lost_transfers:
        return Answer.OPEN, f"nothing failed without the bonus, so there was nothing for it to remove: {text}"
    return Answer.UNDECIDED, f"not told apart: {text}" if not better else f"some better, some worse: {text}"


def _fallen(reference: FloorVariant, fixed: Sequence[FloorVariant]) -> Iterator[str]:
    """The best share of lost transfers against the reference's, beside the fall that the specification hopes for."""
    before = reference.values["lost_share"].value
    after = [share for one in fixed if (share := one.values["lost_share"].value) is not None]
    if before and after:
        hoped = "below" if min(after) < FALL * before else "not below"
        yield f"at best {min(after) / before:.2g} of the lost share without it, {hoped} {FALL:.2g} (1054 -> < 100)"


def _d2(found: LoadFloor) -> tuple[Answer, str]:
    if not found.transport.asked:
        return Answer.OPEN, "no KV was moved in this run"
    if not found.timeouts:
        return Answer.OPEN, f"it needs two policies that differ in transfer.timeout_s alone; {_all_legs(found)}"
    said = [_timeout(pair) for pair in found.timeouts]
    told = {answer for answer, _ in said}
    answer = next((one for one in (Answer.YES, Answer.NO) if one in told), Answer.UNDECIDED)
    return answer, "; ".join(text for _, text in said)


def _timeout(pair: TimeoutPair) -> tuple[Answer, str]:
    short, long = _legs(pair.short, pair.short_legs, pair.short_s), _legs(pair.long, pair.long_legs, pair.long_s)
    text = (
        f"{short}; {long}, {pair.over_short} of these took more than {pair.short_s:g} s; transfers failed or "
        f"recomputed, longer - shorter timeout: {_points(pair.lost_share)}"
    )
    told = judged(pair.lost_share)
    if told in (Verdict.LOWER, Verdict.HIGHER):
        return (Answer.YES if told == Verdict.LOWER else Answer.NO), text
    if not pair.over_short and not pair.short_legs.timed_out:
        return Answer.UNDECIDED, f"{text}: the limit made no difference in this run"
    return Answer.UNDECIDED, text


def _all_legs(found: LoadFloor) -> str:
    own = [one.legs for one in found.variants]
    longest = max((one.longest_s for one in own if one.longest_s is not None), default=None)
    limits = sorted({one.rules.timeout_s for one in found.variants if one.rules.timeout_s is not None})
    every = TargetLegs(sum(one.done for one in own), longest, sum(one.timed_out for one in own))
    return _legs("all", every, *limits)


def _legs(label: str, legs: TargetLegs, *limits_s: float) -> str:
    limit = (
        f"at {', '.join(f'{one:g}' for one in limits_s)} s" if limits_s else "the limit is not in the cells' records"
    )
    longest = "" if legs.longest_s is None else f", the longest in {legs.longest_s:.3g} s"
    return f"{label} ({limit}): {legs.done} target legs brought their KV{longest}, {legs.timed_out} timed out"


def _d3(found: LoadFloor) -> tuple[Answer, str]:
    reference, fixed = _reference(found), _bonuses(found)
    if reference is None or not fixed:
        return Answer.OPEN, "it needs kv_aware with the bonus and without in one run"
    others = [one for one in found.compared if _is_alternative(one)]
    text = "; ".join(_shape(one) for one in (reference, *fixed, *others))
    if unknown := _uncounted((reference, *fixed)):
        return Answer.OPEN, f"{unknown}: {text}"
    if all(one.spread is False for one in fixed):
        return Answer.NO, f"some D stayed without a share worth the name under every bonus: {text}"
    if all(_does(one) is False for one in fixed):
        return Answer.NO, f"where it gave every D a share, it cost overlap: {text}"
    works = sorted((one for one in fixed if _does(one)), key=lambda one: _bonus(one) != DEFAULT_K)
    if reference.spread is not False or not works:
        why = "without the bonus no D stayed cold either" if reference.spread else "the intervals do not tell"
        return Answer.UNDECIDED, f"{why}: {text}"
    said = [_against_others(one, reference, others) for one in works]
    answer, why = next((one for one in said if one[0] == Answer.YES), said[0])
    return answer, f"{why}: {text}"


def _against_others(one: FloorVariant, reference: FloorVariant, others: Sequence[FloorVariant]) -> tuple[Answer, str]:
    """A bonus that works: whether it is told from an alternative that works, and what of TTFT it costs."""
    working = [other for other in others if _does(other)]
    unclear = [other for other in others if _does(other) is None]
    ahead, behind, level = [], [], []
    for other in working:
        better, worse = _told(one, other)
        if better and not worse:
            ahead.append(f"{other.label} (by {', '.join(better)})")
        elif worse and not better:
            behind.append(f"{other.label} (by {', '.join(worse)})")
        else:
            level.append(other.label)
    slower = list(_slower(one, (reference, *working, *unclear)))
    alone = bool(others) and not working and not unclear
    parts = [
        f"better than {', '.join(ahead)}" if ahead else "",
        f"not told from {', '.join(level)}" if level else "",
        f"worse than {', '.join(behind)}" if behind else "",
        "none of the alternatives (Q2.A, C, D, E, F) was run" if not others else "",
        f"not told whether {', '.join(other.label for other in unclear)} works" if unclear else "",
        "no alternative works" if alone else "",
        f"TTFT p90 worse than {', '.join(slower)}" if slower else "",
    ]
    yes = (bool(ahead) or alone) and not slower
    text = f"{one.label} works; {'; '.join(part for part in parts if part)}"
    return (Answer.YES if yes else Answer.UNDECIDED), text


def _told(one: FloorVariant, other: FloorVariant) -> tuple[list[str], list[str]]:
    """By what the first is distinguishably better than the second, and worse."""
    found = {name: one.verdict(name, other.label) for name in TOLD_BY}
    better, worse = (
        [TOLD_BY[name][0] for name, verdict in found.items() if verdict == TOLD_BY[name][side]] for side in (1, 2)
    )
    return better, worse


def _slower(one: FloorVariant, others: Iterable[FloorVariant]) -> Iterator[str]:
    """Whose TTFT p90 it misses by more than the interval of the ratio tells, also where that holds single launches."""
    for other in others:
        found = one.against.get(other.label, {}).get(TTFT_RATIO)
        if found is not None and (found.low or 0) > 1:
            launches = "" if judged(found, none=1.0) else ", within launches"
            yield f"{other.label} ({found.text(3)} times{launches})"


def _d4(found: LoadFloor) -> tuple[Answer, str]:
    refused = sum(one.rejects for one in found.variants)
    moved = sum(one.reject_moves for one in found.variants)
    held = sum(one.held for one in found.variants)
    text = f"{refused} picks of sessions that some instance had refused, {moved} sent elsewhere for it, {held} held"
    if not refused:
        return Answer.OPEN, f"refusals are counted where they happen, and there was none: {text}"
    return (Answer.YES if moved else Answer.UNDECIDED), text


def _d5(found: LoadFloor) -> tuple[Answer, str]:
    forms = {form: [one for one in _bonuses(found) if _form(one) == form] for form in FORMS}
    pairs = [(mean, most) for mean in forms["mean"] for most in forms["max"] if _bonus(mean) == _bonus(most)]
    if not pairs:
        return Answer.OPEN, 'both forms at one K were not run: set floor_form = "max" beside "mean"'
    mean, most = pairs[0]
    text = f"{_shape(mean)}; {_shape(most)}"
    if unknown := _uncounted((mean, most)):
        return Answer.OPEN, f"{unknown}: {text}"
    if mean.spread is None or most.spread is None:
        return Answer.UNDECIDED, f"the intervals do not tell: {text}"
    if mean.spread != most.spread:
        return (Answer.YES if mean.spread else Answer.NO), text
    if not mean.spread:
        return Answer.UNDECIDED, f"neither spreads the sessions: {text}"
    better, worse = _told(mean, most)
    if bool(better) == bool(worse):
        return Answer.UNDECIDED, f"both spread the sessions, and neither is told from the other to be better: {text}"
    said = f"both spread the sessions, and {(mean if better else most).label} is better by {', '.join(better or worse)}"
    return (Answer.YES if better else Answer.NO), f"{said}: {text}"


def _d6(found: LoadFloor) -> tuple[Answer, str]:
    grids = [[one for one in _bonuses(found) if _form(one) == form] for form in FORMS]
    own = sorted(max(grids, key=lambda grid: len({_bonus(one) for one in grid})), key=_bonus)
    tried = sorted({_bonus(one) for one in own})
    if len(tried) < 2:
        only = f"only K = {tried[0]:g} was run" if tried else "no K was run"
        return Answer.OPEN, f"{only}: a grid of one form needs two or more" + "".join(f"; {_shape(one)}" for one in own)
    text = "; ".join(_shape(one) for one in own)
    if unknown := _uncounted(own):
        return Answer.OPEN, f"{unknown}: {text}"
    does = {told: sorted({_bonus(one) for one in own if _does(one) is told}) for told in (True, False, None)}
    if not does[True] and not does[None]:
        return Answer.NO, f"no K of the grid spreads the sessions and keeps the overlap: {text}"
    if DEFAULT_K not in tried:
        answer = Answer.OPEN
    else:
        told = next(told for told in (True, None, False) if DEFAULT_K in does[told])
        answer = {True: Answer.YES, None: Answer.UNDECIDED, False: Answer.NO}[told]
    listed = ", ".join(f"{k:g}" for k in does[True]) or "none"
    missing = "" if DEFAULT_K in tried else f"K = {DEFAULT_K:g} was not run; "
    return answer, f"{missing}K = {listed} of {', '.join(f'{k:g}' for k in tried)} do: {text}"


def _d7(found: LoadFloor) -> tuple[Answer, str]:
    size = f"{found.sessions} sessions, {found.trials} {'trial' if found.trials == 1 else 'trials'}"
    if _reference(found) is None or not _bonuses(found):
        return Answer.OPEN, f"{size}: no difference to kv_aware without a fix was measured"
    if unknown := _uncounted(found.compared):
        return Answer.OPEN, f"{size}: {unknown}"
    named = [(one, name) for one in _bonuses(found) for name in TOLD_BY if name != "lost_share"]
    told = sum(one.verdict(name) in (Verdict.HIGHER, Verdict.LOWER) for one, name in named)
    text = f"{size}: {told} of {len(named)} differences (direct to D, overlap kept, TTFT p90) are told from none"
    if told == len(named):
        return Answer.YES, text
    return Answer.OPEN, f"{text}; whether twice the sessions tell the others needs a run of them beside"


def _q1d(found: LoadFloor) -> tuple[Answer, str]:
    moved = found.transport
    if not moved.failed:
        return Answer.OPEN, f"no transfer failed ({moved.asked} were asked for)"
    text = (
        f"{moved.failed} transfers failed; {moved.pairs_quarantined} pairs were quarantined ({moved.quarantined} "
        f"transfers refused), {moved.pairs_recovered} of them moved KV again"
    )
    if not moved.pairs_quarantined:
        return Answer.YES, f"{text}: at one failure each of those pairs would have been closed for good"
    return (Answer.YES if moved.pairs_recovered else Answer.UNDECIDED), text


def _does(one: FloorVariant) -> bool | None:
    """Whether it gives every D a share and keeps the overlap, but for what does not matter; None: it is not told."""
    found = one.differences.get("overlap_kept")
    keeps = None
    if found is not None and found.low is not None and found.high is not None:
        keeps = True if found.low >= -OVERLAP_WITHIN else False if found.high < -OVERLAP_WITHIN else None
    if one.spread is False or keeps is False:
        return False
    return True if one.spread and keeps else None


def _reference(found: LoadFloor) -> FloorVariant | None:
    return next((one for one in found.variants if one.label == found.reference), None)


def _bonuses(found: LoadFloor) -> list[FloorVariant]:
    return [one for one in found.compared if one.parameters.get(BONUS)]


def _is_alternative(one: FloorVariant) -> bool:
    """One of the table's other shapes: Q2.A, C, D, E, F, alone or together."""
    parts = one.fix.split(" + ")
    return one.fix != NO_FIX and all(part.startswith("Q2.") and not part.startswith("Q2.B") for part in parts)


def _bonus(one: FloorVariant) -> float:
    value = one.parameters.get(BONUS)
    return float(value) if isinstance(value, int | float) else 0.0


def _form(one: FloorVariant) -> object:
    return one.parameters.get("floor_form", FORMS[0])


def _uncounted(variants: Iterable[FloorVariant]) -> str:
    """Whose overlap kept is not known; empty where all of it is."""
    lacking = [f"{one.label} {one.counted} of {one.served}" for one in variants if not one.is_counted]
    if not lacking:
        return ""
    return f"the overlap kept is not known, as tokens were counted of too few requests ({', '.join(lacking)})"


def _failures(one: FloorVariant) -> str:
    lost = f", {one.lost_transfers} of {one.transfers} transfers failed or recomputed" if one.transfers else ""
    share = f" ({_percent(one.values['lost_share'])})" if one.transfers else ""
    return f"{one.label}: {one.failed_turns} of {one.turns} turns failed{lost}{share}"


def _shape(one: FloorVariant) -> str:
    return f"{one.label}: {', '.join(_numbers(one))}"


def _numbers(one: FloorVariant) -> Iterator[str]:
    even = 1 / one.instances
    least = _percent(one.values["least_share"])
    yield f"smallest share of the sessions {least} (even {even:.0%}, asked {NON_TRIVIAL * even:.0%})"
    mark = {Verdict.HIGHER: " (higher)", Verdict.LOWER: " (lower)", Verdict.NOT_DISTINGUISHABLE: " (n.d.)"}
    for name in ("direct_rate", "overlap_kept"):
        verdict = one.verdict(name)
        yield f"{TOLD_BY[name][0]} {_percent(one.values[name])}{'' if verdict is None else mark[verdict]}"
    ttft, verdict = one.values["ttft_p90_s"], one.verdict(TTFT_RATIO)
    yield f"TTFT p90 {ttft.text(3, 1e3)} ms{'' if verdict is None else mark[verdict]}"


def _percent(found: Estimate) -> str:
    return "-" if found.value is None else f"{found.value:.1%}"


def _points(found: Estimate) -> str:
    return "-" if found.value is None else found.points()
