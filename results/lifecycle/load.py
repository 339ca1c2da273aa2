"""The records of a lifecycle run as they lie in its folder, what was thrown away, and what is missing or damaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from results.layout import RunLayout, sha256
from results.lifecycle.record import LifecycleLayout, LifecycleRecord, RequestConfig, read_record
from results.lifecycle.settings import DEFAULT, Settings
from results.load import Gap, artifact_name

CELL = "lifecycle"
"""The plan's `kind` of a cell that is measured."""


@dataclass(frozen=True, slots=True)
class PlannedConfig:
    """A configuration of the plan."""

    cell: str
    config: RequestConfig
    why_not: str
    """Why it is not measured; empty = it is."""


@dataclass(frozen=True, slots=True)
class Discard:
    """A measurement that was thrown away."""

    config: RequestConfig
    repetition: int
    reason: str


@dataclass(frozen=True, slots=True)
class Collected:
    """What the folder holds of finished cells."""

    records: tuple[LifecycleRecord, ...]
    """By C, N, O and repetition, warm-ups and records that do not count included."""
    discards: tuple[Discard, ...]
    """Measurements made again, and records that do not count."""
    gaps: tuple[Gap, ...]


class _Thrown(msgspec.Struct, frozen=True):
    repetition: int
    reason: str = ""


class _Cell(msgspec.Struct, frozen=True):
    """The commit mark of a cell: the few fields that are read."""

    cell: str = ""
    checksums: Mapping[str, str] = {}
    discarded: Sequence[_Thrown] = ()


def collect(root: Path) -> Collected:
    """Every record of a finished cell; records of others, and files that are not as they were left, are gaps."""
    layout = LifecycleLayout(root)
    records: list[LifecycleRecord] = []
    discards: list[Discard] = []
    gaps: list[Gap] = []
    cells: dict[tuple[int, int, int], _Cell | Gap] = {}
    for path in layout.records():
        record = read_record(path)
        if isinstance(record, Gap):
            gaps.append(record)
            continue
        config = record.config
        if config.key not in cells:
            cells[config.key] = cell = _cell(layout.cell(config))
            if isinstance(cell, Gap):
                gaps.append(cell)
            else:
                discards += [Discard(config, one.repetition, one.reason) for one in cell.discarded]
        cell = cells[config.key]
        if isinstance(cell, Gap):
            continue
        wrong = _altered(path, cell)
        if wrong is not None:
            gaps.append(wrong)
            continue
        records.append(record)
        if record.discarded:
            discards.append(Discard(config, record.repetition, record.discarded))
    return Collected(tuple(records), tuple(discards), tuple(gaps))


def _cell(path: Path) -> _Cell | Gap:
    name = artifact_name(path.parent)
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Cell)
    except FileNotFoundError:
        return Gap(name, "the cell was not finished: its records are not counted")
    except OSError as error:
        return Gap(name, f"{path.name} cannot be read: {error.strerror}; its records are not counted")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Gap(name, f"{path.name} is damaged: {error}; its records are not counted")


def _altered(path: Path, cell: _Cell) -> Gap | None:
    """A record that is not the one its cell was finished with."""
    known = next((digest for name, digest in cell.checksums.items() if Path(name).name == path.name), None)
    if known is None:
        return Gap(artifact_name(path), "is not among the records its cell was finished with")
    if sha256(path) != known:
        return Gap(artifact_name(path), "differs from the checksum its cell was finished with")
    return None


def plan_of(root: Path) -> tuple[tuple[PlannedConfig, ...], Settings, tuple[Gap, ...]]:
    """The plan's configurations and the settings of its analysis; a plan that cannot be read has none of its own."""
    try:
        plan = msgspec.json.decode(RunLayout(root).plan.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):  # run_facts names it
        return (), DEFAULT, ()
    plan = plan if isinstance(plan, dict) else {}
    cells = plan.get("cells")
    found = [_planned(cell) for cell in (cells if isinstance(cells, list) else [])]
    settings, gaps = _settings(plan)
    return tuple(one for one in found if one is not None), settings, gaps


def _planned(cell: object) -> PlannedConfig | None:
    if not isinstance(cell, dict) or cell.get("kind") != CELL or not isinstance(cell.get("params"), dict):
        return None
    params = cell["params"]
    try:
        lengths = (params["prior_context"], params["new_tokens"], params["output_length"])
        config = RequestConfig(*map(int, lengths))
    except (KeyError, TypeError, ValueError):
        return None
    return PlannedConfig(str(cell.get("cell", "")), config, str(params.get("why_not") or ""))


def _settings(plan: Mapping[str, Any]) -> tuple[Settings, tuple[Gap, ...]]:
    inputs = plan.get("inputs")
    grid = inputs.get("grid") if isinstance(inputs, dict) else None
    told = grid.get("analysis") if isinstance(grid, dict) else None
    if told is None:
        return DEFAULT, ()
    try:
        return msgspec.convert(told, Settings), ()
    except msgspec.ValidationError as error:
        return DEFAULT, (Gap("plan.json", f"says of the analysis what cannot be used: {error}"),)


def unmeasured(planned: Sequence[PlannedConfig], records: Sequence[LifecycleRecord]) -> tuple[Gap, ...]:
    """Planned configurations without a record that counts."""
    done = {record.config.key for record in records if record.counted}
    tried = {record.config.key for record in records}
    return tuple(
        Gap(
            one.cell or one.config.label,
            f"not measured: {one.why_not}" if one.why_not
            else "no record of it counts" if one.config.key in tried
            else "not measured",
        )
        for one in planned
        if one.config.key not in done
    )  # fmt: skip
