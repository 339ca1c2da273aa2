"""A prefix moves between two real engines, by Mooncake and by NIXL, and what comes of it when somebody leaves or dies.

The engines schedule by priority, hold 16 384 tokens in blocks of 32, and free what nobody pulls after some seconds: the
last resort where nobody can be told to free it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from launch import patching
from launch.command import build_launch
from launch.environment import Engine, find_engine
from launch.instance import Instance
from launch.local import LocalBackend
from launch.ports import free_port
from launch.preflight_checks import counter, exposition
from launch.profile import load_config, load_profile
from results.decisions import KvTransfer, RoutedRequest
from results.layout import ConfigLayout
from runners.router.spec import InstanceSpec, KvEndpoint, TransferRules
from runners.router.transfer import Movement, Transfers
from runners.router.upstream import Pool, resolve
from tests.launch.engines import ignore_start

pytestmark = [
    pytest.mark.engine, pytest.mark.fault, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module"),
]  # fmt: skip

PROFILE = load_profile("cpu-tiny")
BLOCK = 32
KV_BYTES_PER_TOKEN = 512
PREFIX = 64 * BLOCK
KEPT_S = 8
"""So long a source keeps blocks that nobody pulls."""
RELEASED_S = 4.0
SETTLED_S = 5.0
CONFIGS = {"mooncake": "mooncake_both", "nixl": "nixl_both"}
HEADERS = b"content-type: application/json\r\n"


@dataclass
class Pair:
    """Two engines of one config, `h` and `t`."""

    transport: str
    backend: LocalBackend
    engine: Engine
    folder: Path
    running: dict[str, Instance] = field(default_factory=dict)

    async def start(self, name: str) -> None:
        """Start the engine of that name, unless it runs."""
        if name in self.running and self.running[name].alive():
            return
        config, port = load_config(CONFIGS[self.transport]), free_port(21_000 if name == "h" else 21_400, 2)
        launch = len(list(self.folder.iterdir()))
        extra: tuple[str, ...] = ()
        if self.transport == "nixl":
            settings = dict(config.kv_transfer_on("cpu") or {})
            settings["kv_connector_extra_config"] = {"kv_lease_duration": KEPT_S}
            extra = ("--kv-transfer-config", json.dumps(settings))
        spec = build_launch(
            PROFILE, config, self.engine,
            instance=name, port=port, layout=ConfigLayout(self.folder / f"{name}{launch}"), launch=1,
            extra_args=(
                "--block-size", str(BLOCK), "--kv-cache-memory-bytes", str(16384 * KV_BYTES_PER_TOKEN),
                "--max-model-len", "4096", "--max-num-batched-tokens", "2048", "--enable-prompt-tokens-details",
                "--scheduling-policy", "priority", *extra,
            ),
            extra_env={"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": str(KEPT_S)},
        )  # fmt: skip
        self.running[name] = await self.backend.start(spec, ignore_start)

    async def ready(self) -> None:
        """Both run and answer."""
        for name in ("h", "t"):
            await self.start(name)
        for instance in self.running.values():
            await instance.wait_ready(150)

    def signal(self, name: str, number: int) -> None:
        os.killpg(os.getpgid(self.running[name].pid), number)


@dataclass
class Bench:
    """The transport between the two, and a client of each."""

    pair: Pair
    transfers: Transfers
    clients: Mapping[str, httpx.AsyncClient]

    async def complete(self, name: str, prompt: list[int], **fields: Any) -> dict[str, Any]:
        asked = {"model": PROFILE.model.served_name, "prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}
        answer = await self.clients[name].post("/v1/completions", json=asked)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def gauge(self, name: str, gauge: str) -> float:
        return counter(await exposition(self.clients[name]), f"vllm:{gauge}") or 0.0

    async def usage(self, name: str) -> float:
        return await self.gauge(name, "kv_cache_usage_perc")

    async def queued(self, name: str, requests: int) -> None:
        """Wait until so many requests wait there."""
        while await self.gauge(name, "num_requests_waiting") < requests:  # noqa: ASYNC110  (an engine's own state)
            await asyncio.sleep(0.002)

    async def released(self, name: str, within_s: float = RELEASED_S) -> None:
        """Wait until no block of it is in use."""
        deadline = time.monotonic() + within_s
        while used := await self.usage(name):
            assert time.monotonic() < deadline, f"{used:.4f} of {name}'s blocks are still kept"
            await asyncio.sleep(0.05)

    def begin(self, prompt: list[int], held: int = PREFIX, at_target: int = 0) -> tuple[Movement, asyncio.Event]:
        """A migration of the prompt's prefix from h to t."""
        over = asyncio.Event()
        request = RoutedRequest(
            request="r", session="s", turn=1, input_tokens=len(prompt), max_tokens=1, block_tokens=BLOCK,
            cached_tokens={"h": held, "t": at_target},
        )  # fmt: skip
        body = json.dumps({"model": PROFILE.model.served_name, "prompt": prompt}).encode()
        movement = self.transfers.migrate(
            request, "h", "t", "/v1/completions", HEADERS, body, lambda movement: over.set()
        )
        return movement, over

    async def migrate(self, prompt: list[int], held: int = PREFIX, at_target: int = 0) -> KvTransfer:
        movement, over = self.begin(prompt, held, at_target)
        async with asyncio.timeout(60):
            await over.wait()
        settled: asyncio.Future[KvTransfer] = asyncio.get_running_loop().create_future()
        movement.when_settled(settled.set_result)
        async with asyncio.timeout(SETTLED_S):
            return await settled


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["mooncake", "nixl"])
async def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    engine = find_engine("cpu")
    patching.apply(engine)
    async with LocalBackend(PROFILE, engine) as backend:
        made = Pair(request.param, backend, engine, tmp_path_factory.mktemp(request.param))
        await made.ready()
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def bench(pair: Pair) -> AsyncIterator[Bench]:
    """Both engines run and are idle; a transport that knows nothing yet."""
    await pair.ready()
    async with transport(pair) as made:
        await asyncio.gather(*(made.released(name, 2.0 * KEPT_S) for name in ("h", "t")))
        yield made


@contextlib.asynccontextmanager
async def transport(pair: Pair, **rules: Any) -> AsyncIterator[Bench]:
    specs = {}
    for name, instance in pair.running.items():
        bootstrap = f"http://127.0.0.1:{instance.ports.get('VLLM_MOONCAKE_BOOTSTRAP_PORT', 0)}"
        endpoint = KvEndpoint(pair.transport, "kv_both", bootstrap, KV_BYTES_PER_TOKEN)
        specs[name] = InstanceSpec(name, instance.url, transfer=endpoint)
    pools = {name: Pool(await resolve(spec.url), 3.0, lambda change: None) for name, spec in specs.items()}
    transfers = Transfers(pools, specs, TransferRules(**{"leg_priority": -1, **rules}))
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(httpx.AsyncClient(base_url=spec.url, timeout=60, trust_env=False))
            for name, spec in specs.items()
        }
        try:
            yield Bench(pair, transfers, clients)
        finally:
            await transfers.close()
            for pool in pools.values():
                pool.close()


def draw(tokens: int) -> list[int]:
    source = random.Random()
    return [source.randrange(256) for _ in range(tokens)]


async def until(holds: Callable[[], bool], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110  (what the transport finds out meanwhile)
            await asyncio.sleep(0.001)


async def test_a_prefix_moves_and_the_request_is_answered_from_it(bench: Bench) -> None:
    turns = [draw(PREFIX) for _ in range(3)]
    for turn in turns:
        await bench.complete("h", turn)
    for turn in turns:
        transfer = await bench.migrate(turn + draw(40))
        assert (transfer.status, transfer.reason, transfer.attempts) == ("transferred", "", 1)
        assert (transfer.prefix_tokens, transfer.source_cached_tokens) == (PREFIX, PREFIX - BLOCK)
        assert transfer.external_tokens is not None, transfer.counted_reason
        assert PREFIX - BLOCK <= transfer.external_tokens <= PREFIX
        assert transfer.local_tokens == 0
        assert transfer.blocks == PREFIX // BLOCK
        if bench.pair.transport == "nixl":
            assert (transfer.bytes, transfer.bytes_from) == (PREFIX * KV_BYTES_PER_TOKEN, "counter")
        else:
            assert (transfer.bytes, transfer.bytes_from) == (transfer.external_tokens * KV_BYTES_PER_TOKEN, "tokens")
        asked, more = turn + draw(40), {"max_tokens": 8, "return_token_ids": True, "ignore_eos": True}
        there, here = await bench.complete("t", asked, **more), await bench.complete("h", asked, **more)
        assert there["usage"]["prompt_tokens_details"]["cached_tokens"] >= PREFIX
        assert there["choices"][0]["token_ids"] == here["choices"][0]["token_ids"]
        await bench.released("h")


async def test_only_what_the_target_lacks_is_moved(bench: Bench) -> None:
    prompt = draw(PREFIX + 40)
    await bench.complete("h", prompt)
    await bench.complete("t", prompt[: PREFIX // 2 + 1])
    half = await bench.migrate(prompt)
    assert half.status == "transferred", half.reason
    assert (half.external_tokens, half.local_tokens) == (PREFIX // 2, PREFIX // 2)
    unknown = await bench.migrate(prompt)
    assert unknown.status == "transferred", unknown.reason
    assert (unknown.external_tokens or 0) <= BLOCK, "the router did not know that the target has it"
    known = await bench.migrate(prompt, at_target=PREFIX)
    assert (known.status, known.attempts) == ("refused", 0)
    await bench.released("h")


async def test_the_legs_overtake_the_prompts_that_wait(bench: Bench) -> None:
    prompt = draw(PREFIX)
    await bench.complete("h", prompt)
    waiting = [asyncio.create_task(bench.complete("h", draw(4000))) for _ in range(8)]
    await bench.queued("h", 5)
    movement, over = bench.begin(prompt + draw(8))
    await over.wait()
    left = sum(not task.done() for task in waiting)
    await asyncio.gather(*waiting)
    assert movement.transfer.status == "transferred", movement.transfer.reason
    assert left >= 3, "it would have waited for all of them"


async def test_a_client_that_leaves_between_the_legs_leaves_no_block_behind(bench: Bench) -> None:
    prompt = draw(PREFIX)
    await bench.complete("h", prompt)
    bench.pair.signal("t", signal.SIGSTOP)
    try:
        movement, over = bench.begin(prompt + draw(8))
        await until(lambda: movement.transfer.t_source_done_ns > 0)
        assert await bench.usage("h") > 0
        movement.abandon()
        assert (movement.transfer.status, movement.transfer.reason) == ("failed", "the client left")
        assert movement.transfer.t_target_sent_ns == 0
        if bench.pair.transport == "mooncake":
            await bench.released("h")
    finally:
        bench.pair.signal("t", signal.SIGCONT)
    await bench.released("h")
    assert not over.is_set()
    again = await bench.migrate(prompt + draw(8))
    assert again.status == "transferred", again.reason


async def test_a_target_without_room_is_given_up_on_and_has_the_source_freed(bench: Bench) -> None:
    prompt = draw(PREFIX)
    await bench.complete("h", prompt)
    asked = {"max_tokens": 2000, "ignore_eos": True}
    fill = [asyncio.create_task(bench.complete("t", draw(2000), **asked)) for _ in range(12)]
    try:
        await bench.queued("t", 3)
        async with transport(bench.pair, timeout_s=2.0, leg_priority=None) as hurried:
            movement, over = hurried.begin(prompt + draw(8))
            async with asyncio.timeout(10):
                await over.wait()
        assert (movement.transfer.status, movement.transfer.reason) == ("failed", "not done within 2 s")
        assert movement.transfer.t_target_sent_ns > 0
        await bench.released("h")
        assert not any(task.done() for task in fill), "the target was full all the time"
    finally:
        for task in fill:
            task.cancel()
        await asyncio.gather(*fill, return_exceptions=True)


async def test_a_dead_target_costs_no_time_and_the_source_is_freed(bench: Bench) -> None:
    prompt = draw(PREFIX)
    await bench.complete("h", prompt)
    bench.pair.signal("t", signal.SIGKILL)
    began = time.monotonic()
    transfer = await bench.migrate(prompt + draw(8))
    assert transfer.status == "failed"
    assert "target" in transfer.reason
    assert time.monotonic() - began < 20
    # NIXL's engine cannot free its own: only a peer can tell it, or its lease ends
    await bench.released("h", RELEASED_S if bench.pair.transport == "mooncake" else KEPT_S + RELEASED_S)


async def test_a_source_that_dies_in_the_middle_fails_the_transfer_and_not_the_target(bench: Bench) -> None:
    prompt = draw(PREFIX)
    await bench.complete("h", prompt)
    async with transport(bench.pair, timeout_s=6.0) as hurried:
        bench.pair.signal("t", signal.SIGSTOP)
        movement, over = hurried.begin(prompt + draw(8))
        await until(lambda: movement.transfer.t_target_sent_ns > 0)
        bench.pair.signal("h", signal.SIGKILL)
        bench.pair.signal("t", signal.SIGCONT)
        async with asyncio.timeout(20):
            await over.wait()
        assert movement.transfer.status == "failed"
        answer = await bench.complete("t", prompt + draw(8))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "it computes"
    await bench.pair.ready()
    async with transport(bench.pair) as fresh:
        await fresh.complete("h", prompt)
        back = await fresh.migrate(prompt + draw(8))
        assert back.status == "transferred", back.reason
