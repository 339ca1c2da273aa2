"""An engine as pre-flight sees it: what it answers and counts follows from a cache, a store and a set of faults."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from launch.dummy_bootstrap import DummyBootstrap
from launch.preflight_checks import Counterpart, Subject
from launch.profile import ConnectorConfig, Profile, load_config, load_profile

PROFILE: Profile = load_profile("cpu-tiny")
PORT = 18001
HELD = 0.25
PULLED_BYTES = 512.0


@dataclass
class FakeEngine:
    """`faults` names what does not work; `contextual` is whether answers depend on more than the last token."""

    faults: frozenset[str] = frozenset()
    contextual: bool = True
    bootstrap: DummyBootstrap | None = None
    computed: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    stored: set[tuple[int, ...]] = field(default_factory=set)
    loaded: float = 0.0
    held: int = 0
    pulled_bytes: float = 0.0
    pulls_to_fail: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer), base_url=f"http://127.0.0.1:{PORT}")

    async def answer(self, request: httpx.Request) -> httpx.Response:
        match request.url.path:
            case "/metrics":
                return httpx.Response(200, text=self.metrics())
            case "/health":
                return httpx.Response(200)
            case "/v1/models":
                return httpx.Response(200, json={"data": [{"id": PROFILE.model.served_name}]})
            case "/query":
                return httpx.Response(200, json={"0": {"engine_id": "e1", "worker_addr": {}}})
            case "/reset_prefix_cache" if "no dev mode" not in self.faults:
                self.computed.clear()
                return httpx.Response(200, json={"success": True})
            case "/v1/completions":
                return await self.complete(json.loads(request.content))
        return httpx.Response(404)

    def metrics(self) -> str:
        if self.held and "keeps for good" not in self.faults:
            self.held -= 1
        usage = HELD if self.held else 0.0
        return "\n".join(
            (
                f'vllm:external_prefix_cache_hits_total{{engine="0"}} {self.loaded}',
                f'vllm:prompt_tokens_by_source_total{{engine="0",source="external_kv_transfer"}} {self.loaded}',
                'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 9e9',
                f'vllm:nixl_bytes_transferred_sum{{engine="0"}} {self.pulled_bytes}',
                f'vllm:kv_cache_usage_perc{{engine="0"}} {usage}',
            )
        )

    async def complete(self, body: dict[str, Any]) -> httpx.Response:
        self.asked.append(body)
        prompt, transfer = tuple(body["prompt"]), body.get("kv_transfer_params") or {}
        known = (body.get("cache_salt", ""), prompt) in self.computed
        self.computed.add((body.get("cache_salt", ""), prompt))
        corrupted = False
        if transfer.get("do_remote_decode"):
            return self.prefilled(body)
        if transfer.get("do_remote_prefill"):
            if transfer["remote_engine_id"] == "unknown":
                return await self.refuse(transfer["remote_bootstrap_addr"])
            if self.pulls_to_fail:
                self.pulls_to_fail -= 1
                return httpx.Response(500, json={"error": "handshake"})
            corrupted = self.load(prompt, "computes what it should pull")
            self.pulled_bytes += 0 if "moves no bytes" in self.faults else PULLED_BYTES
        elif prompt in self.stored and not known:
            corrupted = self.load(prompt, "retrieves nothing")
        if "stores nothing" not in self.faults:
            self.stored.add(prompt)
        return httpx.Response(200, json=self.completion(prompt, body["max_tokens"], corrupted))

    def load(self, prompt: tuple[int, ...], fault: str) -> bool:
        self.loaded += 0 if fault in self.faults else len(prompt) - 1
        return "loads garbage" in self.faults

    def prefilled(self, body: dict[str, Any]) -> httpx.Response:
        self.held = 0 if "keeps nothing" in self.faults else 4
        completion = self.completion(tuple(body["prompt"]), 1, corrupted=False)
        if "ends by stop" in self.faults:
            completion["choices"][0]["finish_reason"] = "stop"
        offered = {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "e1", "remote_request_id": "r1",
            "remote_block_ids": [] if "keeps nothing" in self.faults else [[1, 2]], "remote_host": "localhost",
            "remote_port": 1, "tp_size": 1,
        }  # fmt: skip
        return httpx.Response(200, json={**completion, "kv_transfer_params": offered})

    async def refuse(self, address: str) -> httpx.Response:
        if "never asks" not in self.faults:
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.get(f"{address}/query")
        return httpx.Response(200 if "answers anyway" in self.faults else 500, json=self.completion((1,), 1, False))

    def completion(self, prompt: tuple[int, ...], tokens: int, corrupted: bool) -> dict[str, Any]:
        seen = prompt if self.contextual else prompt[-1:]
        likely = zlib.crc32(repr(seen).encode()) + (1 if corrupted and self.contextual else 0)
        return {
            "choices": [
                {
                    "finish_reason": "length",
                    "logprobs": {"top_logprobs": [{f"token_id:{likely}": -0.5, "token_id:0": -3.0}]},
                },
            ],
            "usage": {"completion_tokens": tokens},
        }


@dataclass
class FakeInstance:
    """The process around it."""

    name: str = "fake-1"
    url: str = f"http://127.0.0.1:{PORT}"
    model: str = PROFILE.model.served_name
    pid: int = 1
    ports: Mapping[str, int] = field(default_factory=lambda: {"VLLM_MOONCAKE_BOOTSTRAP_PORT": PORT + 1})
    words: str = ""
    dead: bool = False

    def log(self) -> str:
        return self.words

    async def explain_death(self) -> str:
        return f"ended\n{self.words}" if self.dead else ""


@asynccontextmanager
async def asked_about(
    engine: FakeEngine,
    config: str | ConnectorConfig,
    *,
    profile: Profile = PROFILE,
    env: Mapping[str, str] | None = None,
    counterpart: Counterpart | None = None,
) -> AsyncIterator[Subject]:
    """What a gate gets to see of `engine`, run with `config` (its pre-flight environment replaced by `env`)."""
    settings = load_config(config) if isinstance(config, str) else config
    if env is not None:
        preflight = msgspec.structs.replace(settings.preflight, env=dict(env))
        settings = msgspec.structs.replace(settings, preflight=preflight)
    async with engine.client() as client, DummyBootstrap() as bootstrap:
        yield Subject(FakeInstance(), settings, profile, client, 1, lambda text: None, counterpart, bootstrap)
