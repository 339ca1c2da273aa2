"""In-process instances that move KV as vLLM's engines do: a source keeps blocks, a target pulls what it lacks.

Prompts are cached in whole blocks; a pull that cannot be served fails with HTTP 500, and a decode request that is
refused frees what it would have pulled. Bytes do not move.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from results.records.decisions import KvTransfer
from results.records.router_spec import InstanceSpec, KvEndpoint, TransferRules
from runners.router.instances.upstream import Pool, resolve_instance
from runners.router.transfer.movement import Movement
from runners.router.transfer.transfers import Transfers
from tests.runners.router.drivers import SetClock
from tests.servers.backend import Backend, Seen, _whole

BLOCK = 4
_ids = itertools.count()


class World(dict[str, "Engine"]):
    """Engines by the id that others know them by."""


@dataclass
class Engine(Backend):
    """One engine. The faults hold for the requests that come after."""

    world: World = field(default_factory=World)
    transport: str = "mooncake"
    kv_role: str = "kv_both"
    finish: str = "length"
    """How they end."""
    source_status: int = 200
    target_status: int = 200
    hang_source: bool = False
    hang_target: bool = False
    full: bool = False
    """Decode requests wait for room."""
    forgets: bool = False
    """A source that keeps nothing, though it says so."""
    recomputes: bool = False
    """A pull that fails is computed instead, as vLLM does where it is configured so."""
    engines_named: int = 1
    """Data parallel ranks that its bootstrap server names."""
    query_status: int = 200
    tells_cached: bool = True
    metrics_gate: asyncio.Event | None = None
    """Waited for before its counters are answered."""
    tokenize_gate: asyncio.Event | None = None
    also_external: int = 0
    """Tokens that every pull adds for another request."""
    cached: set[tuple[int, ...]] = field(default_factory=set)
    """Prompts whose whole blocks are in its prefix cache."""
    retained: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Per transfer: the prompt whose blocks it keeps."""
    external: int = 0
    local: int = 0
    computed: int = 0
    nixl_bytes: int = 0
    queries: int = 0
    pages: int = 0
    """Of metrics that were asked for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reborn()

    def reborn(self) -> None:
        """A new process: nothing of the old one is there."""
        for known in [known for known, engine in self.world.items() if engine is self]:
            del self.world[known]
        self.engine_id = f"{self.name}-{next(_ids)}"
        self.world[self.engine_id] = self
        self.cached, self.retained = set(), {}
        self.external = self.local = self.computed = self.nixl_bytes = 0

    @property
    def transfer_requests(self) -> list[dict[str, Any]]:
        """Bodies of its prefill and decode requests, in their order; what only frees is none."""
        bodies = [seen.json for seen in self.seen if "completions" in seen.path]
        return [body for body in bodies if body.get("kv_transfer_params") and body.get("prompt") != []]

    def spec(self, **changes: Any) -> InstanceSpec:
        endpoint = KvEndpoint(self.transport, self.kv_role, self.url, kv_bytes_per_token=512)
        return InstanceSpec(self.name, self.url, block_tokens=BLOCK, transfer=endpoint, **changes)

    def hits(self, prompt: tuple[int, ...]) -> int:
        """Tokens of the prompt in its prefix cache; as with vLLM, never its last one."""
        longest = 0
        for known in self.cached:
            same = sum(
                1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(known, prompt, strict=False))
            )
            longest = max(longest, same // BLOCK * BLOCK)
        return min(longest, (len(prompt) - 1) // BLOCK * BLOCK)

    async def _answer(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if seen.path == "/metrics":
            self.pages += 1
            if self.metrics_gate is not None:
                await self.metrics_gate.wait()
            _whole(writer, 200, self._page().encode())
        elif seen.path == "/query":
            self.queries += 1
            named = {str(rank): {"engine_id": self.engine_id, "worker_addr": {}} for rank in range(self.engines_named)}
            _whole(writer, self.query_status, json.dumps(named).encode())
        elif seen.path == "/tokenize":
            self.seen.append(seen)
            if self.tokenize_gate is not None:
                await self.tokenize_gate.wait()
            text = seen.json.get("prompt") or json.dumps(seen.json["messages"])
            _whole(writer, self.status, json.dumps({"tokens": list(text.encode())}).encode())
        else:
            return await super()._answer(seen, reader, writer)
        await writer.drain()
        return True

    async def _complete(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        body = seen.json
        params = body.get("kv_transfer_params") or {}
        if params.get("do_remote_decode"):
            return await self._serve_prefill(body, params, reader, writer)
        if params.get("do_remote_prefill"):
            return await self._serve_decode(body, params, reader, writer)
        if self.status != 200 or self.hang:
            return await super()._complete(seen, reader, writer)
        return self._serve_prompt(writer, body)

    async def _serve_prefill(
        self, body: dict[str, Any], params: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        assert self.kv_role != "kv_consumer", "the engine would die of it"
        assert (body["max_tokens"], body["ignore_eos"]) == (1, True)
        if self.hang_source:
            await self._wait_for_close(reader)
            self.dropped += 1
            return False
        if self.source_status != 200:
            return self._refuse(writer, self.source_status)
        prompt = _tokens(body)
        transfer = params.get("transfer_id") or f"r-{next(_ids)}"
        if not self.forgets and (self.finish == "length" or self.transport == "nixl"):
            self.retained[transfer] = prompt
        offered = None
        if self.transport == "nixl":
            offered = {
                "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2]],
                "remote_engine_id": self.engine_id, "remote_request_id": transfer, "remote_host": "localhost",
                "remote_port": 1, "tp_size": 1, "remote_prefill_cached_tokens": self.hits(prompt),
            }  # fmt: skip
        return self._serve_prompt(writer, body, offered)

    async def _serve_decode(
        self, body: dict[str, Any], params: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        assert self.kv_role != "kv_producer", "the engine would die of it"
        source = self.world.get(params["remote_engine_id"])
        transfer = params.get("transfer_id") or params["remote_request_id"]
        if body.get("prompt") == []:
            if source is not None:
                source.retained.pop(transfer, None)
            return self._refuse(writer, 400)
        if self.hang_target or self.full:
            await self._wait_for_close(reader)
            self.dropped += 1
            if self.full and source is not None:  # dropped before it was scheduled: its engine lets the source know
                source.retained.pop(transfer, None)
            return False
        if self.target_status != 200:
            if self.target_status < 500 and source is not None:
                source.retained.pop(transfer, None)
            return self._refuse(writer, self.target_status)
        if self.gate is not None:
            await self.gate.wait()
        prompt = _tokens(body)
        pulled = source.retained.pop(transfer, None) if source is not None else None
        if pulled is None and not self.recomputes:
            return self._refuse(writer, 500)
        assert pulled is None or pulled == prompt, "both requests have the same tokens"
        self.external += self.also_external
        return self._serve_prompt(writer, body, pulled=pulled is not None)

    def _serve_prompt(
        self, writer: asyncio.StreamWriter, body: dict[str, Any], offered: object = None, *, pulled: bool = False
    ) -> bool:
        prompt = _tokens(body)
        local = self.hits(prompt)
        external = len(prompt) - local if pulled else 0
        self.cached.add(prompt)
        self.local, self.external = self.local + local, self.external + external
        self.computed += len(prompt) - local - external
        self.nixl_bytes += 10 * external if self.transport == "nixl" else 0
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": 1}
        if self.tells_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": local + external}
        choice = {"index": 0, "text": "x", "finish_reason": self.finish}
        answer = {"choices": [choice], "usage": usage, "kv_transfer_params": offered}
        _whole(writer, 200, json.dumps(answer).encode())
        self.served += 1
        return True

    def _refuse(self, writer: asyncio.StreamWriter, status: int) -> bool:
        _whole(writer, status, json.dumps({"error": {"message": f"configured to answer {status}"}}).encode())
        return True

    def _page(self) -> str:
        counts = {"local_compute": self.computed, "local_cache_hit": self.local, "external_kv_transfer": self.external}
        lines = [
            f'vllm:prompt_tokens_by_source_total{{engine="0",model_name="m",source="{source}"}} {float(value)}'
            for source, value in counts.items()
        ]
        if self.transport == "nixl":
            lines.append(f'vllm:nixl_bytes_transferred_sum{{engine="0"}} {float(self.nixl_bytes)}')
        lines.append(f'vllm:cache_config_info{{block_size="{BLOCK}",num_gpu_blocks="64"}} 1.0')
        return "\n".join(lines) + "\n"


def _tokens(body: dict[str, Any]) -> tuple[int, ...]:
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return tuple(prompt)
    return tuple((prompt or json.dumps(body["messages"])).encode())


@dataclass
class Bench:
    """Two engines, and the transport between them."""

    source: Engine
    target: Engine
    transfers: Transfers
    specs: dict[str, InstanceSpec]
    pools: dict[str, Pool]
    now_s: float = 0.0

    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    async def settle(self, movement: Movement) -> KvTransfer:
        """Let time pass until the transfer is settled."""
        settled_transfers: list[KvTransfer] = []
        movement.call_when_settled(settled_transfers.append)
        while not settled_transfers:
            self.advance(0.05)
            await asyncio.sleep(0.005)
        assert settled_transfers == [movement.transfer]
        return movement.transfer


@contextlib.asynccontextmanager
async def bench(transport: str = "mooncake", **rules: Any) -> AsyncIterator[Bench]:
    """Engines `h` and `t` that run, with whole-second quarantines of a clock that only the test moves."""
    world = World()
    async with (
        Engine("h", world=world, transport=transport) as source,
        Engine("t", world=world, transport=transport) as target,
    ):
        pools = {engine.name: Pool(await resolve_instance(engine.url), 2.0) for engine in (source, target)}
        specs = {engine.name: engine.spec() for engine in (source, target)}
        made = Bench(source, target, None, specs, pools)  # type: ignore[arg-type]
        made.transfers = Transfers(pools, specs, TransferRules(**rules), SetClock(lambda: made.now_s))
        try:
            yield made
        finally:
            await made.transfers.close()
            for pool in pools.values():
                pool.close()
