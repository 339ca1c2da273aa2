"""One table of sessions for several routers: what each of them may rely on, and what holds while Redis is away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest

from results.records.errors import SpecError
from results.records.router_spec import PASSWORD, BindingRules, InstanceSpec, RouterSpec
from runners.router.sessions.shared_bindings import PENDING_LOSSES
from tests.runners.router.routers import until
from tests.runners.router.sessions.shared import sharing
from tests.servers.redis_server import RedisServer


async def test_what_one_router_has_bound_the_other_knows_with_turns_and_counts(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (a, b):
        assert await a.turn("s") == 0
        a.serve("s", "a")
        assert await b.turn("s") == 1
        assert b.find_owner("s") == "a"
        for one in (a, b):
            assert (one.count_active("a"), one.count_assigned("a"), one.count_active("b")) == (1, 1, 0)


async def test_a_late_commit_from_where_the_session_left_does_not_undo_the_move(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (a, b):
        await a.bind("s", "a")
        await b.turn("s")
        late = b.find_version("s")
        await a.turn("s")
        claim, granted = await a.claimed("s", "b")
        assert granted
        a.serve("s", "b", claim=claim)
        await a.settled()
        b.serve("s", "c", late)
        await b.settled()
        assert b.find_owner("s") == "b", "what was refused says how it is"
        await a.turn("s")
        assert a.find_owner("s") == "b"
        assert b._counts.binding_failures["refused"] == 1


async def test_only_one_router_may_migrate_a_session_and_its_cooldown_holds_for_all(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (a, b):
        await a.bind("s", "a")
        await b.turn("s")
        claim, granted = await a.claimed("s", "b")
        assert granted
        refused, may = await b.claimed("s", "c")
        assert not may
        assert b.moving_to("s") == "b", "and it is known where to"
        assert refused is not None
        refused.release_right()
        await b.settled()
        assert (await a.claimed("s", "c"))[1] is False, "not twice by one router either"
        assert claim is not None
        a.serve("s", "b", claim=claim)
        claim.release_right()
        await b.turn("s")
        assert (b.find_owner("s"), b.moving_to("s")) == ("b", "")
        since_s = b.since_migration_s("s", monotonic())
        assert since_s is not None
        assert 0 <= since_s < 30


async def test_a_migration_that_came_to_nothing_frees_the_session_at_once(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (a, b):
        await a.bind("s", "a")
        claim, _ = await a.claimed("s", "b")
        assert claim is not None
        claim.release_right()
        await b.turn("s")
        assert (b.find_owner("s"), b.moving_to("s"), b.since_migration_s("s", monotonic())) == ("a", "", None)
        assert (await b.claimed("s", "c"))[1]


async def test_a_migration_that_was_overtaken_frees_the_session_when_it_ends(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (a, b):
        await a.bind("s", "a")
        claim, granted = await a.claimed("s", "b")
        assert claim is not None
        assert granted
        await b.turn("s")
        b.serve("s", "c")  # without its KV: the session is on its way to elsewhere
        await b.settled()
        a.refresh_table()  # the claim is renewed, and is for a session that lives elsewhere now
        await a.settled()
        await b.turn("s")
        assert (b.find_owner("s"), b.moving_to("s")) == ("c", "b"), "the transfer has not ended"
        claim.release_right()
        await a.settled()
        for router in (a, b):
            await router.turn("s")
            assert (router.find_owner("s"), router.moving_to("s")) == ("c", "")


async def test_the_claim_of_a_router_that_died_expires_and_that_of_a_living_one_does_not(
    redis_server: RedisServer,
) -> None:
    async with sharing(redis_server.url, claim_s=0.4) as (a, b):
        for session in ("s", "t"):
            await a.bind(session, "a")
            await b.turn(session)
        await a.claimed("s", "b")
        living, _ = await a.claimed("t", "b")
        del a._claims[next(token for token, claim in a._claims.items() if claim.session == "s")]
        last = monotonic() + 8
        while not (await b.claimed("s", "c"))[1]:
            assert monotonic() < last
            assert not (await b.claimed("t", "c"))[1]
            a.refresh_table()
            await asyncio.sleep(0.05)
        a.serve("t", "b", claim=living)
        await a.settled()
        await b.turn("t")
        assert b.find_owner("t") == "b"


async def test_a_lost_cache_frees_all_its_sessions_for_all_routers_once(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (a, b):
        for number in range(20):
            await a.bind(f"s{number}", "ab"[number % 2])
        await a.settled()
        b.refresh_table()
        await b.settled()
        a.release_instance("a")
        await a.settled()
        assert await b.turn("s0") == 1, "its turns are remembered"
        assert (b.find_owner("s0"), b.count_active("a"), b.count_active("b"), b.count_assigned("a")) == ("", 0, 10, 10)
        b.serve("s0", "a")
        await b.settled()
        a.refresh_table()
        await a.settled()
        assert a.count_active("a") == 1
        late = b._instances["a"]._replace(epoch=0)
        b._report_loss("a", late)
        await b.settled()
        assert await a.turn("s0") == 2
        assert a.find_owner("s0") == "a", "a router that notices the same loss later removes nothing"


async def test_an_instance_that_came_back_gets_its_share_once_whoever_sees_it(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (a, b):
        for number in range(1200):
            a.ask_arrival(f"s{number}", 0.0, lambda turn: None)
        await a.settled()
        for number in range(1200):
            a.serve(f"s{number}", "ab"[number % 2])
        await a.settled()
        assert a.rebalance_sessions("c", ("a", "b")) == ()
        b.rebalance_sessions("c", ("a", "b"))
        await a.settled()
        await b.settled()
        a.refresh_table()
        await a.settled()
        assert [a.count_active(name) for name in "abc"] == [400, 400, 400]
        assert a.count_assigned("c") == 400
        await b.turn("s0")
        assert b.find_owner("s0") == "c", "the one unused for longest"
        assert b.since_migration_s("s0", monotonic()) is None


async def test_sessions_are_forgotten_after_their_time(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (a, b):
        a.ttl_s = b.ttl_s = 0.2
        await a.bind("s", "a")
        await a.settled()
        await asyncio.sleep(0.3)
        a.expire_sessions(monotonic())
        assert await b.turn("s") == 0
        assert (b.find_owner("s"), b.count_active("a")) == ("", 0)
        a.refresh_table()
        await a.settled()
        await asyncio.sleep(0.3)
        assert {key for key in redis_server.client().scan_iter() if ":s:" in key or ":on:" in key} == set()


async def test_while_redis_is_away_the_working_copy_decides_and_tells_it_afterwards(
    redis_server: RedisServer, capfd: pytest.CaptureFixture[str]
) -> None:
    async with sharing(redis_server.url) as (a, b):
        for session in ("s", "t"):
            await a.bind(session, "a")
            await a.settled()
            await b.turn(session)
        redis_server.kill()
        b.refresh_table()  # as every second: the connection is seen to be gone
        await b.settled()
        assert not b.shared
        assert await a.turn("s") == 1
        assert a.find_owner("s") == "a"
        claim, granted = await a.claimed("s", "b")
        assert granted
        a.commit_version("s", "b", monotonic(), a.find_version("s"), migrates=True, claim=claim)
        assert a.find_owner("s") == "b"
        assert a.count_active("b") == 1
        assert await a.turn("new") == 0
        redis_server.start()
        await until(lambda: a.shared and b.shared)
        assert await b.turn("s") == 2, "turns of its own copy"
        assert b.find_owner("s") == "a", "all that it knows"
        assert await a.turn("s") >= 2
        assert a.find_owner("s") == "b", "the later of two versions"
        await b.turn("s")
        assert b.find_owner("s") == "b"
        assert b.since_migration_s("s", monotonic()) is not None
        await b.turn("t")
        assert b.find_owner("t") == "a"
    stderr = capfd.readouterr().err
    assert stderr.count("does not answer") == 2, "once for each router"
    assert stderr.count("through Redis again") == 2
    assert a._counts.binding_failures["away"] + a._counts.binding_failures["lost"] > 0


async def test_a_loss_seen_while_redis_was_away_is_told_before_anything_else(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (a, b):
        await a.bind("s", "a")
        await b.turn("s")
        redis_server.kill()
        await a.turn("s")
        await b.turn("s")
        a.release_instance("a")
        redis_server.start()
        await until(lambda: a.shared and b.shared)
        await a.turn("s")
        assert a.find_owner("s") == ""


async def test_instances_that_are_gone_for_good_are_not_remembered_for_ever(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url) as (a, _):
        await until(lambda: a.shared)
        a.refresh_table()
        await a.settled()
        assert set(a._instances) == {"a", "b", "c"}
        a._names = lambda: ("c", "d")
        a.refresh_table()
        await a.settled()
        assert set(a._instances) == {"c", "d"}
        redis_server.kill()
        a.refresh_table()
        await a.settled()
        for number in range(PENDING_LOSSES + 5):
            a.release_instance(f"i{number}")
        assert len(a._pending_losses) == PENDING_LOSSES
        assert f"i{PENDING_LOSSES + 4}" in a._pending_losses


async def test_a_redis_that_hangs_costs_a_request_no_more_than_the_wait(redis_server: RedisServer) -> None:
    async with sharing(redis_server.url, wait_s=0.05) as (a, _):
        await until(lambda: a._link.prompt)
        redis_server.hang()
        asked = [asyncio.create_task(a.turn(f"s{number}")) for number in range(20)]
        async with asyncio.timeout(8):
            assert await asyncio.gather(*asked) == [0] * 20
        assert a._counts.binding_failures["timeout"] >= 1
        before = a._counts.binding_failures["timeout"]
        assert not a._link.prompt
        assert await a.turn("s0") == 1, "no request waits a second time"
        assert a._counts.binding_failures["timeout"] == before
        redis_server.go_on()
        await until(lambda: a._link.prompt)
        await a.turn("s0")
        await until(lambda: not a.open)
        assert redis_server.client().hget("tracon:s:s0", "t") is not None


async def test_a_redis_that_refuses_the_password_or_is_not_there_stops_no_router(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer(tmp_path, password="s3cret") as server:
        async with sharing(server.url, 1) as (a,):
            assert not a.shared
            assert await a.turn("s") == 0
        monkeypatch.setenv(PASSWORD, "s3cret")
        async with sharing(server.url, 1) as (a,):
            assert a.shared
    async with sharing(server.url, 1) as (a,):
        assert await a.turn("s") == 0
    stderr = capfd.readouterr().err
    assert stderr.count("does not answer") == 2
    assert "s3cret" not in stderr


@pytest.mark.parametrize(
    ("rules", "match"),
    [
        (BindingRules("redis://user:s3cret@h:1/0"), "carries a password"),
        (BindingRules("redis://h:1/0?password=s3cret"), "has a query"),
        (BindingRules("http://h:1"), "scheme 'http'"),
        (BindingRules("redis://"), "no host"),
        (BindingRules("redis://h/x"), "database 'x'"),
        (BindingRules("redis://h:99999/0"), "cannot be read"),
        (BindingRules("redis://h", wait_s=0), "wait_s"),
        (BindingRules("redis://h", prefix=""), "prefix"),
    ],
)
def test_a_place_for_bindings_that_cannot_be_used_is_refused_without_its_secret(
    rules: BindingRules, match: str
) -> None:
    with pytest.raises(SpecError, match=match) as refused:
        RouterSpec((InstanceSpec("a", "http://h"),), bindings=rules)
    assert "s3cret" not in f"{refused.value} {refused.value.remedy}"


@pytest.mark.parametrize("url", ["redis://h", "redis://user@h:1/3", "rediss://h:1/0", "unix:///run/redis.sock", ""])
def test_places_that_can_be_used(url: str) -> None:
    assert RouterSpec((InstanceSpec("a", "http://h"),), bindings=BindingRules(url)).bindings.redis_url == url
