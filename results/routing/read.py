"""Reads the cells of a `routing` run, and finds what is missing or damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from results.measures.turns import Turns, read_turns
from results.records.decisions import DecisionRecord, KvTransfer
from results.records.declaration import UnknownVersion
from results.records.errors import DAMAGED_JSON
from results.records.frames import Gap, name_artifact, read_record, read_verified_bytes
from results.records.layout import RunLayout, TrialLayout, list_trial_layouts, sha256
from results.records.routing_cells import PickCounts, decode_breakdown
from results.records.rows import decode_rows
from results.records.turns import CELL_UPGRADES, CELL_VERSION, EngineSample, RoutingCell

_Row = TypeVar("_Row")
EXTERNAL = "external_kv_transfer"
"""The source of prompt tokens whose KV came from another engine, in `RoutedEngine.prompt_tokens_by_source`."""


@dataclass(frozen=True, slots=True)
class LoadedCell:
    record: RoutingCell
    turns: Turns | None
    picks: PickCounts | None
    samples: tuple[EngineSample, ...]
    """Empty where they were not read."""
    path: str
    """The cell record's file, below the run's folder."""
    gaps: tuple[Gap, ...] = ()

    @property
    def degraded(self) -> str:
        """Why the client could not keep its schedule; empty when it could."""
        fidelity = self.record.replay.get("fidelity")
        if not isinstance(fidelity, Mapping) or not fidelity.get("degraded"):
            return ""
        return str(fidelity.get("reason") or "the client fell behind")


class PlannedCell(msgspec.Struct, frozen=True):
    """The fields of a CellPlan that the results need."""

    cell: str
    kind: str = ""
    label: str = ""
    params: dict[str, Any] = {}

    @property
    def variation(self) -> str:
        """The variation of the engine model; empty = none."""
        return str(self.params.get("variation", ""))


class _Plan(msgspec.Struct, frozen=True):
    cells: tuple[PlannedCell, ...] = ()


def read_planned_cells(root: Path) -> tuple[PlannedCell, ...]:
    """The plan's cells; a plan that cannot be read is a gap of the run's facts."""
    try:
        return msgspec.json.decode(RunLayout(root).plan.read_bytes(), type=_Plan).cells
    except (OSError, *DAMAGED_JSON):
        return ()


def load_cells(
    root: Path, variation: str = "", *, with_samples: bool = True
) -> tuple[tuple[LoadedCell, ...], tuple[Gap, ...]]:
    """The finished cells below `root` in the order they were measured, and all gaps. A bad cell is a gap.

    Only those of this variation, under the labels that their policies have without it; of policies that it does not
    change, those without a variation. `with_samples`: read the engines' samples too.
    """
    cells: list[LoadedCell] = []
    gaps: list[Gap] = []
    unchanged = _list_unchanged(root, variation)
    for layout in list_trial_layouts(root):
        record = _read_record(layout.cell)
        if isinstance(record, Gap):
            gaps.append(record)
        elif record.variation == variation or (not record.variation and record.label in unchanged):
            record = replace(record, label=_strip_variation(record.label, variation))
            cells.append(_load_artifacts(layout, record, with_samples=with_samples))
            gaps.extend(cells[-1].gaps)
    return tuple(sorted(cells, key=lambda cell: (cell.record.position, cell.path))), tuple(gaps)


def _list_unchanged(root: Path, variation: str) -> frozenset[str]:
    """Labels of policies that the plan has without a variation and not under this one: it changes nothing of them."""
    planned = read_planned_cells(root) if variation else ()
    varied = {_strip_variation(cell.label, variation) for cell in planned if cell.variation == variation}
    return frozenset(cell.label for cell in planned if not cell.variation) - varied


def _strip_variation(label: str, variation: str) -> str:
    return label.removesuffix(f" vary={variation}")


def _load_artifacts(layout: TrialLayout, record: RoutingCell, *, with_samples: bool) -> LoadedCell:
    turns, turn_gaps = read_turns(layout.metrics, record.t_start_ns, record.checksums.get(layout.metrics.name))
    picks, pick_gaps = _read_picks(layout, record)
    samples, sample_gaps = read_rows(layout.engines, EngineSample, record) if with_samples else ((), ())
    missing = [
        Gap(name_artifact(path), "is missing")
        for path in (layout.config, layout.summary, layout.breakdown, layout.apc, layout.gpu_util)
        if not path.is_file()
    ]
    gaps = (*turn_gaps, *pick_gaps, *sample_gaps, *missing)
    return LoadedCell(record, keep_own_cache(turns, picks, record), picks, samples, name_artifact(layout.cell), gaps)


def keep_own_cache(turns: Turns | None, picks: PickCounts | None, record: RoutingCell) -> Turns | None:
    """The turns, without cached tokens where prompts were handed over: a decode instance reports those as cached."""
    handed_over = picks.handovers if picks is not None else hides_transfers(picks, record)
    return turns.without("cached_tokens") if turns is not None and handed_over else turns


def hides_transfers(picks: PickCounts | None, record: RoutingCell) -> bool:
    """Whether KV came by transfer, and no log tells the requests of transfers from those of the clients."""
    return picks is None and any(engine.prompt_tokens_by_source.get(EXTERNAL) for engine in record.engines)


def count_picks(picks: Iterable[DecisionRecord]) -> PickCounts:
    """Picks by reason, by instance, and by how they ended."""
    reasons: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    transfers: Counter[str] = Counter()
    by_instance: dict[str, Counter[str]] = {}
    migrations = transfer_prompt_tokens = 0
    for pick in picks:
        decision, outcome = pick.decision, pick.outcome
        reasons[decision.reason] += 1
        by_instance.setdefault(decision.instance, Counter())[decision.reason] += 1
        statuses["unknown" if outcome is None else outcome.status] += 1
        migrations += bool(decision.migrate_from)
        if outcome is not None and outcome.transfer is not None:
            transfers[f"{outcome.transfer.purpose} {outcome.transfer.status}"] += 1
            transfer_prompt_tokens += count_transfer_prompt_tokens(outcome.transfer)
    return PickCounts(
        picks=reasons.total(),
        reasons=_sort_by_name(reasons),
        by_instance={instance: _sort_by_name(by_instance[instance]) for instance in sorted(by_instance)},
        statuses=_sort_by_name(statuses),
        migrations=migrations,
        transfers=_sort_by_name(transfers),
        transfer_prompt_tokens=transfer_prompt_tokens,
    )


def count_transfer_prompt_tokens(transfer: KvTransfer) -> int:
    """Prompt tokens that engines counted for its requests, without the client's own: a handover's decode request.

    Of several attempts, only the last.
    """
    source = bool(transfer.t_source_done_ns)
    target = transfer.purpose == "migration" and bool(transfer.t_target_sent_ns) and transfer.status == "transferred"
    return transfer.prefix_tokens * (source + target)


def _sort_by_name(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def read_number_or_none(value: object) -> float | None:
    """The number in a parameter or a record's field; a bool is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _read_record(path: Path) -> RoutingCell | Gap:
    if not path.exists():
        return Gap(name_artifact(path), "is missing: the cell was not finished and is not counted")
    record = read_record(path, RoutingCell, CELL_VERSION, CELL_UPGRADES)
    return replace(record, reason=f"{record.reason}; the cell is not counted") if isinstance(record, Gap) else record


def _read_picks(layout: TrialLayout, record: RoutingCell) -> tuple[PickCounts | None, tuple[Gap, ...]]:
    """From `breakdown.json`, which is counted from the decision log when the cell ends; else from the log itself."""
    if not record.logs_decisions:
        return None, ()
    gaps = _find_altered(layout.decisions, record)
    picks, own = _decode_picks(layout.breakdown)
    if picks is not None:
        return picks, gaps
    if gaps:
        return None, (*gaps, *own)
    rows, row_gaps = read_rows(layout.decisions, DecisionRecord, record)
    return (None if row_gaps else count_picks(rows)), (*own, *row_gaps)


def _decode_picks(path: Path) -> tuple[PickCounts | None, tuple[Gap, ...]]:
    """The picks in a `breakdown.json`. One that is missing is no gap here: it is among the missing files already."""
    picks: PickCounts | None = None
    why = "is damaged"
    try:
        picks = decode_breakdown(path.read_bytes()).picks
    except FileNotFoundError:
        return None, ()
    except UnknownVersion as error:
        why = str(error)
    except (OSError, *DAMAGED_JSON):
        pass
    return picks, (Gap(name_artifact(path), f"{why}; counted from the decision log"),) if picks is None else ()


def _find_altered(path: Path, record: RoutingCell) -> tuple[Gap, ...]:
    """A gap where the file is missing or differs from its cell's checksum. It is not read into memory."""
    try:
        if not path.is_file():
            why = "is missing"
        elif record.checksums.get(path.name) in (None, sha256(path)):
            return ()
        else:
            why = "differs from the checksum its cell was finished with"
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    return (Gap(name_artifact(path), why),)


def read_rows(
    path: Path, kind: type[_Row], record: RoutingCell | None = None
) -> tuple[tuple[_Row, ...], tuple[Gap, ...]]:
    """The rows of a JSON lines file. `record`: of its cell, with the file's checksum."""
    raw = read_verified_bytes(path, None if record is None else record.checksums.get(path.name))
    if isinstance(raw, Gap):
        return (), (raw,)
    try:
        return decode_rows(raw, kind), ()
    except DAMAGED_JSON as error:
        return (), (Gap(name_artifact(path), f"is damaged: {error}"),)
