"""The records of a lifecycle run as they lie in its folder, what was thrown away, and what is missing or damaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from results.layout import RunLayout, sha256
from results.lifecycle.record import LifecycleLayout, LifecycleRecord, RequestConfig, labelled, read_record
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
    """Measurements made again, those of failed cells, and records that do not count."""
    gaps: tuple[Gap, ...]
    cells: Mapping[tuple[int, int, int], MeasuredCell] = field(default_factory=dict)
    """Finished ones, by C, N, O."""
    failures: tuple[Failure, ...] = ()


class _Thrown(msgspec.Struct, frozen=True):
    repetition: int
    reason: str = ""


class Filled(msgspec.Struct, frozen=True):
    """What an engine's counters said of its KV cache at one moment; None = they did not, `reason` says why."""

    kv_usage: float | None = None
    """0 to 1: blocks that requests hold, not those that are kept for later ones."""
    preemptions: float | None = None
    """Since the engine started."""
    reason: str = ""


class Load(msgspec.Struct, frozen=True):
    """Of one engine: before the first and after the last request of a cell."""

    begin: Filled = Filled()
    end: Filled = Filled()

    @property
    def preemptions(self) -> float | None:
        """During the cell."""
        begin, end = self.begin.preemptions, self.end.preemptions
        return None if begin is None or end is None else end - begin


class _Engine(msgspec.Struct, frozen=True):
    block_tokens: int | None = None


class MeasuredCell(msgspec.Struct, frozen=True):
    """The commit mark of a cell: the few fields that are read."""

    cell: str = ""
    checksums: Mapping[str, str] = {}
    discarded: Sequence[_Thrown] = ()
    engines: Mapping[str, _Engine] = {}
    load: Mapping[str, Load] = {}
    """By side; empty = it was not read."""
    baseline: str = ""
    """`router`: the combined request went through the same router as the other; empty = straight to the engine."""

    @property
    def block_tokens(self) -> int | None:
        """Of the prefill instance, whose blocks are moved."""
        return self.engines["prefill"].block_tokens if "prefill" in self.engines else None


class _Failed(msgspec.Struct, frozen=True):
    reason: str = ""
    discarded: Sequence[_Thrown] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that failed."""

    config: RequestConfig
    reason: str


def collect(root: Path) -> Collected:
    """Every record of a finished cell; records of others, and files that are not as they were left, are gaps."""
    layout = LifecycleLayout(root)
    records: list[LifecycleRecord] = []
    discards: list[Discard] = []
    gaps: list[Gap] = []
    cells: dict[tuple[int, int, int], MeasuredCell | Gap] = {}
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
    failures, thrown, bad = _failed(layout)
    finished = {key: cell for key, cell in cells.items() if isinstance(cell, MeasuredCell)}
    return Collected(tuple(records), (*discards, *thrown), (*gaps, *bad), finished, failures)


def _failed(layout: LifecycleLayout) -> tuple[tuple[Failure, ...], list[Discard], list[Gap]]:
    """Cells that left word of why they failed, what they had thrown away, and words that cannot be read."""
    failures: list[Failure] = []
    discards: list[Discard] = []
    gaps: list[Gap] = []
    for path in layout.failures():
        config = labelled(path.parent.name)
        try:
            said = msgspec.json.decode(path.read_bytes(), type=_Failed)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            gaps.append(Gap(artifact_name(path.parent), f"{path.name} cannot be read: {error}"))
            continue
        if config is not None:
            failures.append(Failure(config, said.reason or "no reason given"))
            discards += [Discard(config, one.repetition, one.reason) for one in said.discarded]
    return tuple(failures), discards, gaps


def _cell(path: Path) -> MeasuredCell | Gap:
    name = artifact_name(path.parent)
    try:
        return msgspec.json.decode(path.read_bytes(), type=MeasuredCell)
    except FileNotFoundError:
        return Gap(name, "the cell was not finished: its records are not counted")
    except OSError as error:
        return Gap(name, f"{path.name} cannot be read: {error.strerror}; its records are not counted")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Gap(name, f"{path.name} is damaged: {error}; its records are not counted")


def _altered(path: Path, cell: MeasuredCell) -> Gap | None:
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


def unmeasured(
    planned: Sequence[PlannedConfig], records: Sequence[LifecycleRecord], failures: Sequence[Failure]
) -> tuple[Gap, ...]:
    """Planned configurations without a record that counts, and why where a cell said so."""
    failed = {one.config.key: one.reason for one in failures}
    done = {record.config.key for record in records if record.counted}
    tried = {record.config.key for record in records}
    return tuple(
        Gap(
            one.cell or one.config.label,
            f"not measured: {one.why_not}" if one.why_not
            else f"failed: {failed[one.config.key]}" if one.config.key in failed
            else "no record of it counts" if one.config.key in tried
            else "not measured",
        )
        for one in planned
        if one.config.key not in done
    )  # fmt: skip
