"""The cells that an operator skipped, for an analysis without the journal: they are not missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from results.records.frames import Gap, read_each_row
from results.records.layout import RunLayout


@dataclass(frozen=True, slots=True)
class SkippedCell:
    """A cell that an operator skipped: a row of the run's `skipped_cells.jsonl`."""

    t_unix_s: float
    """When the operator asked for it."""
    cell: str
    reason: str = ""
    """The operator's; empty = none was given."""
    withdrawn: bool = False
    """A retry has put the cell back: it is skipped no more."""


def read_skipped(root: Path) -> tuple[dict[str, str], tuple[Gap, ...]]:
    """The operator's reason by cell that stayed skipped, and a gap for each row that cannot be read."""
    reasons: dict[str, str] = {}
    gaps: list[Gap] = []
    for row in read_each_row(RunLayout(root).skipped_cells, SkippedCell):
        if isinstance(row, Gap):
            gaps.append(row)
        elif row.withdrawn:
            reasons.pop(row.cell, None)
        else:
            reasons[row.cell] = row.reason
    return reasons, tuple(gaps)


def describe_skip(reason: str) -> str:
    return f"skipped by the operator ({reason})" if reason else "skipped by the operator"
