"""A comparison of two runs as tables and sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from results.records.count import format_count
from results.report.comparison import Change, Comparison, Incomparable, OneSided, VerdictPair, format_estimate
from results.report.conditions import Condition
from results.report.content import ReportText
from results.report.differences import Difference
from results.report.table import NOT_MEASURED, Column, Table, make_table
from results.statistics.judgement import Verdict
from results.statistics.p_values import format_p
from results.statistics.trials import MIN_PAIRED

PACKAGES = "packages"
MOST = 60
"""Differences shown; the table's note counts the rest."""
SHOWN = 80
"""Characters of a setting shown in a table."""


def describe_comparison(comparison: Comparison) -> ReportText:
    """Which run is which, what moved, opposite verdicts, the tables with rows, and what the numbers do not say."""
    titles = dict.fromkeys(change.table for change in comparison.changes)
    candidates = (
        make_table("Opposite verdicts", OPPOSITE_COLUMNS, comparison.opposite, _OPPOSITE_NOTE),
        make_table("Differences that stand", STANDING_COLUMNS, comparison.standing, _STANDING_NOTE),
        make_table("How the runs differ", CONDITION_COLUMNS, comparison.conditions),
        make_table("Verdicts", VERDICT_COLUMNS, [one for one in comparison.verdicts if not one.opposite]),
        make_table("Not comparable", INCOMPARABLE_COLUMNS, comparison.incomparable, _INCOMPARABLE_NOTE),
        _make_judged_table(comparison),
        _make_stated_table(comparison),
        *(_change_table(title, [one for one in comparison.changes if one.table == title]) for title in titles),
        _make_difference_table(comparison),
        make_table("Numbers of one run only", ONE_SIDED_COLUMNS, comparison.one_sided, _ONE_SIDED_NOTE),
        _make_notes_table(comparison),
    )
    opening = _describe_counts(comparison)
    return ReportText(opening, tuple(table for table in candidates if table.rows), _list_limits(comparison))


def _describe_counts(comparison: Comparison) -> str:
    """Which run is which, what differs, what of the numbers stands among all of them, and opposite verdicts."""
    first, second = comparison.first, comparison.second
    alone = len(comparison.judged_only_first), len(comparison.judged_only_second)
    judged = f" Judged in one run only: {alone[0]} of the first, {alone[1]} of the second." if any(alone) else ""
    judgements = format_count(len(comparison.incomparable), "judgement", "judgements")
    unlike = f" Not comparable: {judgements}." if comparison.incomparable else ""
    kinds = ", ".join(one.what for one in comparison.conditions)
    differ = f"They differ in: {kinds}." if kinds else "Nothing that was captured differs between them."
    if first.run == second.run:
        differ = f"Both have one name: a run compared with itself confirms nothing. {differ}"
    return (
        f"{first.experiment}: first = {first.run} on {first.label}, second = {second.run} on {second.label}. {differ} "
        f"{comparison.answer} {_describe_changes(comparison)} "
        f"Opposite verdicts: {len(comparison.opposite)}.{unlike}{judged}"
    )


def _describe_changes(comparison: Comparison) -> str:
    """How many numbers moved, each by itself, and how many intervals are disjoint, beside what chance makes so."""
    counts = Counter(str(change.verdict or "no verdict") for change in comparison.changes)
    moves = ", ".join(f"{counts[word]} {word}" for word in (*map(str, Verdict), "no verdict") if counts[word])
    numbers = format_count(len(comparison.changes), "number", "numbers")
    text = f"One by one, {numbers} in both, in the second against the first: {moves}."
    if not comparison.family:
        return text
    return (
        f"{text} Disjoint intervals: {len(comparison.disjoint)} of {comparison.family} pairs; chance alone makes "
        f"{comparison.disjoint_by_chance:.1f} disjoint between equal runs."
    )


def _list_limits(comparison: Comparison) -> tuple[str, ...]:
    limits = [
        "A difference belongs to everything that differed between the two runs: what is listed, and what no file "
        "captured (temperature, neighbors on the host). One run on each side cannot tell which.",
    ]
    if comparison.family:
        limits.append(
            f"Each verdict holds by itself: of {comparison.family} differences that are none, one in twenty is called "
            "higher or lower, and its two intervals need not be disjoint for that. What stands after Holm's correction "
            "holds for all of them together."
        )
    if any(one.change.launches < MIN_PAIRED for one in comparison.changes if one.change.value is not None):
        limits.append(
            f"At least one side was measured in fewer than {MIN_PAIRED} launches per config. Its brackets hold the "
            "spread within the launch, not what two launches differ by: nothing measured so is called higher or lower. "
            f"Runs made with `--trials {MIN_PAIRED}` give verdicts."
        )
    return tuple(limits)


def _name_pair(pair: VerdictPair | Incomparable) -> str:
    return _name_both(pair.name, pair.name_in_second)


def _explain_incomparable(row: Incomparable) -> str:
    """How the two questions differ."""
    parts = (
        ("judged over", row.first_at, row.second_at) if row.first_at else None,
        ("by the rule", row.first_rule, row.second_rule) if row.first_rule else None,
    )
    return "; ".join(
        f"{how} {_shorten_text(first, second)} (second: {_shorten_text(second, first)})"
        for how, first, second in filter(None, parts)
    )


def _name_columns(change: Change) -> tuple[str, ...]:
    """The text of each column of the key."""
    return tuple(_name_both(text, change.key_in_second.get(column, text)) for column, text in change.key.items())


def _name_both(first: str, second: str) -> str:
    return first if first == second else f"{first} (second: {second})"


VERDICT_COLUMNS: tuple[Column[VerdictPair], ...] = (
    Column("", _name_pair),
    Column("first", lambda row: row.first),
    Column("second", lambda row: row.second),
)
OPPOSITE_COLUMNS: tuple[Column[VerdictPair], ...] = (
    *VERDICT_COLUMNS,
    Column("why, in the first", lambda row: row.first_why),
    Column("why, in the second", lambda row: row.second_why),
)
_OPPOSITE_NOTE = (
    "Each run judges by its own intervals. Between equal runs chance makes at most 0.13 % of the pairs that intervals "
    "decide opposite (both miss, on opposite sides), so look for the cause in what differs. Neither run refutes the "
    "other: the claim may hold under the conditions of the one and fail under those of the other."
)
INCOMPARABLE_COLUMNS: tuple[Column[Incomparable], ...] = (
    Column("", _name_pair),
    Column("first", lambda row: row.first),
    Column("second", lambda row: row.second),
    Column("why", _explain_incomparable),
)
_INCOMPARABLE_NOTE = (
    "Judged in both runs, but over other loads or by another rule: the outcomes neither agree with nor contradict each "
    "other."
)
STANDING_COLUMNS: tuple[Column[Change], ...] = (
    Column("number", lambda row: f"{row.table}: {', '.join(_name_columns(row))}"),
    Column("first", lambda row: format_estimate(row.first, row)),
    Column("second", lambda row: format_estimate(row.second, row)),
    Column("second against first", lambda row: _show_change(row)),
    Column("p, after Holm", lambda row: _show_p(row)),
)
_STANDING_NOTE = (
    "If the two runs measured the same, at most one comparison in twenty would list anything here, however its numbers "
    "depend on each other."
)
CONDITION_COLUMNS: tuple[Column[Condition], ...] = (
    Column("", lambda row: row.what),
    Column("first", lambda row: row.first),
    Column("second", lambda row: row.second),
    Column("what it means", lambda row: row.meaning),
)
ONE_SIDED_COLUMNS: tuple[Column[OneSided], ...] = (
    Column("run", lambda row: row.run),
    Column("table", lambda row: row.table),
    Column("of", lambda row: row.of or None),
    Column("numbers", lambda row: row.numbers),
)
_ONE_SIDED_NOTE = "The other run has no number of that name under that load. Each is named in the JSON."
DIFFERENCE_COLUMNS: tuple[Column[Difference], ...] = (
    Column("where", lambda row: row.where),
    Column("what", lambda row: row.what),
    Column("first", lambda row: _shorten_text(row.first, row.second)),
    Column("second", lambda row: _shorten_text(row.second, row.first)),
)


def _make_judged_table(comparison: Comparison) -> Table:
    sides = (("first", comparison.judged_only_first), ("second", comparison.judged_only_second))
    rows = tuple((run, name) for run, names in sides for name in names)
    note = "The other run does not judge it, or judges it under another load only."
    return Table("Judged in one run only", ("run", "judgement"), rows, note)


def _make_stated_table(comparison: Comparison) -> Table:
    differ = [name for name, first, second in comparison.stated if first != second]
    note = (
        f"Differ: {', '.join(differ)}. Verdicts that rest on them were made under other conditions." if differ else ""
    )
    return Table("Stated by the runs", ("", "first", "second"), comparison.stated, note)


def _make_notes_table(comparison: Comparison) -> Table:
    sides = (("first", comparison.first), ("second", comparison.second))
    rows = tuple((run, note) for run, facts in sides for note in facts.host_notes)
    return Table("Notes of the runs", ("run", "note"), rows)


def _change_table(title: str, changes: Sequence[Change]) -> Table:
    keys = tuple(changes[0].key)
    how = "second / first - 1" if changes[0].ratio else "second - first"
    rows = tuple(
        (
            *_name_columns(one), format_estimate(one.first, one), format_estimate(one.second, one), _show_change(one),
            _show_p(one),
        )
        for one in changes
    )  # fmt: skip
    return Table(title, (*keys, "first", "second", how, "p, after Holm"), rows)


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
    marks = (", intervals disjoint" if change.disjoint else "") + (", stands" if change.stands else "")
    if change.verdict is not None:
        return f"{shown} {change.verdict}{marks}"
    few = moved.launches < MIN_PAIRED
    return f"{shown} ({'spread: no verdict' if few else f'no verdict: {change.withheld}'}){marks}"


def _show_p(change: Change) -> str:
    if change.p is None or change.p_corrected is None:
        return NOT_MEASURED
    return f"{format_p(change.p)}, {format_p(change.p_corrected)}"


def _make_difference_table(comparison: Comparison) -> Table:
    rows = sorted(comparison.differences, key=lambda row: row.where.startswith(PACKAGES))
    if not rows:
        rows = [Difference(NOT_MEASURED, "nothing that was captured", "", "")]
    rest = len(rows) - MOST
    note = f"And {rest} more, in the JSON." if rest > 0 else ""
    return make_table("What differed", DIFFERENCE_COLUMNS, rows[:MOST], note)


def _shorten_text(text: str | None, other: str | None) -> str:
    """At most SHOWN characters: of a long text those from a little before where it differs from the other on."""
    if text is None:
        return "(absent)"
    if len(text) <= SHOWN:
        return text
    its = other or ""
    shorter = min(len(text), len(its))
    alike = next((index for index in range(shorter) if text[index] != its[index]), shorter)
    begin = max(0, alike - SHOWN // 4)
    part = text[begin : begin + SHOWN]
    return f"{'...' if begin else ''}{part}{'...' if begin + SHOWN < len(text) else ''}"
