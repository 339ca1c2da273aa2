"""The engines that died and the steps that stalled in a run, as gaps of its report."""

from __future__ import annotations

from pathlib import Path

import msgspec

from results.records.errors import DAMAGED_JSON
from results.records.frames import Gap
from results.records.layout import RunLayout
from results.records.schemas import EngineFault

_DECODER = msgspec.json.Decoder(EngineFault)


def engine_fault_gaps(root: Path) -> tuple[Gap, ...]:
    """A gap per death and per stall, in their order; empty where the run has no such file."""
    path = RunLayout(root).engine_faults
    try:
        rows = path.read_bytes().splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        return (Gap(path.name, f"cannot be read: {error.strerror}"),)
    gaps = []
    for number, row in enumerate(rows, 1):
        try:
            gaps.append(_make_gap(_DECODER.decode(row)))
        except DAMAGED_JSON as error:
            gaps.append(Gap(path.name, f"line {number} is damaged: {error}"))
    return tuple(gaps)


def _make_gap(fault: EngineFault) -> Gap:
    lines = f". Its log ends: {' | '.join(fault.last_lines)}" if fault.last_lines else ""
    return Gap(f"engine {fault.instance}", f"{fault.text}{lines}")
