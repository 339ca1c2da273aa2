"""The journal of campaigns, and the tables that docs/reliability.md has of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tests.chaos.audit import MEASURES
from tests.chaos.faults import KINDS, OTHER_KINDS, WANTED

ROOT = Path(__file__).resolve().parents[2]
JOURNAL = ROOT / "tests" / "chaos" / "journal.jsonl"
LONG_JOURNAL = ROOT / ".tracon" / "chaos-long.jsonl"
"""Journal of `make test-long`; git ignores it, so that an interrupted batch continues and no tree is changed."""
CHANGED = " and changes"
"""Follows the commit of a tree with uncommitted changes."""
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
    """Commit of the tree when the campaign began, with CHANGED if it had uncommitted changes. Until 2026-11-29 the
    journal itself counted as such a change, so that only the first campaign after a commit had none."""
    t_unix_s: float
    """When it ended."""
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

    @property
    def where(self) -> str:
        """Its date (UTC) and commit, as the tables show them."""
        return f"{datetime.fromtimestamp(self.t_unix_s, UTC):%Y-%m-%d}, {self.commit.removesuffix(CHANGED)}"


def read_lines(path: Path) -> tuple[Entry, ...]:
    """Every line of a journal. A last line that was cut is left out."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    return tuple(msgspec.json.decode(line, type=Entry) for line in lines[:-1])


def newest_lines(lines: Iterable[Entry]) -> tuple[Entry, ...]:
    """The newest line of each campaign, in the order of their first lines."""
    return tuple({entry.key: entry for entry in lines}.values())


def list_replaced(lines: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    """Each line with a defect whose campaign was repeated, and the next line of that campaign."""
    replaced = []
    for position, entry in enumerate(lines):
        later = (line for line in lines[position + 1 :] if line.key == entry.key)
        again = next(later, None)
        if entry.findings and again is not None:
            replaced.append((entry, again))
    return replaced


def append_entry(path: Path, entry: Entry) -> None:
    """Add a line, in the place of one that an earlier writer left unfinished."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(msgspec.json.encode(entry) + b"\n")


def make_tables(journal: Sequence[Entry]) -> str:
    """Markdown of a journal's lines: faults by kind, the campaigns by seed, what was counted over all of them, and the
    defects of campaigns that have been repeated since."""
    entries = newest_lines(journal)
    met = Counter(one.kind for entry in entries for one in entry.met)
    missed = Counter(kind for entry in entries for kind in entry.missed)
    lines = ["| kind of fault | done | moment never came | not run yet |", "|---|---|---|---|"]
    kinds = (*KINDS, *(kind for kind in OTHER_KINDS if kind in {*met, *missed}))
    for kind in kinds:
        lines.append(f"| {kind} | {met[kind]} of {WANTED} | {missed[kind]} | {max(0, WANTED - met[kind])} |")
    wanted = WANTED * len(kinds)
    left = sum(max(0, WANTED - met[kind]) for kind in kinds)
    lines.append(f"| all | {met.total()} of {wanted} | {missed.total()} | {left} |")
    lines += ["", *_describe_campaigns(entries), "", *_make_seeds(entries)]
    lines += ["", "| counted | number | in campaigns | first of them | last of them |", "|---|---|---|---|---|"]
    for measure, name in MEASURES.items():
        counting = [entry for entry in entries if measure in entry.counts]
        lines.append(_count_row(name, sum(entry.counts[measure] for entry in counting), counting, entries))
    audited = [entry for entry in entries if entry.attempts is not None]
    attempts = sum(entry.attempts or 0 for entry in audited)
    lines.append(_count_row("failed attempts searched for lost sessions too", attempts, audited, entries))
    lines += [f"- seed {entry.seed}, campaign {entry.number}: {text}" for entry in entries for text in entry.findings]
    return "\n".join([*lines, *_make_replaced(journal)])


def _make_seeds(entries: Sequence[Entry]) -> list[str]:
    """The campaigns by seed: how many, when, and on which commits."""
    lines = [
        "| seed | campaigns | faults | first | last | commits | with uncommitted changes | searched failed attempts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for seed in sorted({entry.seed for entry in entries}):
        own = [entry for entry in entries if entry.seed == seed]
        faults = sum(len(entry.met) for entry in own)
        commits = len({entry.commit.removesuffix(CHANGED) for entry in own})
        changed = sum(entry.commit.endswith(CHANGED) for entry in own)
        audited = sum(entry.attempts is not None for entry in own)
        lines.append(
            f"| {seed} | {len(own)} | {faults} | {_show_span(own)} | {commits} | {changed} | {audited} of {len(own)} |"
        )
    return lines


def _count_row(name: str, number: int, counting: Sequence[Entry], entries: Sequence[Entry]) -> str:
    """`counting`: the campaigns that counted it."""
    return f"| {name} | {number} | {len(counting)} of {len(entries)} | {_show_span(counting)} |"


def _show_span(entries: Sequence[Entry]) -> str:
    """Two cells: date and commit of the first and of the last campaign."""
    in_time = sorted(entries, key=lambda entry: entry.t_unix_s)
    return f"{in_time[0].where} | {in_time[-1].where}" if in_time else " | "


def _make_replaced(journal: Sequence[Entry]) -> list[str]:
    """The defects that the newest line of their campaign no longer has."""
    replaced = list_replaced(journal)
    if not replaced:
        return []
    lines = ["", "| seed, campaign | defect that it counted | on | repeated on |", "|---|---|---|---|"]
    for entry, again in replaced:
        number = f"{entry.seed}, {entry.number}"
        lines += [f"| {number} | {text} | {entry.where} | {again.where} |" for text in entry.findings]
    return lines


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
