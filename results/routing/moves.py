"""The migrations and KV transfers of a run, from its decision logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.routing.logs import LogFacts, PendingSeries
from results.routing.measurements import Measurements
from results.routing.migrations import Migrations, PolicyMigrations, summarize_migrations
from results.routing.read import LoadedCell
from results.routing.recomputing import (
    AgainstRecomputing,
    compare_with_arm,
    compare_with_recomputing,
    find_recomputing_arms,
)
from results.routing.transfers import PolicyTransfers, summarize_transfers


@dataclass(frozen=True, slots=True)
class CellMigrations:
    """One cell of a policy that may migrate."""

    cell: str
    label: str
    trial: int
    migrations: Migrations
    pending: tuple[PendingSeries, ...]
    counts: bool
    """It is among the policy's numbers; else its client fell behind, or it replayed another trace."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Every migration and KV transfer of a run, by cell and by label."""

    cells: tuple[CellMigrations, ...]
    migrations: tuple[PolicyMigrations, ...]
    """A row per label."""
    transfers: tuple[PolicyTransfers, ...]
    recomputing: tuple[AgainstRecomputing, ...]

    def shown(self) -> tuple[CellMigrations, ...]:
        """The cell that figure 10 shows of each label with migrations: the one with the most, of those that count."""
        ranked = sorted(self.cells, key=lambda cell: (cell.counts, len(cell.migrations.events)), reverse=True)
        best: dict[str, CellMigrations] = {}
        for cell in ranked:
            if cell.migrations.events:
                best.setdefault(cell.label, cell)
        return tuple(best[row.label] for row in self.migrations if row.label in best)


def collect_moves(
    cells: Sequence[LoadedCell],
    all_logs: Mapping[str, LogFacts],
    counted_logs: Mapping[str, Mapping[int, LogFacts]],
    measurements: Measurements,
) -> Moves:
    """`all_logs`: by cell path. `counted_logs`: of the cells that count, label to trial, in the order of tables."""
    parameters = {cell.record.label: cell.record.parameters for cell in cells}
    counted = {cell.path for label in counted_logs for cell in measurements.cells(label).values()}
    migrations = {label: {trial: log.migrations for trial, log in own.items()} for label, own in counted_logs.items()}
    migrating = {label for label, own in migrations.items() if any(cell.events for cell in own.values())}
    arms = {
        label: compare_with_arm(label, other, migrations, measurements)
        for label, other in find_recomputing_arms(cell.record for cell in cells).items()
        if {label, other} <= migrating
    }
    transfers: list[PolicyTransfers] = []
    recomputing: list[AgainstRecomputing] = []
    for label, own in counted_logs.items():
        moved = {trial: log.moved for trial, log in own.items()}
        totals = {trial: log.external_total_tokens for trial, log in own.items()}
        transfers += summarize_transfers(label, moved, totals, measurements)
        turns = {trial: (log.prefills, log.transferred_turns) for trial, log in own.items()}
        row = compare_with_recomputing(label, turns, measurements, arms.get(label))
        recomputing += [] if row is None else [row]
    return Moves(
        cells=tuple(
            CellMigrations(
                cell.record.cell,
                cell.record.label,
                cell.record.trial,
                log.migrations,
                log.pending,
                cell.path in counted,
            )
            for cell in cells
            if (log := all_logs.get(cell.path)) and ("hot_tokens" in cell.record.parameters or log.migrations.events)
        ),
        migrations=tuple(
            summarize_migrations(label, own, parameters[label], measurements) for label, own in migrations.items()
        ),
        transfers=tuple(transfers),
        recomputing=tuple(recomputing),
    )
