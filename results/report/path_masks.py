"""Names in place of a host's paths: in what is handed on, and where two runs are compared.

`RUN` is the run's folder, `TRACON` Tracon's, `~` the user's home, `FILES` a folder elsewhere of which the run read a
file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from results.records.errors import DAMAGED_JSON
from results.records.layout import RunLayout

_TRACON = Path(__file__).resolve().parents[2]


class _Simulation(msgspec.Struct, frozen=True):
    engine: str = ""
    """Name of a model, or its file."""


class _Grid(msgspec.Struct, frozen=True):
    simulation: _Simulation | None = None


class _PlanInputs(msgspec.Struct, frozen=True):
    files: Mapping[str, object] = {}
    grid: _Grid = _Grid()


class _PlanOfRun(msgspec.Struct, frozen=True):
    inputs: _PlanInputs = _PlanInputs()


def list_masks(source: Path) -> list[tuple[re.Pattern[bytes], bytes]]:
    """The innermost folder first: the run's may be below the home."""
    folders = {source.resolve(): b"RUN", source.absolute(): b"RUN", _TRACON: b"TRACON", Path.home(): b"~"}
    elsewhere = (path.parent for path in _list_inputs(source) if not any(map(path.is_relative_to, tuple(folders))))
    folders |= dict.fromkeys(tuple(elsewhere), b"FILES")
    by_length = sorted(folders.items(), key=lambda one: -len(one[0].parts))
    return [
        (re.compile(re.escape(str(folder).encode()) + rb"(?![\w.-])"), name)
        for folder, name in by_length
        if len(folder.parts) > 1
    ]


def _list_inputs(source: Path) -> list[Path]:
    """The files that the run read, such as its trace and its engine model, as its plan has them."""
    try:
        plan = msgspec.json.decode(RunLayout(source).plan.read_bytes(), type=_PlanOfRun)
    except (OSError, *DAMAGED_JSON):  # the report has that as a gap
        return []
    simulation = plan.inputs.grid.simulation
    names = (*plan.inputs.files, *([] if simulation is None else [simulation.engine]))
    return [path for name in names if (path := Path(name)).is_absolute()]


def mask_paths(content: bytes, masks: list[tuple[re.Pattern[bytes], bytes]]) -> bytes:
    for pattern, name in masks:
        content = pattern.sub(name, content)
    return content
