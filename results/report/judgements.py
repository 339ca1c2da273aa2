"""The tables of judgements, the same for every experiment."""

from __future__ import annotations

from collections.abc import Sequence

from results.report.table import NOT_MEASURED, Table
from results.report.terms import term
from results.statistics.judgement import Judgement, Outcome
from results.statistics.p_values import format_p

VERDICTS_FORMAT = 3
"""Version of verdicts.json: since 3 every rule is a Judgement."""
LEGEND = " ".join(f"{outcome}: {term(outcome).meaning}." for outcome in Outcome)


def make_judgement_table(title: str, kind: str, judgements: Sequence[Judgement], note: str = "") -> Table:
    """A row per judgement; `kind` is the heading of the claims. A column that would be empty is left out."""
    optional = (
        ("prior", [one.prior for one in judgements]),
        ("by the point", [one.point for one in judgements]),
        ("p, after Holm", [_describe_p(one) for one in judgements]),
        ("brackets", [one.measured.basis for one in judgements]),
    )
    shown = [(column, cells) for column, cells in optional if any(cells)]
    rows = tuple(
        (one.name, one.claim, describe_outcome(one), one.reason, *(cells[index] or NOT_MEASURED for _, cells in shown))
        for index, one in enumerate(judgements)
    )
    columns = ("", kind, "outcome", "why", *(column for column, _ in shown))
    return Table(title, columns, rows, f"{LEGEND} {note}".strip())


def _describe_p(one: Judgement) -> str:
    return "" if one.p is None or one.p_corrected is None else f"{format_p(one.p)}, {format_p(one.p_corrected)}"


def rules_table(judgements: Sequence[Judgement]) -> Table:
    rows = tuple((one.name, one.quantity or NOT_MEASURED, one.rule) for one in judgements)
    return Table("Rules", ("", "about", "rule"), rows)


def describe_outcome(judgement: Judgement) -> str:
    """The outcome, with its label where it has one."""
    return f"{judgement.outcome}: {judgement.label}" if judgement.label else str(judgement.outcome)
