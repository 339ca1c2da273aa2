"""Two real engines, `h` and `t`, that can move KV between them, and a real router before them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from launch.command import build_launch
from launch.environment import Engine
from launch.instance import Instance
from launch.local import LocalBackend
from launch.preflight_checks import counter, read_exposition
from launch.profile import Profile, load_config, load_profile
from results.records.decisions import DecisionRecord, Role
from results.records.layout import ConfigLayout
from results.records.router_spec import InstanceSpec, KvEndpoint, RouterSpec, TransferRules
from runners.router.messages import RouterTick
from runners.router.server.process import RouterProcess
from tests.launch.engines import ignore_start
from tests.ports import own_port

PROFILE = load_profile("cpu-tiny")
BLOCK = 32
KV_BYTES_PER_TOKEN = 512
KV_TOKENS = 131_072
KEPT_S = 8
"""Seconds that a source holds blocks that no target pulls."""
NAMES = ("h", "t")
CONFIGS = {"mooncake": "mooncake_both", "nixl": "nixl_both"}
PORTS = 22_000 + 100 * (os.getpid() % 9)
"""From here on, and away from those of tests that another process runs at the same time."""


@dataclass
class Pair:
    """The two engines; `ready` starts those that do not run."""

    backend: LocalBackend
    engine: Engine
    folder: Path
    kv_tokens: int = KV_TOKENS
    """Room of each one's KV cache."""
    port: int = PORTS
    transport: str = ""
    profile: Profile = PROFILE
    extra_env: Mapping[str, str] = field(default_factory=dict)
    """Of engines started from now on."""
    running: dict[str, Instance] = field(default_factory=dict)

    async def ready(self, transport: str) -> None:
        """Both run with this transport, and keep no blocks."""
        for name in NAMES:
            instance = self.running.get(name)
            if instance is not None and (transport != self.transport or not instance.alive()):
                await self.running.pop(name).stop(PROFILE.launch.stop_grace_s, 0.0)
        self.transport = transport
        for name in NAMES:
            if name not in self.running:
                await self._start(name)
        for instance in self.running.values():
            await instance.wait_ready(150)
        await asyncio.gather(*(self.released(name, 2.0 * KEPT_S) for name in NAMES))

    async def stop(self) -> None:
        """End both at once."""
        await asyncio.gather(*(instance.stop(0.0, 0.0) for instance in self.running.values()))

    async def _start(self, name: str) -> None:
        config = load_config(CONFIGS[self.transport])
        extra: tuple[str, ...] = ()
        if self.transport == "nixl":
            settings = dict(config.merge_kv_transfer("cpu") or {})
            settings["kv_connector_extra_config"] = {"kv_lease_duration": KEPT_S}
            extra = ("--kv-transfer-config", json.dumps(settings))
        launch = len(list(self.folder.iterdir()))
        layout = ConfigLayout(self.folder / f"{name}{launch}")
        spec = build_launch(
            self.profile, config, self.engine,
            instance=name, port=own_port(self.port + 10 * launch, 2), layout=layout, launch=1,
            extra_args=(
                "--block-size", str(BLOCK), "--kv-cache-memory-bytes", str(self.kv_tokens * KV_BYTES_PER_TOKEN),
                "--max-model-len", "4096", "--max-num-batched-tokens", "2048", "--enable-prompt-tokens-details",
                "--scheduling-policy", "priority", *extra,
            ),
            transfer_log=True,
            extra_env={
                "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": str(KEPT_S), "VLLM_SERVER_DEV_MODE": "1", **self.extra_env,
            },
        )  # fmt: skip
        self.running[name] = await self.backend.start(spec, ignore_start)

    def member(self, name: str, role: Role = "both", bootstrap: str = "") -> InstanceSpec:
        """The engine as the router's spec names it; `bootstrap` replaces its own."""
        instance = self.running[name]
        own = f"http://127.0.0.1:{instance.ports.get('VLLM_MOONCAKE_BOOTSTRAP_PORT', 0)}"
        endpoint = KvEndpoint(self.transport, "kv_both", bootstrap or own, KV_BYTES_PER_TOKEN)
        return InstanceSpec(name, instance.url, role, transfer=endpoint)

    def signal(self, name: str, number: int) -> None:
        os.killpg(os.getpgid(self.running[name].pid), number)

    @contextlib.contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """It stands still, unless it is killed meanwhile."""
        self.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                self.signal(name, signal.SIGCONT)

    async def complete(self, name: str, prompt: list[int], **fields: Any) -> dict[str, Any]:
        """Ask the engine itself."""
        asked = {"model": PROFILE.model.served_name, "prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}
        async with httpx.AsyncClient(
            base_url=self.running[name].url, timeout=60, trust_env=False, verify=False
        ) as client:
            answer = await client.post("/v1/completions", json=asked)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def forget(self, name: str) -> None:
        """Empty its prefix cache, as others' prompts would; the router does not notice."""
        async with httpx.AsyncClient(
            base_url=self.running[name].url, timeout=60, trust_env=False, verify=False
        ) as client:
            (await client.post("/reset_prefix_cache")).raise_for_status()

    async def gauge(self, name: str, metric: str) -> float:
        """A number of its `/metrics`."""
        async with httpx.AsyncClient(
            base_url=self.running[name].url, timeout=60, trust_env=False, verify=False
        ) as client:
            return counter(await read_exposition(client), metric) or 0.0

    async def usage(self, name: str) -> float:
        """The share of its blocks that are in use."""
        return await self.gauge(name, "vllm:kv_cache_usage_perc")

    def said(self, name: str, event: str) -> int:
        """Number of such events in its transfer log; a line is written some 0.1 s after its event."""
        logs = self.running[name].spec.rings.glob("transfer.*.jsonl")
        return sum(path.read_bytes().count(f'"event":"{event}"'.encode()) for path in logs)

    async def until_said(self, name: str, event: str, times: int) -> None:
        """Wait until its log has this many."""
        async with asyncio.timeout(30):
            while self.said(name, event) < times:  # noqa: ASYNC110  (what an engine's own thread writes)
                await asyncio.sleep(0.02)

    async def queued(self, name: str, requests: int) -> None:
        """Wait until this many requests wait there."""
        async with asyncio.timeout(30):
            while await self.gauge(name, "vllm:num_requests_waiting") < requests:  # noqa: ASYNC110  (an engine's own)
                await asyncio.sleep(0.002)

    @contextlib.asynccontextmanager
    async def full(self, name: str) -> AsyncIterator[None]:
        """No request that comes gets room in its KV cache: many that are sooner than those of a transfer wait."""
        asked: dict[str, Any] = {"max_tokens": 2000, "ignore_eos": True, "priority": -2}
        count = 2 * self.kv_tokens // 2000
        fill = [asyncio.create_task(self.complete(name, draw(2000), **asked)) for _ in range(count)]
        try:
            async with asyncio.timeout(30):
                while await self.usage(name) < 0.9:  # noqa: ASYNC110  (an engine's own)
                    await asyncio.sleep(0.01)
            await self.queued(name, count // 3)
            yield
            assert await self.gauge(name, "vllm:num_requests_waiting") > 1, "it was full all the time"
        finally:
            for task in fill:
                task.cancel()
            await asyncio.gather(*fill, return_exceptions=True)

    async def released(self, name: str, within_s: float) -> None:
        """Wait until no block of it is in use."""
        deadline = time.monotonic() + within_s
        while used := await self.usage(name):
            assert time.monotonic() < deadline, f"{used:.4f} of {name}'s blocks are still kept"
            await asyncio.sleep(0.05)


@dataclass
class Routed:
    """A router before the pair, a client of it, and what it left when it has ended."""

    pair: Pair
    process: RouterProcess
    http: httpx.AsyncClient
    log: Path
    ticks: list[RouterTick]
    records: list[DecisionRecord] = field(default_factory=list)
    """Once it has ended."""

    async def turn(self, session: str, prompt: list[int], **fields: Any) -> httpx.Response:
        """One turn of a session, whole; ids of the answer's tokens in `choices[0].token_ids`."""
        asked = {
            "model": PROFILE.model.served_name, "prompt": prompt, "max_tokens": 8, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, **fields,
        }  # fmt: skip
        return await self.http.post("/v1/completions", json=asked, headers={"x-session-id": session})

    async def killed_in_its_answer(self, prompt: list[int], name: str) -> str:
        """What a client gets of a streamed turn whose engine, this one, dies at the first token."""
        asked: dict[str, Any] = {
            "model": PROFILE.model.served_name, "prompt": prompt, "max_tokens": 1500, "ignore_eos": True,
            "stream": True,
        }  # fmt: skip
        text, headers = "", {"x-session-id": "s"}
        async with self.http.stream("POST", "/v1/completions", json=asked, headers=headers) as answer:
            assert answer.headers["x-tracon-instance"] == name
            async for piece in answer.aiter_text():
                if not text:
                    self.pair.signal(name, signal.SIGKILL)
                text += piece
        return text

    async def recorded(self, turns: int) -> None:
        """Wait until this many turns are in its log: each is written once its transfer's counters have been read."""
        async with asyncio.timeout(10):
            while self.log.read_bytes().count(b"\n") < turns:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def loads(self) -> Mapping[str, Mapping[str, Any]]:
        """Its counters, by instance."""
        rows = (await self.http.get("/admin/instances")).json()["instances"]
        return {row["instance"]: row for row in rows}

    async def until_available(self, *names: str) -> None:
        async with asyncio.timeout(30):
            while {name for name, row in (await self.loads()).items() if row["available"]} != set(names):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def routed(
    pair: Pair, folder: Path, members: tuple[InstanceSpec, ...], policy: str, rules: TransferRules, **parameters: Any
) -> AsyncIterator[Routed]:
    """A router process; its counters are seen at zero before it ends."""
    log, ticks = folder / "decisions.jsonl", list[RouterTick]()
    spec = RouterSpec(members, policy, parameters, decisions_path=str(log), transfer=rules)
    async with RouterProcess(spec, folder / "router.spec.json", ticks.append) as process:
        async with httpx.AsyncClient(base_url=process.url, timeout=60, trust_env=False, verify=False) as http:
            made = Routed(pair, process, http, log, ticks)
            yield made
            async with asyncio.timeout(30):
                while any(row["num_requests"] for row in (await made.loads()).values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            left = ("pending_prefill_tokens", "ongoing_tokens", "ongoing_decode_tokens", "retained_tokens")
            assert not [row for row in (await made.loads()).values() if any(row[name] for name in left)]
        await process.end()
    made.records = sorted(
        msgspec.json.Decoder(DecisionRecord).decode_lines(log.read_bytes()), key=lambda record: record.seq
    )


def ids(answer: httpx.Response) -> list[int]:
    """The tokens of an answer."""
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def cached(answer: httpx.Response) -> int:
    """The prompt tokens that it did not compute."""
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def draw(tokens: int) -> list[int]:
    """A prompt that no engine has seen before."""
    source = random.Random()
    return [source.randrange(256) for _ in range(tokens)]
