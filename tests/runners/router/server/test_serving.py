"""What a client and an instance may rely on while all is well."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from results.records.router_spec import InstanceSpec, Limits
from runners.router.server.server import BEAT_S, BEATS_PER_LIMIT, TIMER_S
from tests.runners.router.routers import (
    SHORT,
    SOON_S,
    STEADY,
    Router,
    by,
    events,
    instances,
    raw_post,
    router,
    tokens,
    until,
)


async def test_requests_leave_no_objects_behind(tmp_path: Path) -> None:
    """Once what the router bounds is full: the prefix index, its latest picks, its connections."""
    async with instances("a", "b") as both:
        small = tuple(InstanceSpec(one.name, one.url, kv_capacity_tokens=64, block_tokens=4) for one in both)
        async with router(both, "unified", folder=tmp_path, health=STEADY, instances=small) as routed:

            async def count_objects_after(requests: range) -> int:
                for number in requests:
                    await routed.post(prompt=[number, *range(15)])
                await routed.records(requests.stop)
                for one in both:
                    one.seen.clear()
                routed.ticks.clear()
                gc.collect()
                return len(gc.get_objects())

            before = await count_objects_after(range(100))
            assert await count_objects_after(range(100, 700)) - before < 300, "one object per request gives 600"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_completion_comes_back_as_the_instance_gave_it(stream: bool) -> None:
    async with (
        instances("a") as (a,),
        router([a]) as routed,
        httpx.AsyncClient(trust_env=False, verify=False) as direct,
    ):
        body: dict[str, Any] = {"model": "m", "prompt": "hello", "stream": stream}
        through = await routed.post(**body)
        straight = await direct.post(f"{a.url}/v1/completions", json=body)
        assert through.status_code == 200
        assert through.content == straight.content
        assert through.headers["content-type"] == straight.headers["content-type"]
        assert by(through) == "a"


async def test_the_body_and_the_headers_arrive_as_they_were_sent() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        raw = b'{"model" : "m",  "prompt":[1,2,\n3], "extra": {"kept": "\xc3\xa4"}}'
        await routed.http.post(
            "/v1/completions?x=1",
            content=raw,
            headers={"authorization": "Bearer k", "x-request-id": "r-1", "x-mine": "7", "connection": "keep-alive, x"},
        )
        seen = a.seen[0]
        assert seen.body == raw
        assert seen.path == "/v1/completions?x=1"
        assert seen.headers["authorization"] == "Bearer k"
        assert seen.headers["x-request-id"] == "r-1"
        assert seen.headers["x-mine"] == "7"
        assert seen.headers["host"] == f"127.0.0.1:{a.port}"
        assert "connection" not in seen.headers


async def test_a_request_without_an_id_gets_one_that_client_and_instance_see() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        answer = await routed.post()
        assert answer.headers["x-request-id"] == a.seen[0].headers["x-request-id"]
        assert answer.headers["x-request-id"].startswith("tracon-")


@pytest.mark.parametrize(
    ("headers", "body", "session"),
    [
        ({"x-session-id": "h"}, {"session_id": "b", "user": "u"}, "h"),
        ({}, {"session_id": "b", "user": "u"}, "b"),
        ({}, {"user": "u"}, "u"),
        ({}, {"session_id": 17}, "17"),
        ({}, {}, ""),
    ],
)
async def test_the_session_is_the_headers_then_the_bodys(
    headers: dict[str, str], body: dict[str, object], session: str
) -> None:
    async with instances("a") as (a,), router([a]) as routed:
        await routed.http.post("/v1/completions", json={"prompt": [1], **body}, headers=headers)
        assert routed.server.tick().latest[-1].session == session


async def test_a_decision_is_logged_with_everything_the_policy_saw_and_what_came_of_it(tmp_path: Path) -> None:
    async with instances("a", "b") as both, router(both, "unified", folder=tmp_path) as routed:
        first = await routed.post("s", prompt=list(range(32)))
        second = await routed.post("s", prompt=list(range(40)))
        one, two = await routed.records(2)
        assert (one.seq, two.seq) == (0, 1)
        assert (one.request.turn, two.request.turn) == (0, 1)
        assert one.decision.instance == by(first)
        assert two.request.owner == by(first) == by(second)
        assert two.request.cached_tokens[by(first)] == 32
        assert two.request.input_tokens == 40
        assert {load.instance for load in two.cluster.instances} == {"a", "b"}
        outcome = await routed.outcome_of(1)
        assert outcome.status == "ok"
        assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.completion_tokens) == (8, 4, 3)
        assert outcome.first_byte_s is not None
        assert outcome.last_byte_s is not None
        assert 0 < outcome.first_byte_s <= outcome.last_byte_s


async def test_counters_follow_a_request_through_its_life() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        a.gate, a.ttft_s = asyncio.Event(), 0.2
        asking = asyncio.create_task(routed.post("s", prompt=list(range(10))))
        await until(lambda: bool(a.seen))
        load = routed.load("a")
        assert (load.num_requests, load.pending_prefill_tokens, load.ongoing_tokens) == (1, 10, 10)
        await until(lambda: routed.load("a").pending_prefill_tokens == 0)
        load = routed.load("a")
        assert (load.num_requests, load.ongoing_tokens, load.ongoing_decode_tokens) == (1, 10, 10)
        a.gate.set()
        await asking
        assert routed.counters_are_zero()


async def test_a_hundred_streams_are_held_at_once() -> None:
    async with instances("a", "b") as both, router(both) as routed:
        gate = asyncio.Event()
        for backend in both:
            backend.gate = gate
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=routed.url, timeout=20, limits=limits, trust_env=False, verify=False
        ) as http:
            body = {"prompt": [1, 2], "stream": True}
            asking = [asyncio.create_task(http.post("/v1/completions", json=body)) for _ in range(100)]
            await until(lambda: sum(load.num_requests for load in routed.loads) == 100)
            gate.set()
            answers = await asyncio.gather(*asking)
        assert all(tokens(answer) == [f" {by(answer)}{k}" for k in range(3)] for answer in answers)
        assert sum(by(answer) == "a" for answer in answers) == 50


async def test_a_client_that_leaves_frees_everything_and_the_instance_hears_of_it(tmp_path: Path) -> None:
    async with instances("a", "b") as both, router(both, folder=tmp_path) as routed:
        for backend in both:
            backend.gate = asyncio.Event()
        async with routed.http.stream("POST", "/v1/completions", json={"prompt": [1] * 9, "stream": True}) as answer:
            async for _ in answer.aiter_bytes():
                break
            assert not routed.counters_are_zero()
        await until(routed.counters_are_zero)
        await until(lambda: sum(backend.dropped for backend in both) == 1)
        assert (await routed.outcome_of()).status == "aborted"


async def test_a_slow_client_slows_the_instance_down_and_loses_nothing() -> None:
    """Without back-pressure the router would have to hold all of it."""
    async with instances("a") as (a,), router([a]) as routed:
        a.tokens, a.padding = 400, "x" * 50_000
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, routed.address)
            await loop.sock_sendall(slow, raw_post(headers=b"connection: close\r\n"))
            await asyncio.sleep(0.3)
            assert a.served == 0  # it is held back: 20 MB do not fit anywhere on the way
            received = bytearray()
            async with asyncio.timeout(30):
                while data := await loop.sock_recv(slow, 1 << 16):
                    received += data
        assert a.served == 1
        assert received.count(b'"text"') == 400
        assert received.endswith(b"0\r\n\r\n")


async def test_a_client_that_takes_nothing_is_dropped_in_time_and_one_that_says_nothing_too() -> None:
    limits = replace(SHORT, client_stall_s=0.4, client_idle_s=0.4)
    async with instances("a") as (a,), router([a], limits=limits) as routed:
        a.tokens, a.padding = 400, "x" * 50_000
        with socket.socket() as stuck, socket.socket() as silent:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for client in (stuck, silent):
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, routed.address)
            await asyncio.get_running_loop().sock_sendall(stuck, raw_post())
            await until(lambda: routed.server.connections == 2)
            await until(lambda: routed.server.connections == 0)
            await until(lambda: a.dropped == 1)
        assert routed.counters_are_zero()


async def test_no_socket_waits_for_an_acknowledgement_before_it_sends() -> None:
    """Nagle's algorithm and a delayed acknowledgement add 40 ms to a first token."""
    async with instances("a") as (a,), router([a]) as routed:
        await routed.post()
        client = next(iter(routed.server._clients))._transport
        link = routed.server._fleet.pools["a"]._idle[0].transport
        for transport in (client, link):
            assert transport is not None
            assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_connections_to_an_instance_are_used_again() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        before = a.connections
        for _ in range(20):
            await routed.post()
        assert a.connections - before <= 2


async def test_a_pooled_connection_that_the_instance_closed_is_not_a_failure() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        for _ in range(5):
            a.until_eof = True  # closes its connection after each answer
            assert len(tokens(await routed.post())) == 3
        assert routed.server.tick().retries == 0
        assert routed.available() == {"a"}


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    async with instances("a", "b") as both, router(both, "round_robin") as routed:
        ahead = b"".join(raw_post(b'{"prompt":[1]}', b"x-request-id: r%d\r\n" % number) for number in range(5))
        reader, writer = await routed.connect(ahead)
        for number in range(5):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"x-request-id: r%d\r\n" % number in head
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()


async def test_what_the_router_cannot_serve_it_says(tmp_path: Path) -> None:
    limits = Limits(body_bytes=1000)
    async with instances("a") as (a,), router([a], limits=limits) as routed:
        assert (await routed.http.get("/nothing")).status_code == 404
        assert (await routed.post(prompt="x" * 2000)).status_code == 413
        for sent, status in (
            (b"POST /v1/completions HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}", b"505"),
            (b"nonsense\r\n\r\n", b"400"),
            (b"GET /health HTTP/1.1\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n", b"431"),
        ):
            reader, writer = await routed.connect(sent)
            assert (await reader.readline()).split()[1] == status
            writer.close()
        assert not a.seen


async def test_a_large_upload_is_told_to_go_on() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        reader, writer = await routed.connect(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        assert b"100" in await reader.readline()
        writer.write(b'7\r\n{"promp\r\n7\r\nt":[1]}\r\n0\r\n\r\n')
        await reader.readline()
        assert b"200" in await reader.readline()
        assert a.seen[0].body == b'{"prompt":[1]}'
        writer.close()


async def test_connections_beyond_the_limit_are_refused_and_the_others_live_on() -> None:
    async with instances("a") as (a,), router([a], limits=Limits(streams=2)) as routed:
        open_ones = [await routed.connect() for _ in range(2)]
        await until(lambda: routed.server.connections == 2)
        reader, writer = await routed.connect()
        assert b"503" in await reader.readline()
        writer.close()
        open_ones[0][1].write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200" in await open_ones[0][0].readline()
        for _, other in open_ones:
            other.close()


async def test_a_shutdown_lets_streams_finish_and_takes_no_new_ones() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        a.gate = asyncio.Event()
        asking = asyncio.create_task(routed.post())
        await until(lambda: bool(a.seen))
        ending = asyncio.create_task(routed.server.end(5.0))
        await asyncio.sleep(0.05)
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient(trust_env=False, verify=False) as late:
                await late.get(f"{routed.url}/health")
        a.gate.set()
        assert len(tokens(await asking)) == 3
        outcome = await ending
        assert (outcome.requests, outcome.cut, outcome.errors) == (1, 0, 0)


async def test_a_shutdown_that_cannot_wait_ends_streams_with_a_reason() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        a.gate = asyncio.Event()
        asking = asyncio.create_task(routed.post())
        await until(lambda: routed.load("a").ongoing_decode_tokens > 0)
        outcome = await routed.server.end(0.0)
        assert events(await asking)[-1]["error"]["message"] == "the router is shutting down"
        assert outcome.cut == 1


async def test_a_shutdown_lets_a_client_take_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.router.server.server.FLUSH_S", SOON_S)
    async with instances("a") as (a,), router([a]) as routed:
        reader, writer = await routed.connect()
        await until(lambda: routed.server.connections == 1)
        client = next(iter(routed.server._clients))
        client.write(bytes(16 << 20))
        assert client.unsent_bytes > 0
        ending = asyncio.create_task(routed.server.end(5.0))
        assert await reader.readexactly(16 << 20) == bytes(16 << 20)
        assert await reader.read() == b""
        await ending
        writer.close()


async def test_a_shutdown_waits_for_no_client_that_takes_nothing() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        reader, writer = await routed.connect()
        await until(lambda: routed.server.connections == 1)
        next(iter(routed.server._clients)).write(bytes(16 << 20))
        async with asyncio.timeout(SOON_S):
            await routed.server.end(5.0)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(16 << 20)
        writer.close()


async def test_the_metrics_page_counts_what_happened() -> None:
    async with instances("a") as (a,), router([a], "unified") as routed:
        for _ in range(3):
            await routed.post("s")
        assert await routed.metric("requests_total") == 3
        assert await routed.metric('outcomes_total{instance="a",status="ok"}') == 3
        assert await routed.metric('instance_available{instance="a"}') == 1
        assert await routed.metric('instance_num_requests{instance="a"}') == 0
        assert await routed.metric('instance_sessions{instance="a"}') == 1
        assert await routed.metric("first_byte_seconds_count") == 3
        assert await routed.metric("sessions_known") == 1
        assert await routed.metric('instance_index_blocks{instance="a"}') == len(routed.server._fleet.indexes["a"]) > 0
        routed.server._log._added_bytes += 512
        assert await routed.metric("log_backlog_bytes") == 512
        routed.server._log._added_bytes -= 512


async def test_models_and_health_are_answered() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        assert (await routed.http.get("/v1/models")).json()["data"][0]["id"] == "a"
        assert (await routed.http.get("/health")).json()["available"] == ["a"]
        a.health_status = 503
        await until(lambda: not routed.available())
        gone = await routed.http.get("/health")
        assert gone.status_code == 503
        assert "503" in gone.json()["unavailable"]["a"]
        refused = await routed.post()
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"


async def test_an_engines_own_word_sets_block_size_and_capacity() -> None:
    async with instances("a") as (a,):
        a.metrics = 'vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="10"} 1.0\n'
        async with router([a], instances=(InstanceSpec("a", a.url),)) as routed:
            assert routed.load("a").kv_capacity_tokens == 1280
            await routed.post()
            assert routed.server._dispatcher.block_tokens == 128


async def test_picks_are_counted_where_they_went() -> None:
    async with instances("a", "b") as both, router(both) as routed:
        served = Counter([by(await routed.post(prompt=f"number {n}", session_id=f"s{n}")) for n in range(6)])
        tick = routed.server.tick()
    assert {row.instance: row.picks for row in tick.instances} == {"a": served["a"], "b": served["b"]}
    assert sum(row.picks for row in tick.instances) == sum(tick.decisions.values()) == 6


async def test_an_idle_router_wakes_only_for_work_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = 0

    async with instances("a") as (a,), router([a], health=STEADY) as routed:
        beat_once = routed.server._beat_once

        def count_beat(now_s: float) -> None:
            nonlocal beats
            beats += 1
            beat_once(now_s)

        monkeypatch.setattr(routed.server, "_beat_once", count_beat)
        await until(lambda: len(routed.ticks) >= 3)
        assert beats <= 5, "a tick each second, and the first beat"


async def test_the_time_limits_of_the_first_request_after_a_rest_are_checked_as_often_as_any() -> None:
    short = Limits(first_byte_s=BEAT_S * BEATS_PER_LIMIT)
    async with instances("a") as (a,), router([a], health=STEADY, limits=short) as routed:
        await until(lambda: routed.server._is_resting)
        a.hang = True
        request = asyncio.create_task(routed.post())
        await until(lambda: routed.load("a").num_requests == 1)
        assert next_beat_s(routed) <= BEAT_S
        assert not routed.server._is_resting
        request.cancel()
        await until(lambda: routed.counters_are_zero() and routed.server._is_resting)


async def test_long_time_limits_are_checked_once_a_second_while_requests_are_in_flight() -> None:
    async with instances("a") as (a,), router([a], health=STEADY, limits=Limits()) as routed:
        a.hang = True
        request = asyncio.create_task(routed.post())
        await until(lambda: routed.load("a").num_requests == 1)
        before = routed.server._next_beat
        await until(lambda: routed.server._next_beat is not before)
        assert BEAT_S < next_beat_s(routed) <= 1.0 + TIMER_S
        request.cancel()


def next_beat_s(routed: Router) -> float:
    """Seconds until the router's next beat."""
    timer = routed.server._next_beat
    assert timer is not None
    return timer.when() - asyncio.get_running_loop().time()
