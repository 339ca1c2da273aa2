"""Whether router and console stay as they are for hours: memory, descriptors and latency, each by its slope.

    python -m tests.benchmarks.soak [--hours 8] [--seconds 3600] [--streams 10000] [--samples FILE] [--json]
    python -m tests.benchmarks.soak --read FILE

Hours of 64 req/s are compressed into fewer seconds by rate: 8 hours in 3600 s are 512 req/s. Two truth servers answer
at once, behind one router with its decision log; its ticks go to the journal of a run, as often as the hours have
seconds, and a console is attached to it. The load is sessions of several turns, whose prompts grow, and whose answers
have 2 to 128 tokens: longer ones do not fit beside this rate on two cores. The router's table of sessions is full
within the warm-up. The truth servers hold no KV, so none is moved. The first fifth is warm-up. The rest is cut into
twelve blocks, and the slope over their medians (Theil-Sen, with its 95 % interval) is scaled to 8 hours and held
against what is allowed. A short run has a wide interval and says so: `undecided` is no `flat`.

A second table shows what the router holds, by its own `/metrics`: where memory grows, one of these grows with it, or
none does and it leaks.

Once a minute a line on stderr shows the last sample. `--samples` writes every sample to a file as it is taken: whatever
ends the soak, `--read` prints the table of what the file has. A soak cannot be continued: a new router starts empty.

`--streams N` then holds N slow streams at once through one router. A stream needs two of the router's file descriptors:
where the limit is too low, as many are held as it allows, and the reason is printed. Needs some 2 GB of disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

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
from results.records.load_specs import ReplaySpec
from results.records.plan import CellPlan, StagePlan
from results.records.router_spec import InstanceSpec, RouterSpec
from results.records.trace_lines import MAIN, Turn
from runners.campaign.plan import freeze_plan
from runners.load.process import run_replay
from runners.load.replay_messages import ReplayTick
from runners.router.counts import PREFIX
from runners.router.messages import RouterTick
from runners.router.server.process import RouterProcess
from runners.router.server.server import DESCRIPTORS_KEPT
from runners.trace.formats.tracon import write_trace
from runners.trace.session import Session, TraceFacts
from state import lease as leases
from state.store import RunStore
from tests.benchmarks.bench_router import allow_streams, hold_streams
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
BLOCK_TOKENS = 16
PART_S = 120.0
"""Of the load: each part is a replay with sessions of its own, and begins while the last sessions of the part before
it end. The trace of an hour would not fit into memory."""
TURNS = (1, 12)
"""Of a session, each number as often."""
PAUSE_S = (0.05, 1.5)
"""From an answer to the next turn; 8 hours in one are as much shorter than people's pauses."""
ANSWERS = ((2, 0.60), (8, 0.25), (32, 0.12), (128, 0.03))
"""Tokens of an answer, and its share: 11 on average."""
HELD = (
    "sessions_known", "instance_index_blocks", "unsettled_records", "log_backlog_bytes", "client_connections",
    "instance_num_requests",
)  # fmt: skip
"""Gauges of the router, over all instances: what its memory may be."""
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
    held: dict[str, float] = {}
    """Each gauge of HELD; an older file has none."""


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


@dataclass(slots=True)
class Served:
    """Requests of a soak."""

    sent: int = 0
    completed: int = 0
    failed: int = 0


def make_held_table(scale: Scale, samples: Sequence[Sample]) -> str:
    """Markdown: what the router held after the warm-up, and in the last tenth; empty = no sample says so."""
    after = [one.held for one in samples if one.held and one.t_s >= WARM_UP * scale.seconds]
    if not after:
        return ""
    part = max(1, len(after) // 10)
    lines = ["| held by the router | after the warm-up | at the end | most |", "|---|---|---|---|"]
    for name in HELD:
        values = [held.get(name, 0.0) for held in after]
        first, last = median(values[:part]), median(values[-part:])
        lines.append(f"| {name} | {first:,.0f} | {last:,.0f} | {max(values):,.0f} |")
    return "\n".join(lines)


def draw_sessions(part: int, requests: int, seconds: float) -> list[Session]:
    """Sessions with `requests` turns in all, which begin within `seconds`: a function of the number of the part."""
    rng = np.random.default_rng(part)
    lengths: list[int] = []
    while sum(lengths) < requests:
        lengths.append(min(int(rng.integers(TURNS[0], TURNS[1] + 1)), requests - sum(lengths)))
    begins = np.sort(rng.uniform(0.0, seconds, len(lengths)))
    begins[0] = 0.0
    return [
        Session(f"p{part}-{number}", _draw_turns(rng, begin_s, count))
        for number, (begin_s, count) in enumerate(zip(begins.tolist(), lengths, strict=True))
    ]


def _draw_turns(rng: np.random.Generator, begin_s: float, count: int) -> tuple[Turn, ...]:
    """Each prompt is the one before, with one to three blocks more."""
    tokens, shares = zip(*ANSWERS, strict=True)
    blocks = np.cumsum(rng.integers(1, 4, count)).tolist()
    answers = rng.choice(tokens, count, p=shares).tolist()
    pauses_s = rng.uniform(*PAUSE_S, count).tolist()
    at_s = (begin_s + np.cumsum(pauses_s) - pauses_s[0]).tolist()
    return tuple(
        Turn(
            agent=MAIN,
            turn=number,
            arrival_s=at_s[number],
            think_s=pauses_s[number] if number else None,
            input_tokens=blocks[number] * BLOCK_TOKENS,
            output_tokens=answers[number],
            hashes=tuple(range(1, blocks[number] + 1)),
            after=(number - 1,) if number else (),
        )
        for number in range(count)
    )


def count_held_sessions(scale: Scale) -> int:
    """Bindings that the router stores: those of half the warm-up, and more than there are at work in a short soak."""
    requests = RATE_PER_S * scale.hours * 3600.0 * WARM_UP / 2
    return max(128, round(requests / (sum(TURNS) / 2)))


class Soak:
    """Router, load and console for some seconds, and the samples of them."""

    def __init__(self, folder: Path, scale: Scale, samples_path: Path | None = None) -> None:
        self._folder = folder
        self._scale = scale
        self._speed = scale.hours * 3600.0 / scale.seconds
        self._decisions = folder / "decisions.jsonl"
        self._latency = LiveLatency()
        self._samples_path = samples_path or folder / "samples.jsonl"
        self._samples_path.write_bytes(msgspec.json.encode(scale) + b"\n")
        self.samples: list[Sample] = []

    async def run(self) -> Served:
        with TruthServer() as one, TruthServer() as two, self._open_store() as store, leases.acquire(store):
            self._begin_cell(store)
            urls = [server.url(ttft_ms=2, itl_ms=1, ids=0, running=1) for server in (one, two)]
            spec = RouterSpec(
                tuple(
                    InstanceSpec(f"i{place}", url, kv_capacity_tokens=INSTANCE_TOKENS, block_tokens=BLOCK_TOKENS)
                    for place, url in enumerate(urls)
                ),
                policy="unified",
                decisions_path=str(self._decisions),
                max_sessions=count_held_sessions(self._scale),
            )
            console = Console(store.folder)
            try:
                async with RouterProcess(
                    spec, self._folder / "router.spec.json", self._make_journalist(store)
                ) as router:
                    sampling = asyncio.create_task(self._sample(router, console, (one, two)))
                    try:
                        return await self._serve_sessions(router.url)
                    finally:
                        sampling.cancel()
            finally:
                console.close()

    async def _serve_sessions(self, url: str) -> Served:
        """Begin a part every PART_S, so that sessions arrive evenly; the last sessions of the soak end after it."""
        served = Served()
        parts = max(1, round(self._scale.seconds / PART_S))
        seconds = self._scale.seconds / parts
        async with asyncio.TaskGroup() as running:
            for part in range(parts):
                requests = round(RATE_PER_S * self._speed * seconds)
                running.create_task(self._serve_part(url, part, requests, seconds, served))
                await asyncio.sleep(seconds)
        return served

    async def _serve_part(self, url: str, part: int, requests: int, seconds: float, served: Served) -> None:
        """Replay the sessions of one part, and remove its files."""
        folder = self._folder / f"part{part}"
        folder.mkdir()
        trace = folder / "trace.jsonl"
        facts = TraceFacts(source="soak", block_tokens=BLOCK_TOKENS, tail_rule="floor", hash_scope="session")
        await asyncio.to_thread(lambda: write_trace(trace, facts, draw_sessions(part, requests, seconds)))
        spec = ReplaySpec(
            url=url,
            model="m",
            trace_path=str(trace),
            requests_path=str(folder / "metrics.jsonl"),
            seed=part,
            block_tokens=BLOCK_TOKENS,
            max_duration_s=2.0 * seconds + 60.0,
            token_evidence="usage",
        )
        outcome = await run_replay(spec, self._note_latency)
        served.sent += outcome.sent
        served.completed += outcome.completed
        served.failed += outcome.failed + outcome.cut
        shutil.rmtree(folder)
        os.truncate(self._decisions, 0)

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

    def _note_latency(self, tick: ReplayTick) -> None:
        self._latency = LiveLatency(tick.ttft_p50_s, tick.ttft_p90_s, tick.tpot_p50_s, tick.tpot_p90_s)

    async def _sample(self, router: RouterProcess, console: Console, servers: Sequence[TruthServer]) -> None:
        began_s = time.monotonic()
        while True:
            await asyncio.sleep(SAMPLE_S)
            for server in servers:
                await asyncio.to_thread(server.take_rows)  # else the server's memory grows, not the router's
            if not console.alive:
                raise RuntimeError(f"the console ended: {console.drawn[-400:]!r}")
            values = {
                "router_rss_mb": _rss_mb(router.pid),
                "console_rss_mb": _rss_mb(console.pid),
                "router_files": float(psutil.Process(router.pid).num_fds()),
                "console_files": float(psutil.Process(console.pid).num_fds()),
                "ttft_p50_ms": _milliseconds(self._latency.ttft_p50_s),
                "ttft_p90_ms": _milliseconds(self._latency.ttft_p90_s),
            }
            held = await asyncio.to_thread(read_held, router.url)
            self._add_sample(Sample(time.monotonic() - began_s, values, held))

    def _add_sample(self, sample: Sample) -> None:
        self.samples.append(sample)
        with self._samples_path.open("ab") as file:
            file.write(msgspec.json.encode(sample) + b"\n")
        if len(self.samples) % SAMPLES_PER_LINE == 0:
            values = sample.values | sample.held
            shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if value is not None)
            print(f"{sample.t_s:.0f} of {self._scale.seconds:.0f} s: {shown}", file=sys.stderr, flush=True)


def read_held(url: str) -> dict[str, float]:
    """The gauges of HELD from a router's `/metrics`, summed over instances."""
    with urlopen(f"{url}/metrics", timeout=10.0) as answer:
        lines = answer.read().decode().splitlines()
    held = dict.fromkeys(HELD, 0.0)
    for line in lines:
        name, _, value = line.rpartition(" ")
        gauge = name.partition("{")[0].removeprefix(PREFIX)
        if not line.startswith("#") and gauge in held:
            held[gauge] += float(value)
    return held


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
        scale, samples = read_samples(options.read)
        print_results({}, find_trends(scale, samples), make_held_table(scale, samples), as_json=options.json)
        return
    made: dict[str, Any] = {"hours": options.hours, "seconds": options.seconds}
    trends: dict[str, Trend] = {}
    held = ""
    with tempfile.TemporaryDirectory(prefix="tracon-soak-") as name:
        folder = Path(name)
        if options.seconds:
            scale = Scale(options.hours, options.seconds)
            soak = Soak(folder, scale, options.samples)
            outcome = asyncio.run(soak.run())
            made |= asdict(outcome)
            trends, held = find_trends(scale, soak.samples), make_held_table(scale, soak.samples)
        if options.streams:
            made["streams_limited"] = explain_files(options.streams)
            made["streams"] = hold_streams(min(options.streams, allow_streams()), 1, folder)
    print_results(made, trends, held, as_json=options.json)


def print_results(made: Mapping[str, Any], trends: Mapping[str, Trend], held: str, *, as_json: bool) -> None:
    if as_json:
        by_quantity = {quantity: asdict(trend) for quantity, trend in trends.items()}
        print(json.dumps({**made, "trends": by_quantity}, indent=1))
        return
    for key, value in made.items():
        print(f"{key}: {value}")
    print(make_table(trends), held, sep="\n\n")


if __name__ == "__main__":
    main()
