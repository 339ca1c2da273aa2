"""Two engines and a router that are only bookkeeping: prefix caches in blocks, decisions and probe lines on disk."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import msgspec

from results.decisions import ClusterView, Decision, DecisionRecord, KvTransfer, RoutedOutcome, RoutedRequest
from runners.experiments.pd_lifecycle_bench import Bench, Draw
from runners.experiments.pd_lifecycle_caches import Caches, EngineCache
from runners.load.stream import Exchange
from state.process import boot_id

BLOCK = 32
MS = 1_000_000


class Nobody:
    """Listens to an exchange and does nothing."""

    def first_token(self, exchange: Exchange) -> None: ...

    def ended(self, exchange: Exchange) -> None: ...


@dataclass
class FakeEngine:
    """A prefix cache of so many blocks; the least recently used go first."""

    blocks: int = 10_000
    resets: bool = True
    """POST /reset_prefix_cache does what it says."""
    held: dict[tuple[int, ...], None] = field(default_factory=dict)
    computed: int = 0
    """Prompt tokens that were not cached."""

    def complete(self, prompt: list[int], *, computes: bool = True) -> int:
        """Cached tokens of the prompt, which is held afterwards."""
        whole = [tuple(prompt[:end]) for end in range(BLOCK, len(prompt) + 1, BLOCK)]
        usable = [block for block in whole if len(block) < len(prompt)]
        hits = len(list(itertools.takewhile(lambda block: block in self.held, usable)))
        if computes:
            self.computed += len(prompt) - hits * BLOCK
        for block in reversed(whole):  # the end of a prompt is dropped before its beginning
            self.held.pop(block, None)
            self.held[block] = None
        while len(self.held) > self.blocks:
            del self.held[next(iter(self.held))]
        return hits * BLOCK

    def client(self) -> httpx.AsyncClient:
        """Its HTTP API."""

        def answer(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/reset_prefix_cache":
                if self.resets:
                    self.held.clear()
                return httpx.Response(200, json={"success": self.resets})
            prompt = json.loads(request.content)["prompt"]
            usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": self.complete(prompt)}}
            return httpx.Response(200, json={"usage": usage})

        return httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://engine")


@dataclass
class FakeBench:
    """A bench whose requests take no time. `before` is called before each handover with its number, from 0."""

    folder: Path
    prefill: FakeEngine = field(default_factory=FakeEngine)
    decode: FakeEngine = field(default_factory=FakeEngine)
    before: Callable[[int], None] = lambda number: None
    failing: frozenset[int] = frozenset()
    """Handovers whose transfer fails: the decode engine computes the prompt."""
    late_s: float = 0.0
    """What is written about a request comes so much later."""
    capacity_tokens: int | None = 320_000
    handovers: int = 0
    combined: int = 0
    dead: str = ""

    def __post_init__(self) -> None:
        self._t_ns = 1_000_000_000
        self._writing: set[asyncio.Task[None]] = set()
        for side in ("prefill", "decode"):
            self.probe(side).mkdir(parents=True)
            status = {"event": "status", "t_ns": 1, "role": "engine", "pid": 1, "boot_id": boot_id(), "available": {}}
            self._write(side, status)

    def probe(self, side: str) -> Path:
        return self.folder / "rings" / side

    def bench(self) -> Bench:
        """As a cell sees it."""
        engines = [(side, getattr(self, side)) for side in ("prefill", "decode")]
        prefill, decode = (EngineCache(side, engine.client(), "tiny", 5.0) for side, engine in engines)
        draw = Draw(1, 0, 256)
        numbers = itertools.count()
        bench = Bench(
            prefill=cast(Any, self._member("prefill")),
            decode=cast(Any, self._member("decode")),
            router=cast(Any, SimpleNamespace(alive=True)),
            handed_over=cast(Any, SimpleNamespace(ask=self._hand_over)),
            combined=cast(Any, SimpleNamespace(ask=self._combine)),
            caches=Caches((prefill, decode), BLOCK, lambda count: draw.tokens(0, next(numbers), count)),
            draw=draw,
            decisions=self.folder / "decisions.jsonl",
            probes={side: self.probe(side) for side in ("prefill", "decode")},
            block_tokens=BLOCK,
            capacity_tokens=self.capacity_tokens,
            kv_bytes_per_token=512,
        )
        return bench

    def _member(self, side: str) -> SimpleNamespace:
        spec = SimpleNamespace(config="mooncake_both", started_by="test")
        engine = SimpleNamespace(
            name=side, url="http://x", pid=1, spec=spec, alive=lambda: not self.dead, tail=lambda lines: self.dead
        )
        return SimpleNamespace(engine=engine, layout=SimpleNamespace(root=self.folder / side))

    async def _combine(self, name: str, body: bytes) -> Exchange:
        asked = json.loads(body)
        self.combined += 1
        return self._answered(asked, self.decode.complete(asked["prompt"]), self._tick(), 20 * MS)

    async def _hand_over(self, name: str, body: bytes) -> Exchange:
        """One request from the client to both engines, with all that is written about it."""
        asked = json.loads(body)
        prompt, number = asked["prompt"], self.handovers
        self.handovers += 1
        self.before(number)
        t_ns, transfer = self._tick(), f"xfer-{number}"
        at_prefill = self.prefill.complete(prompt)
        fails = number in self.failing
        at_decode = self.decode.complete(prompt, computes=fails)
        lines = _lines(transfer, t_ns, len(prompt), at_prefill, at_decode)
        moved = KvTransfer(
            transfer=transfer,
            purpose="handover",
            transport="mooncake",
            source="prefill",
            target="decode",
            status="failed" if fails else "transferred",
            reason="the test says so" if fails else "",
            attempts=1,
            t_source_sent_ns=t_ns + MS,
            t_source_done_ns=t_ns + 8 * MS,
            t_target_sent_ns=t_ns + 9 * MS,
        )
        task = asyncio.create_task(
            self._tell(_decision(name, number, t_ns, len(prompt), moved), [] if fails else lines)
        )
        self._writing.add(task)
        return self._answered(asked, at_decode, t_ns - MS // 10, 15 * MS + MS // 10)

    async def _tell(self, decision: DecisionRecord, lines: list[tuple[str, dict[str, Any]]]) -> None:
        await asyncio.sleep(self.late_s)
        with (self.folder / "decisions.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(decision) + b"\n")
        for side, line in lines:
            self._write(side, line)

    def _write(self, side: str, line: dict[str, Any]) -> None:
        with (self.probe(side) / "transfer.1.jsonl").open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _tick(self) -> int:
        self._t_ns += 1_000 * MS
        return self._t_ns

    def _answered(self, asked: dict[str, Any], cached: int, t_send_ns: int, ttft_ns: int) -> Exchange:
        exchange = Exchange(0, Nobody(), t_intended_ns=t_send_ns, warmup=False, inflight=0)
        exchange.t_send_ns = t_send_ns
        exchange.t_first_ns = t_send_ns + ttft_ns
        exchange.t_last_ns = exchange.t_first_ns + (asked["max_tokens"] - 1) * MS
        exchange.http_status, exchange.done_marker, exchange.chunks = 200, True, asked["max_tokens"]
        exchange.prompt_tokens, exchange.completion_tokens = len(asked["prompt"]), asked["max_tokens"]
        exchange.cached_tokens = cached
        exchange.complete(exchange.t_last_ns)
        return exchange


def _lines(transfer: str, t_ns: int, tokens: int, at_prefill: int, at_decode: int) -> list[tuple[str, dict[str, Any]]]:
    """What the probes of both engines say of one transfer."""
    moved = tokens - at_decode

    def line(side: str, event: str, at_ms: float, **more: object) -> tuple[str, dict[str, Any]]:
        t_event_ns = t_ns + round(at_ms * MS)
        request = f"cmpl-{side}-{transfer}"
        return side, {"event": event, "t_ns": t_event_ns, "request": request, "transfer": transfer, **more}

    return [
        line("prefill", "scheduled", 2, leg="prefill", prompt_tokens=tokens, cached_tokens=at_prefill),
        line("prefill", "prefill_done", 7, blocks=-(-tokens // BLOCK)),
        line(
            "decode", "blocks_allocated", 9.5, external_tokens=moved, local_tokens=at_decode,
            blocks=-(-moved // BLOCK),
        ),
        line("prefill", "metadata_received", 10, decode_request=f"cmpl-decode-{transfer}", blocks=-(-moved // BLOCK)),
        line(
            "prefill", "write", 12, t5_ns=t_ns + 11 * MS, t6_ns=t_ns + 12 * MS, ok=True, bytes=512 * moved,
            operations=2, blocks=-(-moved // BLOCK), layers=2, build_params_us=100.0, transfers=[transfer],
        ),
        line("decode", "received", 13, ok=True),
        line("decode", "promoted", 14, num_computed=tokens - 1),
        line("decode", "scheduled", 14.2, leg="decode", prompt_tokens=tokens, cached_tokens=tokens - 1),
    ]  # fmt: skip


def _decision(name: str, seq: int, t_ns: int, tokens: int, moved: KvTransfer) -> DecisionRecord:
    return DecisionRecord(
        seq=seq,
        t_ns=t_ns,
        decide_us=1.0,
        request=RoutedRequest(name, "", 0, tokens, 1, BLOCK, {}),
        cluster=ClusterView((), 0),
        decision=Decision("static_pd", "decode", "pools", prefill="prefill"),
        outcome=RoutedOutcome("ok", transfer=moved),
    )
