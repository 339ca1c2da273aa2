"""What it costs that routers share their bindings: the dict of one router beside Redis on loopback, in one run.

    python -m tests.benchmarks.bench_bindings [--rounds 9] [--requests 3000] [--sessions 10000] [--json]

One process does what a router does with a request from its last byte until it is sent (count the turn, know its
session, view, decide by EAR, reserve, index) and what follows (commit at the first byte, release at the end), without
sockets to clients or instances. Both kinds of bindings meet the same requests in every round, in blocks whose order
rotates: one request at a time, then 64 at once. Ratios are of the same round. Redis is a real redis-server without
persistence on this machine; a network's round trip comes on top. Then the memory of 100 000 sessions, in each place.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import tempfile
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, process_time
from typing import Any
from uuid import UUID

import numpy as np
import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from results.records.router_spec import BindingRules
from runners.router.cluster import Cluster, Member
from runners.router.counts import Counts
from runners.router.dispatch import Dispatcher, Request
from runners.router.ledger import Ledger
from runners.router.policies import make_policy
from runners.router.server.log import RecordFile
from runners.router.server.server import EventLoop
from runners.router.sessions.bindings import Bindings
from runners.router.sessions.shared_bindings import SharedBindings
from tests.servers.redis_server import RedisServer

NAMES = ("i0", "i1", "i2", "i3")
AT_ONCE = 64
KEPT = 100_000
DICT, REDIS = "dict", "redis"
ONE = "one at a time"
EAR = {"hot_tokens": 1 << 40, "cooldown_s": 30.0}


@dataclass(frozen=True, slots=True)
class Block:
    """One kind of bindings under one load, once. Times in microseconds."""

    p50_us: float
    """From a request's arrival until it is sent."""
    p99_us: float
    cpu_us: float
    """Of this process, per request."""
    redis_cpu_us: float
    """Of redis-server, per request."""
    requests_per_s: float


class Router:
    """The part of a router that the bindings are in."""

    def __init__(self, bindings: Bindings, counts: Counts) -> None:
        self.bindings = bindings
        members = [Member(name, kv_capacity_tokens=1 << 40) for name in NAMES]
        cluster = Cluster(members, monotonic, bindings)
        ledger = Ledger(RecordFile(""), counts, EventLoop())
        self._dispatcher = Dispatcher(make_policy("ear", EAR), cluster, bindings, {}, ledger, counts, 16, EventLoop())

    def begin(self, session: str, sent: Callable[[], None]) -> None:
        """One request; `sent` is called when it is on its way, its end comes in the next round of the loop."""
        if self.bindings.is_shared:
            self._dispatcher.ask_arrival(session, lambda turn: self._pick(session, turn, sent))
        else:
            self._pick(session, self._dispatcher.count_arrival(session), sent)

    def _pick(self, session: str, turn: int, sent: Callable[[], None]) -> None:
        request = Request("r", session, turn, (), 2000, 200)
        reservation = self._dispatcher.pick_instance(request)
        self._dispatcher.count_pick(request, reservation)
        sent()
        reservation.start_response(served=True)
        reservation.end("ok")


async def block(router: Router, sessions: list[str], at_once: int, redis_server: psutil.Process) -> Block:
    """Send a request of each of these sessions, this many at a time."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    coming = iter(sessions)
    done = loop.create_future()

    def following() -> None:
        session = next(coming, None)
        if session is None:
            return
        t_s = perf_counter()

        def sent() -> None:
            latencies.append(perf_counter() - t_s)
            if len(latencies) == len(sessions):
                done.set_result(None)
            else:
                loop.call_soon(following)

        router.begin(session, sent)

    gc.collect()
    redis_s, cpu_s, t_s = _cpu_s(redis_server), process_time(), perf_counter()
    for _ in range(at_once):
        following()
    await done
    wall_s, cpu_s, redis_s = perf_counter() - t_s, process_time() - cpu_s, _cpu_s(redis_server) - redis_s
    p50, p99 = np.percentile(latencies, (50, 99)) * 1e6
    count = len(sessions)
    return Block(float(p50), float(p99), cpu_s / count * 1e6, redis_s / count * 1e6, count / wall_s)


async def measure(url: str, pid: int, rounds: int, requests: int, count: int) -> dict[str, dict[str, list[Block]]]:
    """Blocks by load and kind of bindings, round by round."""
    server = psutil.Process(pid)
    counts = Counts()
    shared = SharedBindings(BindingRules(url, wait_s=5.0), counts, lambda: NAMES, monotonic)
    await shared.start()
    routers = {DICT: Router(Bindings(), Counts()), REDIS: Router(shared, counts)}
    names = [str(UUID(int=random.getrandbits(128))) for _ in range(count)]
    figures: dict[str, dict[str, list[Block]]] = {
        load: {kind: [] for kind in routers} for load in (ONE, f"{AT_ONCE} at once")
    }
    for kind in routers:  # every session is known, and the caches are warm
        await block(routers[kind], names, AT_ONCE, server)
    for number in range(rounds):
        asked = random.choices(names, k=requests)
        for load, at_once in zip(figures, (1, AT_ONCE), strict=True):
            for kind in (DICT, REDIS) if number % 2 else (REDIS, DICT):
                figures[load][kind].append(await block(routers[kind], asked, at_once, server))
    assert not counts.binding_failures, counts.binding_failures
    await shared.close()
    return figures


async def memory(redis_server: RedisServer) -> dict[str, float]:
    """Bytes of one session among KEPT, by where they are."""
    names = [str(UUID(int=random.getrandbits(128))) for _ in range(KEPT)]
    before = redis_server.memory_bytes()
    figures = {}
    own = Bindings(2 * KEPT)
    tracemalloc.start()
    start, _ = tracemalloc.get_traced_memory()
    for place, name in enumerate(names):
        own.count_arrival(name, 0.0)
        own.commit_binding(name, NAMES[place % 4], 0.0)
    figures["dict"] = (tracemalloc.get_traced_memory()[0] - start) / KEPT
    tracemalloc.stop()
    shared = SharedBindings(
        BindingRules(redis_server.url, prefix="m:", wait_s=60.0), Counts(), lambda: NAMES, monotonic, 2 * KEPT
    )
    await shared.start()
    router = Router(shared, shared._counts)
    await block(router, names, AT_ONCE, psutil.Process())
    figures["redis-server"] = (redis_server.memory_bytes() - before) / KEPT
    await shared.close()
    return figures


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _spread(values: list[float], digits: int = 0) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def show(figures: dict[str, dict[str, list[Block]]], memory_bytes: dict[str, float]) -> None:
    """The tables, medians with lowest and highest round."""
    rows = (
        ("arrival to sent p50, us", "p50_us"),
        ("arrival to sent p99, us", "p99_us"),
        ("CPU per request, us", "cpu_us"),
        ("CPU of redis-server per request, us", "redis_cpu_us"),
        ("requests/s", "requests_per_s"),
    )
    table = Table("load", "measure", "dict", "Redis", "ratio", "difference")
    for load, kinds in figures.items():
        for title, field in rows:
            own, other = ([getattr(one, field) for one in kinds[kind]] for kind in (DICT, REDIS))
            pairs = list(zip(own, other, strict=True))
            if load != ONE and field.startswith("p"):
                continue  # of requests that wait for each other
            ratio = _spread([b / a for a, b in pairs], 2) if all(own) and field != "redis_cpu_us" else "-"
            more = _spread([b - a for a, b in pairs])
            table.add_row(load, title, _spread(own), _spread(other), ratio, more)
    console = Console(width=140)
    console.print(table)
    for place, size in memory_bytes.items():
        console.print(f"memory of {KEPT} sessions, {place}: {size * KEPT / 1e6:.0f} MB, {size:.0f} bytes each")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        RedisServer(Path(folder)) as server,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        figures = runner.run(measure(server.url, server.pid, options.rounds, options.requests, options.sessions))
        memory_bytes = runner.run(memory(server))
    if options.json:
        rows: dict[str, Any] = {
            load: {
                kind: [{name: getattr(one, name) for name in Block.__slots__} for one in blocks]
                for kind, blocks in kinds.items()
            }
            for load, kinds in figures.items()
        }
        print(json.dumps({"loads": rows, "memory_bytes_per_session": memory_bytes}))
    else:
        show(figures, memory_bytes)


if __name__ == "__main__":
    main()
