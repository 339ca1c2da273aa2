"""A lifecycle run that looks like a real one: requests of several sizes, broken down into phases."""

from __future__ import annotations

import random
from collections.abc import Iterator

from results.records.events import (
    CellChanged,
    CellProgressed,
    CellState,
    Event,
    InstanceChanged,
    InstanceState,
    LifecycleMeasured,
    RunChanged,
    RunState,
    StageChanged,
    StageState,
)
from results.records.plan import CellPlan, RunPlan, StagePlan

CONTEXTS, NEWS, OUTPUTS = (0, 4_096, 16_384), (512, 2_048, 8_192), (1, 32, 128)
REPETITIONS, WARMUPS = 5, 2
TOKEN_BYTES = 98_304
ENGINES = ("producer-1", "consumer-2", "plain-3")


def plan() -> RunPlan:
    """Preparation, a cell per size, analysis."""
    stages = (
        StagePlan("prepare", "Probe and pre-flight"),
        StagePlan("sweep", "Sweep: C x N x O"),
        StagePlan("analysis", "Analysis"),
    )
    cells = [CellPlan("prepare/probe", "prepare", "probe", None, "the transfer probe", {}, 2.0)]
    for context in CONTEXTS:
        for new in NEWS:
            for output in OUTPUTS:
                params = {"prior_context": context, "new_tokens": new, "output_length": output}
                name = f"C{context}_N{new}_O{output}"
                cells.append(CellPlan(f"sweep/{name}", "sweep", "lifecycle", "mooncake_pd", name, params, 8.0))
    cells.append(CellPlan("analysis/report", "analysis", "analysis", None, "numbers, figures, report", {}, 4.0))
    total = sum(cell.estimated_s for cell in cells)
    return RunPlan("pd-lifecycle", "cpu-tiny", "demo", ("mooncake_pd",), 7, stages, tuple(cells), total, {}, "0" * 64)


def story(pid: int) -> Iterator[tuple[float, tuple[Event, ...]]]:
    """Seconds to wait, then what happened."""
    dice = random.Random(11)
    yield 0.4, (RunChanged(RunState.RUNNING, pid=pid),)
    for stage in plan().stages:
        yield 0.1, (StageChanged(stage.stage, StageState.RUNNING),)
        if stage.stage == "sweep":
            yield 0.2, tuple(InstanceChanged(name, name[:-2], InstanceState.STARTING, 42_000) for name in ENGINES)
            yield 3.0, tuple(InstanceChanged(name, name[:-2], InstanceState.READY) for name in ENGINES)
        for cell in (each for each in plan().cells if each.stage == stage.stage):
            yield 0.1, (CellChanged(cell.cell, CellState.RUNNING, 1),)
            if cell.kind == "lifecycle":
                for repetition in range(1, REPETITIONS + 1):
                    progress = CellProgressed(cell.cell, repetition / REPETITIONS, f"repetition {repetition}")
                    yield 1.2, (measured(cell, repetition, dice), progress)
            yield 0.4, (CellChanged(cell.cell, CellState.DONE, 1),)
        if stage.stage == "sweep":
            yield 0.5, tuple(InstanceChanged(name, name[:-2], InstanceState.GONE) for name in ENGINES)
        yield 0.1, (StageChanged(stage.stage, StageState.DONE),)
    yield 0.1, (RunChanged(RunState.DONE),)


def measured(cell: CellPlan, repetition: int, dice: random.Random) -> LifecycleMeasured:
    """One disaggregated request, with the time of the same one combined."""
    context, new, output = (int(cell.params[name]) for name in ("prior_context", "new_tokens", "output_length"))
    held = context if dice.random() > 0.03 else 0
    size = (context + new - held) * TOKEN_BYTES
    write = size / (dice.uniform(9.2, 9.8) * 1e6) * (1 + 2e7 / (size + 1e6)) * (3 if repetition == 1 else 1)
    prefill = new * (0.021 + context * 4e-7) * dice.uniform(0.97, 1.05)
    phases = {
        "routing": 0.2 * dice.uniform(0.8, 1.4), "p_queue": 1.4 * dice.uniform(0.5, 1.6), "p_prefill": prefill,
        "metadata_wait": 0.9 * dice.uniform(0.2, 1.8), "zmq_after_metadata": 2.1 * dice.uniform(0.8, 1.9),
        "rdma_transfer": write,
        "transfer_signal": 0.6 * dice.uniform(0.6, 1.5), "d_promotion": 3.2 * dice.uniform(0.4, 1.8),
        "d_first_token": 6.5 * dice.uniform(0.9, 1.2), "d_decode": (output - 1) * 4.1 * dice.uniform(0.97, 1.04),
    }  # fmt: skip
    before = sum(ms for name, ms in phases.items() if name != "d_decode")
    combined = prefill + 9.0 * dice.uniform(0.9, 1.1)
    discarded = f"D held 0 tokens of the context, not {context}" if held != context else ""
    return LifecycleMeasured(
        cell.cell, context, new, output, repetition, warmup=repetition <= WARMUPS, phases_ms=phases,
        e2e_ms=sum(phases.values()) * 1.004, ttft_ms=before,
        transfer_ms=phases["metadata_wait"] + phases["zmq_after_metadata"] + write + phases["transfer_signal"],
        bytes=size, bandwidth_gbps=size * 8 / write / 1e6, residual_share=0.004 * dice.uniform(0.2, 2.5),
        colo_ttft_ms=combined, colo_first=repetition % 2 == 1, discarded=discarded,
    )  # fmt: skip
