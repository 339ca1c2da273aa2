"""A session's prefix moves from one engine to another, or the record says why it did not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from results.decisions import KvTransfer, RoutedRequest
from runners.router.transfer import Movement
from tests.runners.router.routers import SOON_S, until
from tests.runners.router.transfer.engines import BLOCK, Bench, bench

PROMPT = tuple(range(100, 100 + 10 * BLOCK + 2))
"""Ten whole blocks, and two tokens of the next."""
HEADERS = b"content-type: application/json\r\nauthorization: Bearer sesame\r\nx-session-id: s\r\n"


def asked(held: int = 9 * BLOCK, at_target: int = 0, tokens: int = len(PROMPT)) -> RoutedRequest:
    return RoutedRequest(
        request="r-1", session="s", turn=3, input_tokens=tokens, max_tokens=8, block_tokens=BLOCK,
        cached_tokens={"h": held, "t": at_target},
    )  # fmt: skip


def body(prompt: Any = PROMPT, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt, "max_tokens": 8, "stream": True, **fields}).encode()


async def migrated(
    on: Bench, request: RoutedRequest | None = None, given: bytes | None = None, path: str = "/v1/completions"
) -> Movement:
    """A migration from h to t that is over, its counters read."""
    over: asyncio.Future[Movement] = asyncio.get_running_loop().create_future()
    movement = on.transfers.migrate(request or asked(), "h", "t", path, HEADERS, given or body(), over.set_result)
    assert not over.done()
    assert (movement.transfer.status, movement.over) == ("failed", False)
    async with asyncio.timeout(SOON_S):
        assert await over is movement
    await settled(on, movement)
    return movement


async def settled(on: Bench, movement: Movement) -> KvTransfer:
    told: list[KvTransfer] = []
    movement.when_settled(told.append)
    while not told:
        on.advance(0.05)
        await asyncio.sleep(0.005)
    assert told == [movement.transfer]
    return told[0]


@pytest.mark.parametrize("transport", ["mooncake", "nixl"])
async def test_what_the_source_holds_is_in_the_targets_cache_and_counted(transport: str) -> None:
    async with bench(transport) as on:
        on.source.cached.add(PROMPT)
        movement = await migrated(on)
        transfer = movement.transfer
        assert (transfer.status, transfer.reason, transfer.transport) == ("transferred", "", transport)
        assert transfer.prefix_tokens == transfer.external_tokens == 9 * BLOCK
        assert (transfer.local_tokens, transfer.computed_tokens, transfer.blocks) == (0, 0, 9)
        assert transfer.source_cached_tokens == 8 * BLOCK, "all but the block of its last token"
        expected = (9 * BLOCK * 512, "tokens") if transport == "mooncake" else (9 * BLOCK * 10, "counter")
        assert (transfer.bytes, transfer.bytes_from, transfer.counted_reason) == (*expected, "")
        stamps = (transfer.t_begin_ns, transfer.t_source_sent_ns, transfer.t_source_done_ns, transfer.t_target_sent_ns)
        assert 0 < stamps[0] <= stamps[1] <= stamps[2] <= stamps[3] <= transfer.t_done_ns
        assert movement.body == body(), "the request goes to the target as it came"
        assert on.target.hits(PROMPT) == 9 * BLOCK
        assert on.source.kept == {}
