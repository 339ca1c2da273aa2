"""How far off a router's loads and prefix indexes are where several processes share its port.

    python -m tests.benchmarks.bench_router_processes [--processes 1 2 4] [--rate 150] [--seconds 15] [--seed 1]
                                                      [--policies load_only unified] [--json]

Four instances (truth servers: first token after 30 ms, then one every 5 ms) behind one, two and four processes that
share a table of sessions in Redis. Every request has a connection of its own, so the kernel spreads them. Sessions come
as a Poisson process and have four turns with pauses between; a prompt is a document, of which some are asked about far
more often than others, and what the session has asked so far. Answers have 5 to 100 tokens.

Loads: the decision logs of all processes tell what each instance really had in flight at each pick. `error`: root mean
square of N x (what the process knew) less what there was, in requests of one instance, beside their mean; `fewest`:
share of picks whose instance had the fewest of all; `spread`: most picks of an instance over the mean. Loads are right
with one process, so its `error` and `fewest` are the method's own.

Prefix indexes: the servers report every prompt with the time of its arrival, and of these an instance has cached the
blocks used last, as many as its capacity. At each pick that is held against what the process believed of all four.
`true`: share of the tokens it took for cached that were; `missed`: share of the cached tokens that it did not know;
`hit`: share of the prompts' tokens that were cached at the instance picked. Blocks count once their prompt has arrived,
and those of answers do not count, so that only the processes are measured and not what any index cannot know.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from heapq import merge
from pathlib import Path
from statistics import fmean

import httpx
import msgspec

from results.records.decisions import DecisionRecord
from results.records.router_spec import BindingRules, InstanceSpec, RouterSpec
from runners.router.server.process import RouterProcess
from tests.benchmarks.conditions import describe_conditions, read_conditions
from tests.servers.redis_server import RedisServer
from tests.servers.truth_server import Truth, TruthServer

INSTANCES = ("i0", "i1", "i2", "i3")
TOKENS = (5, 100)
BLOCK = 16
CAPACITY_BLOCKS = 2048
"""Cache of each instance: what some seconds of this load bring, longer than a session lasts."""
DOCUMENTS = 400
DOCUMENT_TOKENS = 320
TURN_TOKENS = 160
"""That each turn adds to the prompt."""
TURNS = 4
"""Of a session."""
PAUSE_S = 0.3
"""From an answer to the next turn, mean."""


@dataclass(frozen=True, slots=True)
class LoadErrors:
    """What the processes make of the loads."""

    in_flight: float
    """Requests of one instance at a pick, mean."""
    error: float
    fewest: float
    spread: float


@dataclass(frozen=True, slots=True)
class IndexErrors:
    """What the processes' prefix indexes make of the instances' caches; shares, 0 to 1, None = a share of nothing."""

    true: float | None
    missed: float | None
    hit: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One policy behind one number of processes."""

    policy: str
    processes: int
    requests: int
    failed: int
    loads: LoadErrors
    index: IndexErrors


@dataclass(frozen=True, slots=True)
class Arrival:
    """A prompt that reached an instance."""

    t_ns: int
    instance: str
    request: str


class BlockCache:
    """An instance's cache: the blocks used last, tails gone before heads."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity_blocks = capacity_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()
        """Least recently used first."""

    def add_prompt(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity_blocks:
            self._blocks.popitem(last=False)

    def count_cached(self, blocks: Sequence[int]) -> int:
        """Tokens of the longest cached prefix."""
        held = next((place for place, block in enumerate(blocks) if block not in self._blocks), len(blocks))
        return held * BLOCK


def make_prompt(session: int, document: int, turn: int) -> list[int]:
    """Token ids: the document, then what the session has asked up to this turn."""
    own = TURN_TOKENS * (turn + 1)
    return [
        *(document * DOCUMENT_TOKENS + place + 1 for place in range(DOCUMENT_TOKENS)),
        *(1_000_000 + session * TURNS * TURN_TOKENS + place for place in range(own)),
    ]


def chain_blocks(prompt: Sequence[int]) -> list[int]:
    """A key for each full block with all before it."""
    keys, parent = [], 0
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        parent = hash((parent, tuple(prompt[end - BLOCK : end])))
        keys.append(parent)
    return keys


def measure_loads(picks: Sequence[DecisionRecord], processes: int) -> LoadErrors:
    """`picks`: of all processes of one run, by time."""
    last_ns = picks[-1].t_ns
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
    return LoadErrors(
        in_flight=fmean(counts),
        error=math.sqrt(fmean(squares)),
        fewest=fewest / len(picks),
        spread=max(by_instance.values()) / (len(picks) / len(INSTANCES)),
    )


def measure_index(
    picks: Sequence[DecisionRecord],
    arrivals: Sequence[Arrival],
    prompts: Mapping[str, Sequence[int]],
    capacity_blocks: int = CAPACITY_BLOCKS,
) -> IndexErrors:
    """Picks and arrivals by time; `prompts` by request id."""
    chains = {request: chain_blocks(prompt) for request, prompt in prompts.items()}
    caches = {name: BlockCache(capacity_blocks) for name in INSTANCES}
    believed_tokens = cached_tokens = agreed_tokens = hit_tokens = prompt_tokens = 0
    events: Iterator[Arrival | DecisionRecord] = merge(arrivals, picks, key=_read_time)
    for event in events:
        if isinstance(event, Arrival):
            caches[event.instance].add_prompt(chains[event.request])
            continue
        prompt = prompts[event.request.request]
        blocks = chains[event.request.request][: (len(prompt) - 1) // BLOCK]  # a prompt's last token is never cached
        for name, cache in caches.items():
            believed, cached = event.request.cached_tokens.get(name, 0), cache.count_cached(blocks)
            believed_tokens += believed
            cached_tokens += cached
            agreed_tokens += min(believed, cached)
            hit_tokens += cached if name == event.decision.instance else 0
        prompt_tokens += len(prompt)
    return IndexErrors(
        true=share(agreed_tokens, believed_tokens),
        missed=share(cached_tokens - agreed_tokens, cached_tokens),
        hit=share(hit_tokens, prompt_tokens),
    )


def share(tokens: int, of_tokens: int) -> float | None:
    return tokens / of_tokens if of_tokens else None


async def drive(url: str, options: argparse.Namespace) -> int:
    """Open loop of sessions; returns how many requests failed."""
    draw, loop = random.Random(options.seed), asyncio.get_running_loop()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False, limits=limits, timeout=60) as client:

        async def send(session: int, document: int, turn: int, tokens: int) -> bool:
            prompt = make_prompt(session, document, turn)
            body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": True, "session_id": f"s{session}"}
            headers = {"x-request-id": f"s{session}-{turn}"}
            answer = await client.post("/v1/completions", json=body, headers=headers)
            return answer.status_code == 200

        async def run_session(session: int, seed: int) -> int:
            own = random.Random(seed)
            document, failed = draw_document(own), 0
            for turn in range(TURNS):
                if turn:
                    await asyncio.sleep(own.expovariate(1 / PAUSE_S))
                failed += not await send(session, document, turn, own.randint(*TOKENS))
            return failed

        sessions: list[asyncio.Task[int]] = []
        due_s = loop.time()
        end_s = due_s + options.seconds
        while due_s < end_s:
            await asyncio.sleep(due_s - loop.time())
            sessions.append(asyncio.create_task(run_session(len(sessions), draw.getrandbits(32))))
            due_s += draw.expovariate(options.rate / TURNS)
        counts = await asyncio.gather(*sessions, return_exceptions=True)
    return sum(count if isinstance(count, int) else TURNS for count in counts)


def draw_document(draw: random.Random) -> int:
    """Document n is asked about 1 / (n + 1) times as often as the first."""
    return draw.choices(range(DOCUMENTS), weights=[1 / (number + 1) for number in range(DOCUMENTS)])[0]


async def measure(
    policy: str, processes: int, servers: Sequence[TruthServer], redis: str, options: argparse.Namespace, folder: Path
) -> Row:
    urls = [server.url(ttft_ms=30, itl_ms=5) for server in servers]
    spec = RouterSpec(
        tuple(
            InstanceSpec(name, url, kv_capacity_tokens=CAPACITY_BLOCKS * BLOCK, block_tokens=BLOCK)
            for name, url in zip(INSTANCES, urls, strict=True)
        ),
        policy=policy,
        processes=processes,
        bindings=BindingRules(redis, prefix=f"{policy}{processes}:"),
        decisions_path=str(folder / "decisions.jsonl"),
    )
    async with RouterProcess(spec, folder / "router.json") as process:
        failed = await drive(process.url, options)
        await process.end()
    picks = sorted((record for record in read_records(folder) if record.decision.instance), key=_read_time)
    truths = {name: server.take_rows() for name, server in zip(INSTANCES, servers, strict=True)}
    arrivals = list_arrivals(truths)
    prompts = {truth.request_id: truth.prompt for rows in truths.values() for truth in rows}
    if not picks:
        raise SystemExit(
            f"{policy}, {processes} processes: no request was routed, {failed} failed: nothing is measured"
        )
    known = [record for record in picks if record.request.request in prompts]
    return Row(
        policy, processes, len(picks), failed, measure_loads(picks, processes), measure_index(known, arrivals, prompts)
    )


def list_arrivals(truths: Mapping[str, Sequence[Truth]]) -> list[Arrival]:
    """By time."""
    arrivals = (Arrival(truth.t_recv_ns, name, truth.request_id) for name, rows in truths.items() for truth in rows)
    return sorted(arrivals, key=_read_time)


def _read_time(event: Arrival | DecisionRecord) -> int:
    return event.t_ns


def read_records(folder: Path) -> list[DecisionRecord]:
    """Of every process."""
    decode = msgspec.json.Decoder(DecisionRecord).decode
    return [decode(line) for log in sorted(folder.glob("decisions*.jsonl")) for line in log.open("rb")]


def describe_row(row: Row) -> str:
    loads, index = row.loads, row.index
    return (
        f"{row.policy}, {row.processes} processes: {row.requests} picks, {row.failed} failed; loads: "
        f"{loads.in_flight:.1f} in flight per instance, error {loads.error:.2f}, fewest {100 * loads.fewest:.0f} %, "
        f"spread {loads.spread:.2f}; index: true {describe_share(index.true)}, missed {describe_share(index.missed)}, "
        f"hit {describe_share(index.hit)}"
    )


def describe_share(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--policies", nargs="+", default=["load_only", "unified"])
    parser.add_argument("--rate", type=float, default=150.0, help="requests per second (default 150)")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print data only")
    options = parser.parse_args()
    conditions, rows = read_conditions(), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [stack.enter_context(TruthServer()) for _ in INSTANCES]
        redis = stack.enter_context(RedisServer(folder)).url
        for policy in options.policies:
            for processes in options.processes:
                own = folder / f"{policy}{processes}"
                own.mkdir()
                rows.append(asyncio.run(measure(policy, processes, servers, redis, options, own)))
                sys.stderr.write(f"{describe_row(rows[-1])}\n")
    if options.json:
        print(json.dumps({"conditions": asdict(conditions), "rows": [asdict(row) for row in rows]}, indent=1))
        return
    print(describe_conditions(conditions))
    for row in rows:
        print(describe_row(row))


if __name__ == "__main__":
    main()
