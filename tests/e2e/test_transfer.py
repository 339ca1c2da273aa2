"""A prefix moves between two real engines, by Mooncake and by NIXL, and what happens when a client or an engine leaves.

The engines schedule by priority, hold 16 384 tokens in blocks of 32, and free blocks that no target pulls after some
seconds: the last resort where no request can free them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
import msgspec
import pytest
import pytest_asyncio

from launch.environment import find_engine
from launch.instruction_sets import kernel_grants_amx, read_flags
from launch.local import LocalBackend
from results.records.decisions import KvTransfer, RoutedRequest
from results.records.router_spec import TransferRules
from runners.router.facts import ClientMessage
from runners.router.instances.upstream import Pool, resolve_instance
from runners.router.server.server import EventLoop
from runners.router.transfer.movement import Movement, MoveRequest
from runners.router.transfer.transfers import Transfers
from tests.e2e.engine_pair import BLOCK, KEPT_S, KV_BYTES_PER_TOKEN, NAMES, PROFILE, Pair, draw
from tests.launch.listening import open_beyond_loopback

pytestmark = [
    pytest.mark.engine, pytest.mark.fault, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures("patches"),
]  # fmt: skip

HAS_AMX = "amx_tile" in read_flags() and kernel_grants_amx()
PREFIX = 64 * BLOCK
RELEASED_S = {"mooncake": 4.0, "nixl": KEPT_S + 4.0}
"""NIXL's source learns of some failures by the end of its lease only: docs/transfer.md."""
SETTLED_S = 5.0
HEADERS = b"content-type: application/json\r\n"
REQUEST = RoutedRequest(
    request="r", session="s", turn=1, input_tokens=0, max_tokens=1, block_tokens=BLOCK, cached_tokens={}
)  # fmt: skip


@dataclass
class Bench:
    """The transport between the two."""

    pair: Pair
    transfers: Transfers

    async def released(self) -> None:
        """Wait until h keeps no blocks."""
        await self.pair.released("h", RELEASED_S[self.pair.transport])

    def begin(self, prompt: list[int], held: int = PREFIX, at_target: int = 0) -> tuple[Movement, asyncio.Event]:
        """A migration of the prompt's prefix from h to t."""
        over = asyncio.Event()
        request = msgspec.structs.replace(REQUEST, input_tokens=len(prompt), cached_tokens={"h": held, "t": at_target})
        body = json.dumps({"model": PROFILE.model.served_name, "prompt": prompt}).encode()
        message = ClientMessage(b"/v1/completions", HEADERS, body)
        movement = self.transfers.start_movement(
            MoveRequest("migration", request, "h", "t", message), lambda movement: over.set()
        )
        return movement, over

    async def migrate(self, prompt: list[int], held: int = PREFIX, at_target: int = 0) -> KvTransfer:
        movement, over = self.begin(prompt, held, at_target)
        async with asyncio.timeout(60):
            await over.wait()
        settled: asyncio.Future[KvTransfer] = asyncio.get_running_loop().create_future()
        movement.call_when_settled(settled.set_result)
        async with asyncio.timeout(SETTLED_S):
            return await settled


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["mooncake", "nixl"])
async def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, backend: LocalBackend
) -> AsyncIterator[Pair]:
    folder = tmp_path_factory.mktemp(request.param)
    made = Pair(backend, find_engine("cpu"), folder, kv_tokens=16384, transport=request.param)
    yield made
    await made.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def bench(pair: Pair) -> AsyncIterator[Bench]:
    """Both engines run and are idle; a transport that knows nothing yet."""
    await pair.ready(pair.transport)
    async with transport(pair) as made:
        yield made


@contextlib.asynccontextmanager
async def transport(pair: Pair, timeout_s: float = 60.0, priority: int | None = -1) -> AsyncIterator[Bench]:
    specs = {name: pair.member(name) for name in NAMES}
    pools = {name: Pool(await resolve_instance(spec.url), 3.0) for name, spec in specs.items()}
    transfers = Transfers(pools, specs, TransferRules(timeout_s=timeout_s, priority=priority), EventLoop())
    try:
        yield Bench(pair, transfers)
    finally:
        await transfers.close()
        for pool in pools.values():
            pool.close()


async def until(holds: Callable[[], bool], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110  (what the transport finds out meanwhile)
            await asyncio.sleep(0.001)


async def test_mooncake_alone_listens_for_other_machines(bench: Bench) -> None:
    """docs/security.md, "What listens where"."""
    for instance in bench.pair.running.values():
        assert instance.pid is not None
        ports = open_beyond_loopback(instance.pid)
        bootstrap = instance.ports.get("VLLM_MOONCAKE_BOOTSTRAP_PORT")
        assert (bootstrap in ports) if bench.pair.transport == "mooncake" else not ports, ports


async def test_a_prefix_moves_and_the_request_is_answered_from_it(bench: Bench) -> None:
    turns = [draw(PREFIX) for _ in range(3)]
    for turn in turns:
        await bench.pair.complete("h", turn)
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
        there, here = await bench.pair.complete("t", asked, **more), await bench.pair.complete("h", asked, **more)
        assert there["usage"]["prompt_tokens_details"]["cached_tokens"] >= PREFIX
        assert there["choices"][0]["token_ids"] == here["choices"][0]["token_ids"]
        await bench.released()


@pytest.mark.skipif(not HAS_AMX, reason="this CPU has no AMX tiles, without which nothing can go wrong here")
async def test_an_engine_may_begin_with_a_decode_on_pulled_kv(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    if "t" in pair.running:
        await pair.running.pop("t").stop(0.0, 0.0)
    monkeypatch.setattr(pair, "extra_env", {"TRACON_RUN_FIRST": "0"})  # that run would ask for the tiles in passing
    await pair.ready(pair.transport)
    prompt = draw(PREFIX)
    await pair.complete("h", prompt)
    async with transport(pair) as bench:
        transfer = await bench.migrate(prompt + draw(40))
    assert pair.running["t"].alive(), pair.running["t"].tail(40)
    assert transfer.status == "transferred", transfer.reason
    await pair.released("h", RELEASED_S[pair.transport])


async def test_only_what_the_target_lacks_is_moved(bench: Bench) -> None:
    prompt = draw(PREFIX + 40)
    await bench.pair.complete("h", prompt)
    await bench.pair.complete("t", prompt[: PREFIX // 2 + 1])
    half = await bench.migrate(prompt)
    assert half.status == "transferred", half.reason
    assert (half.external_tokens, half.local_tokens) == (PREFIX // 2, PREFIX // 2)
    unknown = await bench.migrate(prompt)
    assert unknown.status == "transferred", unknown.reason
    assert (unknown.external_tokens or 0) <= BLOCK, "the router did not know that the target has it"
    known = await bench.migrate(prompt, at_target=PREFIX)
    assert (known.status, known.attempts) == ("unneeded", 0)
    await bench.released()


async def test_a_chat_is_moved_in_the_targets_tokens(bench: Bench) -> None:
    chat = {"model": PROFILE.model.served_name, "messages": [{"role": "user", "content": bytes(draw(1500)).hex()}]}
    over = asyncio.Event()
    request = msgspec.structs.replace(REQUEST, input_tokens=800, cached_tokens={"h": 600})
    message = ClientMessage(b"/v1/chat/completions", HEADERS, json.dumps(chat).encode())
    movement = bench.transfers.start_movement(
        MoveRequest("migration", request, "h", "t", message), lambda movement: over.set()
    )
    await over.wait()
    transfer = movement.transfer
    assert transfer.status == "transferred", transfer.reason
    assert transfer.prefix_tokens > 2000, "three quarters of more than 3000 tokens"
    async with httpx.AsyncClient(base_url=bench.pair.running["t"].url, timeout=60, trust_env=False) as client:
        answer = (await client.post("/v1/chat/completions", json={**chat, "max_tokens": 1})).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == transfer.prefix_tokens


async def test_the_legs_overtake_the_prompts_that_wait(bench: Bench) -> None:
    prompt = draw(PREFIX)
    await bench.pair.complete("h", prompt)
    waiting = [asyncio.create_task(bench.pair.complete("h", draw(4000))) for _ in range(40)]
    await bench.pair.queued("h", 16)
    movement, over = bench.begin(prompt + draw(8))
    await over.wait()
    left = sum(not task.done() for task in waiting)
    await asyncio.gather(*waiting)
    assert movement.transfer.status == "transferred", movement.transfer.reason
    assert left >= 3, "it would have waited for all of them"


async def test_a_client_that_leaves_between_the_legs_leaves_no_block_behind(bench: Bench) -> None:
    prompt = draw(PREFIX)
    await bench.pair.complete("h", prompt)
    with bench.pair.stopped("t"):
        movement, over = bench.begin(prompt + draw(8))
        while not movement.transfer.t_source_done_ns:  # noqa: ASYNC110  (in the very moment: the decode request is next)
            await asyncio.sleep(0)
        movement.abandon_transfer()
        assert (movement.transfer.status, movement.transfer.reason) == ("failed", "the client left")
        assert movement.transfer.t_target_sent_ns == 0
        if bench.pair.transport == "mooncake":
            await bench.released()
    await bench.released()
    assert not over.is_set()
    again = await bench.migrate(prompt + draw(8))
    assert again.status == "transferred", again.reason


async def test_a_target_without_room_is_given_up_on_and_has_the_source_freed(bench: Bench) -> None:
    prompt = draw(PREFIX)
    await bench.pair.complete("h", prompt)
    async with bench.pair.full("t"):
        async with transport(bench.pair, timeout_s=3.0) as hurried:
            movement, over = hurried.begin(prompt + draw(8))
            async with asyncio.timeout(30):
                await over.wait()
        assert (movement.transfer.status, movement.transfer.reason) == ("failed", "not done within 3 s")
        assert movement.transfer.t_target_sent_ns > 0
        await bench.released()


async def test_a_dead_target_costs_no_time_and_the_source_is_freed(bench: Bench) -> None:
    prompt = draw(PREFIX)
    await bench.pair.complete("h", prompt)
    bench.pair.signal("t", signal.SIGKILL)
    began = time.monotonic()
    transfer = await bench.migrate(prompt + draw(8))
    assert transfer.status == "failed"
    assert "target" in transfer.reason
    assert time.monotonic() - began < 20
    # NIXL's source cannot pull from itself: only its own lease frees it then
    await bench.released()


async def test_a_source_that_dies_in_the_middle_fails_the_transfer_and_not_the_target(bench: Bench) -> None:
    prompt = draw(PREFIX)
    await bench.pair.complete("h", prompt)
    async with transport(bench.pair, timeout_s=4.0) as hurried:
        with bench.pair.stopped("t"):
            movement, over = hurried.begin(prompt + draw(8))
            await until(lambda: movement.transfer.t_target_sent_ns > 0)
            bench.pair.signal("h", signal.SIGKILL)
        async with asyncio.timeout(20):
            await over.wait()
        assert movement.transfer.status == "failed"
        answer = await bench.pair.complete("t", prompt + draw(8))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "it computes"
    await bench.pair.ready(bench.pair.transport)
    async with transport(bench.pair) as fresh:
        await bench.pair.complete("h", prompt)
        back = await fresh.migrate(prompt + draw(8))
        assert back.status == "transferred", back.reason
