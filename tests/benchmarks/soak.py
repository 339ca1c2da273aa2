"""Whether router and console stay as they are for hours: memory, descriptors and latency, each by its slope.

    python -m tests.benchmarks.soak [--hours 8] [--seconds 3600] [--streams 10000] [--samples FILE] [--json]
    python -m tests.benchmarks.soak --read FILE

Hours of 64 req/s are compressed into fewer seconds by rate: 8 hours in 3600 s are 512 req/s. Two truth servers answer
at once, behind one router with its decision log; its ticks go to the journal of a run, as often as the hours have
seconds, and a console is attached to it. The first fifth is warm-up. The rest is cut into twelve blocks, and the slope
over their medians (Theil-Sen, with its 95 % interval) is scaled to 8 hours and held against what is allowed. A short
run has a wide interval and says so: `undecided` is no `flat`.

Once a minute a line on stderr shows the last sample. `--samples` writes every sample to a file as it is taken: whatever
ends the soak, `--read` prints the table of what the file has. A soak cannot be continued: a new router starts empty.

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

import msgspec
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
SAMPLES_PER_LINE = 30
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


class Scale(msgspec.Struct, frozen=True):
    """What the samples of a file stand for: its first line."""

    hours: float
    """Of 64 req/s."""
    seconds: float
    """That they are compressed into."""


class Sample(msgspec.Struct, frozen=True):
    """One line: each quantity of ALLOWED at a time; null = there was none yet."""

    t_s: float
    """Since the begin."""
    values: dict[str, float | None]


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


def find_trends(scale: Scale, samples: Sequence[Sample]) -> dict[str, Trend]:
    """By quantity; one that has too few samples after the warm-up for a slope is left out."""
    begin_s, hours_per_s = WARM_UP * scale.seconds, scale.hours / scale.seconds
    trends: dict[str, Trend] = {}
    for name, allowed in ALLOWED.items():
        read = [(one.t_s, one.values.get(name)) for one in samples if one.t_s >= begin_s]
        points = [(t_s * hours_per_s, value) for t_s, value in read if value is not None]
        if len(points) >= BLOCKS:
            times_h, values = zip(*points, strict=True)
            trends[name] = find_trend(times_h, values, allowed)
    return trends


def read_samples(path: Path) -> tuple[Scale, list[Sample]]:
    """A file of samples; the last line may have been cut."""
    first, *lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    return msgspec.json.decode(first, type=Scale), [msgspec.json.decode(line, type=Sample) for line in whole]


def make_table(trends: Mapping[str, Trend]) -> str:
    """Markdown, as docs/reliability.md has it."""
    lines = ["| quantity | level | growth in 8 hours | verdict |", "|---|---|---|---|"]
    for quantity, trend in trends.items():
        growth = f"{trend.growth:+.1%} [{trend.low:+.1%}, {trend.high:+.1%}]"
        lines.append(f"| {quantity} | {trend.level:.4g} | {growth} | {trend.verdict} |")
    return "\n".join(lines)


class Soak:
    """Router, load and console for some seconds, and the samples of them."""

    def __init__(self, folder: Path, scale: Scale, samples_path: Path | None = None) -> None:
        self._folder = folder
        self._scale = scale
        self._speed = scale.hours * 3600.0 / scale.seconds
        self._latency = LiveLatency()
        self._samples_path = samples_path or folder / "samples.jsonl"
        self._samples_path.write_bytes(msgspec.json.encode(scale) + b"\n")
        self.samples: list[Sample] = []

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

    def _load_spec(self, url: str) -> LoadSpec:
        return LoadSpec(
            url=url,
            model="m",
            rate_per_s=RATE_PER_S * self._speed,
            input_tokens=32,
            output_tokens=2,
            warmup_s=0.0,
            requests_path=str(self._folder / "requests.jsonl"),
            min_duration_s=self._scale.seconds,
            min_completed=0,
            max_duration_s=self._scale.seconds + 30.0,
            token_evidence="usage",
        )

    def _open_store(self) -> RunStore:
        cell = CellPlan(CELL, "trials", "replay", "plain", "soak", {}, self._scale.seconds)
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
            fraction = min(1.0, (time.monotonic() - began_s) / self._scale.seconds)
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
            values = {
                "router_rss_mb": _rss_mb(router),
                "console_rss_mb": _rss_mb(console.pid),
                "router_files": float(psutil.Process(router).num_fds()),
                "console_files": float(psutil.Process(console.pid).num_fds()),
                "ttft_p50_ms": _milliseconds(self._latency.ttft_p50_s),
                "ttft_p90_ms": _milliseconds(self._latency.ttft_p90_s),
            }
            self._add_sample(Sample(time.monotonic() - began_s, values))

    def _add_sample(self, sample: Sample) -> None:
        self.samples.append(sample)
        with self._samples_path.open("ab") as file:
            file.write(msgspec.json.encode(sample) + b"\n")
        if len(self.samples) % SAMPLES_PER_LINE == 0:
            shown = ", ".join(f"{name} {value:.4g}" for name, value in sample.values.items() if value is not None)
            print(f"{sample.t_s:.0f} of {self._scale.seconds:.0f} s: {shown}", file=sys.stderr, flush=True)


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
    parser.add_argument("--samples", type=Path, help="file for the samples, written as they are taken")
    parser.add_argument("--read", type=Path, help="print the table of such a file, run nothing")
    parser.add_argument("--json", action="store_true", help="the numbers as JSON on stdout")
    options = parser.parse_args()
    if options.read is not None:
        print_results({}, find_trends(*read_samples(options.read)), as_json=options.json)
        return
    made: dict[str, Any] = {"hours": options.hours, "seconds": options.seconds}
    trends: dict[str, Trend] = {}
    with tempfile.TemporaryDirectory(prefix="tracon-soak-") as name:
        folder = Path(name)
        if options.seconds:
            scale = Scale(options.hours, options.seconds)
            soak = Soak(folder, scale, options.samples)
            outcome = asyncio.run(soak.run())
            made |= {"sent": outcome.sent, "completed": outcome.completed, "failed": outcome.failed}
            trends = find_trends(scale, soak.samples)
        if options.streams:
            made["streams_limited"] = explain_files(options.streams)
            made["streams"] = streams(options.streams, folder, lambda text: print(text, file=sys.stderr))[0]
    print_results(made, trends, as_json=options.json)


def print_results(made: Mapping[str, Any], trends: Mapping[str, Trend], *, as_json: bool) -> None:
    if as_json:
        by_quantity = {quantity: asdict(trend) for quantity, trend in trends.items()}
        print(json.dumps({**made, "trends": by_quantity}, indent=1))
        return
    for key, value in made.items():
        print(f"{key}: {value}")
    print(make_table(trends))


if __name__ == "__main__":
    main()
