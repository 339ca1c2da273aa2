"""The exact index behind a real router: what an instance says it holds is what the policy sees."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from runners.router.spec import InstanceSpec
from tests.ports import own_port
from tests.runners.router.routers import instances, router, until

zmq = pytest.importorskip("zmq")

BLOCK_TOKENS = 4


def stored(first: int, tokens: list[int]) -> dict[str, object]:
    blocks = len(tokens) // BLOCK_TOKENS
    return {
        "type": "BlockStored",
        "block_hashes": [first + place for place in range(blocks)],
        "parent_block_hash": None,
        "token_ids": tokens,
        "block_size": BLOCK_TOKENS,
        "lora_id": None,
        "medium": "GPU",
    }


async def test_kv_events_decide_what_counts_as_cached(tmp_path: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{own_port(29600)}"
    prompt = list(range(100, 116))
    async with instances("a") as (a,):
        member = InstanceSpec("a", a.url, kv_capacity_tokens=4096, block_tokens=BLOCK_TOKENS, kv_events=endpoint)
        async with router([a], "unified", folder=tmp_path, index="events", instances=(member,)) as routed:
            await routed.post("s", prompt=prompt)  # sent, but not stored: it counts for nothing
            with zmq.Context.instance().socket(zmq.PUB) as publisher:
                publisher.setsockopt(zmq.LINGER, 0)
                publisher.connect(endpoint)
                index = routed.server._fleet.indexes["a"]
                number = 0

                def publish(*events: dict[str, object]) -> None:
                    nonlocal number
                    batch = msgspec.msgpack.encode([0.0, list(events), 0])
                    publisher.send_multipart([b"kv-events", number.to_bytes(8, "big"), batch])
                    number += 1

                async with asyncio.timeout(8):
                    while not len(index):  # type: ignore[arg-type]
                        number = 0
                        publish(stored(1, prompt))
                        await asyncio.sleep(0.02)
                await routed.post("t", prompt=[*prompt, 7, 8])
                publish({"type": "AllBlocksCleared"})
                await until(lambda: len(index) == 0)  # type: ignore[arg-type]
                await routed.post("u", prompt=[*prompt, 7, 8])
        first, second, third = await routed.records(3)
        assert [r.request.cached_tokens["a"] for r in (first, second, third)] == [0, 16, 0]
