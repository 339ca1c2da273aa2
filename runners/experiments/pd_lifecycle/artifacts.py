"""The artifacts of a finished `pd-lifecycle` cell: its records and their sources. `cell.json` is written last.

RUN/results/lifecycle/
  C{c}_N{n}_O{o}_rep{r}.json      a record per repetition (specs/pd_lifecycle, "Per-Request Record"); after the first
                                  trial C{c}_N{n}_O{o}_t{k}_rep{r}.json, k from 1
  cells/C{c}_N{n}_O{o}[_t{k}]/
    cell.json                     the measurement and its settings: the commit mark of a finished cell
    failed.json                   replaces all others: why the last attempt failed
    requests.jsonl                the client's records of all requests
    decisions.jsonl               the router's picks of this cell
    gpu_util.csv                  the GPUs from its first handover to its last, or why they were not sampled
    probe/{prefill,decode}/       the lines of each engine's transfer probe during this cell
    discarded/                    records of discarded measurements, which were repeated
  engines/<n>/                    engines and router of the n-th start: logs, launch scripts, whole probe files
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from results.records.declaration import UnknownVersion
from results.records.errors import DAMAGED_JSON
from results.records.events import RESIDUAL_BELOW
from results.records.gpu import cut_gpu_log
from results.records.layout import AttemptLayout, LifecycleLayout, is_complete, publish, sha256, write_indented_json
from results.records.lifecycle import LifecycleRecord
from results.records.lifecycle_cells import (
    CellFailure,
    DiscardedMeasurement,
    LifecycleEngine,
    MeasuredCell,
    decode_cell,
)
from results.records.percent import format_percent
from results.records.plan import CellPlan
from results.statistics.estimates import convert_to_floats, percentile
from runners.campaign.context import RunContext
from runners.campaign.engine_group import Member
from runners.campaign.experiment import CellOutcome
from runners.campaign.provenance import commit_of
from runners.experiments.pd_lifecycle.bench import Bench
from runners.experiments.pd_lifecycle.cell import THROUGH, Measurements
from runners.experiments.pd_lifecycle.grid import Grid, read_shape
from state.process_identity import boot_id

MEDIANS = (
    "p_prefill", "rdma_transfer", "transfer_total", "d_decode", "e2e", "client_ttft", "pdsep_overhead",
)  # fmt: skip
"""Durations of the headline, in milliseconds."""


def adopt_cell(cell: CellPlan, context: RunContext) -> CellOutcome | None:
    """The outcome of a finished cell whose files are complete and unchanged; None = it must be measured."""
    mark = LifecycleLayout(context.layout.root).cell(read_shape(cell), cell.trial)
    if not is_complete(mark, cell.cell):
        return None
    try:
        stored = decode_cell(mark.read_bytes())
    except (UnknownVersion, *DAMAGED_JSON):
        return None
    return CellOutcome(stored.headline, stored.degraded)


def publish_cell(
    cell: CellPlan,
    attempt: int,
    grid: Grid,
    bench: Bench,
    measurements: Measurements,
    folder: Path,
    context: RunContext,
) -> CellOutcome:
    """Move the files of the attempt to the run folder, after removing those of an earlier one. Raises OSError."""
    layout, config = LifecycleLayout(context.layout.root), read_shape(cell)
    attempted = AttemptLayout(folder)
    placed, records = layout.cell(config, cell.trial), attempted.records
    names = {number: layout.record(config, number, cell.trial).name for number in sorted(measurements.records)}
    for number, name in names.items():
        write_indented_json(records / name, measurements.records[number])
    for number, record in enumerate(measurements.discarded):
        write_indented_json(attempted.discarded(record.repetition, number), record)
    outcome = CellOutcome(make_headline_numbers(measurements), explain_degraded(measurements))
    gpu = cut_gpu_log(context.layout.gpu_csv, cell.cell, *_find_span_ns(measurements), attempted.gpu_util)
    raw = sorted(path for path in folder.rglob("*") if path.is_file() and records not in path.parents)
    checksums = {str(path.relative_to(folder)): sha256(path) for path in raw}
    checksums |= {f"../../{name}": sha256(records / name) for name in names.values()}
    mark = attempted.cell
    measured = _describe_cell(cell, attempt, grid, bench, measurements, outcome)
    write_indented_json(mark, replace(measured, records=tuple(names.values()), gpu=gpu, checksums=checksums))
    placed.unlink(missing_ok=True)
    shutil.rmtree(placed.parent, ignore_errors=True)
    publish(
        {path: placed.parent / path.relative_to(folder) for path in raw}
        | {records / name: layout.folder / name for name in names.values()}
        | {mark: placed}
    )
    shutil.rmtree(folder)
    return outcome


def _find_span_ns(measurements: Measurements) -> tuple[int, int]:
    """From the first handover to the last token of the last one."""
    stamps = [record.timestamps_ns for record in measurements.records.values()]
    begins = [one.t0_proxy_recv for one in stamps if one.t0_proxy_recv is not None]
    ends = [one.t10_d_last_token for one in stamps if one.t10_d_last_token is not None]
    return min(begins, default=0), max(ends, default=0)


def write_failure(cell: CellPlan, attempt: int, reason: str, measurements: Measurements, context: RunContext) -> None:
    """Write why the cell failed, and its discarded measurements, to `failed.json`. Raises OSError."""
    failure = CellFailure(
        cell=cell.cell,
        attempt=attempt,
        reason=reason,
        discarded=_list_discarded(measurements),
        measured=len(measurements.records),
    )
    path = LifecycleLayout(context.layout.root).failed(read_shape(cell), cell.trial)
    write_indented_json(path, failure)


def make_headline_numbers(measurements: Measurements) -> dict[str, Any]:
    """Medians over the counted repetitions; None = not measured."""
    counted = [record for record in measurements.records.values() if record.counted]
    moved = _compute_median([record.transfer_detail.bytes_transferred for record in counted])
    return {
        **{f"{name}_ms": _compute_median([record.ms(name) for record in counted]) for name in MEDIANS},
        "colo_ttft_ms": _compute_median([record.colo.ttft_ms for record in counted]),
        "plain_ttft_ms": _compute_median([record.plain.ttft_ms for record in counted]),
        "bytes_transferred": None if moved is None else round(moved),
        "effective_bw_gbps": _compute_median([record.transfer_detail.effective_bw_gbps for record in counted]),
        "residual_share": _compute_median([record.residual_share for record in counted]),
        "counted": len(counted),
        "discarded": len(measurements.discarded),
    }


def explain_degraded(measurements: Measurements) -> str:
    """Why the cell is incomplete: an unmeasured phase, or phases that do not add up to E2E."""
    counted = [record for record in measurements.records.values() if record.counted]
    missing = dict.fromkeys(name for record in counted for name, ms in record.phases_ms.items() if ms is None)
    reasons = [f"not measured: {name} ({_find_first_gap(counted, name)})" for name in missing]
    both = [share for record in counted for share in (record.residual_share, record.client_residual_share)]
    shares = [abs(share) for share in both if share is not None]
    if shares and max(shares) >= RESIDUAL_BELOW:
        reasons.append(f"the sum of the phases differs from E2E by up to {format_percent(max(shares))}")
    return "; ".join(reasons)


def _find_first_gap(records: Sequence[LifecycleRecord], name: str) -> str:
    return next((record.gaps[name] for record in records if name in record.gaps), "no reason given")


def _compute_median(values: Sequence[float | None]) -> float | None:
    return percentile(convert_to_floats(values), 0.5).value


def _describe_cell(
    cell: CellPlan, attempt: int, grid: Grid, bench: Bench, measurements: Measurements, outcome: CellOutcome
) -> MeasuredCell:
    """The commit mark, but for what is known of its files."""
    commit, shape = commit_of(), read_shape(cell)
    return MeasuredCell(
        cell=cell.cell,
        prior_context=shape.prior_context,
        new_tokens=shape.current_new_tokens,
        output_length=shape.output_length,
        attempt=attempt,
        discarded=_list_discarded(measurements),
        seedings=tuple(measurements.seedings),
        configs=grid.configs,
        dispatch=grid.dispatch,
        order=grid.order,
        baseline=THROUGH if grid.baseline else "",
        counted_by=bench.counted_by,
        position=cell.params["position"],
        turn=cell.params["turn"],
        trial=cell.trial,
        aged=bench.aged,
        warm_ups=bench.warm_ups,
        load=measurements.load,
        engines={name: _describe_engine(bench, member) for name, member in bench.members.items()},
        clocks={"client": boot_id(), "router": boot_id()},
        headline=dict(outcome.summary),
        degraded=outcome.degraded,
        git_commit=commit.sha,
        git_reason=commit.reason,
    )


def _list_discarded(measurements: Measurements) -> tuple[DiscardedMeasurement, ...]:
    return tuple(DiscardedMeasurement(one.repetition, one.discarded) for one in measurements.discarded)


def _describe_engine(bench: Bench, member: Member) -> LifecycleEngine:
    return LifecycleEngine(
        instance=member.engine.name,
        config=member.engine.spec.config,
        url=member.engine.url,
        pid=member.engine.pid,
        started_by=member.engine.spec.started_by,
        files="/".join(member.layout.root.parts[-3:]),
        block_tokens=bench.block_tokens,
        kv_capacity_tokens=bench.capacity_tokens,
    )
