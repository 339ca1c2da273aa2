"""What real clients and engines do that a simple one does not."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from runners.router.breaker import BreakerState
from runners.router.instances.internal_request import BODY_LIMIT_BYTES
from runners.router.server.paths import ROUTED
from tests.runners.router.routers import FAST, SHORT, by, instances, router, until


async def test_an_instance_that_came_back_takes_its_share_of_requests_at_once() -> None:
    async with instances("a", "b") as (a, b), router([a, b], "load_only") as routed:
        await a.kill()
        await until(lambda: routed.available() == {"b"})
        await a.start()
        health = routed.server._fleet.health
        await until(lambda: health.find_state("a") is BreakerState.HALF_OPEN)
        await until(lambda: health._breakers["a"].trials_at_once >= 32)
        for one in (a, b):
            one.ttft_s = 0.3
        served = Counter(map(by, await asyncio.gather(*(routed.post(str(number)) for number in range(60)))))
        assert served["a"] >= 25
        assert health.find_state("a") is BreakerState.CLOSED


async def test_an_instance_that_came_back_ill_fails_no_clients_request() -> None:
    async with instances("a", "b") as (a, b), router([a, b], "load_only", health=FAST) as routed:
        await a.kill()
        await until(lambda: routed.available() == {"b"})
        a.status = 500
        await a.start()
        health = routed.server._fleet.health
        await until(lambda: health.find_state("a") is BreakerState.HALF_OPEN)
        await until(lambda: health._breakers["a"].trials_at_once >= 8)
        answers = await asyncio.gather(*(routed.post(str(number)) for number in range(30)))
        assert {answer.status_code for answer in answers} == {200}
        assert health.find_state("a") is not BreakerState.CLOSED


@pytest.mark.parametrize("path", sorted(ROUTED))
async def test_what_an_engine_computes_is_routed(path: str) -> None:
    async with instances("a", "b") as both, router(both, "round_robin") as routed:
        body = {"model": "m", "input": "some words", "query": "q", "documents": ["d"], "session_id": "s"}
        assert {by(await routed.http.post(path, json=body)) for _ in range(2)} == {"a", "b"}
        assert {seen.path for one in both for seen in one.seen} == {path}
        pick = routed.server.tick().latest[-1]
        assert pick.session == "s"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/version"), ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/tokenizer_info")],
)
async def test_what_every_instance_answers_alike_is_passed_on(method: str, path: str) -> None:
    async with instances("a") as (a,), router([a]) as routed:
        answer = await routed.http.request(method, path, json={"prompt": "x"} if method == "POST" else None)
        assert answer.json() == {"path": path, "by": "a"}
        assert by(answer) == "a"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_slow_page_costs_no_instance_its_requests(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.router.server.pages.PASSED_ON_S", {"GET": 0.05, "POST": 0.05})
    async with instances("a", "b") as both, router(both) as routed:
        for one in both:
            one.slow_pages_s = 0.3
        path = "/tokenize" if method == "POST" else "/version"
        for _ in range(4):
            answer = await routed.http.request(method, path, json={"prompt": "x"} if method == "POST" else None)
            assert answer.status_code == 504
            assert "no answer within 0.05 s" in answer.json()["error"]["message"]
        assert routed.available() == {"a", "b"}
        assert {routed.server._fleet.health.find_state(one.name) for one in both} == {BreakerState.CLOSED}
        assert sum(len(one.seen) for one in both) == (4 if method == "POST" else 8)  # a long text is sent to one alone


async def test_pages_are_passed_on_while_their_answers_have_room() -> None:
    """Each answer may have 8 MiB: a thousand clients that ask at once must not take 8 GB of the router's memory."""
    limits = replace(SHORT, body_bytes=1 << 20, held_bytes=2 * BODY_LIMIT_BYTES)
    async with instances("a") as (a,), router([a], limits=limits) as routed:
        a.slow_pages_s = 0.5
        asked = [asyncio.create_task(routed.http.get("/version")) for _ in range(5)]
        answers = await asyncio.gather(*asked)
        assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503, 503]
        refused = next(answer for answer in answers if answer.status_code == 503)
        assert "as many as it may" in refused.json()["error"]["message"]
        a.slow_pages_s = 0.0
        assert (await routed.http.get("/version")).status_code == 200


async def test_an_instance_that_is_gone_is_noticed_by_a_page() -> None:
    slow = replace(FAST, probe_interval_s=60.0)
    async with instances("a", "b") as (a, b), router([a, b], health=slow) as routed:
        await a.kill()
        answers = [await routed.http.post("/tokenize", json={"prompt": "x"}) for _ in range(2)]
        assert [by(answer) for answer in answers] == ["b", "b"]
        assert routed.available() == {"b"}


async def test_a_page_is_not_asked_for_once_its_client_has_left() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        a.slow_pages_s = 60.0
        _, writer = await routed.connect(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: bool(a.seen))
        writer.transport.abort()
        await until(lambda: not routed.server._pages_open)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_ping_is_answered_as_health_is(method: str) -> None:
    async with instances("a") as (a,), router([a]) as routed:
        assert (await routed.http.request(method, "/ping")).json()["available"] == ["a"]


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/v1/responses/resp_1", 501, "x-tracon-instance"),
        ("POST", "/v1/responses/resp_1/cancel", 501, "x-tracon-instance"),
        ("POST", "/sleep", 501, "each instance"),
        ("POST", "/reset_prefix_cache", 501, "each instance"),
        ("POST", "/v1/load_lora_adapter", 501, "each instance"),
        ("GET", "/load", 501, "each instance"),
        ("POST", "/v1/audio/transcriptions", 501, "audio"),
        ("POST", "/v1/completions/render", 501, "rendering"),
        ("POST", "/inference/v1/abort_requests", 501, "each instance"),
        ("GET", "/openapi.json", 501, "one engine"),
        ("GET", "/static/swagger-ui.css", 501, "one engine"),
        ("GET", "/v1/completions", 405, "POST"),
        ("POST", "/v1/completions/", 404, "without the slash"),
        ("OPTIONS", "/v1/chat/completions", 405, "CORS"),
        ("OPTIONS", "/v1/models", 405, "CORS"),
        ("GET", "/nothing", 404, "/nothing"),
    ],
)
async def test_what_is_not_passed_on_is_answered_with_the_reason(
    method: str, path: str, status: int, says: str
) -> None:
    async with instances("a") as (a,), router([a]) as routed:
        answer = await routed.http.request(method, path)
        assert answer.status_code == status
        assert says in answer.json()["error"]["message"]
