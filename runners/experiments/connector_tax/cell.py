"""One open-loop load cell: drive the load, sample the engine beside it, put its artifacts in place."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from launch.instance import Instance
from results.measures.cells import analyse_cell, headline
from results.measures.step_records import cut_steps
from results.records.events import CellProgressed, InstanceSampled
from results.records.gpu import cut_gpu_log
from results.records.layout import AttemptLayout, parquet_beside, publish, sha256, write_indented_json
from results.records.plan import CellPlan
from results.records.schemas import CellRecord
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.campaign.plan import load_cell_s
from runners.errors import CellFailed
from runners.experiments.requests import first_error
from runners.load.process import run_load
from runners.load.spec import LoadOutcome, LoadSpec, LoadTick
from runners.samplers.engine import MetricsSampler, StepTail

STEP_SETTLE_S = 0.3
"""After the last response the engine still writes the record of its last step."""

LOAD_FACTS = (
    "rate_per_s", "input_tokens", "output_tokens", "seed", "arrival", "inflight_cap", "warmup_s", "min_duration_s",
    "min_completed", "max_duration_s", "drain_s",
)  # fmt: skip
STEP_FACTS = (
    "available", "reason", "unavailable_fields", "records", "records_lost", "worker_join_ratio", "batch_queue",
    "children",
)  # fmt: skip
CLIENT_FACTS = ("cut", "retried", "wrong_length", "late_bodies", "completed_in_window", "realtime")


async def measure_load(cell: CellPlan, attempt: int, rate_per_s: float, context: RunContext) -> CellOutcome:
    """Measure the cell on its config's instance and publish its artifacts.

    Raises CellFailed where the engine died or nothing was completed; the attempt's folder keeps what there was.
    """
    assert cell.config is not None
    # A repeated attempt sends the same prompts: an engine that has seen them would answer from its prefix cache.
    instance = await context.slot.get(cell.config, f"{cell.stage}/{cell.trial}/{attempt}", alone=True)
    folder = AttemptLayout(context.attempt_folder(cell, attempt))
    spec = load_spec(cell, rate_per_s, instance, context, folder.requests)
    with StepTail(instance.spec.rings) as steps:
        async with MetricsSampler(instance.spec.url, folder.metrics) as sampler:
            cut = asyncio.Event()

            def on_tick(tick: LoadTick) -> None:
                _emit_tick(cell, instance, sampler, steps, tick, context)
                if not instance.alive():
                    cut.set()  # no engine is left to answer

            outcome = await run_load(spec, on_tick, cut=cut)
    died = await instance.explain_death()
    if died:
        raise CellFailed(f"the engine {died}")
    if outcome.completed == 0 or outcome.stop_reason == "failing":
        raise CellFailed(
            f"{outcome.failed} of {outcome.sent} requests failed, {outcome.completed} were completed; "
            f"the first error was: {first_error(folder.requests)}"
        )
    await asyncio.sleep(STEP_SETTLE_S)
    record_path = await asyncio.to_thread(_put_in_place, cell, attempt, spec, outcome, instance, context, folder)
    summary = await asyncio.to_thread(analyse_cell, record_path)
    return CellOutcome(headline(summary), _why_degraded(outcome))


def _why_degraded(outcome: LoadOutcome) -> str:
    """Why the cell says less about the engine than it should; empty = nothing did."""
    reasons = [outcome.fidelity.reason] if outcome.fidelity.degraded else []
    if outcome.wrong_length:
        reasons.append(f"{outcome.wrong_length} completions had other lengths than asked for")
    return "; ".join(reasons)


def load_spec(
    cell: CellPlan, rate_per_s: float, instance: Instance, context: RunContext, requests_path: Path
) -> LoadSpec:
    """The cell's load: fixed by the plan and the rate, the same for every config."""
    params = cell.params
    expected_s = load_cell_s(
        rate_per_s=rate_per_s,
        min_duration_s=params["min_duration_s"],
        min_completed=params["min_completed"],
        warmup_s=params["warmup_s"],
    )
    model = context.profile.model
    return LoadSpec(
        url=instance.spec.url,
        model=model.served_name,
        rate_per_s=rate_per_s,
        input_tokens=params["input_tokens"],
        output_tokens=params["output_tokens"],
        arrival=params["arrival"],
        seed=params["load_seed"],
        cell_index=params["cell_index"],
        warmup_s=params["warmup_s"],
        min_duration_s=params["min_duration_s"],
        min_completed=params["min_completed"],
        max_duration_s=expected_s * params["hard_stop_factor"],
        inflight_cap=params["inflight_cap"],
        drain_s=params["drain_s"],
        vocab_low=model.vocab_low,
        vocab_high=model.vocab_high,
        requests_path=str(requests_path),
        lateness_p99_s=params["lateness_p99_s"],
        achieved_ratio=params["achieved_ratio"],
    )


def _emit_tick(
    cell: CellPlan, instance: Instance, sampler: MetricsSampler, steps: StepTail, tick: LoadTick, context: RunContext
) -> None:
    seen = steps.poll()
    gauges = sampler.latest
    context.emit(
        InstanceSampled(
            instance=instance.spec.instance,
            cell=cell.cell,
            ttft_p50_s=tick.ttft_p50_s,
            ttft_p90_s=tick.ttft_p90_s,
            tpot_p50_s=tick.tpot_p50_s,
            tpot_p90_s=tick.tpot_p90_s,
            running=gauges.running,
            waiting=gauges.waiting,
            pending_prefill_tokens=tick.pending_prefill_tokens,
            kv_usage=gauges.kv_usage,
            step_p50_us=seen.p50_us,
            step_p90_us=seen.p90_us,
            step_counts=seen.counts,
            inflight=tick.inflight,
            sent=tick.sent,
            completed=tick.completed,
            failed=tick.failed,
            dropped=tick.dropped,
            lateness_p99_s=tick.lateness_p99_s,
        ),
        CellProgressed(cell.cell, tick.fraction),
    )


def _put_in_place(
    cell: CellPlan,
    attempt: int,
    spec: LoadSpec,
    outcome: LoadOutcome,
    instance: Instance,
    context: RunContext,
    folder: AttemptLayout,
) -> Path:
    """Cut the steps, write the cell record, and rename everything into the config's folder, the record last."""
    assert cell.config is not None
    phase, stem = cell.params["phase"], cell.params["stem"]
    layout = context.config_layout(cell.config)
    cut = cut_steps(instance.spec.rings, outcome.t_start_ns, outcome.t_end_ns, folder.engine_step)
    log = context.layout.gpu_csv
    gpu = cut_gpu_log(log, cell.cell, outcome.t_start_ns, outcome.t_end_ns, folder.gpu_util)
    moves = {
        folder.requests: layout.requests(phase, stem),
        folder.metrics: layout.metrics(phase, stem),
        folder.engine_step: layout.engine_step(phase, stem),
        parquet_beside(folder.engine_step): parquet_beside(layout.engine_step(phase, stem)),
        folder.gpu_util: layout.gpu_util(phase, stem),
    }
    moves = {source: target for source, target in moves.items() if source.exists()}
    record = CellRecord(
        cell=cell.cell,
        config=cell.config,
        phase=phase,
        load=_pick_facts(spec, LOAD_FACTS) | {"trial": cell.trial},
        t_start_ns=outcome.t_start_ns,
        t_window_start_ns=outcome.t_window_start_ns,
        t_window_end_ns=outcome.t_window_end_ns,
        t_start_unix_s=outcome.t_start_unix_s,
        attempt=attempt,
        stop_reason=outcome.stop_reason,
        sent=outcome.sent,
        completed=outcome.completed,
        failed=outcome.failed,
        dropped=outcome.dropped,
        fidelity=msgspec.to_builtins(outcome.fidelity),
        step_timing=_pick_facts(cut, STEP_FACTS),
        instance={
            "instance": instance.spec.instance,
            "url": instance.spec.url,
            "pid": instance.pid,
            "started_by": instance.spec.started_by,
            "settings": dict(cut.settings),
            "cores": None if instance.cores is None else instance.cores.describe(),
        },
        client=_pick_facts(outcome, CLIENT_FACTS),
        gpu=msgspec.to_builtins(gpu),
        # Parquet is a copy that may be made again from the JSONL; only the JSONL is the measurement.
        checksums={t.name: sha256(source) for source, t in moves.items() if t.suffix == ".jsonl"},
    )
    written = folder.cell
    write_indented_json(written, record)
    publish(moves | {written: layout.cell(phase, stem)})
    return layout.cell(phase, stem)


def _pick_facts(source: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}
