"""The cells of a live `routing` run as parity needs them: decisions, settings of the routers, and prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from results.records.decisions import DecisionRecord, RoutedRequest
from results.records.declaration import UnknownVersion
from results.records.errors import DAMAGED_JSON
from results.records.frames import Gap, read_record
from results.records.instance_events import InstanceEvent
from results.records.layout import RunLayout, TrialLayout, list_trial_layouts
from results.records.router_spec import TransferRules
from results.records.routing_cells import decode_config
from results.records.turns import CELL_UPGRADES, CELL_VERSION, RoutingCell
from results.routing.read import read_planned_cells, read_rows
from runners.errors import RunnerError
from runners.load.block_prompts import BlockShape, make_prompt_ids
from runners.load.replay_plan import make_request_prefix
from runners.router.policies import make_policy
from runners.router.prefix_index import make_block_keys
from runners.simulator.parity import KeysOf, LoggedRouter, Parity, compare_log
from runners.trace.formats import read_trace
from runners.trace.session import Trace


@dataclass(frozen=True, slots=True)
class CellParity:
    """One cell of a live run."""

    cell: str
    policy: str
    parity: Parity | None
    """None = it cannot be compared."""
    reason: str = ""
    """Why not."""


def compare_run(run: Path) -> tuple[CellParity, ...]:
    """Every live cell of a `routing` run, in the order of their folders."""
    settings = {cell.cell: cell.params for cell in read_planned_cells(run)}
    cells = (_compare_cell(run, layout, settings) for layout in list_trial_layouts(run))
    return tuple(cell for cell in cells if cell is not None)


def _compare_cell(run: Path, layout: TrialLayout, settings: Mapping[str, Mapping[str, Any]]) -> CellParity | None:
    """None = it was simulated itself."""
    name = str(layout.root.relative_to(run))
    cell = read_record(layout.cell, RoutingCell, CELL_VERSION, CELL_UPGRADES)
    if isinstance(cell, Gap):
        return CellParity(name, "", None, cell.reason)
    if cell.simulated:
        return None
    records, gaps = read_rows(layout.decisions, DecisionRecord, cell)
    if gaps or not records:
        return CellParity(cell.cell, cell.label, None, gaps[0].reason if gaps else "its log holds no decision")
    try:
        events = _read_events(layout, cell)
        router = _describe_router(run, layout, cell, records[0].request, settings.get(cell.cell, {}), events)
    except (RunnerError, OSError, UnknownVersion, *DAMAGED_JSON, KeyError, ValueError) as error:
        return CellParity(cell.cell, cell.label, None, f"{type(error).__name__}: {error}")
    return CellParity(cell.cell, cell.label, compare_log(records, router, events))


def _read_events(layout: TrialLayout, cell: RoutingCell) -> tuple[InstanceEvent, ...] | None:
    """None = the cell's router wrote none. Raises ValueError where they are not whole."""
    if layout.instance_events.name not in cell.checksums:
        return None
    events, gaps = read_rows(layout.instance_events, InstanceEvent, cell)
    if gaps or cell.router["events_lost"]:
        raise ValueError(gaps[0].reason if gaps else f"{cell.router['events_lost']} instance events were lost")
    return events


def _describe_router(
    run: Path,
    layout: TrialLayout,
    cell: RoutingCell,
    first: RoutedRequest,
    params: Mapping[str, Any],
    events: Sequence[InstanceEvent] | None,
) -> LoggedRouter:
    index = cell.router.get("index", "approximate")
    keys_of, why, rules = None, "", TransferRules()
    if events is None and index == "events":
        why = "the index followed the engines' KV events, which the run did not record"
    elif events is None and cell.parameters.get("prewarm_tokens"):
        why = "the engines were pre-warmed, and the run did not record with what"
    else:
        trace = read_trace(RunLayout(run).trace_of(cell.trace.get("name", "")))
        vocabulary = decode_config(layout.config.read_bytes()).model
        shape = BlockShape(
            cell.replay_seed, trace.facts.block_tokens, trace.facts.hash_scope,
            vocabulary["vocab_low"], vocabulary["vocab_high"],
        )  # fmt: skip
        keys_of = _find_keys(trace, shape, first.block_tokens)
    if events is not None:
        rules = msgspec.convert(params["transfer"], TransferRules)
    return LoggedRouter(
        make_policy(cell.policy, cell.parameters), first.block_tokens, first.min_move_tokens,
        params.get("reserved_output", "max_tokens"), keys_of, why, index, rules,
    )  # fmt: skip


def _find_keys(trace: Trace, shape: BlockShape, block_tokens: int) -> KeysOf:
    """The keys of each turn as the load generator sent it, by the id of its request."""
    turns = [(session.session, index, turn) for session in trace.sessions for index, turn in enumerate(session.turns)]
    prefix = make_request_prefix(shape.seed)

    def keys_of(request: str) -> tuple[int, ...]:
        session, index, turn = turns[int(request.removeprefix(prefix))]
        return make_block_keys(make_prompt_ids(shape, session, index, turn).tolist(), block_tokens)

    return keys_of
