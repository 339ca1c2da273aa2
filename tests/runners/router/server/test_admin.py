"""Instances come and go while the router runs."""

from __future__ import annotations

import asyncio

import pytest

from results.records.router_spec import HealthRules
from runners.router.instances import fleet
from runners.router.instances.fleet import CacheFacts
from runners.router.instances.upstream import Pool
from runners.router.messages import RouterError
from runners.router.server.front import ClientConnection
from runners.router.server.pages import ADMIN_TOKEN
from tests.runners.router.routers import SOON_S, STEADY, by, events, instances, router, tokens, until


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
        await until(lambda: sum(load.ongoing_decode_tokens for load in routed.loads) == 48)
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
        await until(lambda: sum(load.ongoing_decode_tokens for load in routed.loads) == 8)
        await routed.post()  # b's turn
        a.hang = True
        waiting = asyncio.create_task(routed.post())
        await until(lambda: len(a.seen) == 2)
        assert (await routed.http.delete("/admin/instances/a?now=1")).status_code == 200
        assert "was removed" in events(await streaming)[-1]["error"]["message"]
        assert by(await waiting) == "b"


async def test_an_instance_that_is_added_twice_at_once_joins_once_and_probed() -> None:
    async with instances("a", "b") as (a, b), router([a], "round_robin") as routed:
        body = {"instance": "b", "url": b.url}
        answers = await asyncio.gather(*(routed.http.post("/admin/instances", json=body) for _ in range(3)))
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409]
        assert routed.available() == {"a", "b"}


async def test_an_instance_that_joins_is_neither_drained_nor_removed_meanwhile() -> None:
    patient = HealthRules(probe_interval_s=0.05, probe_timeout_s=SOON_S, open_s=0.1, open_max_s=0.4)
    async with instances("a", "b") as (a, b), router([a], health=patient) as routed:
        b.health_hangs = True
        body = {"instance": "b", "url": b.url, "kv_capacity_tokens": 4096, "block_tokens": 4}
        adding = asyncio.create_task(routed.http.post("/admin/instances", json=body))
        await until(lambda: b.connections > 0)
        for method, path in (("DELETE", "b"), ("DELETE", "b?now=1"), ("POST", "b/drain"), ("POST", "b/resume")):
            answer = await routed.http.request(method, f"/admin/instances/{path}")
            assert answer.status_code == 409
            assert "being added" in answer.json()["error"]["message"]
        rows = (await routed.http.get("/admin/instances")).json()["instances"]
        assert [(row["instance"], row["available"]) for row in rows] == [("a", True), ("b", False)]
        await b.kill()  # its probe fails at once
        assert (await adding).status_code == 200
        assert (await routed.http.delete("/admin/instances/b")).status_code == 200
        assert [row.instance for row in routed.server.tick().instances] == ["a"]


async def test_an_instance_that_could_not_join_can_be_added_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(instance: str) -> None:
        raise RouterError(f"no probe of {instance}")

    async with instances("a", "b") as (a, b), router([a]) as routed:
        body = {"instance": "b", "url": b.url}
        with monkeypatch.context() as patched:
            patched.setattr(routed.server._fleet._probes, "add_instance", refuse)
            assert (await routed.http.post("/admin/instances", json=body)).status_code == 409
        assert [row.instance for row in routed.server.tick().instances] == ["a"]
        assert (await routed.http.post("/admin/instances", json=body)).status_code == 200
        assert routed.available() == {"a", "b"}


async def test_what_an_instance_reports_after_it_was_removed_and_added_again_is_not_the_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer_late(pool: Pool) -> CacheFacts:
        asked.set()
        await may_answer.wait()
        return CacheFacts(block_tokens=4, capacity_tokens=64)

    async with instances("a", "b") as (a, b), router([a]) as routed:
        body = {"instance": "b", "url": b.url, "block_tokens": 4}
        assert (await routed.http.post("/admin/instances", json=body)).status_code == 200
        monkeypatch.setattr(fleet, "ask_cache", answer_late)
        running = routed.server._fleet
        running._recover_instance("b")
        await asked.wait()
        assert (await routed.http.delete("/admin/instances/b")).status_code == 200
        again = {**body, "kv_capacity_tokens": 4096}
        assert (await routed.http.post("/admin/instances", json=again)).status_code == 200
        index = running.indexes["b"]
        may_answer.set()
        await until(lambda: not running._asking)
        assert running.indexes["b"] is index
        assert {load.instance: load.kv_capacity_tokens for load in routed.loads} == {"a": 4096, "b": 4096}


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
        other = await routed.http.post("/admin/instances", json={"instance": "b", "url": b.url, "kv_capacity": 9})
        assert other.status_code == 400
        assert "it has no field kv_capacity; it has instance, url," in other.json()["error"]["message"]
        bad_name = await routed.http.post("/admin/instances", json={"instance": "b\nc", "url": b.url})
        assert bad_name.status_code == 409


async def test_an_instance_that_is_no_text_is_refused_as_one() -> None:
    async with instances("a") as (a,), router([a], health=STEADY) as routed:
        body, json = b'{"instance":"\xff","url":"http://h:1"}', {"content-type": "application/json"}
        answer = await routed.http.post("/admin/instances", content=body, headers=json)
        assert answer.status_code == 400
        assert "not an instance" in answer.text


async def test_the_operators_pages_are_closed_to_other_machines() -> None:
    async with instances("a") as (a,), router([a], health=STEADY) as routed:
        await routed.http.get("/health")
        connection: ClientConnection = next(iter(routed.server._clients))
        connection.local = False
        assert (await routed.http.post("/admin/instances/a/drain")).status_code == 403
        assert routed.available() == {"a"}
        assert (await routed.post()).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8080"},
        {"origin": "http://127.0.0.1"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"forwarded": "for=10.0.0.1"},
        {"x-forwarded-for": "10.0.0.1"},
        {"x-forwarded-proto": "https"},
        {"via": "1.1 proxy"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/instances"),
        ("POST", "/admin/instances"),
        ("POST", "/admin/instances/a/drain"),
        ("DELETE", "/admin/instances/a"),
    ],
)
async def test_neither_a_web_page_nor_a_proxy_reaches_the_operators_pages(
    method: str, path: str, headers: dict[str, str]
) -> None:
    async with instances("a", "b") as (a, b), router([a], health=STEADY) as routed:
        body = {"instance": "b", "url": b.url} if path == "/admin/instances" and method == "POST" else None
        answer = await routed.http.request(method, path, json=body, headers=headers)
        assert answer.status_code == 403
        assert [row.instance for row in routed.server.tick().instances] == ["a"]
        assert routed.available() == {"a"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "", 200),
        ("POST", "", 200),
        ("POST", "/a/drain", 200),
        ("POST", "/a/resume", 409),  # it does not drain
        ("DELETE", "/a", 200),
    ],
)
async def test_with_a_token_every_page_of_the_operator_asks_for_it(
    method: str, path: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADMIN_TOKEN, "s3cret")
    async with instances("a", "b") as (a, b), router([a], health=STEADY) as routed:
        body = {"instance": "b", "url": b.url} if (method, path) == ("POST", "") else None
        for value in ("", "Bearer", "Bearer s3cre", "s3cret", "Basic s3cret"):
            headers = {"authorization": value} if value else {}
            answer = await routed.http.request(method, f"/admin/instances{path}", json=body, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert ADMIN_TOKEN in answer.json()["error"]["message"]
            assert "s3cret" not in answer.text
            assert routed.available() == {"a"}
        twice = [("authorization", "Bearer s3cret"), ("authorization", "Bearer s3cret")]
        assert (await routed.http.request(method, f"/admin/instances{path}", headers=twice)).status_code == 401
        right = {"authorization": "bearer s3cret"}
        answer = await routed.http.request(method, f"/admin/instances{path}", json=body, headers=right)
        assert answer.status_code == status


async def test_a_token_opens_the_operators_pages_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADMIN_TOKEN, "s3cret")
    async with instances("a") as (a,), router([a], health=STEADY) as routed:
        right = {"authorization": "Bearer s3cret"}
        assert (await routed.http.get("/admin/instances", headers={**right, "via": "1.1 proxy"})).status_code == 403
        assert (await routed.http.get("/metrics")).status_code == 200
        assert (await routed.post()).status_code == 200


@pytest.mark.parametrize("token", ["", " \n"])
async def test_a_token_that_is_empty_by_mistake_opens_nothing(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADMIN_TOKEN, token)
    async with instances("a") as (a,):
        with pytest.raises(RouterError, match="is set and empty") as refused:
            async with router([a]):
                pass
        assert "unset" in refused.value.remedy


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_an_instance_is_added_by_json_only(kind: str) -> None:
    async with instances("a", "b") as (a, b), router([a], health=STEADY) as routed:
        content = b'{"instance": "b", "url": "%b"}' % b.url.encode()
        answer = await routed.http.post("/admin/instances", content=content, headers={"content-type": kind})
        assert answer.status_code == 415
        assert routed.available() == {"a"}


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "127.0.0.2:80", "[::1]:8080"])
async def test_an_operator_on_this_machine_is_let_in_by_any_of_its_own_names(host: str) -> None:
    async with instances("a") as (a,), router([a], health=STEADY) as routed:
        assert (await routed.http.get("/admin/instances", headers={"host": host})).status_code == 200
