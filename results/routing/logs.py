"""What the decision logs of a run say beyond counts: migrations, KV movements, the data of figure 10.

A log holds the whole cluster at every pick, so one cell's is read at a time, and only what is computed of it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from results.records.decisions import DecisionRecord
from results.records.frames import Gap, artifact_name
from results.records.layout import TrialLayout
from results.records.turns import RoutingCell
from results.routing.floor_sessions import KV_AWARE, FloorFacts, floor_facts
from results.routing.load import LoadedCell, read_rows
from results.routing.measure import Measurements
from results.routing.migrations import Migrations, migrations
from results.routing.recomputing import Brought, Prefill, brought, prefills
from results.routing.timeline import Timeline, timeline
from results.routing.transfer_counts import counted_by_logs, read_transfer_logs
from results.routing.transfers import Moved, moved


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Of one cell."""

    migrations: Migrations
    moved: tuple[Moved, ...]
    external_total_tokens: float | None
    """Prompt tokens that came by transfer, as the counters of all instances say over the cell; None = not all do."""
    prefills: tuple[Prefill, ...]
    brought: tuple[Brought, ...]
    timeline: Timeline | None
    """None where nothing migrated."""
    floor: FloorFacts | None
    """Of kv_aware alone."""


def read_logs(root: Path, cells: Sequence[LoadedCell]) -> tuple[dict[str, LogFacts], tuple[Gap, ...]]:
    """By the cells' paths, of those whose policy may move sessions or spread them (others' logs hold nothing more).

    Where a log cannot be read, a gap if loading the cell did not find it.
    """
    found: dict[str, LogFacts] = {}
    gaps: list[Gap] = []
    for cell in cells:
        if not _tells(cell):
            continue
        layout = TrialLayout((root / cell.path).parent)
        records, wrong = read_rows(layout.decisions, DecisionRecord, cell.record)
        gaps += [gap for gap in wrong if gap.artifact not in {one.artifact for one in cell.gaps}]
        if not wrong:
            if cell.picks is not None and cell.picks.transfers:
                logs, damaged = read_transfer_logs(layout, cell.record)
                records, differing = counted_by_logs(records, logs, cell.record, artifact_name(layout.decisions))
                gaps += [*damaged, *differing]
            found[cell.path] = log_facts(cell, records)
    return found, tuple(gaps)


def facts_by_label(
    logs: Mapping[str, LogFacts], cells: Sequence[LoadedCell], labels: Iterable[str], measurements: Measurements
) -> dict[str, dict[int, LogFacts]]:
    """Label to trial, of the cells that count; a label without any is there, and empty."""
    found: dict[str, dict[int, LogFacts]] = {label: {} for label in labels}
    counted = {one.path for label in found for one in measurements.cells(label).values()}
    for cell in cells:
        if cell.path in logs and cell.path in counted:
            found[cell.record.label][cell.record.trial] = logs[cell.path]
    return found


def _tells(cell: LoadedCell) -> bool:
    picks, record = cell.picks, cell.record
    moves = picks is not None and bool(picks.migrations or picks.transfers)
    return moves or record.policy == KV_AWARE or "hot_tokens" in record.parameters


def log_facts(cell: LoadedCell, records: Sequence[DecisionRecord]) -> LogFacts:
    """Of one cell with this log."""
    parameters = cell.record.parameters
    moves = migrations(records, _whole(parameters, "hot_tokens"), _number(parameters, "cooldown_s"))
    return LogFacts(
        migrations=moves,
        moved=moved(records),
        external_total_tokens=external_total(cell.record),
        prefills=prefills(records) if moves.events else (),
        brought=brought(records),
        timeline=timeline(records, cell.samples) if moves.events else None,
        floor=floor_facts(cell.record, records) if cell.record.policy == KV_AWARE else None,
    )


def external_total(cell: RoutingCell) -> float | None:
    """What the engines counted as having come by transfer over the cell; None where one does not say."""
    own = [engine.prompt_tokens_by_source.get("external_kv_transfer") for engine in cell.engines]
    return None if not own or None in own else sum(count or 0.0 for count in own)


def _number(parameters: Mapping[str, object], name: str) -> float | None:
    value = parameters.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(parameters: Mapping[str, object], name: str) -> int | None:
    value = _number(parameters, name)
    return None if value is None else int(value)
