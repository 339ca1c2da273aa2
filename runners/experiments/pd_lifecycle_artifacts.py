"""The artifacts of a finished `pd-lifecycle` cell: its records, and all that they were made from, the cell's own last.

RUN/results/lifecycle/
  C{c}_N{n}_O{o}_rep{r}.json      a record per repetition (specs/pd_lifecycle, "Per-Request Record")
  cells/C{c}_N{n}_O{o}/
    cell.json                     what was measured and how: the commit mark, a cell without it was not finished
    failed.json                   instead of all the others: why the last attempt failed
    requests.jsonl                what the client saw, of the handover and of the combined instance
    decisions.jsonl               the router's picks of this cell
    probe/{prefill,decode}/       what the transfer probe of each engine wrote during this cell
    discarded/                    records of measurements that were thrown away and made again
  engines/<n>/                    engines and router of the n-th start: logs, launch scripts, whole probe files
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from results.layout import is_complete, publish, sha256, write_atomic
from results.lifecycle.record import LifecycleLayout, LifecycleRecord, write_record
from runners.campaign import Outcome
from runners.context import RunContext
from runners.experiments.pd_lifecycle_bench import Bench
from runners.experiments.pd_lifecycle_cell import THROUGH, Measurements
from runners.experiments.pd_lifecycle_evidence import SIDES, asked
from runners.experiments.pd_lifecycle_grid import Grid
from runners.experiments.pd_lifecycle_plan import shape_of
from runners.provenance import commit_of
from state.process import boot_id
from state.run import CellPlan

RESIDUAL_LIMIT = 0.05
"""specs/pd_lifecycle, "Success Criteria", 1."""
MEDIANS = (
    "p_prefill", "rdma_transfer", "transfer_total", "d_decode", "e2e", "client_ttft", "pdsep_overhead",
)  # fmt: skip
"""Durations of the headline, in milliseconds."""
_HERE = Path(__file__).resolve().parent


def adopted(cell: CellPlan, context: RunContext) -> Outcome | None:
    """The outcome of a cell all of whose files are in place and unchanged; None = it has to be measured."""
    mark = LifecycleLayout(context.layout.root).cell(asked(shape_of(cell)))
    if not is_complete(mark, cell.cell):
        return None
    said = msgspec.json.decode(mark.read_bytes())
    return Outcome(said["headline"], said["degraded"])


def put_in_place(
    cell: CellPlan, attempt: int, grid: Grid, bench: Bench, found: Measurements, folder: Path, context: RunContext
) -> Outcome:
    """From the attempt's folder to the run's; what an earlier attempt left there goes first. Raises OSError."""
    layout, config = LifecycleLayout(context.layout.root), asked(shape_of(cell))
    placed, records = layout.cell(config), folder / "records"
    names = {number: layout.record(config, number).name for number in sorted(found.records)}
    for number, name in names.items():
        write_record(records / name, found.records[number])
    for number, record in enumerate(found.discarded):
        write_record(folder / "discarded" / f"rep{record.repetition}_{number}.json", record)
    outcome = Outcome(headline(found), degraded(found))
    raw = sorted(path for path in folder.rglob("*") if path.is_file() and records not in path.parents)
    checksums = {str(path.relative_to(folder)): sha256(path) for path in raw}
    checksums |= {f"../../{name}": sha256(records / name) for name in names.values()}
    mark = folder / "cell.json"
    write_atomic(mark, _pretty(_facts(cell, attempt, grid, bench, found, names, outcome) | {"checksums": checksums}))
    placed.unlink(missing_ok=True)
    shutil.rmtree(placed.parent, ignore_errors=True)
    publish(
        {path: placed.parent / path.relative_to(folder) for path in raw}
        | {records / name: layout.folder / name for name in names.values()}
        | {mark: placed}
    )
    shutil.rmtree(folder)
    return outcome


def keep_failure(cell: CellPlan, attempt: int, reason: str, found: Measurements, context: RunContext) -> None:
    """Leave in the cell's place why it failed, and what was thrown away in it. Raises OSError."""
    said = {
        "cell": cell.cell,
        "attempt": attempt,
        "reason": reason,
        "discarded": _discarded(found),
        "measured": len(found.records),
    }
    path = LifecycleLayout(context.layout.root).cell(asked(shape_of(cell))).with_name("failed.json")
    write_atomic(path, _pretty(said))


def headline(found: Measurements) -> dict[str, Any]:
    """Medians over the repetitions that count; None = not measured."""
    counted = [record for record in found.records.values() if record.counted]
    moved = _median([record.transfer_detail.bytes_transferred for record in counted])
    return {
        **{f"{name}_ms": _median([record.ms(name) for record in counted]) for name in MEDIANS},
        "colo_ttft_ms": _median([record.colo.ttft_ms for record in counted]),
        "bytes_transferred": None if moved is None else round(moved),
        "effective_bw_gbps": _median([record.transfer_detail.effective_bw_gbps for record in counted]),
        "residual_share": _median([record.residual_share for record in counted]),
        "counted": len(counted),
        "discarded": len(found.discarded),
    }


def degraded(found: Measurements) -> str:
    """Why the cell says less than it should: a phase that was not measured, or phases that do not add up."""
    counted = [record for record in found.records.values() if record.counted]
    missing = dict.fromkeys(name for record in counted for name, ms in record.phases_ms.items() if ms is None)
    reasons = [f"not measured: {name} ({_first_gap(counted, name)})" for name in missing]
    both = [share for record in counted for share in (record.residual_share, record.client_residual_share)]
    shares = [abs(share) for share in both if share is not None]
    if shares and max(shares) >= RESIDUAL_LIMIT:
        reasons.append(f"the phases miss the whole by up to {max(shares):.0%}")
    return "; ".join(reasons)


def _first_gap(records: Sequence[LifecycleRecord], name: str) -> str:
    return next((record.gaps[name] for record in records if name in record.gaps), "no reason given")


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _facts(
    cell: CellPlan,
    attempt: int,
    grid: Grid,
    bench: Bench,
    found: Measurements,
    names: Mapping[int, str],
    outcome: Outcome,
) -> dict[str, Any]:
    commit = commit_of(_HERE)
    return {
        "cell": cell.cell,
        **msgspec.to_builtins(shape_of(cell)),
        "attempt": attempt,
        "records": list(names.values()),
        "discarded": _discarded(found),
        "seedings": msgspec.to_builtins(found.seedings),
        "configs": list(grid.configs),
        "dispatch": grid.dispatch,
        "order": grid.order,
        "baseline": THROUGH if grid.baseline else "",
        "counted_by": bench.counted_by,
        "place": cell.params["place"],
        "turn": cell.params["turn"],
        "aged": msgspec.to_builtins(bench.aged),
        "load": msgspec.to_builtins(found.load),
        "engines": {side: _engine(bench, side) for side in SIDES},
        "clocks": {"client": boot_id(), "router": boot_id()},
        "headline": dict(outcome.summary),
        "degraded": outcome.degraded,
        "git_commit": commit.sha,
        "git_reason": commit.reason,
        "version": 1,
    }


def _discarded(found: Measurements) -> list[dict[str, Any]]:
    return [{"repetition": one.repetition, "reason": one.discarded} for one in found.discarded]


def _engine(bench: Bench, side: str) -> dict[str, Any]:
    member = bench.prefill if side == "prefill" else bench.decode
    return {
        "instance": member.engine.name,
        "config": member.engine.spec.config,
        "url": member.engine.url,
        "pid": member.engine.pid,
        "started_by": member.engine.spec.started_by,
        "files": "/".join(member.layout.root.parts[-3:]),
        "block_tokens": bench.block_tokens,
        "kv_capacity_tokens": bench.capacity_tokens,
    }


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)
