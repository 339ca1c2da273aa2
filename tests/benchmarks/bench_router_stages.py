"""CPU time that the router's own code spends on a request, by stage, without sockets; and beside another commit's.

    python -m tests.benchmarks.bench_router_stages [--policy unified] [--instances 2] [--tokens 32] [--against REF]
    python -m tests.benchmarks.bench_router_stages --longest    # how long one body keeps every stream waiting

A batch of requests passes the router's real parts (connections, proxy, dispatcher, pools, ledger, decision log) with
transports that take what is written. Each stage is timed over the whole batch by the process's CPU time; the figure is
the lowest of all batches, in microseconds per request. System calls, which cost about as much again, are not in it.

`--against` checks another commit out beside this one and runs both in turns, `--turns` times; the ratio is of the same
turn. Nothing but CPU time is read, so that a busy machine widens the spread and moves the ratios little.

`--longest` reads the longest bodies that the event loop reads itself, of the shapes that cost most.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic, process_time_ns
from typing import Any, cast

from results.records.router_spec import HealthRules, Limits
from runners.router.cluster import Cluster, Member
from runners.router.counts import Counts
from runners.router.dispatch import Dispatcher, Request
from runners.router.facts import LONG_BYTES, PROMPTS_LIMIT, read_facts
from runners.router.health import Health
from runners.router.instances.upstream import InstanceConnection, Pool
from runners.router.ledger import Ledger
from runners.router.policies import make_policy
from runners.router.prefix_index import PrefixIndex
from runners.router.server.front import ClientConnection, HttpRequest
from runners.router.server.log import RecordFile
from runners.router.server.proxy import Proxy
from runners.router.server.serve import COLLECT_AFTER
from runners.router.server.server import EventLoop
from runners.router.sessions.bindings import Bindings
from runners.router.traffic import Traffic
from runners.router.transfer.movement import KvTransport
from runners.target import Target

BLOCK = 16
SESSIONS = 64
"""Requests of a batch, each of a session of its own."""
CHUNKS = 4
STAGES = ("accept", "read", "pick", "send", "first byte", "chunk", "end", "log")
ROOT = Path(__file__).resolve().parents[2]


class NoTransfers:
    """No KV moves."""

    is_configured = False
    timeout_s = 120.0


class SinkTransport:
    """Takes everything."""

    def write(self, data: bytes) -> None:
        """Nothing is sent."""

    def writelines(self, data: tuple[bytes, ...]) -> None:
        """Nothing is sent."""

    def set_write_buffer_limits(self, high: int) -> None:
        """It is never full."""

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return False


class Bench:
    """The parts of one router, and the service of its client connections."""

    closing = False
    body_limit_bytes = held_limit_bytes = 1 << 30
    held_bytes = 0

    def __init__(self, policy: str, instances: int, log: RecordFile) -> None:
        names = [f"i{number:02d}" for number in range(instances)]
        members = [Member(name, kv_capacity_tokens=1 << 21, block_tokens=BLOCK) for name in names]
        self.requests: list[tuple[ClientConnection, HttpRequest]] = []
        self.counts, bindings, driver = Counts(), Bindings(), EventLoop()
        self.cluster = Cluster(members, monotonic, bindings)
        health = Health(self.cluster, HealthRules(), driver, lambda *_: None, lambda _: None, lambda _: None)
        self.pools = {name: Pool(Target("127.0.0.1", 1, name, name, "", tls=False), 1.0) for name in names}
        for name in names:
            health.add_instance(name, "")
        self.ledger = Ledger(log, self.counts, driver)
        indexes = {name: PrefixIndex(BLOCK, 1 << 17) for name in names}
        self.dispatcher = Dispatcher(
            make_policy(policy, {}), self.cluster, bindings, indexes, self.ledger, self.counts, BLOCK, driver
        )
        traffic = Traffic(self.dispatcher, health, self.counts, Limits(), cast(KvTransport, NoTransfers()))
        self.proxy = Proxy(traffic, self.pools)
        self.clients = [self._connect_client() for _ in range(SESSIONS)]
        for pool in self.pools.values():
            for _ in range(SESSIONS):
                connection = InstanceConnection(pool)
                connection.connection_made(cast(asyncio.Transport, SinkTransport()))
                pool.give_back(connection)

    def _connect_client(self) -> ClientConnection:
        client = ClientConnection(self)
        client.connection_made(cast(asyncio.Transport, SinkTransport()))
        return client

    def admit(self, connection: ClientConnection) -> str:
        return ""

    def forget(self, connection: ClientConnection) -> None:
        """Connections stay."""

    def serve(self, connection: ClientConnection, request: HttpRequest) -> None:
        self.requests.append((connection, request))


def make_requests(tokens: int, turn: int) -> list[bytes]:
    """A request of each session as bytes; later turns begin with the earlier ones."""
    made = []
    for number in range(SESSIONS):
        prompt = [(number * 7919 + place) % 150_000 for place in range(tokens + BLOCK * turn)]
        body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": CHUNKS, "stream": True}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nauthorization: Bearer none\r\n"
            f"content-type: application/json\r\naccept: text/event-stream\r\nx-request-id: r-{turn}-{number}\r\n"
            f"x-session-id: s{number}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Sun, 22 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def make_chunk(event: bytes) -> bytes:
    data = b"data: " + event + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNK = make_chunk(b'{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":" a"}],"usage":null}')
LAST = (
    make_chunk(b'{"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":32,"completion_tokens":4,"total_tokens":36}}')
    + make_chunk(b"[DONE]")
    + b"0\r\n\r\n"
)


def time_ns(work: Callable[[], object]) -> int:
    start_ns = process_time_ns()
    work()
    return process_time_ns() - start_ns


async def run_batch(bench: Bench, tokens: int, turn: int) -> dict[str, int]:
    """CPU nanoseconds of each stage for one batch."""
    raw = make_requests(tokens, turn)
    spent: dict[str, int] = {}

    def accept() -> None:
        for client, data in zip(bench.clients, raw, strict=True):
            client.data_received(data)

    spent["accept"] = time_ns(accept)
    taken, bench.requests = bench.requests, []
    facts: list[Any] = []
    spent["read"] = time_ns(lambda: facts.extend(read_facts(one.body, BLOCK, chat=False) for _, one in taken))
    requests = [
        Request(f"r-{turn}-{number}", f"s{number}", turn, fact.keys, fact.input_tokens, fact.max_tokens)
        for number, fact in enumerate(facts)
    ]
    spent["pick"] = 0
    for request in requests:  # counted at the instance for no longer than the pick: the next one is of the same load
        start_ns = process_time_ns()
        reservation = bench.dispatcher.pick_instance(request)
        spent["pick"] += process_time_ns() - start_ns
        reservation.end("aborted")
    bench.ledger.settle_records()

    def route() -> None:
        for client, one in taken:
            bench.proxy.route_request(client, one, chat=False)

    spent["route"] = time_ns(route)
    connections = [cast(Any, client.in_flight).connection for client in bench.clients]

    def receive(data: bytes) -> None:
        for connection in connections:
            connection.data_received(data)

    spent["first byte"] = time_ns(lambda: receive(HEAD + CHUNK))

    def receive_chunks() -> None:
        for _ in range(CHUNKS - 1):
            receive(CHUNK)

    spent["chunk"] = time_ns(receive_chunks)
    spent["end"] = time_ns(lambda: receive(LAST))
    spent["log"] = time_ns(bench.ledger.settle_records)
    await asyncio.sleep(0)
    return spent


async def measure(options: argparse.Namespace) -> dict[str, float]:
    """The lowest batch of each stage, in microseconds per request (per chunk for `chunk`)."""
    with tempfile.TemporaryDirectory() as folder:
        log = RecordFile(f"{folder}/decisions.jsonl")
        bench = Bench(options.policy, options.instances, log)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
        batches = [await run_batch(bench, options.tokens, turn % 8) for turn in range(options.batches)]
        await log.close()
    lowest = {stage: min(batch[stage] for batch in batches) / SESSIONS / 1e3 for stage in batches[0]}
    lowest["send"] = lowest.pop("route") - lowest["read"] - lowest["pick"]
    request_us = sum(lowest.values())
    lowest["chunk"] /= CHUNKS - 1
    assert bench.counts.count_status("ok") == SESSIONS * options.batches, bench.counts.outcomes
    return {stage: lowest[stage] for stage in STAGES} | {"request": request_us}


def make_longest_bodies() -> dict[str, bytes]:
    """Bodies of at most LONG_BYTES by their shape."""
    ids = b",".join([b"1"] * (LONG_BYTES // PROMPTS_LIMIT // 2 - 1))
    shapes = {
        "token ids of one digit": (b"[%b]", b"1", b","),
        "token ids of six digits": (b"[%b]", b"149999", b","),
        "text": (b'"%b"', b"a word ", b""),
        "as many prompts as are read": (b"[%b]", b"[%b]" % ids, b","),
        "prompts of one token": (b"[%b]", b"[1]", b","),
        "no prompt": (b'"",%b', b'"":0', b","),
    }
    bodies = {}
    for shape, (around, piece, between) in shapes.items():
        count = (LONG_BYTES - 100) // len(piece + between)
        bodies[shape] = b'{"prompt":%b}' % (around % between.join([piece] * count))
        assert 0.99 * LONG_BYTES < len(bodies[shape]) <= LONG_BYTES, shape
    return bodies


def measure_longest(batches: int) -> dict[str, float]:
    """CPU milliseconds that reading each of these bodies takes, the lowest of all batches."""
    return {
        shape: min(time_ns(partial(read_facts, body, BLOCK, chat=False)) for _ in range(batches)) / 1e6
        for shape, body in make_longest_bodies().items()
    }


def run_elsewhere(tree: Path, options: argparse.Namespace) -> dict[str, float]:
    """The same in a process whose router is that of `tree`."""
    command = [sys.executable, __file__, "--policy", options.policy, "--instances", str(options.instances)]
    command += ["--tokens", str(options.tokens), "--batches", str(options.batches), "--json"]
    made = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, check=True)
    return cast(dict[str, float], json.loads(made.stdout))


def compare(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(other), options.against], check=True)
        try:
            turns = [(run_elsewhere(ROOT, options), run_elsewhere(other, options)) for _ in range(options.turns)]
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=True)
    print(f"us of CPU per request, lowest of {options.batches} batches; median of {options.turns} turns")
    print(f"{'stage':12}{'here':>10}{options.against[:10]:>12}{'ratio':>9}")
    for stage in turns[0][0]:
        ours, theirs = [here[stage] for here, _ in turns], [there[stage] for _, there in turns]
        ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
        print(f"{stage:12}{median(ours):10.1f}{median(theirs):12.1f}{ratio:9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="unified")
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32, help="prompt tokens of a session's first turn")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--against", default="", help="another commit")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--longest", action="store_true", help="CPU ms for the longest bodies that the loop reads")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.against:
        compare(options)
        return
    lowest = measure_longest(options.batches) if options.longest else asyncio.run(measure(options))
    if options.json:
        print(json.dumps(lowest))
        return
    for name, cost in lowest.items():
        print(f"{name:28}{cost:10.1f}")


if __name__ == "__main__":
    main()
