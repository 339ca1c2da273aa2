"""The exact index behind a real router: what an instance says it holds is what the policy sees."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from results.records.router_spec import InstanceSpec
from runners.router.instances.kv_events import KvEvents
from tests.ports import own_port
from tests.runners.router.kv_publisher import BLOCK, kv_publisher, stored
from tests.runners.router.routers import instances, router, until

pytest.importorskip("zmq")


async def test_kv_events_decide_what_counts_as_cached(tmp_path: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{own_port(21_500)}"
    prompt = list(range(100, 116))
    async with instances("a") as (a,):
        member = InstanceSpec("a", a.url, kv_capacity_tokens=4096, block_tokens=BLOCK, kv_events=endpoint)
        async with router([a], "unified", folder=tmp_path, index="events", instances=(member,)) as routed:
            await routed.post("s", prompt=prompt)  # sent, but not stored: it counts for nothing
            with kv_publisher(endpoint) as publisher:
                index = routed.server._fleet.indexes["a"]
                async with asyncio.timeout(8):
                    while not len(index):
                        publisher.number = 0
                        publisher.publish(stored(1, prompt))
                        await asyncio.sleep(0.02)
                await routed.post("t", prompt=[*prompt, 7, 8])
                publisher.publish({"type": "AllBlocksCleared"})
                await until(lambda: len(index) == 0)
                await routed.post("u", prompt=[*prompt, 7, 8])
        first, second, third = await routed.records(3)
        assert [r.request.cached_tokens["a"] for r in (first, second, third)] == [0, 16, 0]


class Endless(KvEvents):
    """Messages never end, and each batch takes a millisecond."""

    def __init__(self) -> None:
        self.batches = 0

    def apply_messages(self, limit: int = 256) -> int:
        self.batches += 1
        time.sleep(0.001)
        return limit

    def close(self) -> None: ...


async def test_an_engine_that_floods_does_not_keep_the_streams_waiting() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        fleet, flood = routed.server._fleet, Endless()
        fleet._events["a"] = flood
        fleet.follow_events()
        assert 1 <= flood.batches <= 20
        before = flood.batches
        await until(lambda: flood.batches > before)
        assert (await routed.post()).status_code == 200
        del fleet._events["a"]
