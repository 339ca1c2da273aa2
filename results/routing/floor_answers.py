"""The decision points of specs/load_floor.md, each answered from what a run measured, or open with what is missing.

Pure functions of LoadFloor. The intervals decide: a difference that its interval does not tell from none is no answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from results.routing.load_floor import NO_FIX, NON_TRIVIAL, FloorVariant, LoadFloor
from results.statistics import Estimate
from results.tax import Verdict

OVERLAP_WITHIN = 0.05
"""Overlap-driven wins survive where at most so much less of the overlap is kept; the specification states no number."""
FORMS = ("mean", "max")
"""Of the bonus."""


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
        FloorAnswer("D2", "a transfer timeout of 120 s instead of 30?", "yes", *_q1c(found)),
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
    before = reference.failed_turns + reference.failed_transfers
    text = "; ".join(_failures(one) for one in (reference, *fixed))
    if not before:
        return Answer.OPEN, f"nothing failed without the bonus, so there was nothing for it to remove: {text}"
    best = min(one.failed_turns + one.failed_transfers for one in fixed)
    told = [one.verdict("completed_share") for one in fixed]
    if Verdict.HIGHER in told and Verdict.LOWER not in told:
        return Answer.YES, text
    if Verdict.LOWER in told and Verdict.HIGHER not in told:
        return Answer.NO, text
    return Answer.UNDECIDED, f"{before} failures without the bonus, at best {best} with it, not told apart: {text}"


def _q1c(found: LoadFloor) -> tuple[Answer, str]:
    moved = found.transport
    if not moved.transferred and not moved.timed_out:
        return Answer.OPEN, "no KV was moved in this run" if not moved.asked else "no transfer went well or timed out"
    longest = "" if moved.longest_s is None else f", the longest in {moved.longest_s:.3g} s"
    text = (
        f"{moved.transferred} of {moved.asked} transfers went well{longest}; {moved.over_30_s} took more than 30 s; "
        f"{moved.timed_out} timed out"
    )
    if moved.over_30_s:
        return Answer.YES, f"{text}: at 30 s those would have failed"
    if moved.timed_out:
        return Answer.UNDECIDED, f"{text}: how long those would have taken was not seen"
    return Answer.UNDECIDED, f"{text}: the limit made no difference in this run"


def _d3(found: LoadFloor) -> tuple[Answer, str]:
    reference, fixed = _reference(found), _bonuses(found)
    if reference is None or not fixed:
        return Answer.OPEN, "it needs kv_aware with the bonus and without in one run"
    others = [one for one in found.variants if one.fix != NO_FIX and one not in fixed]
    text = "; ".join(_shape(one) for one in (reference, *fixed, *others))
    missing = "" if others else "; none of the alternatives (Q2.A, C, D, E, F) was run"
    if reference.spread is False and any(_does(one) for one in fixed):
        return Answer.YES, f"{text}{missing}"
    if all(one.spread is False for one in fixed):
        return Answer.NO, f"some D stayed without a share worth the name under every bonus: {text}{missing}"
    if all(_does(one) is False for one in fixed):
        return Answer.NO, f"where it gave every D a share, it cost overlap: {text}{missing}"
    why = "without the bonus no D stayed cold either" if reference.spread else "the intervals do not tell"
    return Answer.UNDECIDED, f"{why}: {text}{missing}"


def _d4(found: LoadFloor) -> tuple[Answer, str]:
    refused = sum(one.rejects for one in found.variants)
    moved = sum(one.reject_moves for one in found.variants)
    held = sum(one.held for one in found.variants)
    text = f"{refused} picks of sessions that some instance had refused, {moved} sent elsewhere for it, {held} held"
    if not refused:
        return Answer.OPEN, f"refusals are counted where they happen, and there was none: {text}"
    return (Answer.YES if moved else Answer.UNDECIDED), text


def _d5(found: LoadFloor) -> tuple[Answer, str]:
    forms = {
        form: [one for one in _bonuses(found) if one.parameters.get("floor_form", "mean") == form] for form in FORMS
    }
    pairs = [
        (mean, most)
        for mean in forms["mean"]
        for most in forms["max"]
        if mean.parameters.get("load_floor_bonus") == most.parameters.get("load_floor_bonus")
    ]
    if not pairs:
        return Answer.OPEN, 'both forms at one K were not run: set floor_form = "max" beside "mean"'
    mean, most = pairs[0]
    text = f"{_shape(mean)}; {_shape(most)}"
    if mean.spread is None or most.spread is None:
        return Answer.UNDECIDED, f"the intervals do not tell: {text}"
    if mean.spread == most.spread:
        alike = "both spread the sessions alike" if mean.spread else "neither spreads them"
        return Answer.UNDECIDED, f"{alike}: {text}"
    return (Answer.YES if mean.spread else Answer.NO), text


def _d6(found: LoadFloor) -> tuple[Answer, str]:
    own = sorted(_bonuses(found), key=_bonus)
    tried = sorted({_bonus(one) for one in own})
    if len(tried) < 2:
        only = f"only K = {tried[0]:g} was run" if tried else "no K was run"
        return Answer.OPEN, f"{only}: a grid needs two or more" + "".join(f"; {_shape(one)}" for one in own)
    text = "; ".join(_shape(one) for one in own)
    does = {told: sorted({_bonus(one) for one in own if _does(one) is told}) for told in (True, False, None)}
    if not does[True] and not does[None]:
        return Answer.NO, f"no K of the grid spreads the sessions and keeps the overlap: {text}"
    answer = next(
        (
            said
            for said, told in ((Answer.YES, True), (Answer.UNDECIDED, None), (Answer.NO, False))
            if 200 in does[told]
        ),
        Answer.UNDECIDED,
    )
    listed = ", ".join(f"{k:g}" for k in does[True]) or "none"
    return answer, f"K = {listed} of {', '.join(f'{k:g}' for k in tried)} do: {text}"


def _d7(found: LoadFloor) -> tuple[Answer, str]:
    size = f"{found.sessions} sessions, {found.trials} {'trial' if found.trials == 1 else 'trials'}"
    named = [(one, name) for one in _bonuses(found) for name in ("direct_rate", "overlap_kept", "ttft_p90_s")]
    verdicts = [verdict for one, name in named if (verdict := one.verdict(name)) is not None]
    if not verdicts:
        return Answer.OPEN, f"{size}: no difference to kv_aware without a fix was measured"
    told = sum(verdict in (Verdict.HIGHER, Verdict.LOWER) for verdict in verdicts)
    text = f"{size}: {told} of {len(verdicts)} differences (direct to D, overlap kept, TTFT p90) are told from none"
    if told == len(verdicts):
        return Answer.YES, text
    return Answer.UNDECIDED, f"{text}; more sessions or trials may tell the others, or there is nothing to tell"


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
    return [one for one in found.variants if one.parameters.get("load_floor_bonus")]


def _bonus(one: FloorVariant) -> float:
    value = one.parameters.get("load_floor_bonus")
    return float(value) if isinstance(value, int | float) else 0.0


def _failures(one: FloorVariant) -> str:
    moved = f", {one.failed_transfers} of {one.transfers} transfers" if one.transfers else ""
    return f"{one.label}: {one.failed_turns} of {one.turns} turns failed{moved}"


def _shape(one: FloorVariant) -> str:
    return f"{one.label}: {', '.join(_numbers(one))}"


def _numbers(one: FloorVariant) -> Iterator[str]:
    even = 1 / one.instances
    least = _percent(one.values["least_share"])
    yield f"smallest share of the sessions {least} (even {even:.0%}, asked {NON_TRIVIAL * even:.0%})"
    mark = {Verdict.HIGHER: " (higher)", Verdict.LOWER: " (lower)", Verdict.NOT_DISTINGUISHABLE: " (n.d.)"}
    for name, title in (("direct_rate", "direct to D"), ("overlap_kept", "overlap kept")):
        verdict = one.verdict(name)
        yield f"{title} {_percent(one.values[name])}{'' if verdict is None else mark[verdict]}"
    ttft, verdict = one.values["ttft_p90_s"], one.verdict("ttft_p90_s")
    yield f"TTFT p90 {ttft.text(3, 1e3)} ms{'' if verdict is None else mark[verdict]}"


def _percent(found: Estimate) -> str:
    return "-" if found.value is None else f"{found.value:.1%}"
