"""A routing run that looks like a real one: two policies, four engines, sessions that are sticky, and one hot engine.

Used by `tests.console.demo --routing` and by the tests of the Routing panel.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from state.events import (
    CellChanged,
    CellProgressed,
    Event,
    InstanceChanged,
    InstanceSampled,
    RoutedLatency,
    RoutedLine,
    RoutedLoad,
    RouterSampled,
    RunChanged,
    StageChanged,
)
from state.run import CellPlan, CellState, InstanceState, RunPlan, RunState, StagePlan, StageState

ENGINES = ("e0", "e1", "e2", "e3")
POLICIES = ("lmetric", "sticky", "unified")
TRIALS = 2
CELL_S = 60
SESSIONS = 24
AWAY = ("e3", range(8, 20))
"""Under `sticky`, this engine does not answer in these seconds, and nothing goes there afterwards."""
HOT = ("e2", range(25, CELL_S))
"""Under `sticky`, this engine gets most of what comes in these seconds."""


def plan() -> RunPlan:
    """Preparation, six trials in two blocks, analysis."""
    stages = (
        StagePlan("prepare", "Trace and pre-flight"),
        StagePlan("trials", "Trials: every policy, the same schedule"),
        StagePlan("analysis", "Analysis"),
    )
    cells = [
        CellPlan("prepare/trace", "prepare", "trace", None, "the trace as it is replayed", {}, 5.0),
        CellPlan("preflight/plain", "prepare", "preflight", "plain", "plain", {}, 20.0),
    ]
    for trial in range(TRIALS):
        for policy in POLICIES:
            cell = f"trials/{policy}/t{trial}"
            cells.append(CellPlan(cell, "trials", "replay", "plain", policy, {"policy": policy}, CELL_S + 10.0, trial))
    cells.append(CellPlan("analysis/report", "analysis", "analysis", None, "numbers, tables, figures, report", {}, 5.0))
    total = sum(cell.estimated_s for cell in cells)
    return RunPlan("routing", "cpu-tiny", "demo", ("plain",), 7, stages, tuple(cells), total, {}, "0" * 64)


@dataclass
class Router:
    """Counters that move as a router's do, without a request."""

    policy: str
    dice: random.Random
    bound: dict[str, str] = field(default_factory=dict)
    picks: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    work: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in ENGINES})
    """Uncached tokens that wait for their prefill, per engine."""
    lines: list[RoutedLine] = field(default_factory=list)

    def second(self, cell: str, second: int, t_unix_s: float) -> RouterSampled:
        """What happens in one second, and what a tick then says."""
        sticky = self.policy == "sticky"
        away = {AWAY[0]} if sticky and second in AWAY[1] else set()
        open_ones = [name for name in ENGINES if name not in away and not (sticky and name == AWAY[0] and second > 8)]
        for number in range(self.dice.randint(5, 8)):
            session = f"s-{self.dice.randrange(SESSIONS):03}"
            instance, reason = self._decide(session, open_ones, hot=sticky and second in HOT[1])
            self.bound[session] = instance
            self.picks[instance] += 1
            self.reasons[reason] += 1
            self.work[instance].append(self.dice.randint(200, 900))
            request = f"{cell.rsplit('/', 1)[1]}-{second:03}-{number}"
            self.lines.append(RoutedLine(t_unix_s - 1.0 + number / 10, request, session, instance, reason))
        for name in away:
            self.work[name].clear()
        self.bound = {session: name for session, name in self.bound.items() if name not in away}
        loads = tuple(self._load(name, name not in away) for name in ENGINES)
        for waiting in self.work.values():
            del waiting[: self.dice.randint(1, 2) + len(waiting) // 12]
        return RouterSampled(cell, self.policy, loads, len(self.bound), dict(self.reasons), tuple(self.lines[-20:]))

    def _decide(self, session: str, open_ones: list[str], *, hot: bool) -> tuple[str, str]:
        if hot and self.dice.random() < 0.7:
            return HOT[0], "affinity"
        owner = self.bound.get(session)
        if owner in open_ones and self.dice.random() < 0.8:
            return str(owner), "affinity"
        least = min(open_ones, key=lambda name: (sum(self.work[name]), self.dice.random()))
        return least, "least_loaded" if owner else "cold"

    def _load(self, name: str, available: bool) -> RoutedLoad:
        waiting = self.work[name]
        decoding = min(6, self.picks[name] // 4) if waiting else 0
        sessions = sum(instance == name for instance in self.bound.values()) if available else 0
        why = "" if available else "breaker open: 3 connections refused"
        tokens = sum(waiting) + 1_900 * decoding
        return RoutedLoad(name, available, why, len(waiting) + decoding, sum(waiting), tokens, sessions,
                          self.picks[name])  # fmt: skip


def story(pid: int) -> Iterator[tuple[float, tuple[Event, ...]]]:
    """Seconds to wait, then what happened; the times of decisions are counted from the first event, as 0."""
    dice = random.Random(5)
    made = plan()
    launched = 0
    yield 0.4, (RunChanged(RunState.RUNNING, pid=pid),)
    for stage in made.stages:
        yield 0.1, (StageChanged(stage.stage, StageState.RUNNING),)
        for cell in (each for each in made.cells if each.stage == stage.stage):
            yield 0.1, (CellChanged(cell.cell, CellState.RUNNING, 1),)
            if cell.kind != "replay":
                yield 2.0, (CellChanged(cell.cell, CellState.DONE, 1),)
                continue
            names = tuple(f"plain-{launched + place}" for place in range(1, len(ENGINES) + 1))
            launched += len(names)
            yield 0.2, tuple(InstanceChanged(name, "plain", InstanceState.STARTING, 41_000) for name in names)
            yield 4.0, tuple(InstanceChanged(name, "plain", InstanceState.READY) for name in names)
            yield from _replay(cell, names, dice)
            yield 0.5, tuple(InstanceChanged(name, "plain", InstanceState.GONE, reason="the cell is over")
                             for name in names)  # fmt: skip
        yield 0.1, (StageChanged(stage.stage, StageState.DONE),)
    yield 0.1, (RunChanged(RunState.DONE),)


def _replay(cell: CellPlan, names: tuple[str, ...], dice: random.Random) -> Iterator[tuple[float, tuple[Event, ...]]]:
    router = Router(str(cell.params["policy"]), dice)
    for second in range(CELL_S):
        tick = router.second(cell.cell, second, float(second))
        samples = [_sample(name, cell.cell, load, dice) for name, load in zip(names, tick.instances, strict=True)]
        progress = CellProgressed(cell.cell, (second + 1) / CELL_S, f"{second // 3} of {SESSIONS} sessions")
        engines = zip(tick.instances, names, strict=True)
        tick = replace(
            tick,
            instances=tuple(replace(load, engine=name) for load, name in engines),
            latency=_latency(tick, dice),
        )
        yield 1.0, (*samples, tick, progress)
    summary = {"ttft_p90_s": dice.uniform(0.2, 0.9), "tpot_p90_s": dice.uniform(0.004, 0.009),
               "apc": dice.uniform(0.5, 0.9), "amplification": dice.uniform(1.0, 1.6)}  # fmt: skip
    yield 0.3, (CellChanged(cell.cell, CellState.DONE, 1, summary=summary),)


def _sample(name: str, cell: str, load: RoutedLoad, dice: random.Random) -> InstanceSampled:
    return InstanceSampled(
        name, cell, running=float(load.num_requests), waiting=0.0, inflight=load.num_requests,
        pending_prefill_tokens=load.pending_prefill_tokens,
        kv_usage=min(1.0, load.ongoing_tokens / 40_000) * dice.uniform(0.9, 1.0),
    )  # fmt: skip


def _latency(tick: RouterSampled, dice: random.Random) -> RoutedLatency:
    pending = max(load.pending_prefill_tokens for load in tick.instances)
    ttft = (0.05 + pending / 9_000) * dice.uniform(0.9, 1.1)
    return RoutedLatency(ttft / 2, ttft, 0.004, 0.006 * dice.uniform(0.9, 1.1))
