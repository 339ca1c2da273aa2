"""CPU time that the router's own code spends on a request, by stage, without sockets; and beside another commit's.

    python -m tests.benchmarks.bench_router_stages [--policy unified] [--instances 2] [--tokens 32] [--against REF]
    python -m tests.benchmarks.bench_router_stages --longest    # how long one body keeps every stream waiting

A batch of requests passes the router's real parts (connections, proxy, dispatcher, pools, ledger, decision log) with
transports that take what is written. Each stage is timed over the whole batch by the process's CPU time; the figure is
the lowest of all batches, in microseconds per request. System calls, which cost more than all of it, are not in it.

accept: the HTTP request off the client's connection; parse: what is read of its body; hash: the keys of the prompt's
blocks; pick; connect: taking an idle connection to the instance; send: whatever else is between the body and the bytes
to the instance, reservation included; first byte, chunk, end: of the response; log: counting and encoding the record,
after the response. `open` is what a request pays in place of `connect` where no connection is idle: with its system
calls, to a socket of this host. The budget holds for `BUDGET_FOR`.

`--against` checks another commit out beside this one and runs both in turns, `--turns` times; the ratio is of the same
turn. Nothing but CPU time is read, so that a busy machine widens the spread and moves the ratios little. The other
commit must have `results/records/router_spec.py`.

`--longest` reads the longest bodies that the event loop reads itself, of the shapes that cost most.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic, process_time_ns
from typing import TYPE_CHECKING, Any, cast

import uvloop

from results.records.router_spec import HealthRules, Limits
from runners.router.cluster import Cluster, Member
from runners.router.counts import Counts
from runners.router.dispatch import Dispatcher, Request
from runners.router.facts import LONG_BYTES, PROMPTS_LIMIT, read_facts
from runners.router.health import Health
from runners.router.instances.upstream import Caller, InstanceConnection, Pool
from runners.router.ledger import Ledger
from runners.router.policies import make_policy
from runners.router.prefix_index import TOKEN_BYTES, PrefixIndex, make_byte_keys, pack_tokens
from runners.router.server.front import ClientConnection
from runners.router.server.log import RecordFile
from runners.router.server.proxy import Proxy
from runners.router.server.serve import COLLECT_AFTER
from runners.router.server.server import EventLoop
from runners.router.sessions.bindings import Bindings
from runners.router.traffic import Traffic
from runners.router.transfer.movement import KvTransport
from runners.target import Target

if TYPE_CHECKING:
    from runners.router.server.http_message import HttpRequest  # an older tree has it elsewhere

BLOCK = 16
SESSIONS = 64
"""Requests of a batch, each of a session of its own."""
CHUNKS = 4
OPENINGS = 10
"""Batches of new connections."""
STAGES = ("accept", "parse", "hash", "pick", "connect", "send", "first byte", "chunk", "end", "log")
BUDGET_FOR = ("round_robin", 2, 32)
"""Policy, instances and tokens."""
BUDGET_WORK_US = 150.0
"""`work_us` of the host that the budget is for."""
BUDGET_US = {
    "accept": 2.8, "parse": 2.3, "hash": 0.5, "pick": 3.5, "connect": 0.4, "send": 9.1, "first byte": 5.6, "chunk": 0.3,
    "end": 4.2, "log": 7.7, "request": 37.0,
}  # fmt: skip
"""What a stage may take if a request is to cost no more CPU than in vllm-router: docs/router-cost.md derives it."""
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


class TakenConnection(InstanceConnection):
    """An idle connection that sends nothing: what is left is the pool's work of taking it."""

    __slots__ = ()

    def send_request(self, caller: Caller, payload: tuple[bytes, ...], *, pooled: bool) -> None:
        """Nothing is sent."""


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
                pool.give_back(connect_sink(InstanceConnection(pool)))
        self.taken = [connect_sink(TakenConnection(self.first_pool)) for _ in range(SESSIONS)]

    @property
    def first_pool(self) -> Pool:
        return next(iter(self.pools.values()))

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


def connect_sink(connection: InstanceConnection) -> InstanceConnection:
    connection.connection_made(cast(asyncio.Transport, SinkTransport()))
    return connection


def make_prompts(tokens: int, turn: int) -> list[list[int]]:
    """A prompt of each session; later turns begin with the earlier ones."""
    length = tokens + BLOCK * turn
    return [[(number * 7919 + place) % 150_000 for place in range(length)] for number in range(SESSIONS)]


def make_requests(prompts: list[list[int]], turn: int) -> list[bytes]:
    """The requests as bytes."""
    made = []
    for number, prompt in enumerate(prompts):
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


def time_hashing(prompts: list[list[int]]) -> int:
    packed = [pack_tokens(prompt) for prompt in prompts]

    def hash_prompts() -> None:
        for ids in packed:
            make_byte_keys(ids, TOKEN_BYTES * BLOCK)

    return time_ns(hash_prompts)


def time_connecting(bench: Bench) -> int:
    """Take a connection from a pool for each request."""
    pool, caller = bench.first_pool, cast(Caller, None)
    for connection in bench.taken:
        pool.give_back(connection)

    def take_connections() -> None:
        for _ in bench.taken:
            pool.send_request(caller, ())

    return time_ns(take_connections)


async def time_opening() -> int:
    """Open as many connections to a socket of this host, which nothing accepts from."""
    with socket.create_server(("127.0.0.1", 0), backlog=2 * SESSIONS) as listening:
        pool = Pool(Target("127.0.0.1", listening.getsockname()[1], "i", "i", "", tls=False), 1.0)
        start_ns = process_time_ns()
        for _ in range(SESSIONS):
            await pool._open_connection()
        spent_ns = process_time_ns() - start_ns
        pool.close()
        await asyncio.sleep(0)
    return spent_ns


async def run_batch(bench: Bench, tokens: int, turn: int) -> dict[str, int]:
    """CPU nanoseconds of each stage for one batch."""
    prompts = make_prompts(tokens, turn)
    raw = make_requests(prompts, turn)
    spent: dict[str, int] = {"hash": time_hashing(prompts), "connect": time_connecting(bench)}

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
        opening_us = min([await time_opening() for _ in range(OPENINGS)]) / SESSIONS / 1e3
    lowest = {stage: min(batch[stage] for batch in batches) / SESSIONS / 1e3 for stage in batches[0]}
    read_us = lowest.pop("read")
    lowest["parse"] = read_us - lowest["hash"]
    lowest["send"] = lowest.pop("route") - read_us - lowest["pick"] - lowest["connect"]
    request_us = sum(lowest.values())
    lowest["chunk"] /= CHUNKS - 1
    assert bench.counts.count_status("ok") == SESSIONS * options.batches, bench.counts.outcomes
    return {stage: lowest[stage] for stage in STAGES} | {"request": request_us, "open": opening_us}


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
    made = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, check=True)
    return cast(dict[str, float], json.loads(made.stdout))


def compare(options: argparse.Namespace) -> None:
    print_conditions()
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
    if options.longest:
        lowest = measure_longest(options.batches)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            lowest = runner.run(measure(options))
    if options.json:
        print(json.dumps(lowest))
        return
    work_us = print_conditions()
    has_budget = not options.longest and (options.policy, options.instances, options.tokens) == BUDGET_FOR
    scale = work_us / BUDGET_WORK_US if has_budget and work_us is not None else None
    for name, cost in lowest.items():
        budget = "" if scale is None or name not in BUDGET_US else f"  of {scale * BUDGET_US[name]:.1f}"
        print(f"{name:28}{cost:10.1f}{budget}")


def print_conditions() -> float | None:
    """Returns the host's `work_us`."""
    from tests.benchmarks.conditions import describe_conditions, read_conditions  # an older tree may have none

    conditions = read_conditions()
    print(describe_conditions(conditions))
    return conditions.work_us


if __name__ == "__main__":
    main()
