"""How far off a router's loads are where several processes share its port, each counting only what it sends.

    python -m tests.benchmarks.bench_router_processes [--processes 1 2 4] [--rate 150] [--seconds 15] [--seed 1]
                                                      [--policy load_only] [--json]

Four instances (truth servers: first token after 30 ms, then one every 5 ms) behind one, two and four processes that
share a table of sessions in Redis. Every request has a connection of its own, so the kernel spreads them; arrivals are
Poisson, answers 5 to 100 tokens. Afterwards the decision logs of all processes tell what each instance really had in
flight at each pick. `error`: root mean square of N x (what the process knew) less what there was, in requests of one
instance, beside their mean; `fewest`: share of picks whose instance had the fewest of all; `spread`: most picks of an
instance over the mean. Loads are right with one process, so its `error` and `fewest` are the method's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import httpx
import msgspec

from results.records.decisions import DecisionRecord
from results.records.router_spec import BindingRules, InstanceSpec, RouterSpec
from runners.router.server.process import RouterProcess
from tests.servers.redis_server import RedisServer
from tests.servers.truth_server import TruthServer

INSTANCES = ("i0", "i1", "i2", "i3")
TOKENS = (5, 100)
PROMPT = 200
TURNS = 4
"""Of a session."""


@dataclass(frozen=True, slots=True)
class Errors:
    """What one number of processes makes of the loads."""

    processes: int
    requests: int
    failed: int
    in_flight: float
    """Requests of one instance at a pick, mean."""
    error: float
    fewest: float
    spread: float


def measure_errors(records: Sequence[DecisionRecord], processes: int, failed: int) -> Errors:
    """From the records of all processes of one run."""
    picks = sorted((record for record in records if record.decision.instance), key=lambda record: record.t_ns)
    last_ns = max(record.t_ns for record in picks)
    begun: dict[str, list[int]] = {name: [] for name in INSTANCES}
    ended: dict[str, list[int]] = {name: [] for name in INSTANCES}
    for record in picks:
        name, outcome = record.decision.instance, record.outcome
        last_s = None if outcome is None else outcome.last_byte_s
        begun[name].append(record.t_ns)
        ended[name].append(last_ns if last_s is None else record.t_ns + round(last_s * 1e9))
    for times in ended.values():
        times.sort()
    squares, counts, fewest = [], [], 0
    for record in picks:
        t_ns = record.t_ns - 1
        true = {name: bisect_right(begun[name], t_ns) - bisect_right(ended[name], t_ns) for name in INSTANCES}
        for load in record.cluster.instances:
            squares.append((processes * load.num_requests - true[load.instance]) ** 2)
            counts.append(true[load.instance])
        fewest += true[record.decision.instance] == min(true.values())
    by_instance = Counter(record.decision.instance for record in picks)
    return Errors(
        processes=processes,
        requests=len(picks),
        failed=failed,
        in_flight=fmean(counts),
        error=math.sqrt(fmean(squares)),
        fewest=fewest / len(picks),
        spread=max(by_instance.values()) / (len(picks) / len(INSTANCES)),
    )


async def drive(url: str, rate_per_s: float, seconds: float, seed: int) -> int:
    """Open loop; returns how many requests failed."""
    draw, loop = random.Random(seed), asyncio.get_running_loop()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False, limits=limits, timeout=60) as client:

        async def send(number: int, tokens: int) -> bool:
            prompt = [number % 250 + 1] * PROMPT
            body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": True}
            answer = await client.post("/v1/completions", json=body | {"session_id": f"s{number // TURNS}"})
            return answer.status_code == 200

        sending, due_s, number = [], loop.time(), 0
        end_s = due_s + seconds
        while due_s < end_s:
            await asyncio.sleep(due_s - loop.time())
            sending.append(asyncio.create_task(send(number, draw.randint(*TOKENS))))
            due_s += draw.expovariate(rate_per_s)
            number += 1
        answers = await asyncio.gather(*sending, return_exceptions=True)
    return sum(answer is not True for answer in answers)


async def measure(processes: int, url: str, redis: str, options: argparse.Namespace, folder: Path) -> Errors:
    spec = RouterSpec(
        tuple(InstanceSpec(name, url, kv_capacity_tokens=1 << 20, block_tokens=16) for name in INSTANCES),
        policy=options.policy,
        processes=processes,
        bindings=BindingRules(redis, prefix=f"bench{processes}:"),
        decisions_path=str(folder / "decisions.jsonl"),
    )
    async with RouterProcess(spec, folder / "router.json") as process:
        failed = await drive(process.url, options.rate, options.seconds, options.seed)
        await process.end()
    return measure_errors(read_records(folder), processes, failed)


def read_records(folder: Path) -> list[DecisionRecord]:
    """Of every process."""
    decode = msgspec.json.Decoder(DecisionRecord).decode
    return [decode(line) for log in sorted(folder.glob("decisions*.jsonl")) for line in log.open("rb")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--policy", default="load_only")
    parser.add_argument("--rate", type=float, default=150.0, help="requests per second (default 150)")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print data only")
    options = parser.parse_args()
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(TruthServer()).url(ttft_ms=30, itl_ms=5)
        redis = stack.enter_context(RedisServer(folder)).url
        for processes in options.processes:
            own = folder / str(processes)
            own.mkdir()
            rows.append(asyncio.run(measure(processes, url, redis, options, own)))
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    for row in rows:
        print(
            f"{row.processes} processes: {row.requests} picks, {row.failed} failed, {row.in_flight:.1f} in flight per "
            f"instance, error {row.error:.2f}, fewest {100 * row.fewest:.0f} %, spread {row.spread:.2f}"
        )


if __name__ == "__main__":
    main()
