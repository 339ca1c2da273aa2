"""What a reader sees of sessions that migrate: each migration with its phase, and counts by outcome and reason.

A policy may refuse the same session turn after turn: refusals are counted, and few of them make a line of the feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from results.records.declaration import pick_fields
from results.records.events import MigrationChanged
from results.records.migrations import MigrationStep

MAX_MIGRATIONS = 400
"""Migrations in the view over all cells, refusals apart: the newest."""
MAX_REFUSALS = 100
MAX_REASONS = 24
"""Reasons counted separately per cell and phase; further ones are counted together."""
QUIET_S = 30.0
"""After a refusal made a line of the feed, others of its cell and reason make none for this long."""
SHOWN = 20
"""Migrations in `tracon status --json`: the newest."""
OTHER = "other"
PHASES = ("started", "done", "failed", "refused")


@dataclass(frozen=True, slots=True)
class Migration(MigrationStep):
    """One migration: its newest step, with `text` why it began and then more on how it ended."""

    cell: str = field(kw_only=True)
    attempt: int = field(kw_only=True)
    t_unix_s: float = field(kw_only=True)
    """When it began, or was refused; its end where its beginning was not seen."""
    ended_unix_s: float | None = field(kw_only=True, default=None)


@dataclass(frozen=True, slots=True)
class MigrationCounts:
    """The migrations of one attempt at a cell, counted by phase and reason."""

    cell: str
    attempt: int
    by_phase: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Phase -> reason -> count; `started` has one reason, empty."""
    tokens: int = 0
    """Transferred, as far as known."""
    bytes: int = 0

    def of(self, phase: str) -> int:
        """The count of this phase, whatever the reason."""
        return sum(self.by_phase.get(phase, {}).values())

    @property
    def under_way(self) -> int:
        return max(0, self.of("started") - self.of("done") - self.of("failed"))


@dataclass(frozen=True, slots=True)
class MigrationsView:
    rows: tuple[Migration, ...] = ()
    """Migrations of all cells, in the order they began, at most `MAX_MIGRATIONS` and `MAX_REFUSALS` refusals."""
    counts: tuple[MigrationCounts, ...] = ()
    """Per cell, of its last attempt; the cell of the newest event last."""
    quiet: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """By reason of the newest cell's refusals: when one made a line last, and how many made none since."""

    def of(self, cell: str) -> tuple[Migration, ...]:
        """The rows of one cell."""
        return tuple(each for each in self.rows if each.cell == cell)

    def counts_of(self, cell: str) -> MigrationCounts:
        """The counts of one cell; of one without a migration, none."""
        return next((each for each in self.counts if each.cell == cell), MigrationCounts(cell, 0))


def fold_step_into_migrations(before: MigrationsView | None, event: MigrationChanged, attempt: int) -> MigrationsView:
    """The view after one more step. Another attempt at a cell resets that cell."""
    view = MigrationsView() if before is None else before
    if view.counts_of(event.cell).attempt not in (0, attempt):
        view = _drop_cell(view, event.cell)
    counts = _count_step(view.counts_of(event.cell), event, attempt)
    return MigrationsView(
        rows=_drop_oldest(_add_step(view.rows, event, attempt)),
        counts=(*(each for each in view.counts if each.cell != event.cell), counts),
        quiet=_note_refusal(view.quiet if _goes_on(view, event, attempt) else {}, event),
    )


def find_failed_migrations(view: MigrationsView | None, cell: str) -> frozenset[tuple[str, str]]:
    """(migration, target) of those of the cell's migrations in the view that have failed."""
    rows = () if view is None else view.rows
    return frozenset((row.migration, row.target) for row in rows if row.phase == "failed" and row.cell == cell)


def count_refusals_of_line(before: MigrationsView | None, event: MigrationChanged, attempt: int) -> int | None:
    """How many refusals a line of the feed about this one stands for; None = it makes no line."""
    going_on = before is not None and _goes_on(before, event, attempt)
    last = before.quiet.get(event.reason) if before is not None and going_on else None
    if last is None:
        return 1
    at, without_line = last
    return without_line + 1 if event.t_unix_s - at >= QUIET_S else None


def _goes_on(view: MigrationsView, event: MigrationChanged, attempt: int) -> bool:
    """The event is of the cell and attempt that the newest ones were of."""
    return bool(view.counts) and (view.counts[-1].cell, view.counts[-1].attempt) == (event.cell, attempt)


def make_migrations_json(view: MigrationsView) -> dict[str, Any]:
    """The part `migrations` of `tracon status --json`: counts per cell, and the newest."""
    return {
        "cells": [
            {
                "cell": each.cell,
                "attempt": each.attempt,
                **{phase: each.of(phase) for phase in PHASES},
                "under_way": each.under_way,
                "reasons": {phase: dict(each.by_phase[phase]) for phase in PHASES[1:] if phase in each.by_phase},
                "tokens": each.tokens,
                "bytes": each.bytes,
            }
            for each in view.counts
        ],
        "latest": [asdict(each) for each in view.rows[-SHOWN:]],
    }


def _drop_cell(view: MigrationsView, cell: str) -> MigrationsView:
    return MigrationsView(
        tuple(each for each in view.rows if each.cell != cell),
        tuple(each for each in view.counts if each.cell != cell),
    )


def _count_step(before: MigrationCounts, event: MigrationChanged, attempt: int) -> MigrationCounts:
    reasons = before.by_phase.get(event.phase, {})
    reason = "" if event.phase == "started" else event.reason
    reason = reason if reason in reasons or len(reasons) < MAX_REASONS else OTHER
    return MigrationCounts(
        event.cell,
        attempt,
        {**before.by_phase, event.phase: {**reasons, reason: reasons.get(reason, 0) + 1}},
        before.tokens + (event.external_tokens or 0),
        before.bytes + (event.bytes or 0),
    )


def _add_step(rows: tuple[Migration, ...], event: MigrationChanged, attempt: int) -> tuple[Migration, ...]:
    """The rows with the migration's newest step, at its old index where it has one."""
    ends = event.phase in ("done", "failed")
    row = Migration(
        **pick_fields(event, MigrationStep),
        cell=event.cell,
        attempt=attempt,
        t_unix_s=event.t_unix_s,
        ended_unix_s=event.t_unix_s if ends else None,
    )
    index = _find_index(rows, event) if event.phase != "refused" else None
    if index is None:
        return (*rows, row)
    begun = rows[index]
    if begun.phase != "started":
        return rows if event.phase == "started" else (*rows, row)
    text = ", ".join(dict.fromkeys(part for part in (begun.text or begun.reason, event.text) if part))
    return (*rows[:index], replace(row, t_unix_s=begun.t_unix_s, text=text), *rows[index + 1 :])


def _find_index(rows: tuple[Migration, ...], event: MigrationChanged) -> int | None:
    matches = (
        index
        for index in range(len(rows) - 1, -1, -1)
        if (rows[index].migration, rows[index].cell) == (event.migration, event.cell) and rows[index].phase != "refused"
    )
    return next(matches, None)


def _drop_oldest(rows: tuple[Migration, ...]) -> tuple[Migration, ...]:
    """Without the oldest where there are too many: migrations and refusals do not push each other out."""
    refused = sum(each.phase == "refused" for each in rows)
    spare = {"refused": refused - MAX_REFUSALS, "": len(rows) - refused - MAX_MIGRATIONS}
    return rows if max(spare.values()) <= 0 else tuple(_select_newest_of_each(rows, spare))


def _select_newest_of_each(rows: tuple[Migration, ...], spare: dict[str, int]) -> Iterator[Migration]:
    for each in rows:
        sort = "refused" if each.phase == "refused" else ""
        spare[sort] -= 1
        if spare[sort] < 0:
            yield each


def _note_refusal(before: Mapping[str, tuple[float, int]], event: MigrationChanged) -> Mapping[str, tuple[float, int]]:
    if event.phase != "refused":
        return before
    last = before.get(event.reason)
    if last is None or event.t_unix_s - last[0] >= QUIET_S:
        recent = dict([*before.items()][-MAX_REASONS:])
        return {**recent, event.reason: (event.t_unix_s, 0)}
    return {**before, event.reason: (last[0], last[1] + 1)}
