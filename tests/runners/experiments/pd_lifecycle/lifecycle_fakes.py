"""Two engines and a router that are only bookkeeping: prefix caches in blocks, decisions and probe lines on disk."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import httpx
import msgspec

from results.records.decisions import ClusterView, Decision, DecisionRecord, KvTransfer, RoutedOutcome, RoutedRequest
from results.records.lifecycle_cells import Aged
from runners.experiments.pd_lifecycle.bench import Bench, Draw
from runners.experiments.pd_lifecycle.caches import Caches, EngineCache
from runners.experiments.pd_lifecycle.static_pd_or_combined import ALONE, COMBINED, PLAIN
from runners.load.stream import Exchange
from state.process_identity import boot_id

BLOCK = 32
MS = 1_000_000


class SilentListener:
    """Listens to an exchange and does nothing."""

    def first_token(self, exchange: Exchange) -> None: ...

    def ended(self, exchange: Exchange) -> None: ...


@dataclass
class FakeEngine:
    """A prefix cache of N blocks with LRU eviction."""

    blocks: int = 10_000
    resets: bool = True
    """POST /reset_prefix_cache does what it says."""
    held: dict[tuple[int, ...], None] = field(default_factory=dict)
    computed: int = 0
    """Prompt tokens that were not cached."""
    local: int = 0
    """Prompt tokens that were."""
    preempted: int = 0
    kv_usage: float = 0.0
    """What its gauge says between requests."""
    said: list[str] = field(default_factory=list)
    """What was asked of it beside the requests that are measured, e.g. `metrics` or `prompt 12`."""

    def complete(self, prompt: list[int], *, computes: bool = True) -> int:
        """Cached tokens of the prompt, which is held afterwards."""
        whole = [tuple(prompt[:end]) for end in range(BLOCK, len(prompt) + 1, BLOCK)]
        usable = [block for block in whole if len(block) < len(prompt)]
        hits = len(list(itertools.takewhile(lambda block: block in self.held, usable)))
        self.local += hits * BLOCK
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
            if request.url.path == "/metrics":
                self.said.append("metrics")
                return httpx.Response(200, text=self._page())
            prompt = json.loads(request.content)["prompt"]
            self.said.append(f"prompt {len(prompt)}")
            usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": self.complete(prompt)}}
            return httpx.Response(200, json={"usage": usage})

        return httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://engine")

    def _page(self) -> str:
        return (
            f'vllm:prompt_tokens_by_source_total{{source="local_cache_hit"}} {self.local}\n'
            f"vllm:num_preemptions_total {self.preempted}\n"
            f"vllm:kv_cache_usage_perc {self.kv_usage}\n"
        )


@dataclass
class FakeBench:
    """A bench whose requests take no time. `before` is called before each handover with its number, from 0."""

    folder: Path
    prefill: FakeEngine = field(default_factory=FakeEngine)
    decode: FakeEngine = field(default_factory=FakeEngine)
    plain: FakeEngine | None = None
    """The combined engine without a connector."""
    before: Callable[[int], None] = lambda number: None
    failing: frozenset[int] = frozenset()
    """Handovers whose transfer fails: the decode engine computes the prompt."""
    late_s: float = 0.0
    """Delay of the lines about a request."""
    capacity_tokens: int | None = 320_000
    counted_by: Literal["probe", "counters"] = "probe"
    """With `counters` the decode engine's probe does not see what was allocated."""
    tells: bool = True
    """The combined instance says how many tokens it had and made."""
    handovers: int = 0
    combined: int = 0
    dead: str = ""

    def __post_init__(self) -> None:
        self._t_ns = 1_000_000_000
        self._writing: set[asyncio.Task[None]] = set()
        self.sent: list[str] = []
        """Names of the requests that were measured."""
        self.overtaken: list[str] = []
        """Those that were sent while something about an earlier one was still to be written."""
        for side in ("prefill", "decode"):
            self.probe(side).mkdir(parents=True)
            sees = {} if side == "prefill" or self.counted_by == "probe" else {"blocks_allocated": False}
            status = {"event": "status", "t_ns": 1, "role": "engine", "pid": 1, "boot_id": boot_id(), "available": sees}
            self._write(side, status)

    def probe(self, side: str) -> Path:
        return self.folder / "rings" / side

    def bench(self) -> Bench:
        """As a cell sees it."""
        engines = [EngineCache(side, engine.client(), "tiny", 5.0) for side, engine in self.engines.items()]
        draw = Draw(1, 0, 256)
        numbers = itertools.count()
        bench = Bench(
            prefill=cast(Any, self._member("prefill")),
            decode=cast(Any, self._member("decode")),
            plain=None if self.plain is None else cast(Any, self._member(PLAIN)),
            router=cast(Any, SimpleNamespace(alive=True)),
            client=cast(Any, SimpleNamespace(send_request=self._send_request)),
            aged=Aged(reason="nothing here is new"),
            warm_ups=(),
            caches=Caches(engines, BLOCK, lambda count: draw.draw_tokens(0, next(numbers), count)),
            draw=draw,
            decisions=self.folder / "decisions.jsonl",
            probes={side: self.probe(side) for side in ("prefill", "decode")},
            block_tokens=BLOCK,
            capacity_tokens=self.capacity_tokens,
            kv_bytes_per_token=512,
            counted_by=self.counted_by,
        )
        return bench

    @property
    def engines(self) -> dict[str, FakeEngine]:
        plain = {} if self.plain is None else {PLAIN: self.plain}
        return {"prefill": self.prefill, "decode": self.decode, **plain}

    def _member(self, side: str) -> SimpleNamespace:
        spec = SimpleNamespace(config="mooncake_both", started_by="test")

        async def explain_death() -> str:
            return self.dead

        engine = SimpleNamespace(name=side, url="http://x", pid=1, spec=spec, explain_death=explain_death)
        return SimpleNamespace(engine=engine, layout=SimpleNamespace(root=self.folder / side))

    async def _send_request(self, name: str, body: bytes) -> Exchange:
        if any(not task.done() for task in self._writing):
            self.overtaken.append(name)
        self.sent.append(name)
        for engine in self.engines.values():
            engine.said.append(f"measured {name}")
        alone = name.startswith((COMBINED, ALONE))
        exchange = await (self._combine if alone else self._hand_over)(name, body)
        for _ in range(3):  # what is not late is written before anybody has to wait for it
            await asyncio.sleep(0)
        for engine in self.engines.values():
            engine.said.append("end")
        return exchange

    async def _combine(self, name: str, body: bytes) -> Exchange:
        asked, number, t_ns = json.loads(body), self.combined, self._tick()
        self.combined += 1
        engine = self.plain if name.startswith(ALONE) else self.decode
        assert engine is not None
        cached = engine.complete(asked["prompt"])
        alone = {"event": "scheduled", "t_ns": t_ns, "request": f"cmpl-{name}-0-1a", "part": "none"}
        decision = _decision(name, number, t_ns, len(asked["prompt"]), None)
        if engine is self.plain:
            placed = msgspec.structs.replace(decision.decision, instance=PLAIN)
            decision = msgspec.structs.replace(decision, decision=placed)
        self._later(decision, [("decode", alone | {"cached_tokens": cached})] if engine is self.decode else [])
        exchange = self._answered(asked, cached, t_ns, 20 * MS if engine is self.decode else 18 * MS)
        if not self.tells:
            exchange.cached_tokens = None
        return exchange

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
        self._later(_decision(name, number, t_ns, len(prompt), moved), [] if fails else lines)
        return self._answered(asked, at_decode, t_ns - MS // 10, 15 * MS + MS // 10)

    def _later(self, decision: DecisionRecord, lines: list[tuple[str, dict[str, Any]]]) -> None:
        self._writing.add(asyncio.create_task(self._tell(decision, lines)))

    async def _tell(self, decision: DecisionRecord, lines: list[tuple[str, dict[str, Any]]]) -> None:
        await asyncio.sleep(self.late_s)
        with (self.folder / "decisions.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(decision) + b"\n")
        for side, line in lines:
            if self.counted_by == "probe" or line["event"] != "blocks_allocated":
                self._write(side, line)

    def _write(self, side: str, line: dict[str, Any]) -> None:
        with (self.probe(side) / "transfer.1.jsonl").open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _tick(self) -> int:
        self._t_ns += 1_000 * MS
        return self._t_ns

    def _answered(self, asked: dict[str, Any], cached: int, t_send_ns: int, ttft_ns: int) -> Exchange:
        exchange = Exchange(0, SilentListener(), t_intended_ns=t_send_ns)
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
        line("prefill", "scheduled", 2, part="prefill", prompt_tokens=tokens, cached_tokens=at_prefill),
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
        line("decode", "scheduled", 14.2, part="decode", prompt_tokens=tokens, cached_tokens=tokens - 1),
    ]  # fmt: skip


def _decision(name: str, seq: int, t_ns: int, tokens: int, moved: KvTransfer | None) -> DecisionRecord:
    return DecisionRecord(
        seq=seq,
        t_ns=t_ns,
        decide_us=1.0,
        request=RoutedRequest(name, "", 0, tokens, 1, BLOCK, {}),
        cluster=ClusterView((), 0),
        decision=Decision("static_pd", "decode", "pools", prefill="" if moved is None else "prefill"),
        outcome=RoutedOutcome("ok", transfer=moved),
    )
