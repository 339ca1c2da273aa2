"""The engines that died and the steps that stalled in a run, as gaps of its report."""

from __future__ import annotations

from pathlib import Path

from results.records.frames import Gap, read_each_row
from results.records.layout import RunLayout
from results.records.schemas import EngineFault


def list_engine_fault_gaps(root: Path) -> tuple[Gap, ...]:
    """A gap per death and per stall, in their order; empty where the run has no such file."""
    rows = read_each_row(RunLayout(root).engine_faults, EngineFault)
    return tuple(row if isinstance(row, Gap) else _make_gap(row) for row in rows)


def _make_gap(fault: EngineFault) -> Gap:
    lines = f". Its log ends: {' | '.join(fault.last_lines)}" if fault.last_lines else ""
    return Gap(f"engine {fault.instance}", f"{fault.text}{lines}")
