"""The rules of D1, D3, D5, D6, D7, Q1 and Q1.E of specs/load_floor.md: what the bonus, or back-pressure, changes.

Pure functions of LoadFloor, by intervals: a difference whose interval covers zero answers nothing. A reason begins with
the intervals that decided, so that they are whole where a page cuts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from results.records.count import format_count
from results.records.estimate import Estimate
from results.records.percent import format_percent
from results.routing.load_floor import (
    BACK_PRESSURE,
    BONUS,
    NO_FIX,
    NON_TRIVIAL,
    TTFT_RATIO,
    FloorVariant,
    LoadFloor,
)
from results.routing.transport_rules import describe_difference, join_pairs
from results.statistics.judgement import Outcome, Verdict, describe_excluded, judged, withhold_bounds
from results.statistics.student import find_p_value

OVERLAP_WITHIN = 0.05
"""The bonus keeps the overlap where it loses at most this share of it; the specification states no number."""
FORMS = ("mean", "max")
"""Forms of the bonus."""
GATES = ("unowned", "per_worker")
"""Who gets it: `floor_gate` of kv_aware, its default first."""
DEFAULT_K = 200.0
FALL = 100 / 1054
"""The fall of the failures in the specification's validation plan: from 1054 to less than 100."""
DISTINGUISHED_BY = {
    "direct_rate": ("direct to D", Verdict.HIGHER, Verdict.LOWER),
    "overlap_kept": ("overlap kept", Verdict.HIGHER, Verdict.LOWER),
    TTFT_RATIO: ("TTFT p90", Verdict.LOWER, Verdict.HIGHER),
    "lost_share": ("transfers failed or recomputed", Verdict.LOWER, Verdict.HIGHER),
}
"""The numbers that rank two shapes: their names, and the verdicts that are better and worse."""
OF_FAILURES = {"lost_share": "transfers failed or recomputed", "completed_share": "turns completed"}
NO_PAIR = "it needs kv_aware with the bonus and without a fix in one run, under one load, alike in all else"
NO_PAIR_ALONE = (
    "it needs kv_aware with the bonus but without back-pressure, and without a fix, in one run, under one load, alike "
    "in all else"
)
NO_BACK_PRESSURE = "it needs kv_aware with back-pressure alone and without a fix in one run, under one load"


def judge_fewer_failures(floor: LoadFloor) -> tuple[Outcome, str]:
    """D1."""
    reference, fixed = _find_reference(floor), _list_bonuses_alone(floor)
    if reference is None or not fixed:
        return Outcome.OPEN, NO_PAIR_ALONE
    return _judge_failures(reference, fixed, "the bonus", _describe_fall(reference, fixed))


def judge_back_pressure(floor: LoadFloor) -> tuple[Outcome, str]:
    """Q1.E."""
    reference, paused = _find_reference(floor), _list_back_pressure(floor)
    if reference is None or not paused:
        return Outcome.OPEN, NO_BACK_PRESSURE
    return _judge_failures(reference, paused, "back-pressure")


def _judge_failures(
    reference: FloorVariant, fixed: Sequence[FloorVariant], fix: str, notes: Iterable[str] = ()
) -> tuple[Outcome, str]:
    """Whether arms with this fix lose fewer transfers or complete more turns than the reference, and are worse in
    neither."""
    counts = "; ".join((*map(_describe_failures, (reference, *fixed)), *notes))
    text = "; ".join((*_describe_changes(reference, fixed, OF_FAILURES), counts))
    fewer, more = Verdict.LOWER, Verdict.HIGHER
    lost, done = ([one.verdict(name) for one in fixed] for name in ("lost_share", "completed_share"))
    better, worse = fewer in lost or more in done, more in lost or fewer in done
    if better != worse:
        return (Outcome.HOLDS if better else Outcome.FAILS), text
    if not reference.failed_turns + reference.lost_transfers:
        return Outcome.OPEN, f"nothing failed without {fix}, so there was nothing for it to remove: {counts}"
    why = "better by one number and worse by another" if better else "not distinguishable"
    return Outcome.UNDECIDED, f"{why}: {text}"


def _describe_changes(reference: FloorVariant, fixed: Sequence[FloorVariant], names: Iterable[str]) -> Iterator[str]:
    """What each of these arms changes against the reference, with the intervals; distinguishable changes first."""

    def is_unclear(one: FloorVariant, name: str) -> bool:
        return one.verdict(name) in (None, Verdict.NOT_DISTINGUISHABLE)

    for one in sorted(fixed, key=lambda one: all(is_unclear(one, name) for name in names)):
        known = sorted((name for name in names if name in one.differences), key=lambda name: is_unclear(one, name))
        if known:
            changes = ", ".join(f"{OF_FAILURES[name]} {describe_difference(one.differences[name])}" for name in known)
            yield f"{one.label} against {reference.label}: {changes}"


def _describe_fall(reference: FloorVariant, fixed: Sequence[FloorVariant]) -> Iterator[str]:
    """The best share of lost transfers against the reference's, beside the fall that the specification hopes for."""
    before = reference.values["lost_share"].value
    after = [share for one in fixed if (share := one.values["lost_share"].value) is not None]
    if before and after:
        hoped = "below" if min(after) < FALL * before else "not below"
        yield f"at best {min(after) / before:.2g} of the lost share without it, {hoped} {FALL:.2g} (1054 -> < 100)"


def judge_shape(floor: LoadFloor) -> tuple[Outcome, str]:
    """D3."""
    reference, fixed = _find_reference(floor), _list_bonuses(floor)
    if reference is None or not fixed:
        return Outcome.OPEN, NO_PAIR
    others = [one for one in floor.compared if _is_alternative(one)]
    text = "; ".join(_describe_shape(one) for one in (*fixed, reference, *others))
    if unknown := _name_uncounted((reference, *fixed)):
        return Outcome.OPEN, f"{unknown}: {text}"
    if all(one.spread is False for one in fixed):
        return Outcome.FAILS, f"under every bonus some D got too few sessions: {text}"
    if all(_is_working(one) is False for one in fixed):
        return Outcome.FAILS, f"where it gave every D a share, it cost overlap: {text}"
    works = sorted((one for one in fixed if _is_working(one)), key=lambda one: _read_bonus(one) != DEFAULT_K)
    if reference.spread is not False or not works:
        why = "without the bonus no D stayed cold either" if reference.spread else "the intervals do not tell"
        return Outcome.UNDECIDED, f"{why}: {text}"
    answers = [_compare_with_others(one, reference, others) for one in works]
    outcome, why = next((answer for answer in answers if answer[0] == Outcome.HOLDS), answers[0])
    return outcome, f"{why}: {text}"


def _compare_with_others(
    one: FloorVariant, reference: FloorVariant, others: Sequence[FloorVariant]
) -> tuple[Outcome, str]:
    """A bonus that works: whether it is better than every alternative that works, and what it costs in TTFT."""
    working = [other for other in others if _is_working(other)]
    unclear = [other for other in others if _is_working(other) is None]
    ahead, behind, level = [], [], []
    for other in working:
        better, worse = _list_better_and_worse(one, other)
        if better and not worse:
            ahead.append(f"{other.label} (by {', '.join(better)})")
        elif worse and not better:
            behind.append(f"{other.label} (by {', '.join(worse)})")
        else:
            level.append(f"{other.label}{_exclude_ttft(one, other)}")
    slower = list(_list_slower(one, (reference, *working, *unclear)))
    alone = bool(others) and not working and not unclear
    parts = [
        f"better than {', '.join(ahead)}" if ahead else "",
        f"not distinguishable from {', '.join(level)}" if level else "",
        f"worse than {', '.join(behind)}" if behind else "",
        "none of the alternatives (Q2.A, C, D, E, F) was run" if not others else "",
        f"undecided whether {', '.join(other.label for other in unclear)} works" if unclear else "",
        "no alternative works" if alone else "",
        f"TTFT p90 worse than {', '.join(slower)}" if slower else "",
    ]
    yes = (bool(ahead) or alone) and not (level or behind or unclear or slower)
    text = f"{one.label} works; {'; '.join(part for part in parts if part)}"
    return (Outcome.HOLDS if yes else Outcome.UNDECIDED), text


def _exclude_ttft(one: FloorVariant, other: FloorVariant) -> str:
    """In parentheses: of two that are not distinguishable, the effects on TTFT p90 that their ratio excludes."""
    ratio = one.against.get(other.label, {}).get(TTFT_RATIO, Estimate(None))
    excluded = describe_excluded(ratio, none=1.0, both_sides=True)
    return f" (TTFT p90: {excluded})" if excluded else ""


def _list_better_and_worse(one: FloorVariant, other: FloorVariant) -> tuple[list[str], list[str]]:
    """The numbers by which the first is distinguishably better than the second, and those by which it is worse."""
    better, worse = list[str](), list[str]()
    for quantity, (_, good, bad) in DISTINGUISHED_BY.items():
        verdict = one.verdict(quantity, other.label)
        better += [_describe_difference(one, quantity, other.label)] if verdict == good else []
        worse += [_describe_difference(one, quantity, other.label)] if verdict == bad else []
    return better, worse


def _describe_difference(one: FloorVariant, quantity: str, other: str = "") -> str:
    """With its interval; to the reference or to the label `other`."""
    difference = (one.against.get(other, {}) if other else one.differences)[quantity]
    shown = f"{difference.text(3)} times" if quantity == TTFT_RATIO else difference.points()
    return f"{DISTINGUISHED_BY[quantity][0]} {shown}"


def _list_slower(one: FloorVariant, others: Iterable[FloorVariant]) -> Iterator[str]:
    """Those with a lower TTFT p90 by the interval of the ratio, also where that is a spread within launches."""
    for other in others:
        ratio = one.against.get(other.label, {}).get(TTFT_RATIO)
        if ratio is not None and (ratio.low or 0) > 1:
            launches = "" if judged(ratio, none=1.0) else ", within launches"
            yield f"{other.label} ({ratio.text(3)} times{launches})"


def judge_form(floor: LoadFloor) -> tuple[Outcome, str]:
    """D5."""
    pairs = pair_forms(floor)
    if not pairs:
        return Outcome.OPEN, 'both forms were not run at one K and one gate: set floor_form = "max" beside "mean"'
    return join_pairs([_judge_forms(mean, most) for mean, most in pairs])


def _judge_forms(mean: FloorVariant, most: FloorVariant) -> tuple[Outcome, str]:
    """By one pair of `pair_forms`."""
    text = f"{_describe_shape(mean)}; {_describe_shape(most)}"
    if unknown := _name_uncounted((mean, most)):
        return Outcome.OPEN, f"{unknown}: {text}"
    if mean.spread is None or most.spread is None:
        return Outcome.UNDECIDED, f"the intervals do not tell: {text}"
    if mean.spread != most.spread:
        return (Outcome.HOLDS if mean.spread else Outcome.FAILS), text
    if not mean.spread:
        return Outcome.UNDECIDED, f"neither spreads the sessions: {text}"
    better, worse = _list_better_and_worse(mean, most)
    if bool(better) == bool(worse):
        known = [name for name in DISTINGUISHED_BY if name in mean.against.get(most.label, {})]
        between = ", ".join(_describe_difference(mean, name, most.label) for name in known)
        versus = f"{mean.label} against {most.label}: {between}"
        why = "both spread the sessions, and neither is distinguishably better"
        return Outcome.UNDECIDED, f"{why}: {versus}{_exclude_ttft(mean, most)}; {text}"
    why = f"both spread the sessions, and {(mean if better else most).label} is better by {', '.join(better or worse)}"
    return (Outcome.HOLDS if better else Outcome.FAILS), f"{why}: {text}"


def pair_forms(floor: LoadFloor) -> list[tuple[FloorVariant, FloorVariant]]:
    """The form with the mean and the other one, of arms that differ in nothing else: K, gate and every other fix."""
    forms = {form: [one for one in _list_bonuses(floor) if _read_form(one) == form] for form in FORMS}
    both = product(forms["mean"], forms["max"])
    return [(mean, most) for mean, most in both if _leave_form_out(mean) == _leave_form_out(most)]


def _leave_form_out(one: FloorVariant) -> dict[str, object]:
    """Its parameters without the form, K and gate also where they are the defaults."""
    own = {**one.parameters, BONUS: _read_bonus(one), "floor_gate": _read_gate(one)}
    return {name: value for name, value in own.items() if name != "floor_form"}


def judge_default_k(floor: LoadFloor) -> tuple[Outcome, str]:
    """D6."""
    own = _find_grid(floor)
    tried = list_k(floor)
    if len(tried) < 2:
        only = f"only K = {tried[0]:g} was run with this form and gate" if tried else "no K was run"
        return Outcome.OPEN, "; ".join((f"{only}: a grid needs two or more", *map(_describe_shape, own)))
    text = "; ".join(_describe_shape(one) for one in sorted(own, key=lambda one: _read_bonus(one) != DEFAULT_K))
    if unknown := _name_uncounted(own):
        return Outcome.OPEN, f"{unknown}: {text}"
    by_answer = {
        works: sorted({_read_bonus(one) for one in own if _is_working(one) is works}) for works in (True, False, None)
    }
    if DEFAULT_K in tried and not by_answer[True] and not by_answer[None]:
        return Outcome.FAILS, f"no K of the grid spreads the sessions and keeps the overlap: {text}"
    if DEFAULT_K in by_answer[True] and DEFAULT_K in by_answer[False]:
        return Outcome.UNDECIDED, f"two arms with K = {DEFAULT_K:g} contradict each other: {text}"
    outcomes = {True: Outcome.HOLDS, None: Outcome.UNDECIDED, False: Outcome.FAILS}
    answer = next((outcomes[works] for works in outcomes if DEFAULT_K in by_answer[works]), Outcome.OPEN)
    listed = ", ".join(f"{k:g}" for k in by_answer[True]) or "none"
    missing = "" if DEFAULT_K in tried else f"K = {DEFAULT_K:g} was not run; "
    return answer, f"{missing}K = {listed} of {', '.join(f'{k:g}' for k in tried)} do: {text}"


def name_forms(floor: LoadFloor) -> list[str]:
    """The labels of `pair_forms`."""
    return [one.label for pair in pair_forms(floor) for one in pair]


def name_grid(floor: LoadFloor) -> list[str]:
    """The labels of the grid that D6 judges."""
    return [one.label for one in _find_grid(floor)]


def list_k(floor: LoadFloor) -> list[float]:
    """The K of the grid that D6 judges, ascending."""
    return sorted({_read_bonus(one) for one in _find_grid(floor)})


def count_default_k(floor: LoadFloor) -> int:
    """The arms with DEFAULT_K in the grid that D6 judges; 0 where it has no other K."""
    grid = _find_grid(floor)
    return sum(_read_bonus(one) == DEFAULT_K for one in grid) if len({_read_bonus(one) for one in grid}) > 1 else 0


def _find_grid(floor: LoadFloor) -> list[FloorVariant]:
    """The bonuses of the form and gate with the most K, in their order; a grid with DEFAULT_K goes first."""
    bonuses = _list_bonuses(floor)
    shapes = product(FORMS, GATES)
    grids = [[one for one in bonuses if (_read_form(one), _read_gate(one)) == shape] for shape in shapes]
    return sorted(max(grids, key=_rank_grid), key=_read_bonus)


def _rank_grid(grid: Iterable[FloorVariant]) -> tuple[bool, int]:
    """D6 asks for DEFAULT_K among several K."""
    tried = {_read_bonus(one) for one in grid}
    return len(tried) > 1 and DEFAULT_K in tried, len(tried)


def judge_sessions(floor: LoadFloor) -> tuple[Outcome, str]:
    """D7."""
    size = f"{floor.sessions} sessions, {format_count(floor.trials, 'trial', 'trials')}"
    reference, fixed = _find_reference(floor), _list_bonuses(floor)
    if reference is None or not fixed:
        return Outcome.OPEN, f"{size}: no difference to kv_aware without a fix was measured"
    if unknown := _name_uncounted((reference, *fixed)):
        return Outcome.OPEN, f"{size}: {unknown}"
    named = [(one, name) for one in fixed for name in DISTINGUISHED_BY if name != "lost_share"]
    unclear = [(one, name) for one, name in named if one.verdict(name) not in (Verdict.HIGHER, Verdict.LOWER)]
    kinds = "direct to D, overlap kept, TTFT p90"
    text = f"{len(named) - len(unclear)} of {len(named)} differences ({kinds}) are distinguishable from none"
    if not unclear:
        return Outcome.HOLDS, f"{size}: {text}; {_describe_least_clear(named)}"
    remedy = "whether twice the sessions decide the others needs a run with them"
    return Outcome.UNDECIDED, f"{size}: {text}; {_describe_least_clear(unclear)}; {remedy}"


def _describe_least_clear(named: Sequence[tuple[FloorVariant, str]]) -> str:
    """The difference to the reference with the largest p."""

    def find_p(pair: tuple[FloorVariant, str]) -> float:
        one, name = pair
        return find_p_value(one.differences[name], 1.0 if name == TTFT_RATIO else 0.0) or 0.0

    known = [(one, name) for one, name in named if name in one.differences]
    if not known:
        return f"not measured: {named[0][0].label}"
    one, name = max(known, key=find_p)
    return f"the least clear: {one.label}: {_describe_difference(one, name)}"


def judge_lossless(floor: LoadFloor) -> tuple[Outcome, str]:
    """Q1."""
    reference, fixed = _find_reference(floor), _list_bonuses_alone(floor)
    if reference is None or not fixed:
        return Outcome.OPEN, NO_PAIR_ALONE
    counts = "; ".join(map(_describe_failures, (*fixed, reference)))
    if not reference.lost_transfers:
        return Outcome.OPEN, f"no transfer was lost without the bonus, so there was nothing for it to remove: {counts}"
    text = "; ".join((*_describe_changes(reference, fixed, ["lost_share"]), counts))
    lossless = [one.label for one in fixed if not one.lost_transfers and one.verdict("lost_share") == Verdict.LOWER]
    if lossless:
        return Outcome.HOLDS, f"no transfer was lost under {', '.join(lossless)}: {text}"
    least = [withhold_bounds(one.values["lost_share"]).low for one in fixed]
    if all(low is not None and low > 0 for low in least):
        return Outcome.FAILS, f"transfers were lost under every bonus, so the transport needs a fix too: {counts}"
    return Outcome.UNDECIDED, f"not distinguishable: {text}"


def name_bonuses(floor: LoadFloor) -> list[str]:
    """The labels with a bonus, and the one without a fix that they are held against."""
    return [floor.reference, *(one.label for one in _list_bonuses(floor))]


def name_bonuses_alone(floor: LoadFloor) -> list[str]:
    """As `name_bonuses`, without those beside back-pressure."""
    return [floor.reference, *(one.label for one in _list_bonuses_alone(floor))]


def name_shapes(floor: LoadFloor) -> list[str]:
    """As `name_bonuses`, with the alternatives to the bonus."""
    return [*name_bonuses(floor), *(one.label for one in floor.compared if _is_alternative(one))]


def name_back_pressure(floor: LoadFloor) -> list[str]:
    """The labels with back-pressure alone, and the one without a fix that they are held against."""
    return [floor.reference, *(one.label for one in _list_back_pressure(floor))]


def count_compared(floor: LoadFloor) -> int:
    """Bonuses that can be held against kv_aware without a fix."""
    return len(_list_bonuses(floor)) if floor.reference else 0


def count_compared_alone(floor: LoadFloor) -> int:
    """As `count_compared`, without those beside back-pressure."""
    return len(_list_bonuses_alone(floor)) if floor.reference else 0


def count_back_pressure(floor: LoadFloor) -> int:
    """Arms with back-pressure alone that can be held against kv_aware without a fix."""
    return len(_list_back_pressure(floor)) if floor.reference else 0


def _is_working(one: FloorVariant) -> bool | None:
    """Whether it gives every D a share and keeps the overlap within OVERLAP_WITHIN; None: the intervals allow both."""
    overlap = withhold_bounds(one.differences.get("overlap_kept", Estimate(None)))
    keeps = overlap.low is not None and overlap.high is not None and overlap.low >= -OVERLAP_WITHIN
    costs = overlap.low is not None and overlap.high is not None and overlap.high < -OVERLAP_WITHIN
    if one.spread is False or costs:
        return False
    return True if one.spread and keeps else None


def _find_reference(floor: LoadFloor) -> FloorVariant | None:
    return next((one for one in floor.variants if one.label == floor.reference), None)


def _list_bonuses(floor: LoadFloor) -> list[FloorVariant]:
    return [one for one in floor.compared if one.parameters.get(BONUS)]


def _list_bonuses_alone(floor: LoadFloor) -> list[FloorVariant]:
    """Without those beside back-pressure, which is a fix of Q1 too."""
    return [one for one in _list_bonuses(floor) if BACK_PRESSURE not in one.fix.split(" + ")]


def _list_back_pressure(floor: LoadFloor) -> list[FloorVariant]:
    return [one for one in floor.compared if one.fix == BACK_PRESSURE]


def _is_alternative(one: FloorVariant) -> bool:
    """One of the table's other shapes: Q2.A, C, D, E, F, alone or together."""
    parts = one.fix.split(" + ")
    return one.fix != NO_FIX and all(part.startswith("Q2.") and not part.startswith("Q2.B") for part in parts)


def _read_bonus(one: FloorVariant) -> float:
    value = one.parameters.get(BONUS)
    return float(value) if isinstance(value, int | float) else 0.0


def _read_form(one: FloorVariant) -> object:
    return one.parameters.get("floor_form", FORMS[0])


def _read_gate(one: FloorVariant) -> object:
    return one.parameters.get("floor_gate", GATES[0])


def _name_uncounted(variants: Iterable[FloorVariant]) -> str:
    """Names the variants whose overlap kept is not known; empty where there is none."""
    lacking = [f"{one.label} {one.counted} of {one.served}" for one in variants if not one.is_counted]
    if not lacking:
        return ""
    return f"the overlap kept is not known, as tokens were counted of too few requests ({', '.join(lacking)})"


def _describe_failures(one: FloorVariant) -> str:
    lost = f", {one.lost_transfers} of {one.transfers} transfers failed or recomputed" if one.transfers else ""
    share = f" ({_format_share(one.values['lost_share'])})" if one.transfers else ""
    return f"{one.label}: {one.failed_turns} of {one.turns} turns failed{lost}{share}"


def _describe_shape(one: FloorVariant) -> str:
    return f"{one.label}: {', '.join(_list_numbers(one))}"


def _list_numbers(one: FloorVariant) -> Iterator[str]:
    """What decides whether it works comes first: the smallest share and the overlap kept."""
    even = 1 / one.instances
    yield (
        f"smallest share of the sessions {_format_share(one.values['least_share'])} (even {format_percent(even)}, "
        f"asked {format_percent(NON_TRIVIAL * even)})"
    )
    for name in ("overlap_kept", "direct_rate"):
        yield f"{DISTINGUISHED_BY[name][0]} {_format_share(one.values[name])}{_describe_change(one, name)}"
    yield f"TTFT p90 {one.values['ttft_p90_s'].text(3, 1e3)} ms{_describe_change(one, TTFT_RATIO)}"


def _describe_change(one: FloorVariant, name: str) -> str:
    """On which side of the reference the interval of the difference is, and that; empty where there is no verdict."""
    words = {Verdict.HIGHER: "higher", Verdict.LOWER: "lower", Verdict.NOT_DISTINGUISHABLE: "n.d."}
    verdict = one.verdict(name)
    if verdict is None:
        return ""
    difference = one.differences[name]
    shown = f"{difference.text(3)} times" if name == TTFT_RATIO else difference.points()
    return f" ({words[verdict]}: {shown})"


def _format_share(share: Estimate) -> str:
    """`70.0 % [65.1, 74.9]`; without brackets where there is no interval, `-` where it is unknown."""
    if share.value is None:
        return "-"
    if share.low is None or share.high is None:
        return format_percent(share.value, 1)
    return f"{format_percent(share.value, 1)} [{share.low * 100:.1f}, {share.high * 100:.1f}]"
