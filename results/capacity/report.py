"""The report of a search for the fewest instances: its page, its tables, and its limits."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from results.capacity.analyze import CapacityAnalysis, PolicyCapacity
from results.capacity.search import Assessed, Size, choose_best_split, describe_withheld
from results.capacity.slo import Limit, name_limit
from results.records.count import format_count
from results.records.estimate import figure
from results.records.percent import format_percent
from results.report.content import ReportText
from results.report.document import describe_engine
from results.report.engine_gates import describe_gates, make_gates_table
from results.report.page import OpenQuestion, Page, PageAnswer, fit_page
from results.report.table import Column, Table, make_gap_table, make_table
from results.statistics.estimates import LEVEL
from results.statistics.judgement import TRIALS_REMEDY, Outcome
from results.statistics.trials import MIN_PAIRED

FIGURE = 1
_OBJECTIVE = {Outcome.HOLDS: "holds", Outcome.FAILS: "misses", Outcome.UNDECIDED: "undecided"}
_VERDICTS = {
    Outcome.HOLDS: ("holds it", "hold it"),
    Outcome.FAILS: ("misses it", "miss it"),
    Outcome.UNDECIDED: ("is undecided", "are undecided"),
}
"""Of one instance, and of more."""
_SHOWN = _VERDICTS | {
    Outcome.HOLDS: ("meets every limit", "meet every limit"),
    Outcome.FAILS: ("misses a limit", "miss a limit"),
}
"""The same of traces that are too few for a verdict."""


def name_outcome(point: Assessed) -> str:
    """As tables and files write it: a size misses the objective where the rule fails."""
    return _OBJECTIVE[point.verdict]


def build_page(analysis: CapacityAnalysis) -> Page:
    answers, questions = list[PageAnswer](), list[OpenQuestion]()
    for policy in sorted(analysis.policies, key=_rank_policy):
        text = describe_answer(policy)
        if policy.answer.unfinished is not None or policy.answer.fewest is None:
            unfinished = policy.answer.unfinished is not None
            outcome = Outcome.OPEN if unfinished else Outcome.UNDECIDED
            questions.append(OpenQuestion(policy.label, text, _find_remedy(policy), FIGURE, outcome.value))
        elif analysis.traces < MIN_PAIRED:
            seen = f"{_describe_traces(analysis)} at each point: another trace of the same load may differ. {text}"
            questions.append(OpenQuestion(policy.label, seen, TRIALS_REMEDY, FIGURE))
        else:
            answers.append(PageAnswer(policy.label, policy.answer.fewest.phrase, text, FIGURE))
    gaps, policies = len(analysis.gaps), format_count(len(analysis.policies), "policy", "policies")
    page = Page(
        question=f"SIMULATED: how few instances hold {analysis.slo}?",
        setting=(
            f"Profile {analysis.facts.label}{describe_engine(analysis.facts)}: "
            f"{policies}, {_describe_traces(analysis)} at each point. {_describe_brackets(analysis)}",
            describe_gates(analysis.engine_gates),
        ),
        noise="Noise floor: none; nothing is measured, and equal points have equal numbers.",
        answers=tuple(answers),
        undecided=tuple(questions),
        trouble=f"{format_count(gaps, 'gap', 'gaps')}: {analysis.gaps[0].reason}" if gaps else "",
    )
    return fit_page(page)


def _rank_policy(policy: PolicyCapacity) -> int:
    """Sort key: the number of instances."""
    fewest = policy.answer.fewest
    return policy.search.most + 1 if fewest is None else fewest.instances


def describe_answer(policy: PolicyCapacity) -> str:
    """A few clauses; every number with its interval."""
    answer = policy.answer
    if answer.unfinished is not None:
        return f"the search is not over: a point of {answer.unfinished.phrase} is missing."
    if answer.fewest is None:
        return f"{_describe_none(policy)}."
    held = policy.points[answer.fewest]
    parts = [f"{answer.fewest.phrase} {_state_outcome(answer.fewest, held)} ({_describe_values(held)})"]
    fewer = answer.fewest.instances - 1
    if any(size.instances == fewer for size in policy.points):
        below = choose_best_split(policy.points, fewer)
        point = policy.points[below]
        parts.append(f"{below.text} {_state_outcome(below, point)} ({_describe_values(point)})")
    if answer.possible is not None and answer.possible != answer.fewest:
        parts.append(f"undecided from {answer.possible.text} on")
    if policy.needed.low is not None:
        parts.append(f"needed: {describe_needed(policy)}")
    if answer.not_monotone:
        sizes = ", ".join(size.text for size in answer.not_monotone)
        parts.append(f"not monotone: of the larger sizes {sizes} do not hold it")
    if why := describe_withheld(held.traces):
        parts.append(f"undecided: {why}")
    return f"{'; '.join(parts)}."


def _describe_none(policy: PolicyCapacity) -> str:
    """That no size holds the objective."""
    none = f"no size of up to {Size(policy.search.most).phrase}"
    if not policy.points:
        return f"{none} holds it"
    largest = choose_best_split(policy.points, max(policy.points).instances)
    point, possible = policy.points[largest], policy.answer.possible
    why = describe_withheld(point.traces)
    at = f"at {largest.text}, {_describe_values(point)}"
    if why:
        return f"{none} meets every limit: {at}; undecided: {why}"
    return f"{none} holds it: {at}" + ("" if possible is None else f"; undecided from {possible.text} on")


def describe_needed(policy: PolicyCapacity) -> str | None:
    """The number of instances with its interval, or why it has none; None where every size misses the objective."""
    needed = policy.needed
    if needed.value is None and needed.low is None:
        return None
    if needed.low is None:
        return f"{needed.value:g} (no interval: {needed.reason})"
    value, low, high = ("?" if number is None else f"{number:g}" for number in (needed.value, needed.low, needed.high))
    why = "" if needed.high is not None else f" ({needed.reason})"
    return f"{value} [{low}, {high}] {needed.basis}{why}"


def _state_outcome(size: Size, point: Assessed) -> str:
    """The verdict, or what the traces show where they are too few for one."""
    one, more = (_SHOWN if describe_withheld(point.traces) else _VERDICTS)[point.outcome]
    return one if size.instances == 1 else more


def _describe_values(point: Assessed) -> str:
    texts = []
    for name, estimate in point.estimates.items():
        why = "" if estimate.low is not None else f" (no interval: {estimate.reason})"
        shown = "never reached" if estimate.value is None else f"{estimate.text(3)} s"
        texts.append(f"{name_limit(name)} {shown}{why}")
    return ", ".join(texts)


def _find_remedy(policy: PolicyCapacity) -> str:
    if policy.answer.unfinished is not None:
        return "`tracon resume`, or `tracon retry` where a cell failed"
    return f"a search beyond {Size(policy.search.most).phrase} (`--max-instances N`)"


def _describe_traces(analysis: CapacityAnalysis) -> str:
    if analysis.distinct_traces >= analysis.traces or not analysis.distinct_traces:
        return format_count(analysis.traces, "trace", "traces")
    return f"{analysis.traces} replays of one trace, which differ by the noise of single steps alone,"


def _describe_brackets(analysis: CapacityAnalysis) -> str:
    if analysis.traces < MIN_PAIRED:
        return f"No brackets: an interval takes {MIN_PAIRED} traces (`--trials {MIN_PAIRED}`)."
    return f"Brackets hold {format_percent(LEVEL)} intervals over the traces."


_ANSWERS: tuple[Column[PolicyCapacity], ...] = (
    Column("policy", lambda policy: policy.label),
    Column("fewest that hold", lambda policy: _show_size(policy.answer.fewest)),
    Column("instances needed", describe_needed),
    Column("undecided from", lambda policy: _show_size(policy.answer.possible)),
    Column("points", lambda policy: str(len(policy.points))),
    Column("what it rests on", describe_answer),
)
_NEEDED = (
    "Instances needed: the fewest at which the mean of each percentile over the traces meets its limit. Fewer than the "
    "brackets hold miss the objective, their upper end holds it, and nothing between is known to. `?`: no size does."
)


def _note_needed(analysis: CapacityAnalysis) -> str:
    why = describe_withheld(analysis.traces)
    return f"{_NEEDED} Undecided: {why}; the sizes are those of the search's own comparison." if why else _NEEDED


def _show_size(size: Size | None) -> str | None:
    return None if size is None else size.text


def build_report(analysis: CapacityAnalysis) -> ReportText:
    seconds = [one.simulation_s for policy in analysis.policies for rows in policy.records.values() for one in rows]
    took = f" A point took {figure(statistics.median(seconds), 2)} s of the host (median)." if seconds else ""
    return ReportText(
        f"The fewest instances that hold {analysis.slo}, for each policy{describe_engine(analysis.facts)}.{took}",
        (
            make_gates_table(analysis.engine_gates),
            make_table(
                "Fewest instances", _ANSWERS, sorted(analysis.policies, key=_rank_policy), _note_needed(analysis)
            ),
            _build_points(analysis),
            *([make_gap_table(analysis.gaps)] if analysis.gaps else []),
        ),
        tuple(_list_limits(analysis)),
    )


def _build_points(analysis: CapacityAnalysis) -> Table:
    columns: tuple[Column[tuple[PolicyCapacity, Size]], ...] = (
        Column("policy", lambda row: row[0].label),
        Column("instances", lambda row: row[1].text),
        Column("objective", lambda row: name_outcome(row[0].points[row[1]])),
        *(_make_limit_column(limit) for limit in analysis.limits),
        Column("turns completed", lambda row: _share_completed(*row), "%", 4, 100),
    )
    rows = [(policy, size) for policy in analysis.policies for size in policy.points]
    why = describe_withheld(analysis.traces)
    undecided = f"Undecided: {why} ({TRIALS_REMEDY}). " if why else ""
    note = f"{undecided}A turn that did not complete counts as never served. `-`: the percentile is such a turn."
    return make_table("Points", columns, rows, note)


def _make_limit_column(limit: Limit) -> Column[tuple[PolicyCapacity, Size]]:
    return Column(limit.title, lambda row: row[0].points[row[1]].estimates[limit.name], "s", 3)


def _share_completed(policy: PolicyCapacity, size: Size) -> float:
    rows = policy.records[size]
    return sum(one.completed for one in rows) / sum(one.turns for one in rows)


def _list_limits(analysis: CapacityAnalysis) -> Iterator[str]:
    model = analysis.facts.simulated
    yield f"Nothing was measured: engines are the model {model}; docs/simulator.md says what it lacks."
    yield (
        "A size holds the objective where every trace and the upper end of each interval meet every limit. The "
        "intervals are not corrected for the number of sizes that were tried."
    )
    yield (
        "The search takes `holds` to be monotone in the number of instances. It checks the neighbors of its answer "
        "and no other size. With pools it takes the distance from the objective to have one minimum over the splits."
    )
    if analysis.distinct_traces < analysis.traces:
        yield "One trace is replayed in every point: intervals hold nothing of what varies between traces."
