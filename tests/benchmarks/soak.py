"""Whether router and console stay as they are for hours: memory, descriptors and latency, each by its slope.

    python -m tests.benchmarks.soak [--hours 8] [--seconds 3600] [--streams 10000] [--json]

Hours of 64 req/s are compressed into fewer seconds by rate: 8 hours in 3600 s are 512 req/s. Two truth servers answer
at once, behind one router with its decision log; its ticks go to the journal of a run, as often as the hours have
seconds, and a console is attached to it. The first fifth is warm-up. The rest is cut into twelve blocks, and the slope
over their medians (Theil-Sen, with its 95 % interval) is scaled to 8 hours and held against what is allowed. A short
run has a wide interval and says so: `undecided` is no `flat`.

`--streams N` then holds N slow streams at once through one router. A stream needs two of the router's file descriptors:
where the limit is too low, as many are held as it allows, and the reason is printed. Needs some 2 GB of disk an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from scipy.stats import theilslopes

from results.records.events import (
    CellChanged,
    CellProgressed,
    CellState,
    RoutedLoad,
    RouterSampled,
    RunChanged,
    RunState,
    StageChanged,
    StageState,
)
from results.records.live import LiveLatency
from results.records.plan import CellPlan, StagePlan
from runners.campaign.plan import freeze_plan
from runners.load.process import run_load
from runners.load.spec import LoadOutcome, LoadSpec, LoadTick
from runners.router.server.process import RouterProcess
from runners.router.server.server import DESCRIPTORS_KEPT
from runners.router.spec import InstanceSpec, RouterSpec, RouterTick
from state import lease as leases
from state.store import RunStore
from tests.benchmarks.bench_router import streams
from tests.chaos.terminal import Console
from tests.servers.truth_server import TruthServer

RATE_PER_S = 64.0
"""Of the hours that are compressed."""
HOURS = 8.0
"""What slopes are scaled to."""
SAMPLE_S = 2.0
WARM_UP = 0.2
BLOCKS = 12
CELL = "trials/soak/t0"
INSTANCE_TOKENS = 131_072
"""KV capacity that the router knows of each instance: its prefix index is full within the warm-up."""
ALLOWED = {
    "router_rss_mb": 0.10,
    "console_rss_mb": 0.10,
    "ttft_p50_ms": 0.10,
    "ttft_p90_ms": 0.10,
    "router_files": 0.02,
    "console_files": 0.02,
}
"""Growth over 8 hours that counts as flat, as a share of the level."""


@dataclass(frozen=True, slots=True)
class Trend:
    """How a quantity changes."""

    level: float
    """Median after the warm-up."""
    growth: float
    """Over 8 hours of 64 req/s, as a share of the level."""
    low: float
    high: float
    """95 % interval of the growth."""
    verdict: str
    """`flat`, `grows`, or `undecided`: the interval has what is allowed inside."""


def find_trend(times_h: Sequence[float], values: Sequence[float], allowed: float) -> Trend:
    """`times_h`: hours of 64 req/s that each value stands for. Values of the warm-up are not among them."""
    blocks = [part for part in np.array_split(np.arange(len(values)), BLOCKS) if len(part)]
    at = [float(np.mean([times_h[i] for i in part])) for part in blocks]
    medians = [median(values[i] for i in part) for part in blocks]
    level = median(values)
    slope, _, low, high = (float(number) for number in theilslopes(medians, at, alpha=0.95))
    growth, low, high = (number * HOURS / level if level else 0.0 for number in (slope, low, high))
    verdict = "flat" if high <= allowed else "grows" if low > allowed else "undecided"
    return Trend(level, growth, low, high, verdict)


class Soak:
    """Router, load and console for some seconds, and the samples of them."""

    def __init__(self, folder: Path, seconds: float, hours: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._speed = hours * 3600.0 / seconds
        self._latency = LiveLatency()
        self.samples: dict[str, list[tuple[float, float]]] = {name: [] for name in ALLOWED}
        """By quantity: seconds since the begin, value."""

    async def run(self) -> LoadOutcome:
        with TruthServer() as one, TruthServer() as two, self._open_store() as store, leases.acquire(store):
            self._begin_cell(store)
            urls = [server.url(ttft_ms=2, itl_ms=1, ids=0, running=1) for server in (one, two)]
            spec = RouterSpec(
                tuple(
                    InstanceSpec(f"i{place}", url, kv_capacity_tokens=INSTANCE_TOKENS, block_tokens=16)
                    for place, url in enumerate(urls)
                ),
                policy="unified",
                decisions_path=str(self._folder / "decisions.jsonl"),
            )
            console = Console(store.folder)
            try:
                async with RouterProcess(
                    spec, self._folder / "router.spec.json", self._make_journalist(store)
                ) as router:
                    sampling = asyncio.create_task(self._sample(router.pid, console, (one, two)))
                    try:
                        return await run_load(self._load_spec(router.url), self._note_latency)
                    finally:
                        sampling.cancel()
            finally:
                console.close()

    def trends(self) -> dict[str, Trend]:
        begin_s = WARM_UP * self._seconds
        trends: dict[str, Trend] = {}
        for name, allowed in ALLOWED.items():
            kept = [(t_s * self._speed / 3600.0, value) for t_s, value in self.samples[name] if t_s >= begin_s]
            times_h, values = zip(*kept, strict=True)
            trends[name] = find_trend(times_h, values, allowed)
        return trends

    def _load_spec(self, url: str) -> LoadSpec:
        return LoadSpec(
            url=url,
            model="m",
            rate_per_s=RATE_PER_S * self._speed,
            input_tokens=32,
            output_tokens=2,
            warmup_s=0.0,
            requests_path=str(self._folder / "requests.jsonl"),
            min_duration_s=self._seconds,
            min_completed=0,
            max_duration_s=self._seconds + 30.0,
            token_evidence="usage",
        )

    def _open_store(self) -> RunStore:
        cell = CellPlan(CELL, "trials", "replay", "plain", "soak", {}, self._seconds)
        plan = freeze_plan(
            experiment="routing", profile="cpu-tiny", preset="soak", configs=["plain"], seed=1,
            stages=[StagePlan("trials", "Soak")], cells=[cell], inputs={},
        )  # fmt: skip
        return RunStore.create(self._folder / "20260101-000000-routing-soak", "20260101-000000-routing-soak", plan, "0")

    def _begin_cell(self, store: RunStore) -> None:
        store.append(
            RunChanged(RunState.RUNNING),
            StageChanged("trials", StageState.RUNNING),
            CellChanged(CELL, CellState.RUNNING, 1),
        )

    def _make_journalist(self, store: RunStore) -> Any:  # noqa: ANN401  # a callback of one tick
        """Writes each tick into the journal, as a run does, once for each second that it stands for."""
        began_s = time.monotonic()

        def write(tick: RouterTick) -> None:
            sampled = RouterSampled(
                cell=CELL,
                policy=tick.policy,
                instances=tuple(
                    RoutedLoad(**asdict(load), role="both", engine=load.instance) for load in tick.instances
                ),
                sessions=tick.sessions,
                decisions=tick.decisions,
                latency=self._latency,
            )
            fraction = min(1.0, (time.monotonic() - began_s) / self._seconds)
            for _ in range(max(1, round(self._speed))):
                store.append(sampled, CellProgressed(CELL, fraction))

        return write

    def _note_latency(self, tick: LoadTick) -> None:
        self._latency = LiveLatency(tick.ttft_p50_s, tick.ttft_p90_s, tick.tpot_p50_s, tick.tpot_p90_s)

    async def _sample(self, router: int, console: Console, servers: Sequence[TruthServer]) -> None:
        began_s = time.monotonic()
        while True:
            await asyncio.sleep(SAMPLE_S)
            for server in servers:
                await asyncio.to_thread(server.take_rows)  # else the server's memory grows, not the router's
            if not console.alive:
                raise RuntimeError(f"the console ended: {console.drawn[-400:]!r}")
            values: Mapping[str, float | None] = {
                "router_rss_mb": _rss_mb(router),
                "console_rss_mb": _rss_mb(console.pid),
                "router_files": psutil.Process(router).num_fds(),
                "console_files": psutil.Process(console.pid).num_fds(),
                "ttft_p50_ms": _milliseconds(self._latency.ttft_p50_s),
                "ttft_p90_ms": _milliseconds(self._latency.ttft_p90_s),
            }
            t_s = time.monotonic() - began_s
            for name, value in values.items():
                if value is not None:
                    self.samples[name].append((t_s, float(value)))


def _rss_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 1e6


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def explain_files(count: int) -> str:
    """Raise the limit of open files to what `count` streams through one router need; why that is not possible."""
    needed = 2 * count + DESCRIPTORS_KEPT
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return ""
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, needed))
    except (ValueError, OSError):
        return (
            f"{count} streams through one router need {needed} open files and the limit is {hard}: "
            f"{max(1, (hard - DESCRIPTORS_KEPT) // 2)} are held. Raise it (ulimit -Hn) for all of them."
        )
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=HOURS, help="hours of 64 req/s (default 8)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="that they are compressed into (default 3600)")
    parser.add_argument("--streams", type=int, default=0, help="slow streams to hold at once; 0 = skip")
    parser.add_argument("--json", action="store_true", help="the numbers as JSON on stdout")
    options = parser.parse_args()
    made: dict[str, Any] = {"hours": options.hours, "seconds": options.seconds}
    with tempfile.TemporaryDirectory(prefix="tracon-soak-") as name:
        folder = Path(name)
        if options.seconds:
            soak = Soak(folder, options.seconds, options.hours)
            outcome = asyncio.run(soak.run())
            made |= {"sent": outcome.sent, "completed": outcome.completed, "failed": outcome.failed}
            made["trends"] = {quantity: asdict(trend) for quantity, trend in soak.trends().items()}
        if options.streams:
            made["streams_limited"] = explain_files(options.streams)
            made["streams"] = streams(options.streams, folder, lambda text: print(text, file=sys.stderr))[0]
    if options.json:
        print(json.dumps(made, indent=1))
        return
    for quantity, trend in made.pop("trends", {}).items():
        growth = f"{trend['growth']:+.1%} [{trend['low']:+.1%}, {trend['high']:+.1%}] in 8 h"
        print(f"{quantity}: {trend['level']:.4g}, {growth}: {trend['verdict']}")
    for key, value in made.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()
