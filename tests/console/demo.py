"""Run folders that look like real ones, made through the state API alone: no engine is started."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from results.records.events import (
    STEP_BUCKETS_US,
    CellChanged,
    CellProgressed,
    CellState,
    Event,
    InstanceChanged,
    InstanceSampled,
    InstanceState,
    MigrationChanged,
    Noted,
    RouterSampled,
    RunChanged,
    RunState,
    StageChanged,
    StageState,
)
from results.records.plan import CellPlan, RunPlan, StagePlan
from state.store import RunStore
from tests.console import lifecycle_demo, routing_demo

CONFIGS = ("plain", "mooncake_both", "noop_connector", "nixl_both")
RATES = (2, 4, 8, 12, 16)
SHAPES = ((256, 32), (512, 64), (1024, 64))
SLOWER = {"plain": 1.0, "noop_connector": 1.02, "mooncake_both": 1.35, "nixl_both": 1.18}
CELL_S = 20


def plan() -> RunPlan:
    """Five stages, 40 cells, as a connector-tax run has them."""
    stages = (
        StagePlan("preflight", "Pre-flight and step probe"),
        StagePlan("phase-a", "Phase A: rate sweep"),
        StagePlan("reference", "Reference rates"),
        StagePlan("phase-b", "Phase B: shape sweep"),
        StagePlan("analysis", "Probe removal and analysis"),
    )
    cells = [CellPlan("preflight/probe", "preflight", "probe", None, "apply the step probe", {}, 2.0)]
    cells += [
        CellPlan(f"preflight/{c}", "preflight", "preflight", c, "does it really work here", {}, 12.0) for c in CONFIGS
    ]
    for config in CONFIGS:
        cells += [_load(config, rate) for rate in RATES]
    cells.append(CellPlan("reference/rates", "reference", "reference", None, "ref_safe and ref_load", {}, 2.0))
    for config in CONFIGS:
        for i, o in SHAPES:
            label = f"{i} x {o} at ref_safe"
            cells.append(CellPlan(f"phase-b/{config}/{i}x{o}", "phase-b", "load", config, label, {}, float(CELL_S)))
    cells.append(
        CellPlan("analysis/report", "analysis", "analysis", None, "percentiles, tax, manifest, report", {}, 4.0)
    )
    total = sum(cell.estimated_s for cell in cells)
    return RunPlan("connector-tax", "cpu-tiny", "demo", CONFIGS, 7, stages, tuple(cells), total, {}, "0" * 64)


def _load(config: str, rate: int) -> CellPlan:
    params = {"rate_per_s": rate, "input_tokens": 512, "output_tokens": 64}
    return CellPlan(f"phase-a/{config}/r{rate}", "phase-a", "load", config, f"{rate} req/s", params, float(CELL_S))


@dataclass
class Clock:
    """A clock that moves only when the test moves it."""

    now: float

    def __call__(self) -> float:
        return self.now


def sample(instance: str, config: str, cell: CellPlan, second: int, dice: random.Random) -> InstanceSampled:
    """One plausible second."""
    load = float(cell.params.get("rate_per_s", 4)) / 16
    slow = SLOWER[config]
    ttft = (0.018 + 0.05 * load**2) * slow * dice.uniform(0.9, 1.15) * (1 + 0.2 * math.sin(second / 6))
    tpot = (0.0021 + 0.0022 * load) * slow * dice.uniform(0.95, 1.06)
    counts = [0] * (len(STEP_BUCKETS_US) + 1)
    for _ in range(220):
        step_us = dice.lognormvariate(math.log(1500 * slow), 0.22)
        counts[next((i for i, edge in enumerate(STEP_BUCKETS_US) if step_us <= edge), len(STEP_BUCKETS_US))] += 1
    sent = int((second + 1) * 16 * load)
    return InstanceSampled(
        ttft, ttft * dice.uniform(1.5, 2.2), tpot, tpot * dice.uniform(1.15, 1.35), instance=instance, cell=cell.cell,
        running=float(round(1 + 5 * load)), waiting=float(dice.choice((0, 0, 0, 1)) + round(4 * load**3)),
        pending_prefill_tokens=int(512 * dice.choice((0, 1, 1, 2)) * (1 + 4 * load)), kv_usage=0.04 + 0.4 * load,
        step_p50_us=1500 * slow * dice.uniform(0.97, 1.03), step_p90_us=1990 * slow * dice.uniform(0.95, 1.1),
        step_counts=tuple(counts), inflight=round(1 + 6 * load), sent=sent, completed=max(0, sent - 3),
        lateness_p99_s=0.0009 * dice.uniform(0.8, 1.4),
    )  # fmt: skip


def summary(config: str, cell: CellPlan, dice: random.Random) -> dict[str, float | str]:
    """The headline numbers of a finished load cell."""
    rate = float(cell.params.get("rate_per_s", 4))
    slow = SLOWER[config] * dice.uniform(0.97, 1.03)
    ttft = (0.018 + 0.05 * (rate / 16) ** 2) * slow
    return {
        "ttft_p50_s": ttft, "ttft_p90_s": ttft * 1.8, "tpot_p50_s": 0.0032 * slow, "tpot_p90_s": 0.0041 * slow,
        "effective_throughput_per_s": rate * (0.99 if rate < 16 else 0.87),
        "throughput_ratio": 0.99 if rate < 16 else 0.87,
        "step_p50_us": 1500 * slow, "completed": round(rate * CELL_S), "saturated": rate >= 16,
    }  # fmt: skip


def story(pid: int) -> Iterator[tuple[float, tuple[Event, ...]]]:
    """Seconds to wait, then what happened, from the start of the run to its end."""
    dice = random.Random(3)
    launched = 0
    made = plan()
    yield 0.4, (RunChanged(RunState.RUNNING, pid=pid),)
    for stage in made.stages:
        yield 0.1, (StageChanged(stage.stage, StageState.RUNNING),)
        config, instance = "", ""
        for cell in (c for c in made.cells if c.stage == stage.stage):
            yield 0.1, (CellChanged(cell.cell, CellState.RUNNING, 1),)
            if cell.config is None:
                yield 1.2, (CellChanged(cell.cell, CellState.DONE, 1),)
                continue
            if cell.config != config:
                if instance:
                    yield 0.5, (InstanceChanged(instance, config, InstanceState.STOPPING),)
                    yield 0.8, (InstanceChanged(instance, config, InstanceState.GONE, reason="its cells are done"),)
                launched, config, instance = launched + 1, cell.config, f"{cell.config}-{launched + 1}"
                yield from _launch(instance, config, launched)
            yield from _measure(instance, cell, dice)
        if instance:
            yield 0.5, (InstanceChanged(instance, config, InstanceState.GONE, reason="the stage ends"),)
        failed = stage.stage == "phase-b"
        yield 0.1, (StageChanged(stage.stage, StageState.FAILED if failed else StageState.DONE),)
    yield 0.1, (RunChanged(RunState.FAILED, "1 of 39 cells failed"),)


def _launch(instance: str, config: str, launched: int) -> Iterator[tuple[float, tuple[Event, ...]]]:
    pid = 40_000 + launched
    starting = InstanceChanged(
        instance, config, InstanceState.STARTING, pid, pid, process_start=1.0, boot_id="demo",
        url=f"http://127.0.0.1:{18_000 + launched}", started_by="fork_server/uni",
    )  # fmt: skip
    yield 0.2, (starting,)
    yield 3.1, (InstanceChanged(instance, config, InstanceState.READY),)


def _measure(instance: str, cell: CellPlan, dice: random.Random) -> Iterator[tuple[float, tuple[Event, ...]]]:
    assert cell.config is not None
    if cell.kind == "preflight":
        note = Noted("info", cell.cell, "gate passed: 6 of 6 checks")
        yield 2.0, (note, CellChanged(cell.cell, CellState.DONE, 1, summary={"checks_passed": 6}))
        return
    for second in range(CELL_S):
        note_text = "warm-up" if second < 4 else f"{second - 4} of {CELL_S - 4} s"
        yield (
            1.0,
            (
                sample(instance, cell.config, cell, second, dice),
                CellProgressed(cell.cell, (second + 1) / CELL_S, note_text),
            ),
        )
    if cell.cell == "phase-b/nixl_both/1024x64":
        yield (
            0.2,
            (
                CellChanged(
                    cell.cell, CellState.FAILED, 1, "the engine died: exit code -9. The log ends: out of memory"
                ),
            ),
        )
        return
    late = (
        "the client was late: p99 14.1 ms against a limit of 10 ms" if cell.cell == "phase-a/mooncake_both/r16" else ""
    )
    yield 0.2, (CellChanged(cell.cell, CellState.DONE, 1, summary=summary(cell.config, cell, dice), degraded=late),)


Story = Iterator[tuple[float, tuple[Event, ...]]]
"""Seconds to wait, then what happened."""


@dataclass(frozen=True)
class Tale:
    """A run: its plan and what happens in it."""

    plan: Callable[[], RunPlan] = plan
    story: Callable[[int], Story] = story


CONNECTOR_TAX, ROUTING = Tale(), Tale(routing_demo.plan, routing_demo.story)
LIFECYCLE = Tale(lifecycle_demo.plan, lifecycle_demo.story)


class Dates:
    """Gives decisions the time of day; the tale counts it from the start of their cell."""

    def __init__(self) -> None:
        self._starts: dict[str, float] = {}

    def put(self, batch: tuple[Event, ...], now: float) -> list[Event]:
        """The events as they are written at `now`."""
        return [self._put(event, now) for event in batch]

    def _put(self, event: Event, now: float) -> Event:
        if isinstance(event, MigrationChanged):
            return replace(event, t_unix_s=self._starts[event.cell] + event.t_unix_s)
        if not isinstance(event, RouterSampled):
            return event
        newest = max((line.t_unix_s for line in event.latest), default=0.0)
        start = self._starts.setdefault(event.cell, now - newest)
        return replace(event, latest=tuple(replace(line, t_unix_s=start + line.t_unix_s) for line in event.latest))


def write(
    folder: Path,
    *,
    seconds: float | None = None,
    tale: Tale = CONNECTOR_TAX,
    dates: Dates | None = None,
) -> Clock:
    """A journal of the first `seconds` of the tale (None = all) that ends now."""
    dates = dates or Dates()
    events = list(tale.story(4711))
    total = sum(wait for wait, _ in events)
    length = total if seconds is None else min(seconds, total)
    clock = Clock(time.time() - length - 2.0)
    with RunStore.create(folder, folder.name, tale.plan(), "0.1.0", clock=clock) as store:
        clock.now += 2.0
        passed = 0.0
        for wait, batch in events:
            passed += wait
            if passed > length:
                break
            clock.now += wait
            store.append(*dates.put(batch, clock.now))
    return clock
