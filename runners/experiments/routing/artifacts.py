"""The artifacts of a finished `routing` cell: computed, checksummed, and renamed into place, the record last."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from launch.redaction import redact_settings
from results.measures.turns import read_turns
from results.records.decisions import DecisionRecord, transfer_s
from results.records.errors import DAMAGED_JSON
from results.records.gpu import HEADER, REASON_MARK, GpuUse, cut_gpu_log
from results.records.layout import (
    NO_FILE,
    TrialLayout,
    is_complete,
    name_parquet_beside,
    publish,
    sha256,
    write_atomic,
    write_indented_json,
)
from results.records.plan import CellPlan
from results.records.router_spec import InstanceSpec
from results.records.routing_cells import KvMovements, RoutingConfig, RoutingNumbers
from results.records.rows import decode_rows
from results.records.samples import CounterSpan
from results.records.turns import EngineSample, RoutedEngine, RoutingCell, TraceRecord
from results.routing.summary import summarize_cell
from results.statistics.estimates import convert_to_floats, mean
from results.statistics.judgement import OTHER_LENGTHS
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.campaign.provenance import commit_of
from runners.errors import CellFailed
from runners.experiments.first_error import first_error
from runners.experiments.routing.grid import Grid, make_slug
from runners.load.replay_messages import ReplayOutcome
from runners.router.messages import RouterOutcome

HEADLINE = (
    "ttft_p50_s",
    "ttft_p90_s",
    "tpot_p50_s",
    "tpot_p90_s",
    "e2e_p90_s",
    "apc",
    "apc_bound_any",
    "worker_ttft_p90_median_s",
    "worker_ttft_p90_max_s",
    "amplification",
)
"""Values of the summary that the journal keeps of a cell."""
NO_GPU = "simulated: no GPU is used"
COUNTS = ("completed", "failed", "cut", "sessions_done", "retried")
OPTIONAL_SETTINGS = (
    "moves_kv", "transfer", "reserved_output", "time_scale", "kv_cache_memory_bytes", "variation", "trace_number",
)  # fmt: skip
"""Parameters of a cell that older plans, or cells without a setting of their own, do not have."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The results of a replay besides its files."""

    replay: ReplayOutcome
    router: RouterOutcome
    engines: tuple[RoutedEngine, ...]
    spans: Mapping[str, CounterSpan]
    """Per instance."""
    simulated: str = ""
    """The model that stands in for the engines; empty = they are real."""


def find_trial_layout(context: RunContext, cell: CellPlan) -> TrialLayout:
    """The folder of a cell's artifacts."""
    return context.layout.trial(context.launcher.date, make_slug(cell.label), cell.trial)


def publish_cell(
    cell: CellPlan,
    attempt: int,
    grid: Grid,
    trace: TraceRecord,
    replayed: Replayed,
    folder: Path,
    context: RunContext,
) -> CellOutcome:
    """Move the artifacts from the attempt's folder to the cell's. Raises CellFailed where no turn was completed."""
    written, layout, outcome = TrialLayout(folder), find_trial_layout(context, cell), replayed.replay
    if not outcome.completed:
        raise CellFailed(
            f"{outcome.failed} of {outcome.sent} turns failed and none was completed; "
            f"the first error was: {first_error(written.metrics)}"
        )
    decisions = decode_rows(written.decisions.read_bytes(), DecisionRecord) if grid.logs_decisions else None
    samples = decode_rows(written.engines.read_bytes(), EngineSample)
    gpu = _measure_gpu(cell, grid, outcome, written.gpu_util, context)
    record = _make_record(cell, attempt, grid, trace, replayed, gpu)
    write_indented_json(written.config, _describe_config(cell, grid, trace, context, replayed.simulated))
    write_indented_json(written.apc, {name: msgspec.to_builtins(span) for name, span in replayed.spans.items()})
    log = [] if decisions is None else [written.decisions]
    measured = [written.config, written.metrics, *log, written.engines, written.apc, written.gpu_util]
    measured += [written.instance_events] if grid.simulation is None else []
    logs = written.transfer_logs()
    record = replace(record, checksums={str(path.relative_to(folder)): sha256(path) for path in (*measured, *logs)})
    turns, gaps = read_turns(written.metrics, record.t_start_ns)
    if turns is None:
        raise CellFailed(f"the turn records cannot be read: {gaps[-1].reason}")
    numbers, breakdown = summarize_cell(turns, decisions, record, samples)
    if decisions is not None:
        numbers = replace(numbers, movements=count_movements(decisions))
    write_indented_json(written.summary, numbers)
    write_indented_json(written.breakdown, breakdown)
    write_indented_json(written.cell, record)
    _move_instances(written.instances, layout.instances)
    files = (*measured, written.summary, written.breakdown, written.cell)
    copy = name_parquet_beside(written.metrics)  # not checksummed: it can be made again
    publish({path: layout.root / path.name for path in ((copy, *files) if copy.exists() else files)})
    return CellOutcome(make_headline_numbers(numbers), explain_degraded(outcome))


def adopt_cell(cell: CellPlan, context: RunContext) -> CellOutcome | None:
    """The outcome of a replay whose record is in place with every artifact whole; else None."""
    layout = find_trial_layout(context, cell)
    if not is_complete(layout.cell, cell.cell):
        return None
    try:
        numbers = msgspec.json.decode(layout.summary.read_bytes(), type=RoutingNumbers)
    except (*NO_FILE, *DAMAGED_JSON):
        return None
    return CellOutcome(make_headline_numbers(numbers), numbers.degraded)


def _measure_gpu(cell: CellPlan, grid: Grid, replay: ReplayOutcome, path: Path, context: RunContext) -> GpuUse:
    """Write the cell's samples to the file."""
    if grid.simulation is not None:
        write_atomic(path, f"{','.join(HEADER)}\n{REASON_MARK}{NO_GPU}\n".encode())
        return GpuUse(reason=NO_GPU)
    return cut_gpu_log(context.layout.gpu_csv, cell.cell, replay.t_start_ns, replay.t_end_ns, path)


def make_headline_numbers(numbers: RoutingNumbers) -> dict[str, Any]:
    """The few numbers that a console shows of a cell."""
    values = {name: numbers.values[name].value if name in numbers.values else None for name in HEADLINE}
    counts = {name: numbers.counts.get(name) for name in COUNTS}
    moved = {} if numbers.movements is UNSET else make_movement_headline(numbers.movements)
    return values | counts | moved


def count_movements(decisions: Iterable[DecisionRecord]) -> KvMovements:
    """Sums over the KV movements of a cell's decision log."""
    outcomes = [record.outcome for record in decisions if record.outcome is not None]
    migrations = Counter(outcome.migration for outcome in outcomes if outcome.migration)
    moves = [outcome.transfer for outcome in outcomes if outcome.transfer is not None]
    handovers = Counter(move.status for move in moves if move.purpose == "handover")
    if not migrations and not moves:
        return KvMovements()
    done = [move for move in moves if move.status == "transferred"]
    tokens = [move.external_tokens for move in done if move.external_tokens is not None]
    sizes = [move.bytes for move in done if move.bytes is not None]
    return KvMovements(
        migrations=dict(sorted(migrations.items())),
        handovers=dict(sorted(handovers.items())),
        external_tokens=sum(tokens) if tokens else None,
        bytes=sum(sizes) if sizes else None,
        uncounted=len(done) - len(tokens),
        transfer_mean_s=mean(convert_to_floats(transfer_s(move) for move in done)).value,
    )


def make_movement_headline(movements: KvMovements) -> dict[str, Any]:
    """The movements as the flat numbers of a cell's headline."""
    if movements.migrations is UNSET or movements.handovers is UNSET:
        return {}
    return {
        **{f"migrations_{name}": count for name, count in movements.migrations.items()},
        **{f"handovers_{name}": count for name, count in movements.handovers.items()},
        "external_tokens": movements.external_tokens,
        "transfer_mean_s": movements.transfer_mean_s,
    }


def explain_degraded(outcome: ReplayOutcome) -> str:
    """Why the cell is no fair measurement of the policy; empty = it is one."""
    reasons = [outcome.fidelity.reason] if outcome.fidelity.degraded else []
    if outcome.stop_reason != "complete":
        reasons.append(f"the replay ended early ({outcome.stop_reason}): {outcome.never_sent} turns were never sent")
    if outcome.wrong_length:
        reasons.append(f"{outcome.wrong_length} {OTHER_LENGTHS}")
    return "; ".join(reasons)


def _make_record(
    cell: CellPlan,
    attempt: int,
    grid: Grid,
    trace: TraceRecord,
    replayed: Replayed,
    gpu: GpuUse,
) -> RoutingCell:
    outcome, commit = replayed.replay, commit_of()
    return RoutingCell(
        cell=cell.cell,
        label=cell.label,
        policy=cell.params["policy"],
        parameters=cell.params["parameters"],
        trial=cell.trial,
        position=cell.params["position"],
        replay_seed=cell.params["replay_seed"],
        trace=_trace_facts(trace, outcome),
        replay=_replay_facts(cell, grid, outcome),
        engines=replayed.engines,
        router=_collect_router_facts(replayed.router)
        | {name: cell.params[name] for name in ("moves_kv", "transfer", "reserved_output") if name in cell.params}
        | ({} if grid.logs_decisions else {"decision_log": False}),
        t_start_ns=outcome.t_start_ns,
        t_end_ns=outcome.t_end_ns,
        t_start_unix_s=outcome.t_start_unix_s,
        attempt=attempt,
        git_commit=commit.sha,
        git_reason=commit.reason,
        gpu_utilisation=gpu.utilisation,
        gpu_reason=gpu.reason,
        simulated=replayed.simulated,
        kv_cache_memory_bytes=cell.params.get("kv_cache_memory_bytes"),
        variation=cell.params.get("variation", ""),
    )


def _trace_facts(trace: TraceRecord, outcome: ReplayOutcome) -> dict[str, Any]:
    """The bounds are those of the whole trace at the engines' block size, sent or not."""
    facts: dict[str, Any] = msgspec.to_builtins(trace)
    return facts | {
        "span_s": outcome.trace_span_s,
        "apc_bound_any": outcome.apc_bound_any,
        "apc_bound_intra": outcome.apc_bound_intra,
    }


def _replay_facts(cell: CellPlan, grid: Grid, outcome: ReplayOutcome) -> dict[str, Any]:
    """The settings and the outcome; `cut` counts what was in flight or still to come when the replay ended."""
    settings: dict[str, Any] = msgspec.to_builtins(grid.replay)
    settings["time_scale"] = cell.params.get("time_scale", grid.replay.time_scale)
    facts: dict[str, Any] = msgspec.to_builtins(outcome)
    why = explain_degraded(outcome)
    return (
        settings
        | {name: value for name, value in facts.items() if not name.startswith("t_")}
        | {
            "cut": outcome.cut + (outcome.never_sent if outcome.stop_reason != "complete" else 0),
            "fidelity": facts["fidelity"] | {"degraded": bool(why), "reason": why},
        }
    )


def _collect_router_facts(outcome: RouterOutcome) -> dict[str, Any]:
    facts = msgspec.to_builtins(outcome)
    return {name: value for name, value in facts.items() if not name.startswith("t_") and name != "policy"}


def describe_engine(instance: InstanceSpec, span: CounterSpan, started_by: str, pid: int | None = None) -> RoutedEngine:
    """`pid`: None = it is simulated."""
    return RoutedEngine(
        instance=instance.instance,
        role=instance.role,
        url=instance.url,
        pid=pid,
        started_by=started_by,
        block_tokens=instance.block_tokens,
        kv_capacity_tokens=instance.kv_capacity_tokens,
        prompt_tokens=span.gained("prompt_tokens"),
        cached_tokens=span.gained("cached_tokens"),
        prompt_tokens_by_source=span.gained_by_source(),
    )


def _describe_config(
    cell: CellPlan, grid: Grid, trace: TraceRecord, context: RunContext, simulated: str
) -> RoutingConfig:
    profile, params = context.profile, cell.params
    optional = {name: params[name] for name in OPTIONAL_SETTINGS if name in params}
    return RoutingConfig(
        cell=cell.cell,
        label=cell.label,
        trial=cell.trial,
        policy=params["policy"],
        parameters=params["parameters"],
        roles=tuple(params["roles"]),
        **optional,
        position=params["position"],
        replay_seed=params["replay_seed"],
        instances=grid.instances,
        config=cell.config,
        trace=trace,
        replay=msgspec.to_builtins(grid.replay),
        router=msgspec.to_builtins(grid.router),
        profile=profile.name,
        model=msgspec.to_builtins(profile.model),
        engine=redact_settings(msgspec.to_builtins(profile.engine)),
        decode_kv_cache_memory_bytes=grid.decode_kv_cache_memory_bytes,
        engine_versions=dict(context.engine.versions),
        simulated=simulated or UNSET,
    )


def _move_instances(source: Path, target: Path) -> None:
    """Move the engines' logs and scrapes, and delete those of an attempt that was cut. Simulated engines have none."""
    shutil.rmtree(target, ignore_errors=True)
    if not source.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source.replace(target)
