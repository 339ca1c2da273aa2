"""A request that no instance has room for waits for room, in its turn, and never for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

from results.records.router_spec import Limits
from runners.router.server.server import BEAT_S
from tests.runners.router.routers import SHORT, Router, by, instances, members_of, router, until
from tests.servers.backend import Backend

PROMPT = list(range(60))


def pools(
    backends: Sequence[Backend], *, folder: Path | None = None, limits: Limits = SHORT
) -> AbstractAsyncContextManager[Router]:
    """The first instance prefills; the other one decodes and has room for one request."""
    small = members_of(backends, capacity=80)
    return router(backends, "static_pd", folder=folder, limits=limits, parameters={"prefill_count": 1}, instances=small)


async def test_requests_wait_for_room_and_are_all_served_in_their_turn(tmp_path: Path) -> None:
    async with instances("a", "b") as both, pools(both, folder=tmp_path) as routed:
        both[1].gate = asyncio.Event()
        asked = [asyncio.create_task(routed.post(f"s{place}", prompt=PROMPT)) for place in range(4)]
        await until(lambda: len(routed.server.tick().latest) == 4 and bool(both[1].seen))
        assert len(both[1].seen) == 1
        both[1].gate.set()
        answers = await asyncio.gather(*asked)
        assert {answer.status_code for answer in answers} == {200}
        assert {by(answer) for answer in answers} == {"b"}
        records = await routed.records(7)
        assert Counter(record.outcome.status for record in records if record.outcome) == {"ok": 4, "held": 3}
        served = [record.request.session for record in records if record.outcome and record.outcome.status == "ok"]
        held = [record.request.session for record in records if record.outcome and record.outcome.status == "held"]
        assert served[1:] == held


async def test_a_held_request_is_tried_again_soon_whatever_the_time_limits_are() -> None:
    async with instances("a", "b") as both, pools(both, limits=Limits()) as routed:
        both[1].gate = asyncio.Event()
        first = asyncio.create_task(routed.post("one", prompt=PROMPT))
        await until(lambda: bool(both[1].seen))
        second = asyncio.create_task(routed.post("two", prompt=PROMPT))
        await until(lambda: bool(routed.server._traffic.held))
        beat = routed.server._next_beat
        assert beat is not None
        assert beat.when() - asyncio.get_running_loop().time() <= BEAT_S
        both[1].gate.set()
        assert {answer.status_code for answer in await asyncio.gather(first, second)} == {200}


async def test_what_can_never_fit_is_refused_as_soon_as_nothing_is_in_flight() -> None:
    async with instances("a", "b") as both, pools(both) as routed:
        answer = await routed.post("s", prompt=list(range(200)))
        assert answer.status_code == 503
        assert "wait_decode_kv" in answer.text
        assert (await routed.post("s", prompt=PROMPT)).status_code == 200


async def test_waiting_has_an_end() -> None:
    limits = replace(SHORT, first_byte_s=0.3)
    async with instances("a", "b") as both, pools(both, limits=limits) as routed:
        both[1].gate = asyncio.Event()
        first = asyncio.create_task(routed.post("one", prompt=PROMPT))
        await until(lambda: len(both[1].seen) == 1)
        late = await routed.post("two", prompt=PROMPT)
        assert late.status_code == 503
        both[1].gate.set()
        assert (await first).status_code == 200


async def test_a_client_that_leaves_while_it_is_held_is_forgotten() -> None:
    async with instances("a", "b") as both, pools(both) as routed:
        both[1].gate = asyncio.Event()
        first = asyncio.create_task(routed.post("one", prompt=PROMPT))
        await until(lambda: len(both[1].seen) == 1)
        second = asyncio.create_task(routed.post("two", prompt=PROMPT))
        await until(lambda: len(routed.server.tick().latest) == 2)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        third = asyncio.create_task(routed.post("three", prompt=PROMPT))
        await until(lambda: len(routed.server.tick().latest) == 3)
        both[1].gate.set()
        assert (await first).status_code == 200
        assert (await third).status_code == 200
        assert [seen.headers["x-session-id"] for seen in both[1].seen] == ["one", "three"]


async def test_a_router_that_ends_tells_those_that_it_holds() -> None:
    async with instances("a", "b") as both, pools(both) as routed:
        both[1].gate = asyncio.Event()
        first = asyncio.create_task(routed.post("one", prompt=PROMPT))
        await until(lambda: len(both[1].seen) == 1)
        second = asyncio.create_task(routed.post("two", prompt=PROMPT))
        await until(lambda: len(routed.server.tick().latest) == 2)
        await routed.server.end(0.1)
        assert (await second).status_code == 503
        await asyncio.gather(first, return_exceptions=True)
