"""A routing run that looks like a real one: four policies, four engines, sessions that stick, and that migrate."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from results.records.events import (
    CellChanged,
    CellProgressed,
    CellState,
    Event,
    InstanceChanged,
    InstanceSampled,
    InstanceState,
    MigrationChanged,
    RoutedLine,
    RoutedLoad,
    RouterSampled,
    RunChanged,
    RunState,
    StageChanged,
    StageState,
)
from results.records.live import LiveLatency
from results.records.plan import CellPlan, RunPlan, StagePlan

ENGINES = ("e0", "e1", "e2", "e3")
POLICIES = ("lmetric", "sticky", "unified", "ear")
TRIALS = 2
CELL_S = 60
SESSIONS = 24
AWAY = ("e3", range(8, 20))
"""Under `sticky`, this engine does not answer in these seconds, and nothing goes there afterwards."""
HOT = ("e2", range(25, CELL_S))
"""Under `sticky`, this engine gets most of what comes in these seconds."""
PRESSED = {"e2": range(14, 34), "e0": range(40, 54)}
"""Under `ear`, what comes to these engines in these seconds is long, until their sessions have left."""
HOT_TOKENS = 4096
COOLDOWN_S = 12
TOKEN_BYTES = 98_304


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
    moved: dict[str, int] = field(default_factory=dict)
    """When a session migrated last."""
    reported: set[tuple[str, str]] = field(default_factory=set)
    """Refusals already reported: a session and a reason."""
    steps: list[MigrationChanged] = field(default_factory=list)
    """Of migrations, in this second."""
    lines: list[RoutedLine] = field(default_factory=list)

    def second(self, cell: str, second: int, t_unix_s: float) -> RouterSampled:
        """What happens in one second, and what a tick then says."""
        sticky = self.policy == "sticky"
        away = {AWAY[0]} if sticky and second in AWAY[1] else set()
        self.steps.clear()
        open_ones = [name for name in ENGINES if name not in away and not (sticky and name == AWAY[0] and second > 8)]
        for number in range(self.dice.randint(5, 8)):
            session = f"s-{self.dice.randrange(SESSIONS):03}"
            instance, reason = self._decide(session, open_ones, hot=sticky and second in HOT[1])
            request = f"{cell.rsplit('/', 1)[1]}-{second:03}-{number}"
            at = t_unix_s - 1.0 + number / 10
            if self.policy == "ear" and reason == "affinity":
                instance, reason = self._leave(cell, request, session, instance, second, at)
            pressed = self.policy == "ear" and second in PRESSED.get(instance, ())
            self.bound[session] = instance
            self.picks[instance] += 1
            self.reasons[reason] += 1
            self.work[instance].append(self.dice.randint(200, 900) * (4 if pressed else 1))
            self.lines.append(RoutedLine(at, request, session, instance, reason))
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

    def _leave(self, cell: str, request: str, session: str, owner: str, second: int, at: float) -> tuple[str, str]:
        """Where a session goes whose instance may be hot, and why; what comes of its migration is in `steps`."""
        pending, turn = sum(self.work[owner]), self.picks.total() // SESSIONS
        if pending <= HOT_TOKENS:
            return owner, "affinity"
        target = min((name for name in ENGINES if name != owner), key=lambda name: sum(self.work[name]))
        step = MigrationChanged(request, session, turn, owner, target, "started", cell=cell, t_unix_s=at,
                                text=f"{pending} pending prefill tokens > {HOT_TOKENS}")  # fmt: skip
        rests_s = COOLDOWN_S - (second - self.moved.get(session, -COOLDOWN_S))
        if rests_s > 0:
            return self._refused(step, "migration_cooldown", f"{rests_s}.0 s of its cooldown left")
        if sum(self.work[target]) > HOT_TOKENS:
            why = f"{target} has {sum(self.work[target])} pending prefill tokens, none has fewer"
            return self._refused(step, "no_migration_target", why)
        self.moved[session] = second
        self.steps += [step, self._ended(step)]
        return (owner if self.steps[-1].phase == "failed" else target), "migration"

    def _refused(self, step: MigrationChanged, reason: str, why: str) -> tuple[str, str]:
        if (step.session, reason) not in self.reported:
            self.reported.add((step.session, reason))
            self.steps.append(replace(step, phase="refused", target="", reason=reason, text=why))
        return step.source, reason

    def _ended(self, begun: MigrationChanged) -> MigrationChanged:
        luck, tokens = self.dice.random(), 16 * self.dice.randint(40, 700)
        took = 0.004 + tokens * TOKEN_BYTES / 9e9 * self.dice.uniform(0.9, 1.3)
        end = replace(begun, phase="done", t_unix_s=begun.t_unix_s + took + 0.01, text="")
        if luck < 0.08:
            return replace(end, phase="failed", reason="no_answer", text=f"{begun.target} did not answer in time")
        if luck < 0.2:
            text = "the transfer was refused: the pair is quarantined for 10 s"
            return replace(end, reason="recomputed", text=text, external_tokens=0, bytes=0)
        return replace(end, reason="transferred", external_tokens=tokens, bytes=tokens * TOKEN_BYTES, transfer_s=took)

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
        yield 1.0, (*samples, tick, *router.steps, progress)
    summary = {"ttft_p90_s": dice.uniform(0.2, 0.9), "tpot_p90_s": dice.uniform(0.004, 0.009),
               "apc": dice.uniform(0.5, 0.9), "amplification": dice.uniform(1.0, 1.6)}  # fmt: skip
    yield 0.3, (CellChanged(cell.cell, CellState.DONE, 1, summary=summary),)


def _sample(name: str, cell: str, load: RoutedLoad, dice: random.Random) -> InstanceSampled:
    ttft_s = 0.04 + load.pending_prefill_tokens / 9_000 if load.pending_prefill_tokens else None
    return InstanceSampled(
        instance=name, cell=cell, ttft_p50_s=ttft_s and ttft_s / 2, ttft_p90_s=ttft_s,
        running=float(load.num_requests), waiting=0.0, inflight=load.num_requests,
        pending_prefill_tokens=load.pending_prefill_tokens,
        kv_usage=min(1.0, load.ongoing_tokens / 40_000) * dice.uniform(0.9, 1.0),
    )  # fmt: skip


def _latency(tick: RouterSampled, dice: random.Random) -> LiveLatency:
    pending = max(load.pending_prefill_tokens for load in tick.instances)
    ttft = (0.05 + pending / 9_000) * dice.uniform(0.9, 1.1)
    return LiveLatency(ttft / 2, ttft, 0.004, 0.006 * dice.uniform(0.9, 1.1))
