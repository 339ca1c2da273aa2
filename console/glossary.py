"""What a number on the screen is: its term, where the console takes it from, and when to worry."""

from __future__ import annotations

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

    @property
    def meaning(self) -> str:
        """The term's meaning, after its name where the label is another or shorter one."""
        return self.term.meaning if self.term.name in self.label else f"{self.term.name}: {self.term.meaning}"
