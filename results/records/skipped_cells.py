"""The cells that an operator skipped, for an analysis without the journal: they are not missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from results.records.errors import DAMAGED_JSON
from results.records.frames import Gap
from results.records.layout import RunLayout


@dataclass(frozen=True, slots=True)
class SkippedCell:
    """A cell that an operator skipped: a row of the run's `skipped_cells.jsonl`."""

    t_unix_s: float
    """When the operator asked for it."""
    cell: str
    """As the plan names it."""
    reason: str = ""
    """The operator's; empty = none was given."""
    withdrawn: bool = False
    """A retry has put the cell back: it is skipped no more."""


_DECODER = msgspec.json.Decoder(SkippedCell)


def read_skipped(root: Path) -> tuple[dict[str, str], tuple[Gap, ...]]:
    """The operator's reason by cell that stayed skipped, and a gap for each row that cannot be read."""
    path = RunLayout(root).skipped_cells
    try:
        rows = path.read_bytes().splitlines()
    except FileNotFoundError:
        return {}, ()
    except OSError as error:
        return {}, (Gap(path.name, f"cannot be read: {error.strerror}"),)
    reasons: dict[str, str] = {}
    gaps: list[Gap] = []
    for number, row in enumerate(rows, 1):
        try:
            skipped = _DECODER.decode(row)
        except DAMAGED_JSON as error:
            gaps.append(Gap(path.name, f"line {number} is damaged: {error}"))
            continue
        if skipped.withdrawn:
            reasons.pop(skipped.cell, None)
        else:
            reasons[skipped.cell] = skipped.reason
    return reasons, tuple(gaps)


def describe_skip(reason: str) -> str:
    return f"skipped by the operator ({reason})" if reason else "skipped by the operator"
