"""Reads the decision logs of a run for what its counts do not have: migrations, KV transfers, the data of figure 10.

A log holds the whole cluster at every pick, so one cell's log is read at a time. Retained are what is computed from it
and the picks that migrate a session.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from results.records.decisions import DecisionRecord
from results.records.frames import Gap, name_artifact
from results.records.layout import TrialLayout
from results.records.turns import EngineSample, RoutingCell
from results.routing.floor_facts import KV_AWARE, FloorFacts, floor_facts
from results.routing.measurements import Measurements
from results.routing.migrations import Migrations, find_migrations
from results.routing.read import EXTERNAL, LoadedCell, read_number_or_none, read_rows
from results.routing.recomputing import Prefill, TransferredTurn, find_prefills, find_transferred_turns
from results.routing.transfer_counts import read_transfer_logs, take_counts_from_logs
from results.routing.transfers import Moved, list_moved
from results.statistics.estimates import Samples


@dataclass(frozen=True, slots=True)
class PendingSeries:
    """Prompt tokens pending at one instance, as the router counted them. Seconds count from the log's first pick."""

    instance: str
    t_s: Samples
    tokens: Samples


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the logs of one cell state."""

    migrations: Migrations
    moved: tuple[Moved, ...]
    external_total_tokens: float | None
    """Prompt tokens that came by transfer, by the counters of all instances over the cell; None = one lacks it."""
    prefills: tuple[Prefill, ...]
    transferred_turns: tuple[TransferredTurn, ...]
    pending: tuple[PendingSeries, ...]
    """By instance name; empty where nothing migrated, or where they were not asked for."""
    floor: FloorFacts | None
    """None under any policy but kv_aware."""


def read_logs(
    root: Path, cells: Sequence[LoadedCell], *, with_pending: bool = True
) -> tuple[dict[str, LogFacts], tuple[Gap, ...]]:
    """By path, the facts of cells whose policy may move or spread sessions; the logs of others hold nothing more.

    A log that cannot be read is a gap, unless loading its cell already gave that gap. `with_pending`: also the data of
    figure 10, which take longer than all else.
    """
    facts: dict[str, LogFacts] = {}
    gaps: list[Gap] = []
    for cell in cells:
        if not (cell.record.logs_decisions and _may_move_or_spread(cell)):
            continue
        layout = TrialLayout((root / cell.path).parent)
        records, damaged = read_rows(layout.decisions, DecisionRecord, cell.record)
        gaps += [gap for gap in damaged if gap.artifact not in {known.artifact for known in cell.gaps}]
        if damaged:
            continue
        if cell.picks is not None and cell.picks.transfers:
            logs, log_gaps = read_transfer_logs(layout, cell.record)
            records, differing = take_counts_from_logs(records, logs, cell.record, name_artifact(layout.decisions))
            gaps += [*log_gaps, *differing]
        facts[cell.path] = collect_log_facts(cell, records, with_pending=with_pending)
    return facts, tuple(gaps)


def _may_move_or_spread(cell: LoadedCell) -> bool:
    picks, record = cell.picks, cell.record
    moves = picks is not None and bool(picks.migrations or picks.transfers)
    return moves or record.policy == KV_AWARE or "hot_tokens" in record.parameters


def group_facts_by_label(
    logs: Mapping[str, LogFacts], cells: Sequence[LoadedCell], labels: Iterable[str], measurements: Measurements
) -> dict[str, dict[int, LogFacts]]:
    """Label to trial, of the cells that count; a label without any is empty."""
    facts: dict[str, dict[int, LogFacts]] = {label: {} for label in labels}
    counted = {cell.path for label in facts for cell in measurements.cells(label).values()}
    for cell in cells:
        if cell.path in logs and cell.path in counted:
            facts[cell.record.label][cell.record.trial] = logs[cell.path]
    return facts


def collect_log_facts(cell: LoadedCell, records: Sequence[DecisionRecord], *, with_pending: bool = True) -> LogFacts:
    """`records`: the log of the cell; `with_pending`: as of `read_logs`."""
    thresholds = (read_number_or_none(cell.record.parameters.get(name)) for name in ("hot_tokens", "cooldown_s"))
    migrations = find_migrations(records, *thresholds)
    return LogFacts(
        migrations=migrations,
        moved=list_moved(records),
        external_total_tokens=_sum_external_tokens(cell.record),
        prefills=find_prefills(records) if migrations.events else (),
        transferred_turns=find_transferred_turns(records),
        pending=make_pending_series(records, cell.samples) if migrations.events and with_pending else (),
        floor=floor_facts(cell.record, records) if cell.record.policy == KV_AWARE else None,
    )


def _sum_external_tokens(cell: RoutingCell) -> float | None:
    """Prompt tokens that the engines count as transferred over the cell; None where one does not count them."""
    own = [engine.prompt_tokens_by_source.get(EXTERNAL) for engine in cell.engines]
    return None if not own or None in own else sum(count or 0.0 for count in own)


def make_pending_series(
    records: Sequence[DecisionRecord], samples: Iterable[EngineSample] = ()
) -> tuple[PendingSeries, ...]:
    """From the view of every pick and, between picks, from the 1 Hz `samples` of the same cell."""
    points: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for record in records:
        for load in record.cluster.instances:
            points[load.instance].append((record.t_ns, load.pending_prefill_tokens))
    for sample in samples:
        if sample.pending_prefill_tokens is not None:
            points[sample.instance].append((sample.t_ns, sample.pending_prefill_tokens))
    t0_ns = min(records, key=lambda record: record.seq).t_ns if records else 0
    return tuple(
        PendingSeries(
            name,
            np.array([(t_ns - t0_ns) / 1e9 for t_ns, _ in sorted(points[name])], dtype=np.float64),
            np.array([tokens for _, tokens in sorted(points[name])], dtype=np.float64),
        )
        for name in sorted(points)
    )
