"""What a number on the screen is: its term, where the console takes it from, and when to worry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from results.report.terms import Term


@dataclass(frozen=True, slots=True)
class Entry:
    """One number of the console. A value that was not measured is shown as –, never as 0."""

    label: str
    """As the column or plot calls it."""
    term: Term
    source: str
    watch: str = ""
    """What is worth a second look."""


def number_lines(entries: Iterable[Entry]) -> list[str]:
    """The entries as Markdown table rows, for the documentation."""
    head = ["| number | unit | meaning | source | worth a second look |", "|---|---|---|---|---|"]
    return head + [f"| {e.label} | {e.term.unit} | {e.term.meaning} | {e.source} | {e.watch} |" for e in entries]
