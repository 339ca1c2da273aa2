"""Several routers before the same instances, with one table of sessions in a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from results.records.router_spec import PASSWORD, BindingRules, RouterSpec
from runners.router.server.process import RouterProcess
from runners.router.sessions.bindings import BindingVersion, MigrationClaim
from runners.router.sessions.shared_bindings import SharedBindings
from tests.runners.router.fake_transfers import fake_transport
from tests.runners.router.routers import Router, by, instances, members_of, router, until
from tests.runners.router.test_migration import EAR, LONG, OWN, hot
from tests.servers.backend import Backend
from tests.servers.redis_server import RedisServer

WAIT_S = 8.0


@contextlib.asynccontextmanager
async def two(
    server: RedisServer,
    both: Sequence[Backend],
    policy: str,
    folder: Path | None = None,
    wait_s: float = WAIT_S,
    **changes: Any,
) -> AsyncIterator[tuple[Router, Router]]:
    """Two routers with one table."""
    rules = BindingRules(server.url, wait_s=wait_s)
    folders = [None, None] if folder is None else [folder / name for name in ("one", "other")]
    for made in folders:
        if made is not None:
            made.mkdir()
    async with (
        router(both, policy, folder=folders[0], bindings=rules, **changes) as one,
        router(both, policy, folder=folders[1], bindings=rules, **changes) as other,
    ):
        yield one, other


def shared(routed: Router) -> SharedBindings:
    bindings = routed.server.cluster.bindings
    assert isinstance(bindings, SharedBindings)
    return bindings


async def test_turns_of_a_session_through_two_router_processes_go_to_one_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "s3cret")
    with RedisServer(tmp_path, password="s3cret") as server:
        async with instances("a", "b") as both, contextlib.AsyncExitStack() as stack:
            rules, clients = BindingRules(server.url, wait_s=WAIT_S), []
            for name in ("one", "other"):
                log = str(tmp_path / f"{name}.jsonl")
                spec = RouterSpec(members_of(both), "sticky", bindings=rules, decisions_path=log)
                process = await stack.enter_async_context(RouterProcess(spec, tmp_path / f"{name}.json"))
                client = httpx.AsyncClient(base_url=process.url, trust_env=False, verify=False)
                clients.append(await stack.enter_async_context(client))
            homes: dict[str, list[str]] = {}
            for turn in range(4):
                for number in range(8):
                    body = {"prompt": [1, 2, 3], "stream": True, "session_id": f"s{number}"}
                    answer = await clients[(turn + number) % 2].post("/v1/completions", json=body)
                    assert answer.status_code == 200
                    homes.setdefault(f"s{number}", []).append(by(answer))
            assert all(len(set(names)) == 1 for names in homes.values()), homes
            assert {names[0] for names in homes.values()} == {"a", "b"}
            page = (await clients[0].get("/metrics")).text
            assert 'tracon_router_bindings_round_trips_total{operation="arrive"} 16.0' in page
            assert "tracon_router_bindings_seconds_count" in page
    files = [tmp_path / f"{name}.{kind}" for name in ("one", "other") for kind in ("json", "jsonl")]
    assert not [path for path in files if "s3cret" in path.read_text()]


async def test_a_session_that_migrated_through_one_router_stays_in_its_cooldown_through_the_other(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    async with (
        instances("a", "b") as both,
        two(redis_server, both, "ear", tmp_path, parameters=EAR) as (one, other),
    ):
        async with hot(one, both) as (_, target):
            assert by(await one.post("s", prompt=OWN)) == target.name, "it migrates"
            assert by(await other.post("s", prompt=OWN)) == target.name
        homes = {name: by(await other.post(name)) for name in ("x0", "x1", "x2")}
        resident = next(name for name, home in homes.items() if home == target.name)
        target.hang = True
        pending = asyncio.create_task(other.post(resident, prompt=LONG))
        seen = target.served
        await until(lambda: len(target.seen) > seen)
        target.hang = False
        assert by(await other.post("s", prompt=OWN)) == target.name, "hot now, and it stays"
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        records = await other.records(1)
        await until(lambda: "hot_cooldown" in (tmp_path / "other" / "decisions.jsonl").read_text())
        assert records[0].request.owner == target.name
        assert records[0].request.since_migration_s is not None


async def test_while_one_router_moves_a_session_the_other_serves_it_where_it_is(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    async with (
        instances("a", "b") as both,
        two(redis_server, both, "ear", tmp_path, parameters=EAR) as (one, other),
    ):
        fake = fake_transport(one)
        async with hot(one, both) as (source, target):
            moving = asyncio.create_task(one.post("s", prompt=OWN))
            await until(lambda: bool(fake.movements))
            assert by(await other.post("s", prompt=OWN)) == source.name
            assert shared(other).moving_to("s") == target.name
            fake.movements[0].finish("transferred")
            fake.movements[0].settle_transfer()
            assert by(await moving) == target.name
            assert by(await other.post("s", prompt=OWN)) == target.name


async def test_a_router_that_comes_second_with_a_migration_picks_again(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    """The other one claims between this one's question and its pick."""
    async with (
        instances("a", "b") as both,
        two(redis_server, both, "ear", tmp_path, parameters=EAR) as (one, _),
        hot(one, both) as (source, target),
    ):
        bindings = shared(one)
        ask = bindings.claim_migration

        def too_late(
            session: str, instance: str, binding: BindingVersion, then: Callable[[bool], None]
        ) -> MigrationClaim | None:
            row = f"tracon:s:{session}"
            redis_server.client().hset(row, items=["to", instance, "by", "another", "until", 1 << 60])
            return ask(session, instance, binding, then)

        bindings.claim_migration = too_late  # type: ignore[method-assign]
        answer = await one.post("s", prompt=OWN)
        assert (answer.status_code, by(answer)) == (200, source.name)
        assert bindings.moving_to("s") == target.name
        assert await one.metric('bindings_failures_total{kind="refused"}') == 1
        records = await one.records(5)
    first, again = [record for record in records if record.request.session == "s"][-2:]
    assert first.decision.migrate_from == source.name
    assert first.outcome is not None
    assert (first.outcome.status, first.outcome.migration) == ("retried", "failed")
    assert (again.decision.reason, again.request.moving_to) == ("hot_moving", target.name)


@pytest.mark.fault
async def test_requests_go_on_while_redis_is_killed_and_comes_back_empty(redis_server: RedisServer) -> None:
    async with instances("a", "b") as both, two(redis_server, both, "sticky") as pair:
        stop, homes, failed = False, dict[str, list[str]](), list[str]()

        async def client(session: str) -> None:
            turn = 0
            while not stop:
                answer = await pair[turn % 2].post(session)
                turn += 1
                if answer.status_code != 200:
                    failed.append(answer.text)
                homes.setdefault(session, []).append(by(answer))

        async def further(turns: int) -> None:
            least = {session: len(names) + turns for session, names in homes.items()}
            await until(lambda: bool(least) and all(len(homes[session]) >= least[session] for session in least))

        clients = [asyncio.create_task(client(f"s{number}")) for number in range(6)]
        await until(lambda: len(homes) == 6)
        await further(4)
        redis_server.kill()
        await further(6)
        assert not any(shared(routed).shared for routed in pair)
        redis_server.start()
        await until(lambda: all(shared(routed).shared for routed in pair))
        await further(4)
        stop = True
        await asyncio.gather(*clients)
        assert not failed
        assert all(len(set(names)) == 1 for names in homes.values()), "both copies knew where each one lives"
        assert by(await pair[0].post("new")) == by(await pair[1].post("new")), "and new ones are shared again"
        assert await pair[0].metric('bindings_failures_total{kind="away"}') > 0


async def test_a_client_that_leaves_while_its_session_is_asked_for_leaves_nothing(redis_server: RedisServer) -> None:
    async with instances("a", "b") as both, two(redis_server, both, "sticky", wait_s=1.0) as (one, _):
        redis_server.hang()
        with pytest.raises(httpx.ReadTimeout):
            await one.http.post("/v1/completions", json={"prompt": [1], "session_id": "s"}, timeout=0.2)
        await until(lambda: not one.server._traffic.arriving)
        redis_server.go_on()
        await until(lambda: shared(one).shared)
        assert (await one.post("s")).status_code == 200
        assert sum(len(backend.seen) for backend in both) == 1


async def test_a_router_that_ends_waits_for_a_session_that_is_asked_for(redis_server: RedisServer) -> None:
    async with instances("a", "b") as both, two(redis_server, both, "sticky", wait_s=0.5) as (one, _):
        redis_server.hang()
        asking = asyncio.create_task(one.post("s"))
        await until(lambda: bool(one.server._traffic.arriving))
        ending = asyncio.create_task(one.server.end(5.0))
        assert (await asking).status_code == 200
        await ending
        redis_server.go_on()
