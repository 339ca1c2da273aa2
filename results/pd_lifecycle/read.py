"""Reads the folder of a lifecycle run: records, discarded measurements, the link, and what is missing or damaged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from results.pd_lifecycle.analysis_settings import DEFAULT, Settings
from results.records.declaration import UnknownVersion
from results.records.errors import DAMAGED_JSON
from results.records.estimate import figure
from results.records.frames import Gap, name_artifact
from results.records.layout import LifecycleLayout, RunLayout, sha256
from results.records.lifecycle import LifecycleRecord, RequestConfig, parse_cell_name, read_lifecycle
from results.records.lifecycle_cells import CellFailure, MeasuredCell, decode_cell
from results.records.link import LinkRecord
from results.records.skipped_cells import describe_skip

CELL = "lifecycle"
"""`kind` of a measured cell in the plan."""
RECORDS = Path("../..")
"""The folder of the records, from a cell's."""
CellKey = tuple[int, int, int, int]
"""Trial, C, N, O."""


@dataclass(frozen=True, slots=True)
class PlannedConfig:
    cell: str
    config: RequestConfig
    why_not: str
    """Why the cell is skipped; empty = it is measured."""
    trial: int = 0


@dataclass(frozen=True, slots=True)
class Discard:
    config: RequestConfig
    """Its lengths."""
    repetition: int
    """As in the record."""
    reason: str
    """Why it does not count."""
    trial: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """The contents of the run folder."""

    records: tuple[LifecycleRecord, ...]
    """Records of finished cells, by trial, C, N, O and repetition; warm-ups and records that do not count included."""
    discards: tuple[Discard, ...]
    """Repeated measurements, those of failed cells, and records that do not count."""
    gaps: tuple[Gap, ...]
    cells: Mapping[CellKey, MeasuredCell] = field(default_factory=dict)
    """Finished cells."""
    failures: tuple[FailedCell, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedCell:
    config: RequestConfig
    """Its lengths."""
    reason: str
    """Why it failed."""
    trial: int = 0


def read_records(root: Path) -> Collected:
    """Read the records of finished cells. Records of other cells, and altered files, become gaps."""
    layout = LifecycleLayout(root)
    records: list[LifecycleRecord] = []
    discards: list[Discard] = []
    gaps: list[Gap] = []
    cells: dict[CellKey, MeasuredCell | Gap] = {}
    for path in layout.records():
        record = read_lifecycle(path)
        if isinstance(record, Gap):
            gaps.append(record)
            continue
        config, key = record.config, (record.trial, *record.config.key)
        if key not in cells:
            cells[key] = cell = _read_cell(layout.cell(config, record.trial))
            if isinstance(cell, Gap):
                gaps.append(cell)
            else:
                discards += [Discard(config, one.repetition, one.reason, record.trial) for one in cell.discarded]
        cell = cells[key]
        if isinstance(cell, Gap):
            continue
        wrong = _find_alteration(path, cell)
        if wrong is not None:
            gaps.append(wrong)
            continue
        records.append(record)
        if record.discarded:
            discards.append(Discard(config, record.repetition, record.discarded, record.trial))
    failures, thrown, bad = _read_failures(layout)
    finished = {key: cell for key, cell in cells.items() if isinstance(cell, MeasuredCell)}
    gaps += [gap for cell in finished.values() for gap in _find_missing(layout, cell)]
    return Collected(tuple(records), (*discards, *thrown), (*gaps, *bad), finished, failures)


def _read_failures(layout: LifecycleLayout) -> tuple[tuple[FailedCell, ...], list[Discard], list[Gap]]:
    """(failed cells, their discarded measurements, gaps for unreadable files)."""
    failures: list[FailedCell] = []
    discards: list[Discard] = []
    gaps: list[Gap] = []
    for path in layout.failures():
        named = parse_cell_name(path.parent.name)
        try:
            failed_cell = msgspec.json.decode(path.read_bytes(), type=CellFailure)
        except (OSError, *DAMAGED_JSON) as error:
            gaps.append(Gap(name_artifact(path.parent), f"{path.name} cannot be read: {error}"))
            continue
        if named is not None:
            config, trial = named
            failures.append(FailedCell(config, failed_cell.reason or "no reason given", trial))
            discards += [Discard(config, one.repetition, one.reason, trial) for one in failed_cell.discarded]
    return tuple(failures), discards, gaps


def _read_cell(path: Path) -> MeasuredCell | Gap:
    name = name_artifact(path.parent)
    try:
        return decode_cell(path.read_bytes())
    except FileNotFoundError:
        return Gap(name, "the cell was not finished: its records are not counted")
    except OSError as error:
        return Gap(name, f"{path.name} cannot be read: {error.strerror}; its records are not counted")
    except UnknownVersion as error:
        return Gap(name, f"{path.name} {error}; its records are not counted")
    except DAMAGED_JSON as error:
        return Gap(name, f"{path.name} is damaged: {error}; its records are not counted")


def _find_missing(layout: LifecycleLayout, cell: MeasuredCell) -> list[Gap]:
    """A gap for each record that the cell finished with and that is gone."""
    paths = (layout.folder / Path(name).name for name in cell.checksums if Path(name).parent == RECORDS)
    return [Gap(name_artifact(path), "is missing") for path in paths if not path.exists()]


def _find_alteration(path: Path, cell: MeasuredCell) -> Gap | None:
    """A gap where the record differs from the one with which its cell finished."""
    known = next((digest for name, digest in cell.checksums.items() if Path(name).name == path.name), None)
    if known is None:
        return Gap(name_artifact(path), "is not listed in its cell's commit mark")
    if sha256(path) != known:
        return Gap(name_artifact(path), "differs from the checksum in its cell's commit mark")
    return None


def read_plan(root: Path) -> tuple[tuple[PlannedConfig, ...], Settings, tuple[Gap, ...]]:
    """The plan's configurations and analysis settings; the defaults for an unreadable plan."""
    try:
        plan = msgspec.json.decode(RunLayout(root).plan.read_bytes())
    except (OSError, *DAMAGED_JSON):  # run_facts names it
        return (), DEFAULT, ()
    plan = plan if isinstance(plan, dict) else {}
    cells = plan.get("cells")
    configs = [_read_planned_config(cell) for cell in (cells if isinstance(cells, list) else [])]
    settings, gaps = _read_analysis_settings(plan)
    return tuple(one for one in configs if one is not None), settings, gaps


def _read_planned_config(cell: object) -> PlannedConfig | None:
    if not isinstance(cell, dict) or cell.get("kind") != CELL or not isinstance(cell.get("params"), dict):
        return None
    params = cell["params"]
    try:
        lengths = (params["prior_context"], params["new_tokens"], params["output_length"])
        config = RequestConfig(*map(int, lengths))
        trial = int(cell.get("trial") or 0)
    except (KeyError, TypeError, ValueError):
        return None
    return PlannedConfig(str(cell.get("cell", "")), config, str(params.get("why_not") or ""), trial)


def _read_analysis_settings(plan: Mapping[str, Any]) -> tuple[Settings, tuple[Gap, ...]]:
    inputs = plan.get("inputs")
    grid = inputs.get("grid") if isinstance(inputs, dict) else None
    settings = grid.get("analysis") if isinstance(grid, dict) else None
    if settings is None:
        return DEFAULT, ()
    try:
        return msgspec.convert(settings, Settings), ()
    except msgspec.ValidationError as error:
        return DEFAULT, (Gap("plan.json", f"its settings of the analysis are invalid: {error}"),)


def find_pending(
    planned: Sequence[PlannedConfig],
    records: Sequence[LifecycleRecord],
    failures: Sequence[FailedCell],
    skipped: Collection[str],
) -> tuple[PlannedConfig, ...]:
    """The planned cells that no attempt measured and nothing left out: `tracon resume` measures them."""
    tried = {(record.trial, *record.config.key) for record in records}
    tried |= {(failure.trial, *failure.config.key) for failure in failures}
    left = (one for one in planned if not one.why_not and one.cell not in skipped)
    return tuple(one for one in left if (one.trial, *one.config.key) not in tried)


def find_unmeasured(
    planned: Sequence[PlannedConfig],
    records: Sequence[LifecycleRecord],
    failures: Sequence[FailedCell],
    skipped: Mapping[str, str],
) -> tuple[Gap, ...]:
    """One gap per planned cell without a counted record, with its reason; `skipped`: the operator's by cell."""
    failed = {(one.trial, *one.config.key): one.reason for one in failures}
    done = {(record.trial, *record.config.key) for record in records if record.counted}
    tried = {(record.trial, *record.config.key) for record in records}

    def explain_absence(one: PlannedConfig) -> str:
        key = (one.trial, *one.config.key)
        if one.why_not:
            return f"not measured: {one.why_not}"
        if one.cell in skipped:
            return describe_skip(skipped[one.cell])
        if key in failed:
            return f"failed: {failed[key]}"
        return "none of its records counts" if key in tried else "not measured"

    missing = (one for one in planned if (one.trial, *one.config.key) not in done)
    return tuple(Gap(one.cell or one.config.label, explain_absence(one)) for one in missing)


GIVEN, MEASURED = "given", "measured here"


@dataclass(frozen=True, slots=True)
class LinkBandwidth:
    gbps: float
    """Bandwidth of the link."""
    source: str
    """GIVEN or MEASURED."""
    low: float | None = None
    """Bandwidth of the slowest round; None = one number was given."""
    high: float | None = None
    """Bandwidth of the fastest round."""
    method: str = ""
    """How it was measured; empty = it was given."""

    @property
    def text(self) -> str:
        """`12.5 Gbit/s (given)`. The range over the rounds is no interval and has no brackets."""
        spread = "" if self.low is None or self.high is None else f", {figure(self.low, 3)} to {figure(self.high, 3)}"
        how = f": {self.method}" if self.method else ""
        return f"{figure(self.gbps, 3)} Gbit/s ({self.source}{spread}{how})"


def read_links(
    layout: LifecycleLayout, stated_gbps: float | None
) -> tuple[tuple[LinkBandwidth, ...], str, tuple[Gap, ...]]:
    """(known bandwidths, a stated one first; why measuring failed; a gap for an unreadable file)."""
    stated = () if stated_gbps is None else (LinkBandwidth(stated_gbps, GIVEN),)
    try:
        content = msgspec.json.decode(layout.link.read_bytes(), type=LinkRecord)
    except FileNotFoundError:
        return stated, "", ()
    except (OSError, *DAMAGED_JSON) as error:
        return stated, "", (Gap(name_artifact(layout.link), f"cannot be read: {error}"),)
    if content.gbps is None or content.gbps <= 0:
        return stated, content.reason or "no reason given", ()
    source = GIVEN if content.known_from == "given" else MEASURED
    measured = LinkBandwidth(content.gbps, source, content.low, content.high, content.method)
    if measured.source == GIVEN:
        return stated or (measured,), "", ()
    return (*stated, measured), "", ()
