"""The journal of campaigns, and the tables that docs/reliability.md has of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.chaos.audit import MEASURES
from tests.chaos.faults import KINDS, OTHER_KINDS, WANTED

ROOT = Path(__file__).resolve().parents[2]
JOURNAL = ROOT / "tests" / "chaos" / "journal.jsonl"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- faults: made by `python -m tests.benchmarks.chaos --table` -->", "<!-- end of faults -->"


class Met(msgspec.Struct, frozen=True):
    """A fault as it was drawn, and where it struck."""

    kind: str
    moment: str
    delay_s: float
    hold_s: float
    draw: float
    cell: str
    after_s: float


class Entry(msgspec.Struct, frozen=True):
    """One campaign: a line of the journal. The same batch and number again replaces the line before."""

    seed: int
    count: int
    """Faults of the batch."""
    kinds: tuple[str, ...]
    """Of the batch."""
    each: int
    """Faults per campaign at most."""
    number: int
    experiment: str
    commit: str
    t_unix_s: float
    duration_s: float
    met: tuple[Met, ...]
    missed: tuple[str, ...]
    """Kinds of the faults whose moment never came."""
    runs: int
    resumes: int
    retried: tuple[str, ...]
    """Why cells had failed that an operator would have retried."""
    cells: int
    counts: dict[str, int]
    findings: tuple[str, ...]
    attempts: int | None = None
    """Attempts that failed or were interrupted, and whose turns were audited; None = turns of finished cells alone."""

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.seed, self.count, self.kinds, self.each, self.number)


def read_journal(path: Path) -> tuple[Entry, ...]:
    """The newest line of each campaign, in the order of their first lines. A last line that was cut is left out."""
    newest: dict[tuple[Any, ...], Entry] = {}
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for line in lines[:-1]:
        entry = msgspec.json.decode(line, type=Entry)
        newest[entry.key] = entry
    return tuple(newest.values())


def append_entry(path: Path, entry: Entry) -> None:
    """Add a line, in the place of one that an earlier writer left unfinished."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(msgspec.json.encode(entry) + b"\n")


def make_tables(entries: Sequence[Entry]) -> str:
    """Markdown: faults by kind, then what was counted over all campaigns."""
    met = Counter(one.kind for entry in entries for one in entry.met)
    missed = Counter(kind for entry in entries for kind in entry.missed)
    lines = ["| kind of fault | done | moment never came | not run yet |", "|---|---|---|---|"]
    kinds = (*KINDS, *(kind for kind in OTHER_KINDS if kind in {*met, *missed}))
    for kind in kinds:
        lines.append(f"| {kind} | {met[kind]} of {WANTED} | {missed[kind]} | {max(0, WANTED - met[kind])} |")
    wanted = WANTED * len(kinds)
    left = sum(max(0, WANTED - met[kind]) for kind in kinds)
    lines.append(f"| all | {met.total()} of {wanted} | {missed.total()} | {left} |")
    lines += ["", *_describe_campaigns(entries), "", "| counted | number |", "|---|---|"]
    for measure, name in MEASURES.items():
        counts = [entry.counts[measure] for entry in entries if measure in entry.counts]
        since = "" if len(counts) == len(entries) else f" (counted in {len(counts)} of {len(entries)} campaigns)"
        since = _describe_attempts(entries) if measure == "sessions_lost" else since
        lines.append(f"| {name} | {sum(counts)}{since} |")
    lines += [f"- seed {entry.seed}, campaign {entry.number}: {text}" for entry in entries for text in entry.findings]
    return "\n".join(lines)


def _describe_attempts(entries: Sequence[Entry]) -> str:
    audited = [entry.attempts for entry in entries if entry.attempts is not None]
    return f" ({sum(audited)} failed attempts too, in {len(audited)} of {len(entries)} campaigns)"


def _describe_campaigns(entries: Sequence[Entry]) -> list[str]:
    if not entries:
        return ["No campaign has been run."]
    seeds = ", ".join(str(seed) for seed in sorted({entry.seed for entry in entries}))
    seconds = sum(entry.duration_s for entry in entries)
    met = sum(len(entry.met) for entry in entries)
    return [
        f"{len(entries)} campaigns (seeds {seeds}), {sum(entry.runs for entry in entries)} runs, resumed "
        f"{sum(entry.resumes for entry in entries)} times; {sum(entry.cells for entry in entries)} cells done, "
        f"{sum(len(entry.retried) for entry in entries)} failed and were retried; "
        f"{seconds / max(1, met):.1f} s a fault."
    ]


def page_with(tables: str, page: str) -> str:
    """The page with its tables replaced."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}"
