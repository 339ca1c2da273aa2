"""How one number decides a claim: by its direction, by a limit, and not at all where the run is too small.

Beside what the interval decides is what the value alone says, and what the specification states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from results.records.estimate import Estimate, figure
from results.records.percent import format_percent
from results.routing.pairs import Pair, find_difference, find_pair
from results.routing.scale import Lack
from results.statistics.judgement import (
    Judgement,
    Outcome,
    Verdict,
    describe_excluded,
    judged,
    leave_undecided,
    take_point,
    withhold_bounds,
)
from results.statistics.student import find_p_value
from results.statistics.trials import MIN_PAIRED

NO_TRIALS = f"no interval over {MIN_PAIRED} trials or more"
SHARES = "difference of shares"
"""`Judgement.quantity` where shares are subtracted."""


@dataclass(frozen=True, slots=True)
class Specified:
    """What a specification states of a claim."""

    text: str
    size: tuple[float, float] | None = None
    """From, to: of the ratio or the difference that the claim is judged by; None = it states no such number."""


def _specify_ratio(text: str, first: float, second: float) -> Specified:
    return Specified(text, (first / second, first / second))


def _specify_shares(text: str, first: float, second: float) -> Specified:
    """`first` and `second`: shares, of which the claim is judged by the difference."""
    return Specified(text, (first - second, first - second))


SPECIFIED: Mapping[str, Specified] = {
    "C1: dispatch coupling": Specified("8 times the trace's time under load-balance"),
    "C3: EAR dominates": Specified("of its prototype: TTFT p90 7.35 s (sticky 18.02 s), APC 79.4 % (sticky 77.2 %)"),
    "5.4: EAR has the least service time": Specified("no number"),
    "3.1: load balance loses locality": _specify_shares("56.9 % and 77.2 %", 0.569, 0.772),
    "3.2: static pools meet the KV wall": Specified("62 to 72 times", (62.0, 72.0)),
    "3.2: static pools meet the KV wall, 6P+2D": Specified(
        "no number of its own; figure 4b has it beyond the wall too"
    ),
    "3.3: sticky slows every instance": _specify_ratio("20.3 s and 10.3 s", 20.3, 10.3),
    "ablation: affinity only keeps locality": Specified("77.2 % (sticky) and 79.4 %"),
    "ablation: affinity only interferes": Specified("twice the interference", (2.0, 2.0)),
    "log: LMetric has soft affinity": _specify_shares("56.9 % and 54.1 % (specs/ear 3.1)", 0.569, 0.541),
    "log: unified keeps more than sticky": _specify_shares("79.4 % and 77.2 % (specs/ear 3.1)", 0.794, 0.772),
    "log: LMetric places like unified": _specify_shares(
        "similar placements; 56.9 % and 79.4 % (specs/ear 3.1)", 0.569, 0.794
    ),
    "log: unified before LMetric, TTFT p90": _specify_ratio(
        "8.034 s and 9.331 s, -13.9 %, of unified's predecessor", 8.034, 9.331
    ),
    "log: unified gains little": _specify_ratio("-13.9 %, of unified's predecessor", 8.034, 9.331),
    "log: unified before LMetric, E2E mean": _specify_ratio(
        "17.831 s and 18.204 s, -2.0 %, of unified's predecessor", 17.831, 18.204
    ),
    "log: unified before LMetric, E2E p90": _specify_ratio(
        "37.073 s and 39.438 s, -6.0 %, of unified's predecessor", 37.073, 39.438
    ),
    "log: LMetric before linear, TTFT p90": _specify_ratio("9.331 s and 16.058 s", 9.331, 16.058),
    "log: LMetric before linear, E2E p90": _specify_ratio("39.438 s and 52.292 s", 39.438, 52.292),
    "log: LMetric before sticky": _specify_ratio("9.331 s, and 18.02 s in specs/ear 5.2", 9.331, 18.02),
    "log: LMetric before load_only": Specified("no number"),
}
"""The numbers of specs/ear (1, 3.1 to 3.3, 5.2 to 5.4) and specs/routing_log, by the claim's name.

The log's numbers of unified are of approach_a, which it replaced, as their texts say. It has none of unified itself: a
gain of 2 % takes three to five paired trials. C3 and "affinity only keeps locality" have no size: the numbers are those
of a prototype without migration and of sticky.
"""


def compare_policies(pairs: Sequence[Pair], first: str, second: str, name: str) -> tuple[Estimate, float]:
    """The number to test, and its value under no effect: the ratio of times and 1, or the difference and 0."""
    row = find_pair(pairs, first, second, name) if first and second else None
    if row is None:
        return find_difference(pairs, first, second, name), 0.0
    return (row.difference, 0.0) if row.ratio is None else (row.ratio, 1.0)


def gate_claim(claim: Judgement, lacks: Lack) -> Judgement:
    """A claim that the run is too small for is open, whatever its numbers say.

    Where the data leave it open it stays in the family that is corrected together, as one that decides at no level
    (p = 1): the size of the family must not depend on the data. Where the plan or its trace does (`Lack.by_plan`), it
    was never tested and is not in the family.
    """
    if not lacks:
        return claim
    p = None if lacks.by_plan or claim.p is None else 1.0
    return replace(claim, outcome=Outcome.OPEN, reason=lacks.reason, label=lacks.label, p=p, needs=lacks.needs)


def judge_direction(
    name: str,
    claim: str,
    tested: tuple[Estimate, float],
    expected: Verdict,
    *,
    share: bool = False,
    is_tested: bool = True,
) -> Judgement:
    """`tested`: as `compare_policies` returns it; `share`: it is a difference of shares; `is_tested`: the run suffices
    for the claim, so that its interval may be compared with the specified size."""
    measured, none = tested
    verdict = judged(measured, none)
    if verdict is None:
        outcome, reason = leave_undecided(measured), measured.reason or NO_TRIALS
    elif verdict == Verdict.NOT_DISTINGUISHABLE:
        outcome, reason = Outcome.UNDECIDED, _allow_both(tested, share)
    else:
        outcome = Outcome.HOLDS if verdict == expected else Outcome.FAILS
        reason = f"distinguishably {verdict}" + (f": {measured.points()}" if share else "")
    rule = f"holds where it is distinguishably {expected} (times: their ratio), fails where it is the opposite"
    quantity = "ratio" if none else SHARES if share else "difference in seconds" if measured.value is not None else ""
    point = _describe_point(name, tested, expected, share=share, is_tested=is_tested)
    p = find_p_value(measured, none)
    return Judgement(name, claim, rule, outcome, reason, measured, quantity=quantity, p=p, point=point)


def judge_within(
    name: str, claim: str, tested: tuple[Estimate, float], within: float, *, is_tested: bool = True
) -> Judgement:
    """That a number is not below no effect by more than `within` (of a ratio: this share); `tested`, `is_tested`: as in
    `judge_direction`."""
    measured, none = tested
    limit = none - within
    from_limit = measured.transform(lambda value: value / limit if none else value - limit)
    verdict = judged(from_limit, none)
    text = f"{measured.text(3)} times" if none else measured.points()
    point = ""
    if measured.value is not None:
        shown = _show_value(tested, share=not none)
        point = state_point(name, measured.value >= limit, shown, measured if is_tested else None)
    if verdict is None or measured.low is None or measured.high is None:
        outcome, reason = leave_undecided(measured), measured.reason or NO_TRIALS
    elif verdict == Verdict.HIGHER:
        below = f"at most {format_percent(none - measured.low, 1)} below" if measured.low < none else "not below"
        outcome, reason = Outcome.HOLDS, f"{below}: {text}"
    elif verdict == Verdict.LOWER:
        outcome, reason = Outcome.FAILS, f"at least {format_percent(none - measured.high, 1)} below: {text}"
    else:
        outcome, reason = Outcome.UNDECIDED, _allow_both(tested, share=not none, text=text)
    of, above = ("ratio", figure(limit, 2)) if none else ("difference", f"-{format_percent(within)}")
    return Judgement(
        name,
        claim,
        f"holds where the interval of the {of} is above {above}, fails where it is below",
        outcome,
        reason,
        measured,
        quantity="ratio" if none else SHARES,
        p=find_p_value(from_limit, none),
        point=point,
    )


def _allow_both(tested: tuple[Estimate, float], share: bool, text: str = "") -> str:
    """Why a claim is undecided: what its interval excludes, else `text`; `share`: as in `judge_direction`."""
    why = name_excluded(tested, share) or text
    return f"the interval allows both: {why}" if why else "the trials agree to the last digit: an interval has no width"


def name_excluded(tested: tuple[Estimate, float], share: bool) -> str:
    """The effects that a claim in either direction excludes; empty where the interval does not cover no effect."""
    measured, none = tested
    return describe_excluded(measured, none=none, unit="%" if none else "pp" if share else "ms", both_sides=True)


def _describe_point(
    name: str, tested: tuple[Estimate, float], expected: Verdict, *, share: bool, is_tested: bool
) -> str:
    """As `judge_direction`, by the value alone; empty without one."""
    measured, none = tested
    if measured.value is None:
        return ""
    holds = judged(take_point(measured), none) == expected
    return state_point(name, holds, _show_value(tested, share), measured if is_tested else None)


def _show_value(tested: tuple[Estimate, float], share: bool) -> str:
    """Without its interval; `share`: as in `judge_direction`."""
    measured, none = tested
    if share or measured.value is None:
        return replace(measured, low=None, high=None).points()
    return f"{figure(measured.value, 3)} times" if none else f"{1e3 * measured.value:+.1f} ms"


def state_point(name: str, holds: bool, shown: str, measured: Estimate | None = None) -> str:
    """What the value alone says of a claim, beside what the specification states, and whether the interval allows it.

    `measured`: of the claim, by which the specified size is compared; None = the run does not test the claim.
    """
    stated = SPECIFIED.get(name)
    specified = "" if stated is None else f" (specified: {stated.text}{_place_size(stated.size, measured)})"
    return f"{Outcome.HOLDS if holds else Outcome.FAILS}: {shown}{specified}"


def _place_size(size: tuple[float, float] | None, measured: Estimate | None) -> str:
    """Whether the interval allows the specified size; empty where there is no interval over launches, or no size.

    Launches that agree to the last digit place nothing: their interval has no width.
    """
    known = Estimate(None) if measured is None else withhold_bounds(measured)
    if size is None or known.low is None or known.high is None or known.low == known.high:
        return ""
    allowed = known.low <= size[1] and size[0] <= known.high
    return f"; {'inside' if allowed else 'outside'} the interval"
