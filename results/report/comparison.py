"""Two runs of the same experiment side by side: two days, two hosts, two versions of the engine.

An experiment lists the numbers of a run that can be compared (`Comparable`); pairing, intervals, refusals and tables
are the same for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from results.records.errors import ResultsError
from results.records.estimate import Estimate, unknown
from results.records.percent import format_percent
from results.records.run_folder import RunFacts
from results.report.content import ReportText
from results.report.differences import Difference, Origin, list_differences
from results.report.table import NOT_MEASURED, Column, Table, make_table
from results.statistics.independent import (
    DISJOINT_BY_CHANCE,
    are_disjoint,
    chance_of_disjoint,
    compare_ratio,
    subtract_estimates,
)
from results.statistics.judgement import Judgement, Outcome, Verdict, judged, withheld
from results.statistics.trials import MIN_PAIRED

PACKAGES = "packages"
MOST = 60
"""Differences shown; the table's note counts the rest."""
_OF_RUN = ("config in a run", f"runs made with `--trials {MIN_PAIRED}` give a verdict")
_OPPOSITE = (
    {Verdict.HIGHER, Verdict.LOWER},
    {Outcome.HOLDS, Outcome.FAILS},
)


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run."""

    table: str
    """Title of the table that shows it: `Latencies`, `Taxes`."""
    key: Mapping[str, str]
    """Column to text, such as load, config or policy, and metric. Numbers of one key in two runs are a pair."""
    estimate: Estimate
    unit: str = ""
    """As shown."""
    scale: float = 1.0
    """From the estimate's unit to the shown one."""
    ratio: bool = True
    """Compared as second / first - 1; else as second - first."""
    verdict: Verdict | None = None
    """Against the run's baseline."""
    at: str = ""
    """The load, where the key does not state it. Two numbers at different loads are shown and not compared."""


@dataclass(frozen=True, slots=True)
class Comparable:
    """What of a run is compared with another run."""

    facts: RunFacts
    measures: Sequence[Measure]
    judgements: Sequence[Judgement] = ()
    stated: Mapping[str, str] = field(default_factory=dict)
    """What the run chose, by name, such as its reference rates: shown side by side."""
    must_agree: Mapping[str, str] = field(default_factory=dict)
    """Name to value, such as the trace: two runs with different values are refused."""
    origin: Origin = field(default_factory=Origin)
    """How the run was made; the registry fills it in."""


@dataclass(frozen=True, slots=True)
class Change:
    """One number in both runs; in the unit of its `Measure`."""

    table: str
    key: Mapping[str, str]
    first: Estimate
    second: Estimate
    ratio: bool
    change: Estimate
    """second / first - 1 (0.1 = 10 % more in the second), or second - first."""
    verdict: Verdict | None
    """Of the change."""
    withheld: str
    """Why there is no verdict; empty where there is one."""
    first_verdict: Verdict | None
    second_verdict: Verdict | None
    disjoint: bool
    """The two intervals, each over launches, share no value."""
    unit: str
    scale: float


@dataclass(frozen=True, slots=True)
class VerdictPair:
    """One verdict, hypothesis, claim or criterion in both runs."""

    name: str
    first: str
    second: str
    opposite: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    first: RunFacts
    second: RunFacts
    changes: tuple[Change, ...]
    verdicts: tuple[VerdictPair, ...]
    """Outcomes of all judgements, and those verdicts of single numbers that are opposite."""
    stated: tuple[tuple[str, str, str], ...]
    """Name, first, second."""
    differences: tuple[Difference, ...]
    only_first: tuple[str, ...]
    """Numbers of the first run alone."""
    only_second: tuple[str, ...]

    @property
    def opposite(self) -> tuple[VerdictPair, ...]:
        return tuple(one for one in self.verdicts if one.opposite)

    @property
    def disjoint(self) -> tuple[Change, ...]:
        return tuple(one for one in self.changes if one.disjoint)

    @property
    def intervals(self) -> int:
        """How many numbers have an interval over launches on both sides."""
        return sum(not one.withheld for one in self.changes)


def require_same_experiment(first: RunFacts, second: RunFacts) -> None:
    """Raises ResultsError unless the two runs are known to be of one experiment."""
    for facts in (first, second):
        if not facts.experiment:
            raise ResultsError(
                f"run {facts.run} does not say which experiment it is: plan.json is missing or damaged",
                remedy="restore plan.json from a copy of the run",
            )
    if first.experiment != second.experiment:
        raise ResultsError(
            f"run {first.run} is of {first.experiment}, run {second.run} of {second.experiment}",
            remedy="compare two runs of one experiment; `tracon list` shows what each run is",
        )


def compare(first: Comparable, second: Comparable) -> Comparison:
    """Raises ResultsError where the runs share no number, or differ in what they must agree in."""
    for name, before in first.must_agree.items():
        after = second.must_agree.get(name, "")
        if before != after:
            raise ResultsError(
                f"runs {first.facts.run} and {second.facts.run} differ in {name}: {before or 'unknown'} and "
                f"{after or 'unknown'}; a difference of their numbers would say nothing",
                remedy=f"compare runs of one {name}",
            )
    firsts, seconds = ({_key_of(measure): measure for measure in run.measures} for run in (first, second))
    changes = tuple(_compare_measure(measure, seconds[key]) for key, measure in firsts.items() if key in seconds)
    if all(one.change.value is None for one in changes):
        raise ResultsError(
            f"runs {first.facts.run} and {second.facts.run} have no cell in common: nothing was measured in both under "
            "the same load and name",
            remedy="compare runs of one profile and preset",
        )
    return Comparison(
        first=first.facts,
        second=second.facts,
        changes=changes,
        verdicts=(*_pair_judgements(first.judgements, second.judgements), *_find_opposite(changes)),
        stated=tuple(
            (name, first.stated.get(name, ""), second.stated.get(name, ""))
            for name in dict.fromkeys((*first.stated, *second.stated))
        ),
        differences=list_differences(first.origin, second.origin),
        only_first=_list_unmatched(firsts, seconds),
        only_second=_list_unmatched(seconds, firsts),
    )


_Key = tuple[str, tuple[str, ...]]


def _key_of(measure: Measure) -> _Key:
    return measure.table, tuple(measure.key.values())


def _list_unmatched(measures: Mapping[_Key, Measure], others: Mapping[_Key, Measure]) -> tuple[str, ...]:
    return tuple(f"{table}: {', '.join(key)}" for table, key in measures if (table, key) not in others)


def _compare_measure(first: Measure, second: Measure) -> Change:
    if first.at != second.at:
        change = unknown(f"measured at {first.at} and at {second.at}")
    elif first.ratio:
        change = compare_ratio(first.estimate, second.estimate)
    else:
        change = subtract_estimates(first.estimate, second.estimate)
    few = withheld(change, *_OF_RUN)
    return Change(
        table=first.table,
        key=first.key,
        first=first.estimate,
        second=second.estimate,
        ratio=first.ratio,
        change=change,
        verdict=judged(change),
        withheld=few,
        first_verdict=first.verdict,
        second_verdict=second.verdict,
        disjoint=not few and are_disjoint(first.estimate, second.estimate),
        unit=first.unit,
        scale=first.scale,
    )


def _pair_judgements(first: Sequence[Judgement], second: Sequence[Judgement]) -> list[VerdictPair]:
    before, after = ({one.name: one.outcome for one in judgements} for judgements in (first, second))
    return [
        VerdictPair(name, str(before[name]), str(after[name]), {before[name], after[name]} in _OPPOSITE)
        for name in before
        if name in after
    ]


def _find_opposite(changes: Sequence[Change]) -> list[VerdictPair]:
    return [
        VerdictPair(
            f"{one.table}: {', '.join(one.key.values())}", str(one.first_verdict), str(one.second_verdict), True
        )
        for one in changes
        if {one.first_verdict, one.second_verdict} in _OPPOSITE
    ]


def to_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as data, in the units of the experiment's own files; `scale` leads to the shown unit."""
    data: dict[str, Any] = msgspec.to_builtins(comparison)
    for side in ("first", "second"):
        data[side] = {name: data[side][name] for name in ("run", "experiment", "profile", "preset", "seed", "versions")}
    columns = ("name", "first", "second")
    data["stated"] = [dict(zip(columns, row, strict=True)) for row in comparison.stated]
    return data


def describe_comparison(comparison: Comparison) -> ReportText:
    """Which run is which, what moved, opposite verdicts, the tables with rows, and what the numbers do not say."""
    counts = Counter(str(change.verdict or "no verdict") for change in comparison.changes)
    moves = ", ".join(f"{counts[word]} {word}" for word in (*map(str, Verdict), "no verdict") if counts[word])
    first, second = comparison.first, comparison.second
    opening = (
        f"{first.experiment}: first = {first.run} on {first.label}, second = {second.run} on {second.label}. "
        f"{len(comparison.changes)} numbers in both, in the second against the first: {moves}. Opposite verdicts: "
        f"{len(comparison.opposite)}.{_describe_disjoint(len(comparison.disjoint), comparison.intervals)}"
    )
    titles = dict.fromkeys(change.table for change in comparison.changes)
    candidates = (
        make_table("Opposite verdicts", VERDICT_COLUMNS, comparison.opposite),
        make_table("Verdicts", VERDICT_COLUMNS, [one for one in comparison.verdicts if not one.opposite]),
        Table("Stated by the runs", ("", "first", "second"), comparison.stated),
        *(_change_table(title, [one for one in comparison.changes if one.table == title]) for title in titles),
        _difference_table(comparison),
        _unmatched_table(comparison),
    )
    return ReportText(opening, tuple(table for table in candidates if table.rows), _list_limits(comparison))


def _describe_disjoint(count: int, pairs: int) -> str:
    """How many pairs chance makes disjoint, beside how many are: among hundreds of numbers a few refute nothing."""
    if not pairs:
        return " No number has an interval over launches on both sides."
    expected = f"chance alone makes {pairs * DISJOINT_BY_CHANCE:.1f} disjoint between equal runs"
    counted = f" Disjoint intervals: {count} of {pairs} pairs; {expected}"
    if not count:
        return f"{counted}."
    chance = chance_of_disjoint(count, pairs)
    percent = "less than 0.1 %" if chance < 0.001 else format_percent(chance, 1)
    return (
        f"{counted}, and {count} or more in {percent} of the comparisons if pairs were independent. They are not: "
        "numbers of one launch are off together, so several disjoint pairs are more probable than that."
    )


def _list_limits(comparison: Comparison) -> tuple[str, ...]:
    limits = [
        "A difference belongs to everything that differed between the two runs: what is listed, and what no file "
        "captured (temperature, neighbours on the host). One run on each side cannot tell which.",
        f"Each interval holds by itself: of {len(comparison.changes)} differences that are none, one in twenty is "
        "called higher or lower, and its two intervals need not be disjoint for that.",
    ]
    if any(one.change.launches < MIN_PAIRED for one in comparison.changes if one.change.value is not None):
        limits.append(
            f"At least one side was measured in fewer than {MIN_PAIRED} launches per config. Its brackets hold the "
            "spread within the launch, not what two launches differ by: nothing measured so is called higher or lower. "
            f"Runs made with `--trials {MIN_PAIRED}` give verdicts."
        )
    return tuple(limits)


VERDICT_COLUMNS: tuple[Column[VerdictPair], ...] = (
    Column("", lambda row: row.name),
    Column("first", lambda row: row.first),
    Column("second", lambda row: row.second),
)
DIFFERENCE_COLUMNS: tuple[Column[Difference], ...] = (
    Column("where", lambda row: row.where),
    Column("what", lambda row: row.what),
    Column("first", lambda row: _shorten_text(row.first)),
    Column("second", lambda row: _shorten_text(row.second)),
)


def _change_table(title: str, changes: Sequence[Change]) -> Table:
    keys = tuple(changes[0].key)
    how = "second / first - 1" if changes[0].ratio else "second - first"
    rows = tuple(
        (*one.key.values(), _format_estimate(one.first, one), _format_estimate(one.second, one), _show_change(one))
        for one in changes
    )
    return Table(title, (*keys, "first", "second", how), rows)


def _format_estimate(estimate: Estimate, change: Change) -> str:
    if change.unit == "%":
        return estimate.percent()
    text = estimate.text(4, change.scale)
    return f"{text} {change.unit}".strip() if estimate.value is not None else NOT_MEASURED


def _show_change(change: Change) -> str:
    """The change with its verdict, or why there is none."""
    moved = change.change
    if moved.value is None:
        return f"{NOT_MEASURED} ({moved.reason})"
    if change.ratio:
        shown = moved.percent()
    elif change.unit == "%":
        shown = moved.points()
    else:
        shown = f"{moved.text(4, change.scale)} {change.unit}".strip()
    if change.verdict is not None:
        return f"{shown} {change.verdict}{', intervals disjoint' if change.disjoint else ''}"
    few = moved.launches < MIN_PAIRED
    return f"{shown} ({'spread: no verdict' if few else f'no verdict: {change.withheld}'})"


def _difference_table(comparison: Comparison) -> Table:
    rows = sorted(comparison.differences, key=lambda row: row.where.startswith(PACKAGES))
    if not rows:
        rows = [Difference(NOT_MEASURED, "nothing that was captured", "", "")]
    rest = len(rows) - MOST
    note = f"And {rest} more, in the JSON." if rest > 0 else ""
    return make_table("What differed", DIFFERENCE_COLUMNS, rows[:MOST], note)


def _shorten_text(text: str | None) -> str:
    if text is None:
        return "(absent)"
    return text if len(text) <= 80 else text[:77] + "..."


def _unmatched_table(comparison: Comparison) -> Table:
    sides = (("first", comparison.only_first), ("second", comparison.only_second))
    rows = tuple((side, "; ".join(numbers)) for side, numbers in sides if numbers)
    return Table("In one run only", ("run", "numbers"), rows)
