"""Faults that routers of today show, each on a real router: clients see none that could have been hidden from them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from results.records.router_spec import InstanceSpec
from runners.router.breaker import BreakerState
from runners.router.prefix_index import PrefixIndex
from tests.runners.router.routers import (
    FAST,
    SHORT,
    SOON_S,
    STEADY,
    by,
    events,
    instances,
    raw_post,
    router,
    tokens,
    until,
)
from tests.servers.backend import Backend

SPREADING = ("lmetric", "unified_spread", "leastwork_spread")


@pytest.mark.parametrize("policy", ["round_robin", "load_only", "sticky", *SPREADING])
async def test_an_instance_that_is_dead_costs_no_client_anything(policy: str, tmp_path: Path) -> None:
    """Its sessions move at the first try; it is not asked again and again."""
    async with instances("a", "b", "c") as three, router(three, policy, folder=tmp_path) as routed:
        before = {session: by(await routed.post(session)) for session in map(str, range(12))}
        await three[0].kill()
        for session in before:
            answer = await routed.post(session)
            assert answer.status_code == 200
            assert len(tokens(answer)) == 3
            assert by(answer) != "a"
        records = await routed.records(24)
        failed = [record for record in records if record.outcome and record.outcome.status == "retried"]
        assert len(failed) <= 1
        await until(lambda: routed.available() == {"b", "c"})


@pytest.mark.parametrize("moment", ["on accept", "after the head"])
async def test_an_instance_that_dies_before_the_first_byte_is_retried_elsewhere(moment: str) -> None:
    async with instances("a", "b") as (a, b), router([a, b], "round_robin") as routed:
        a.hang = moment == "on accept"
        a.hang_after_head = True
        asking = [asyncio.create_task(routed.post(str(k))) for k in range(4)]
        await until(lambda: len(a.seen) == 2)
        await asyncio.sleep(0.02)
        await a.kill()
        answers = await asyncio.gather(*asking)
        assert [answer.status_code for answer in answers] == [200] * 4
        assert {by(answer) for answer in answers} == {"b"}
        assert all(len(tokens(answer)) == 3 for answer in answers)


async def test_a_request_that_is_retried_while_the_router_drains_is_served() -> None:
    """Between its two attempts nothing is in flight, and yet the drain is not over."""
    async with instances("a", "b") as both, router(both, "round_robin") as routed:
        for one in both:
            one.hang = True
        asking = asyncio.create_task(routed.post())
        await until(lambda: any(one.seen for one in both))
        first, other = both if both[0].seen else both[::-1]
        ending = asyncio.create_task(routed.server.end(5.0))
        await asyncio.sleep(0.02)
        other.hang, other.ttft_s = False, 0.1
        await first.kill()
        answer = await asking
        assert (answer.status_code, by(answer)) == (200, other.name)
        assert (await ending).cut == 0


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("until_eof", [False, True])
async def test_an_instance_that_dies_in_a_stream_ends_it_with_an_event_that_says_so(
    torn: bool, until_eof: bool, tmp_path: Path
) -> None:
    async with instances("a") as (a,), router([a], folder=tmp_path) as routed:
        a.die_after, a.torn, a.until_eof = 2, torn and not until_eof, until_eof
        answer = await routed.post("s")
        assert answer.status_code == 200
        assert tokens(answer) == [" a0", " a1"]  # what was sent whole, and nothing broken
        error = events(answer)[-1]["error"]
        assert error["type"] == "instance_failed"
        assert error["instance"] == "a"
        assert "connection closed" in error["message"]
        assert (await routed.outcome_of()).status == "error"
        assert routed.server.tick().errors == 1


async def test_the_connection_of_a_client_whose_stream_broke_can_be_used_again() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        a.die_after = 1
        await routed.post()
        a.die_after = -1
        assert len(tokens(await routed.post())) == 3
        assert routed.server.connections == 1


async def test_a_whole_answer_that_breaks_is_cut_and_never_passed_off_as_whole() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        a.die_after = 1
        with pytest.raises(httpx.RemoteProtocolError):
            await routed.post(stream=False)


async def test_an_instance_that_hangs_is_left_for_another_in_time(tmp_path: Path) -> None:
    limits = replace(SHORT, first_byte_s=0.3)
    async with instances("a", "b") as (a, b), router([a, b], "round_robin", folder=tmp_path, limits=limits) as routed:
        a.hang = True
        answers = await asyncio.gather(*(routed.post(str(k)) for k in range(6)))
        assert all(answer.status_code == 200 and by(answer) == "b" for answer in answers)
        await until(lambda: routed.available() == {"b"})  # three in a row
        records = await routed.records(9)
        texts = {record.outcome.error for record in records if record.outcome and record.outcome.status == "retried"}
        assert texts == {"no byte of the response within 0.3 s"}


async def test_an_instance_whose_process_hangs_is_found_by_its_probes() -> None:
    """Long before a request's own limit: what waits there goes elsewhere."""
    async with instances("a", "b") as (a, b), router([a, b], "round_robin") as routed:
        a.hang = a.health_hangs = True
        answers = await asyncio.gather(*(routed.post(str(k)) for k in range(4)))
        assert all(by(answer) == "b" for answer in answers)
        assert routed.available() == {"b"}


@pytest.mark.parametrize("capacity", [4096, None])
async def test_an_instance_that_was_only_silent_keeps_its_sessions_and_what_it_holds(
    capacity: int | None, tmp_path: Path
) -> None:
    """Also where the router asks the engine for its capacity: it asks again, and learns nothing new."""
    async with instances("a", "b") as (a, b), contextlib.AsyncExitStack() as stack:
        for one in (a, b):
            one.metrics = 'vllm:cache_config_info{block_size="4",engine="0",num_gpu_blocks="1024"} 1.0\n'
        specs = tuple(InstanceSpec(one.name, one.url, kv_capacity_tokens=capacity, block_tokens=4) for one in (a, b))
        routed = await stack.enter_async_context(router([a, b], "unified", folder=tmp_path, instances=specs))
        prompt = list(range(64))
        owner = by(await routed.post("s", prompt=prompt))
        silent = a if owner == "a" else b
        silent.health_hangs = True
        await until(lambda: owner not in routed.available())
        silent.health_hangs = False
        await until(lambda: owner in routed.available() and not routed.server._fleet._asking)
        assert by(await routed.post("s", prompt=prompt)) == owner
        record = (await routed.records(2))[1]
        assert record.request.owner == owner
        assert record.request.cached_tokens[owner] == 60


async def test_an_instance_that_came_back_with_another_capacity_is_another_process() -> None:
    page = 'vllm:cache_config_info{{block_size="4",engine="0",num_gpu_blocks="{}"}} 1.0\n'
    async with instances("a") as (a,):
        a.metrics = page.format(1024)
        async with router([a], instances=(InstanceSpec("a", a.url, block_tokens=4),)) as routed:
            await routed.post(prompt=list(range(64)))
            a.health_hangs, a.metrics = True, page.format(512)
            await until(lambda: not routed.available())
            a.health_hangs = False
            await until(lambda: routed.load("a").kv_capacity_tokens == 2048)
            index = routed.server._fleet.indexes["a"]
            assert isinstance(index, PrefixIndex)
            assert (len(index), index.capacity_blocks) == (0, 512)


async def test_a_stream_that_stands_still_is_ended_with_a_reason() -> None:
    async with instances("a") as (a,), router([a], limits=replace(SHORT, stall_s=0.4)) as routed:
        a.gate = asyncio.Event()
        answer = await routed.post()
        assert "nothing came for 0.4 s" in events(answer)[-1]["error"]["message"]
        await until(lambda: a.dropped == 1)


async def test_an_instance_that_answers_500_is_left_out_and_clients_see_none_of_it(tmp_path: Path) -> None:
    async with instances("a", "b") as (a, b), router([a, b], "round_robin", folder=tmp_path) as routed:
        a.status = 500
        answers = [await routed.post(str(k)) for k in range(20)]
        assert [answer.status_code for answer in answers] == [200] * 20
        assert {by(answer) for answer in answers} == {"b"}
        assert len(a.seen) < 10  # three to open the breaker, then a trial now and then
        assert routed.server.tick().retries == len(a.seen)


async def test_the_last_instances_500_reaches_the_client_as_it_is() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        a.status = 500
        answer = await routed.post()
        assert answer.status_code == 500
        assert answer.json()["error"]["message"] == "a"


async def test_a_request_that_every_instance_answers_with_500_takes_none_out() -> None:
    async with instances("a", "b", "c") as three, router(three, "round_robin", health=STEADY) as routed:
        for backend in three:
            backend.status = 500
        assert {(await routed.post(str(number))).status_code for number in range(9)} == {500}
        assert routed.available() == {"a", "b", "c"}
        for backend in three:
            backend.status = 200
        assert (await routed.post("well")).status_code == 200


async def test_instances_that_use_up_the_attempts_of_a_request_with_500_are_left_out() -> None:
    async with instances("a", "b", "c", "d") as four, router(four, "round_robin", health=STEADY) as routed:
        for backend in four[:3]:
            backend.status = 500
        codes = [(await routed.post(str(number))).status_code for number in range(40)]
        assert routed.available() == {"d"}
        assert codes[-5:] == [200] * 5


async def test_a_500_counts_at_once_where_requests_are_not_retried() -> None:
    limits = replace(SHORT, attempts=1)
    async with instances("a", "b") as (a, b), router([a, b], "round_robin", health=STEADY, limits=limits) as routed:
        a.status = 500
        codes = [(await routed.post(str(number))).status_code for number in range(10)]
        assert codes.count(500) == 3
        assert routed.available() == {"b"}


async def test_an_instance_that_answers_all_with_500_is_left_out_as_soon_as_another_one_is_up() -> None:
    """Until then none is better than it."""
    health = replace(FAST, probe_timeout_s=SOON_S, open_max_s=60.0)
    async with instances("a", "b") as (a, b), router([a, b], "round_robin", health=health) as routed:
        a.status = 500
        await b.kill()
        await until(lambda: routed.available() == {"a"})
        assert {(await routed.post(str(number))).status_code for number in range(5)} == {500}
        assert routed.available() == {"a"}
        await b.start()
        await until(lambda: "b" in routed.available())
        a.seen.clear()
        assert {(await routed.post(str(number))).status_code for number in range(40)} == {200}
        assert len(a.seen) < 15, "three to open its breaker, then a trial now and then"


async def test_instances_whose_health_fails_too_are_left_out_also_where_none_is_well() -> None:
    """Each 500 has the instance probed at once. A request that waits there when the last probe fails gets a 502."""
    async with instances("a", "b") as both, router(both, "round_robin", health=STEADY) as routed:
        for backend in both:
            backend.status, backend.health_status = 500, 503
        async with asyncio.timeout(SOON_S):
            while routed.available():
                assert (await routed.post("s")).status_code in (500, 502, 503)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
async def test_a_4xx_never_opens_the_breaker_and_is_never_an_instances_fault(status: int) -> None:
    async with instances("a") as (a,), router([a]) as routed:
        a.status = status
        for _ in range(20):
            answer = await routed.post("s")
            assert answer.status_code == status
        assert routed.available() == {"a"}
        assert routed.server._fleet.health.find_state("a") is BreakerState.CLOSED
        a.status = 200
        assert (await routed.post("s")).status_code == 200


async def test_a_refusal_is_tried_elsewhere_and_remembered_for_the_session(tmp_path: Path) -> None:
    """Where it is seen, not by matching messages afterwards."""
    async with instances("a", "b") as (a, b), router([a, b], "round_robin", folder=tmp_path) as routed:
        a.status, a.answer_headers = 429, {"x-recommended-pause-ms": "60000"}
        answer = await routed.post("s")
        assert answer.status_code == 200
        assert by(answer) == "b"
        second = (await routed.records(2))[1]
        assert second.request.rejects == {"a": 1}
        assert second.request.tried == ("a",)
        loads = {load.instance: load for load in second.cluster.instances}
        assert loads["a"].paused_for_s > 50
        assert loads["a"].available


async def test_an_instance_that_comes_back_gets_sessions_again() -> None:
    async with instances("a", "b") as (a, b), router([a, b], "sticky") as routed:
        sessions = [str(number) for number in range(20)]
        for session in sessions:
            await routed.post(session)
        await a.kill()
        for session in sessions:
            assert by(await routed.post(session)) == "b"
        await a.start()
        await until(lambda: "a" in routed.available())
        again = [by(await routed.post(session)) for session in sessions]
        assert again.count("a") >= 5
        assert routed.server.tick().errors == 0


async def test_the_index_forgets_what_a_dead_instance_held(tmp_path: Path) -> None:
    async with instances("a", "b") as (a, b), router([a, b], "unified", folder=tmp_path) as routed:
        prompt = list(range(64))
        owner = by(await routed.post("s", prompt=prompt))
        dead = a if owner == "a" else b
        await dead.kill()
        await until(lambda: owner not in routed.available())
        await dead.start()
        await until(lambda: owner in routed.available())
        await routed.post("t", prompt=prompt)
        record = (await routed.records(2))[1]
        assert record.request.cached_tokens[owner] == 0


@pytest.mark.parametrize("shared_prefix", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("policy", SPREADING)
async def test_twenty_sessions_are_never_all_on_one_of_four(policy: str, at_once: bool, shared_prefix: bool) -> None:
    """Neither where nothing is in flight at a pick, nor where every prompt begins with the same system prompt."""
    async with instances("a", "b", "c", "d") as four, router(four, policy, health=STEADY) as routed:
        prefix = list(range(64)) if shared_prefix else []
        first: Counter[str] = Counter()

        async def session(number: int) -> None:
            prompt = [*prefix, *(1000 * number + k for k in range(32))]
            for turn in range(3):
                answer = await routed.post(str(number), prompt=prompt)
                assert answer.status_code == 200, answer.text
                first[by(answer)] += turn == 0
                prompt = [*prompt, *prompt[-16:]]

        if at_once:
            for backend in four:
                backend.ttft_s = 0.02
            await asyncio.gather(*(session(number) for number in range(20)))
        else:
            for number in range(20):
                await session(number)
        assert set(first) == {"a", "b", "c", "d"}
        assert max(first.values()) <= 10, first


@pytest.mark.parametrize("policy", ["round_robin", "sticky", "unified"])
async def test_nothing_that_may_be_picked_is_a_503_at_once(policy: str, tmp_path: Path) -> None:
    async with instances("a", "b") as (a, b), router([a, b], policy, folder=tmp_path) as routed:
        await a.kill()
        await b.kill()
        await until(lambda: not routed.available())
        answer = await routed.post("s")
        assert answer.status_code == 503
        assert "no instance" in answer.json()["error"]["message"]
        record = (await routed.records(1))[-1]
        assert record.decision.instance == ""


async def test_a_request_that_every_instance_drops_ends_with_a_502_and_the_fleet_lives() -> None:
    """One poisonous request must not empty the fleet."""
    async with instances("a", "b", "c") as three, router(three, "round_robin") as routed:
        for backend in three:
            backend.die_after = 0
        answer = await routed.post("poison")
        assert answer.status_code == 502
        for backend in three:
            backend.die_after = -1
        assert routed.available() == {"a", "b", "c"}
        assert (await routed.post("well")).status_code == 200


async def test_clients_that_leave_at_any_moment_leave_all_counters_at_zero() -> None:
    async with instances("a", "b") as both, router(both, "unified") as routed:
        for backend in both:
            backend.tokens, backend.itl_s, backend.ttft_s = 30, 0.004, 0.01

        async def leave(after_s: float) -> None:
            _, writer = await routed.connect(raw_post(b'{"prompt":[1,2,3],"stream":true,"user":"u"}'))
            await asyncio.sleep(after_s)
            writer.transport.abort()

        await asyncio.gather(*(leave(0.004 * number) for number in range(40)))
        await until(routed.counters_are_zero)
        await until(lambda: routed.server.connections == 0)
        await until(lambda: sum(backend.dropped for backend in both) > 10)


async def test_an_answer_that_is_no_http_is_retried_elsewhere() -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if b"/health" in request:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        else:
            writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(garbage, "127.0.0.1", 0)
    strange = Backend("a", port=listening.sockets[0].getsockname()[1])
    async with instances("b") as (b,), router([strange, b], "round_robin") as routed:
        for number in range(4):
            answer = await routed.post(str(number))
            assert (answer.status_code, by(answer)) == (200, "b")
    listening.close()


async def test_a_users_policy_that_fails_does_not_stop_the_service(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Mine:\n"
        "    name = 'mine'\n"
        "    source = 'here'\n"
        "    def decide(self, request, cluster):\n"
        "        raise KeyError('no such thing')\n"
    )
    async with instances("a", "b") as both, router(both, str(file)) as routed:
        assert (await routed.post()).status_code == 200
        assert routed.server.tick().decisions == {"policy_error": 1}
        assert await routed.metric("policy_errors_total") == 1


async def test_a_disk_that_refuses_records_costs_records_and_nothing_else(tmp_path: Path) -> None:
    async with instances("a") as (a,), router([a], decisions_path="/dev/full") as routed:
        for _ in range(3):
            assert (await routed.post()).status_code == 200
    assert routed.outcome is not None
    assert routed.outcome.records_lost == 3
    assert "space" in routed.outcome.log_error


async def test_a_disk_that_refuses_instance_events_costs_events_and_nothing_else() -> None:
    async with instances("a") as (a,), router([a], events_path="/dev/full") as routed:
        assert (await routed.post()).status_code == 200
    assert routed.outcome is not None
    assert (routed.outcome.records_lost, routed.outcome.events_lost) == (0, 4)
    assert "space" in routed.outcome.log_error


def test_fast_health_rules_are_those_of_production_in_small() -> None:
    """The tests above shorten times and nothing else."""
    assert replace(FAST, probe_interval_s=2.0, probe_timeout_s=5.0, open_s=1.0, open_max_s=30.0) == type(FAST)()
