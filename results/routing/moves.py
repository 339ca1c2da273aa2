"""Everything that the decision logs of a run say of sessions that moved, and of KV that did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.routing.arms import against_arm, recomputing_arms
from results.routing.load import LoadedCell
from results.routing.logs import LogFacts
from results.routing.measure import Measurements
from results.routing.migrations import Migrations
from results.routing.policy_migrations import (
    PolicyMigrations,
    PolicyTransfers,
    policy_migrations,
    policy_transfers,
)
from results.routing.recomputing import AgainstRecomputing, against_recomputing
from results.routing.timeline import Timeline


@dataclass(frozen=True, slots=True)
class CellMigrations:
    """One cell of a policy that may migrate."""

    cell: str
    label: str
    trial: int
    found: Migrations
    timeline: Timeline | None
    counts: bool
    """Its numbers are among those of the policy; else its client fell behind, or it replayed another trace."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Of a whole run."""

    cells: tuple[CellMigrations, ...]
    migrations: tuple[PolicyMigrations, ...]
    """A row per label."""
    transfers: tuple[PolicyTransfers, ...]
    recomputing: tuple[AgainstRecomputing, ...]

    def shown(self) -> tuple[CellMigrations, ...]:
        """Of each label with migrations, the cell that figure 10 shows: of those that count, the one with the most."""
        best: dict[str, CellMigrations] = {}
        for cell in self.cells:
            one = best.get(cell.label)
            if cell.timeline is not None and (one is None or _rank(cell) > _rank(one)):
                best[cell.label] = cell
        return tuple(best[row.label] for row in self.migrations if row.label in best)


def _migrates(found: Mapping[str, Mapping[int, Migrations]], label: str) -> bool:
    return any(one.events for one in found.get(label, {}).values())


def _rank(cell: CellMigrations) -> tuple[bool, int]:
    return cell.counts, len(cell.found.events)


def moves(
    cells: Sequence[LoadedCell],
    logs: Mapping[str, LogFacts],
    facts: Mapping[str, Mapping[int, LogFacts]],
    measurements: Measurements,
) -> Moves:
    """Of these cells; `logs` by their paths, `facts` of those that count: label to trial, in the order of tables."""
    parameters = {cell.record.label: cell.record.parameters for cell in cells}
    counted = {found.path for label in facts for found in measurements.cells(label).values()}
    moved = {label: {t: one.migrations for t, one in own.items()} for label, own in facts.items()}
    arms = {
        label: against_arm(label, other, moved, measurements)
        for label, other in recomputing_arms(cell.record for cell in cells).items()
        if _migrates(moved, label) and _migrates(moved, other)
    }
    compared = (
        against_recomputing(
            label, {t: (one.prefills, one.brought) for t, one in own.items()}, measurements, arms.get(label)
        )
        for label, own in facts.items()
    )
    return Moves(
        cells=tuple(
            CellMigrations(
                cell.record.cell,
                cell.record.label,
                cell.record.trial,
                logs[cell.path].migrations,
                logs[cell.path].timeline,
                cell.path in counted,
            )
            for cell in cells
            if cell.path in logs and ("hot_tokens" in cell.record.parameters or logs[cell.path].migrations.events)
        ),
        migrations=tuple(policy_migrations(label, facts[label], parameters[label], measurements) for label in facts),
        transfers=tuple(row for label, own in facts.items() for row in policy_transfers(label, own, measurements)),
        recomputing=tuple(row for row in compared if row is not None),
    )
