"""One open-loop load cell: drive the load and sample the engine beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from launch.instance import Instance
from results.connector_tax.read import analyze_cell, headline
from results.records.events import CellProgressed, InstanceSampled
from results.records.layout import AttemptLayout
from results.records.load_specs import LoadSpec
from results.records.plan import CellPlan
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.errors import CellFailed
from runners.experiments.connector_tax.artifacts import publish_cell
from runners.experiments.connector_tax.sustainable import load_cell_s
from runners.experiments.first_error import first_error
from runners.load.messages import LoadTick
from runners.load.process import run_load
from runners.samplers.engine import MetricsSampler, StepTail

STEP_SETTLE_S = 0.3
"""After the last response the engine still writes the record of its last step."""
SPEC_PARAMS = (
    "input_tokens", "output_tokens", "arrival", "cell_index", "warmup_s", "min_duration_s", "min_completed",
    "inflight_cap", "drain_s", "lateness_p99_s", "achieved_ratio",
)  # fmt: skip
"""Parameters of a cell that are fields of its LoadSpec."""


async def measure_load(cell: CellPlan, attempt: int, rate_per_s: float, context: RunContext) -> CellOutcome:
    """Measure the cell on its config's instance and publish its artifacts.

    Raises CellFailed where the engine died or nothing was completed; the attempt's folder keeps what there was.
    """
    assert cell.config is not None
    # A repeated attempt sends the same prompts: an engine that has seen them would answer from its prefix cache.
    instance = await context.slot.get(cell.config, f"{cell.stage}/{cell.trial}/{attempt}")
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
    record_path = await asyncio.to_thread(publish_cell, cell, attempt, spec, outcome, instance, context, folder)
    summary = await asyncio.to_thread(analyze_cell, record_path)
    return CellOutcome(headline(summary), summary.degraded)


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
        seed=params["load_seed"],
        max_duration_s=expected_s * params["hard_stop_factor"],
        vocab_low=model.vocab_low,
        vocab_high=model.vocab_high,
        requests_path=str(requests_path),
        **{name: params[name] for name in SPEC_PARAMS},
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
