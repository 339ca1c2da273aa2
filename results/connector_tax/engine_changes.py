"""The settings that vLLM chose for each config's engine, and their differences from plain's.

vLLM changes settings for a connector: it may switch asynchronous scheduling off, choose another graph mode, take
another layout of the KV cache, or have fewer KV blocks left. The callbacks do not show the cost of such a change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.connector_tax.configs import BASELINE, REPEAT
from results.connector_tax.summary import CellSummary
from results.records.percent import format_percent
from results.report.table import Column, Table, make_table

KV_ROOM = ("kv_blocks", "kv_capacity_tokens")
KV_LAYOUT = "kv_cache_layout"
"""Order of layers, blocks, heads and tokens in GPU memory: vLLM takes the one that a connector asks for."""
SAME_ROOM = 0.01
"""Relative difference in KV blocks of two launches of one config: each measures the free memory again."""


@dataclass(frozen=True, slots=True)
class EngineChange:
    """One config's engine."""

    config: str
    settings: Mapping[str, Any]
    """As the probe read them when the engine was made; empty = not recorded."""
    changed: tuple[str, ...]
    """`name: plain's -> this config's`."""
    reason: str
    """Why there is nothing to compare; empty where there is."""
    gpu_memory_mib: float | None = None
    """The most memory that all GPUs together used in a cell; None = not measured."""
    gpu_clock_mhz: float | None = None
    """The lowest mean clock in a cell, so that throttling in one cell shows; None = not measured."""


def list_engine_changes(cells: Sequence[CellSummary]) -> tuple[EngineChange, ...]:
    """One row for each config, plain first; of several launches the last."""
    last = {cell.config: cell for cell in cells}
    baseline = last[BASELINE].settings if BASELINE in last else {}
    ordered = sorted(last, key=lambda config: (config not in (BASELINE, REPEAT), config))
    return tuple(
        _compare(last[config], baseline, [cell for cell in cells if cell.config == config]) for config in ordered
    )


def _compare(cell: CellSummary, baseline: Mapping[str, Any], cells: Sequence[CellSummary]) -> EngineChange:
    reason = ""
    if not cell.settings:
        reason = "not recorded: the probe did not run, or the run is older than this record"
    elif not baseline:
        reason = f"the settings of {BASELINE} are not recorded"
    changed = tuple(
        f"{name}: {_show_setting(baseline[name])} -> {_show_setting(value)}"
        for name, value in cell.settings.items()
        if name in baseline and _differs(name, baseline[name], value)
    )
    memory = [one.gpu["memory_used_mib"] for one in cells if one.gpu.get("memory_used_mib") is not None]
    clock = [one.gpu["clock_mhz"] for one in cells if one.gpu.get("clock_mhz") is not None]
    most_memory, lowest_clock = max(memory, default=None), min(clock, default=None)
    return EngineChange(cell.config, cell.settings, changed, reason, most_memory, lowest_clock)


def _differs(name: str, before: object, after: object) -> bool:
    if name in KV_ROOM and isinstance(before, int) and isinstance(after, int):
        return abs(after - before) > SAME_ROOM * before
    return before != after


def _show_setting(value: object) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def make_engine_changes_table(changes: Sequence[EngineChange]) -> Table:
    note = (
        "Read from vLLM's own configuration when the engine was made. Changed: what differs from plain's "
        f"(KV blocks and capacity from {format_percent(SAME_ROOM)} on). Of a GPU: the most memory in "
        "use and the lowest mean clock among the config's cells."
    )
    recorded = [change for change in changes if change.settings]
    has_layout = any(change.settings.get(KV_LAYOUT) is not None for change in recorded)
    columns = [column for column in CHANGE_COLUMNS if has_layout or column is not LAYOUT_COLUMN]
    return make_table("What vLLM changed for each config", columns, recorded, note)


LAYOUT_COLUMN: Column[EngineChange] = Column("KV layout", lambda row: _show_setting(row.settings.get(KV_LAYOUT)))
"""Only in tables of runs that recorded it: older ones and engines before vLLM 0.32 did not."""
CHANGE_COLUMNS: tuple[Column[EngineChange], ...] = (
    Column("config", lambda row: row.config),
    Column("async scheduling", lambda row: _show_setting(row.settings.get("async_scheduling"))),
    Column("graph mode", lambda row: _show_setting(row.settings.get("cudagraph_mode"))),
    LAYOUT_COLUMN,
    Column("KV blocks", lambda row: _show_setting(row.settings.get("kv_blocks"))),
    Column("KV capacity tokens", lambda row: _show_setting(row.settings.get("kv_capacity_tokens"))),
    Column("most GPU memory MiB", lambda row: row.gpu_memory_mib, form=".0f"),
    Column("lowest GPU clock MHz", lambda row: row.gpu_clock_mhz, form=".0f"),
    Column("changed", lambda row: row.reason or "; ".join(row.changed) or "nothing"),
)
