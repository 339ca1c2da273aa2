"""Instances come and go while the router runs."""

from __future__ import annotations

import asyncio

from runners.router.server.front import ClientConnection
from tests.runners.router.routers import by, events, instances, router, tokens, until


async def test_an_instance_that_is_added_gets_requests() -> None:
    async with instances("a", "b") as (a, b), router([a], "round_robin") as routed:
        answer = await routed.http.post("/admin/instances", json={"instance": "b", "url": b.url})
        assert answer.status_code == 200
        assert [row["instance"] for row in answer.json()["instances"]] == ["a", "b"]
        assert {by(await routed.post()) for _ in range(4)} == {"a", "b"}


async def test_one_that_is_not_there_yet_is_added_and_picked_once_it_is() -> None:
    async with instances("a", "b") as (a, b), router([a], "round_robin") as routed:
        await b.kill()
        await routed.http.post("/admin/instances", json={"instance": "b", "url": b.url})
        assert {by(await routed.post()) for _ in range(4)} == {"a"}
        await b.start()
        await until(lambda: routed.available() == {"a", "b"})
        assert "b" in {by(await routed.post()) for _ in range(4)}


async def test_a_drained_instance_finishes_what_it_has_and_gets_nothing_new() -> None:
    async with instances("a", "b") as (a, b), router([a, b], "sticky") as routed:
        a.gate = b.gate = asyncio.Event()
        asking = [asyncio.create_task(routed.post(str(k))) for k in range(6)]
        await until(lambda: sum(x.ongoing_decode_tokens for x in routed.server.cluster.take_view().instances) == 48)
        had = len(a.seen)
        answer = await routed.http.post("/admin/instances/a/drain")
        row = next(row for row in answer.json()["instances"] if row["instance"] == "a")
        assert (row["available"], row["why_unavailable"]) == (False, "draining")
        assert (await routed.http.delete("/admin/instances/a")).status_code == 409
        a.gate.set()
        assert all(len(tokens(answer)) == 3 for answer in await asyncio.gather(*asking))
        for number in range(6):
            assert by(await routed.post(str(number))) == "b"
        assert len(a.seen) == had
        assert (await routed.http.delete("/admin/instances/a")).status_code == 200
        assert [row.instance for row in routed.server.tick().instances] == ["b"]


async def test_a_drained_instance_can_be_taken_back() -> None:
    async with instances("a", "b") as (a, b), router([a, b], "round_robin") as routed:
        await routed.http.post("/admin/instances/a/drain")
        assert {by(await routed.post()) for _ in range(3)} == {"b"}
        assert (await routed.http.post("/admin/instances/a/resume")).status_code == 200
        assert {by(await routed.post()) for _ in range(4)} == {"a", "b"}


async def test_one_removed_at_once_loses_its_streams_with_a_reason_and_keeps_no_request_waiting() -> None:
    async with instances("a", "b") as (a, b), router([a, b], "round_robin") as routed:
        a.gate = asyncio.Event()
        a.ttft_s = 0.0
        streaming = asyncio.create_task(routed.post())
        await until(lambda: sum(x.ongoing_decode_tokens for x in routed.server.cluster.take_view().instances) == 8)
        await routed.post()  # b's turn
        a.hang = True
        waiting = asyncio.create_task(routed.post())
        await until(lambda: len(a.seen) == 2)
        assert (await routed.http.delete("/admin/instances/a?now=1")).status_code == 200
        assert "was removed" in events(await streaming)[-1]["error"]["message"]
        assert by(await waiting) == "b"


async def test_what_cannot_be_done_is_refused_with_what_to_do() -> None:
    async with instances("a", "b") as (a, b), router([a]) as routed:
        unknown = await routed.http.post("/admin/instances/zzz/drain")
        assert unknown.status_code == 409
        assert "There are: a" in unknown.json()["error"]["message"]
        taken = await routed.http.post("/admin/instances", json={"instance": "a", "url": b.url})
        assert taken.status_code == 409
        wrong = await routed.http.post("/admin/instances", json={"instance": "b"})
        assert wrong.status_code == 400
        assert "url" in wrong.json()["error"]["message"]
        bad_name = await routed.http.post("/admin/instances", json={"instance": "b\nc", "url": b.url})
        assert bad_name.status_code == 409


async def test_the_operators_pages_are_closed_to_other_machines() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        await routed.http.get("/health")
        connection: ClientConnection = next(iter(routed.server._clients))
        connection.local = False
        assert (await routed.http.post("/admin/instances/a/drain")).status_code == 403
        assert routed.available() == {"a"}
        assert (await routed.post()).status_code == 200
