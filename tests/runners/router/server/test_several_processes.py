"""Several router processes on one port: sessions stay where they are, a death costs one process's requests alone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import psutil
import pytest

from results.records.errors import SpecError
from results.records.router_spec import BindingRules, InstanceSpec, RouterSpec
from runners.router.messages import RouterError, RouterReady, RouterTick, TickInstance, TickPick
from runners.router.server import several
from runners.router.server.process import RouterProcess
from runners.router.server.several import Processes, hold_port, merge_ticks
from tests.runners.router.routers import by, instances, members_of, until
from tests.servers.backend import Backend
from tests.servers.redis_server import RedisServer

SESSIONS, TURNS = 10, 6
WAIT_S = 8.0


def spec_for(backends: tuple[Backend, ...], server: RedisServer, **changes: Any) -> RouterSpec:
    rules = BindingRules(server.url, wait_s=WAIT_S)
    return RouterSpec(members_of(backends), "sticky", processes=2, bindings=rules, **changes)


@contextlib.asynccontextmanager
async def one_connection_each(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client that opens a connection for each request: the kernel chooses a process for each."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False, limits=limits) as client:
        yield client


async def send(client: httpx.AsyncClient, session: str) -> httpx.Response:
    return await client.post("/v1/completions", json={"prompt": [1, 2, 3], "stream": True, "session_id": session})


def router_children(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if "runners.router" in child.cmdline()]


async def test_sessions_stay_at_their_instance_whichever_process_a_turn_comes_to(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    ticks: list[RouterTick] = []
    async with instances("a", "b") as both:
        paths = {f"{kind}_path": str(tmp_path / f"{kind}.jsonl") for kind in ("decisions", "events")}
        spec = spec_for(both, redis_server, **paths)
        async with RouterProcess(spec, tmp_path / "router.json", ticks.append) as process:
            homes: dict[str, list[str]] = {}
            async with one_connection_each(process.url) as client:
                for _ in range(TURNS):
                    for number in range(SESSIONS):
                        answer = await send(client, f"s{number}")
                        assert answer.status_code == 200
                        homes.setdefault(f"s{number}", []).append(by(answer))
            sent = SESSIONS * TURNS
            await until(lambda: bool(ticks) and sum(row.picks for row in ticks[-1].instances) == sent)
            assert ticks[-1].sessions == SESSIONS
            outcome = await process.end()
        assert all(len(set(names)) == 1 for names in homes.values()), homes
        assert {names[0] for names in homes.values()} == {"a", "b"}
        assert (outcome.requests, outcome.picks, outcome.errors, outcome.died) == (sent, sent, 0, 0)
        written = [(tmp_path / f"decisions.{number}.jsonl").read_bytes().count(b"\n") for number in (1, 2)]
        assert sum(written) == sent
        assert min(written) >= 5, "both took connections"
        assert all(b'"added"' in (tmp_path / f"events.{number}.jsonl").read_bytes() for number in (1, 2))


async def test_the_last_tick_has_every_pick_of_every_process(tmp_path: Path, redis_server: RedisServer) -> None:
    ticks: list[RouterTick] = []
    async with (
        instances("a", "b") as both,
        RouterProcess(spec_for(both, redis_server), tmp_path / "router.json", ticks.append) as process,
        one_connection_each(process.url) as client,
    ):
        for number in range(SESSIONS):
            assert (await send(client, f"s{number}")).status_code == 200
        outcome = await process.end()
    assert outcome.picks == sum(row.picks for row in ticks[-1].instances) == SESSIONS


async def test_each_process_has_its_pages_at_a_port_of_its_own(tmp_path: Path, redis_server: RedisServer) -> None:
    async with (
        instances("a", "b") as both,
        RouterProcess(spec_for(both, redis_server), tmp_path / "router.json") as process,
        one_connection_each(process.url) as client,
    ):
        assert len(set(process.ready.pages)) == 2
        for _ in range(12):
            assert (await send(client, "s")).status_code == 200
        for path in ("/metrics", "/admin/instances", "/admin/instances/a/drain"):
            refused = await client.get(path)
            assert refused.status_code == 421
            assert any(f"{page}{path}" in refused.text for page in process.ready.pages)
        assert (await client.get("/health")).status_code == 200
        for page in process.ready.pages:
            assert "tracon_router" in (await client.get(f"{page}/metrics")).text
            seen = (await client.get(f"{page}/admin/instances")).json()
            assert [one["instance"] for one in seen["instances"]] == ["a", "b"]
            assert (await client.post(f"{page}/admin/instances/a/drain")).status_code == 200
        assert {by(await send(client, f"new{number}")) for number in range(6)} == {"b"}


async def test_a_killed_process_is_started_again_and_the_other_serves_meanwhile(
    tmp_path: Path, redis_server: RedisServer, capfd: pytest.CaptureFixture[str]
) -> None:
    async with instances("a", "b") as both:
        async with RouterProcess(spec_for(both, redis_server), tmp_path / "router.json") as process:
            pages = process.ready.pages
            async with one_connection_each(process.url) as client:
                home = by(await send(client, "s"))
                victim = router_children(process.pid)[0]
                os.kill(victim.pid, signal.SIGKILL)
                victim.wait(10)
                for _ in range(20):
                    assert by(await send(client, "s")) == home
                await until(lambda: len(router_children(process.pid)) == 2)
                async with asyncio.timeout(10):
                    await asyncio.gather(*(wait_for_page(page) for page in pages))
            outcome = await process.end()
        assert outcome.died == 1
        assert outcome.errors == 0


class FakeProcess:
    """A router process without one: its starts fail as listed in `errors`, and its first life ends at once."""

    ready = RouterReady("http://127.0.0.1:1", 1, ("a",), 16, ("http://127.0.0.1:2",))
    errors: ClassVar[list[OSError | None]] = []
    lives: ClassVar[int] = 0

    def __init__(self, *_: object) -> None:
        """It has no spec."""

    async def __aenter__(self) -> FakeProcess:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        FakeProcess.lives += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is left."""

    async def explain_end(self) -> str:
        if FakeProcess.lives > 1:
            await asyncio.Event().wait()
        return "it was killed"

    async def end(self, _: float | None) -> None:
        raise RouterError("it has no outcome")


@pytest.fixture
def fake_processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setattr(several, "RouterProcess", FakeProcess)
    monkeypatch.setattr(several, "RESTART_S", 0.0)
    FakeProcess.lives = 0
    bindings = BindingRules("redis://127.0.0.1:1/0")
    spec = RouterSpec((InstanceSpec("a", "http://127.0.0.1:1"),), processes=2, bindings=bindings)
    return Processes(spec, lambda tick: None)


async def test_a_host_that_can_start_no_process_is_an_error_and_no_wait(fake_processes: Processes) -> None:
    FakeProcess.errors = [OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))]
    with pytest.raises(RouterError, match="cannot be started: Resource temporarily unavailable") as refused:
        await asyncio.wait_for(fake_processes.start(), 5)
    assert "ulimit" in refused.value.remedy


async def test_a_process_that_cannot_be_started_again_for_a_while_is_tried_again(
    fake_processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeProcess.errors = [None, None, OSError(errno.EMFILE, os.strerror(errno.EMFILE))]
    await fake_processes.start()
    await until(lambda: FakeProcess.lives == 3)
    assert len(fake_processes._running) == 2
    assert "Too many open files" in capsys.readouterr().err
    await fake_processes.end()


async def wait_for_page(page: str) -> None:
    transport = httpx.AsyncHTTPTransport(retries=100)
    async with httpx.AsyncClient(trust_env=False, verify=False, transport=transport) as patient:
        assert (await patient.get(f"{page}/health")).status_code == 200


async def test_no_process_outlives_a_killed_parent(tmp_path: Path, redis_server: RedisServer) -> None:
    async with (
        instances("a", "b") as both,
        RouterProcess(spec_for(both, redis_server), tmp_path / "router.json") as process,
    ):
        children = router_children(process.pid)
        assert len(children) == 2
        os.kill(process.pid, signal.SIGKILL)
        gone, alive = await asyncio.to_thread(psutil.wait_procs, children, 15)
        assert not alive
        assert len(gone) == 2


async def test_a_router_that_cannot_start_says_why_once(tmp_path: Path, redis_server: RedisServer) -> None:
    async with instances("a", "b") as both, contextlib.AsyncExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        spec = spec_for(both, redis_server, port=taken.getsockname()[1])
        with pytest.raises(RouterError, match=f"cannot listen on 127.0.0.1:{spec.port}"):
            await stack.enter_async_context(RouterProcess(spec, tmp_path / "router.json"))


def test_a_port_that_several_processes_hold_is_not_shared_with_another_router() -> None:
    with hold_port("127.0.0.1", 0) as held, socket.socket() as serving:
        port = held.getsockname()[1]
        serving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        serving.bind(("127.0.0.1", port))
        serving.listen()
        with pytest.raises(RouterError, match="Address already in use"):
            hold_port("127.0.0.1", port)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"bindings": BindingRules()}, "2 processes share no table of sessions"),
        ({"index": "events"}, "cannot bind one endpoint of KV events"),
        ({"processes": 0}, "processes is 0"),
    ],
)
def test_what_several_processes_cannot_do_is_refused(changes: dict[str, Any], why: str) -> None:
    given: dict[str, Any] = {"processes": 2, "bindings": BindingRules("redis://127.0.0.1:6379/0")}
    member = InstanceSpec("a", "http://127.0.0.1:1", kv_events="tcp://127.0.0.1:2")
    with pytest.raises(SpecError, match=why):
        RouterSpec((member,), **(given | changes))


def test_ticks_of_several_processes_are_one_of_the_router() -> None:
    def tick(t_ns: int, requests: int, *, available: bool = True) -> RouterTick:
        row = TickInstance("a", available, "" if available else "it drains", requests, 10 * requests, 0, 3, picks=5)
        pick = TickPick(t_ns, f"r{t_ns}", "s", "a", "least")
        return RouterTick(t_ns, "sticky", (row,), 7, {"least": 2}, (pick,), retries=1, errors=2)

    merged = merge_ticks((tick(5, 1), tick(3, 2, available=False)))
    (row,) = merged.instances
    assert (row.num_requests, row.pending_prefill_tokens, row.picks, row.sessions) == (3, 30, 10, 3)
    assert (row.available, row.why) == (False, "by 1 of 2 processes: it drains")
    assert (merged.sessions, merged.decisions, merged.retries, merged.errors) == (7, {"least": 4}, 2, 4)
    assert [pick.request for pick in merged.latest] == ["r3", "r5"]
