"""Read the decision logs of a run or of one file. Unreadable lines and missing picks become named gaps, not errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from results.records.decisions import DecisionRecord
from results.records.declaration import UnknownVersion
from results.records.errors import DAMAGED_JSON
from results.records.frames import Gap
from results.records.layout import TrialLayout, list_trial_layouts, sha256
from results.records.rows import decode_row
from results.records.turns import decode_cell
from runners.errors import RunnerError


@dataclass(frozen=True, slots=True)
class LoggedPicks:
    """The picks of one cell, or of one file."""

    name: str
    """`<folder>/trial_<n>` of a run's cell, or the file's name."""
    records: tuple[DecisionRecord, ...]
    """In the order of the picks."""
    gaps: tuple[Gap, ...] = ()


def read_logs(run: Path, cell: str = "") -> tuple[LoggedPicks, ...]:
    """The logs in a run's folder whose names contain `cell`, or the one log if `run` is a file.

    Raises RunnerError if there is none.
    """
    if run.is_file():
        return (read_log(run, run.name),)
    layouts = list_trial_layouts(run)
    chosen = [layout for layout in layouts if cell in _name_cell(layout)]
    if chosen and not any(map(_has_log, chosen)):
        raise RunnerError(
            f"{run.name} was simulated without decision logs (simulation.decision_log = false)",
            remedy="simulate it again with them: no pick of this run can be explained or repeated",
        )
    logs = tuple(map(_read_cell, chosen))
    if not logs:
        names = ", ".join(_name_cell(layout) for layout in layouts[:6]) or "none"
        wanted = f" whose name contains {cell!r}" if cell else ""
        raise RunnerError(
            f"{run.name} has no decision log{wanted}",
            remedy=f"name a `routing` run or a decisions.jsonl; its cells: {names}",
        )
    return logs


def read_log(path: Path, name: str) -> LoggedPicks:
    """Read one file; `gaps` names unreadable lines and missing picks."""
    decoder = msgspec.json.Decoder(DecisionRecord)
    records: list[DecisionRecord] = []
    damaged: list[tuple[int, str]] = []
    try:
        for number, line in _read_lines(path):
            try:
                records.append(decode_row(line, decoder))
            except DAMAGED_JSON as error:
                why = str(error) if line.endswith(b"\n") else "is cut short"
                damaged.append((number, why))
    except OSError as error:
        return LoggedPicks(name, (), (Gap(name, f"cannot be read: {error.strerror}"),))
    records.sort(key=lambda record: record.seq)
    gaps = [*_describe_damage(name, damaged), *_find_missing(name, [record.seq for record in records])]
    if not records and not damaged:
        gaps.append(Gap(name, "is empty"))
    return LoggedPicks(name, tuple(records), tuple(gaps))


def _has_log(layout: TrialLayout) -> bool:
    """Whether the cell wrote one, as far as its record can be read."""
    try:
        return decode_cell(layout.cell.read_bytes()).logs_decisions
    except (OSError, UnknownVersion, *DAMAGED_JSON):
        return True


def _read_cell(layout: TrialLayout) -> LoggedPicks:
    name = _name_cell(layout)
    if not layout.decisions.exists():
        return LoggedPicks(name, (), (Gap(f"{name}/{layout.decisions.name}", "is missing"),))
    log = read_log(layout.decisions, f"{name}/{layout.decisions.name}")
    return LoggedPicks(name, log.records, (*log.gaps, *_check_finished(layout, name)))


def _check_finished(layout: TrialLayout, name: str) -> Iterator[Gap]:
    try:
        cell = decode_cell(layout.cell.read_bytes())
    except FileNotFoundError:
        yield Gap(f"{name}/{layout.cell.name}", "is missing: the cell was not finished")
        return
    except UnknownVersion as error:
        yield Gap(f"{name}/{layout.cell.name}", str(error))
        return
    except (OSError, *DAMAGED_JSON) as error:
        yield Gap(f"{name}/{layout.cell.name}", f"is damaged: {error}")
        return
    recorded = cell.checksums.get(layout.decisions.name)
    if recorded is not None and recorded != sha256(layout.decisions):
        yield Gap(f"{name}/{layout.decisions.name}", "differs from the checksum its cell was finished with")


def _name_cell(layout: TrialLayout) -> str:
    return f"{layout.root.parent.name}/{layout.root.name}"


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def _describe_damage(name: str, damaged: Sequence[tuple[int, str]]) -> Iterator[Gap]:
    """At most three lines by number, the rest as a count."""
    for number, why in damaged[:3]:
        yield Gap(name, f"line {number} {why}" if why == "is cut short" else f"line {number} is damaged: {why}")
    if len(damaged) > 3:
        yield Gap(name, f"{len(damaged) - 3} more lines are damaged, the last is {damaged[-1][0]}")


def _find_missing(name: str, seqs: Sequence[int]) -> Iterator[Gap]:
    """Gaps in the pick numbers, which count from 0. A missing end of the log cannot be detected.

    A damaged or forged number may be huge: the missing ones are counted, not listed.
    """
    held = sorted(set(seqs))
    before = pairwise((-1, *(seq for seq in held if seq >= 0)))
    missing = [(low + 1, high - 1) for low, high in before if high - low > 1]
    if missing:
        count = sum(last - first + 1 for first, last in missing)
        yield Gap(name, f"{count} picks are not in it, between {missing[0][0]} and {missing[-1][1]}")
    if len(held) < len(seqs):
        yield Gap(name, f"{len(seqs) - len(held)} picks are in it twice")
