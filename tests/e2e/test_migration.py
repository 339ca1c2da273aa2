"""Sessions move between two real engines behind a real router, and what becomes of them when things break.

The engines schedule by priority, hold 131 072 tokens in blocks of 32, and free blocks that no target pulls after some
seconds. A session migrates because its instance is hot: its neighbor's long prompt waits there, behind prompts that
the router knows nothing of.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from results.records.decisions import DecisionRecord, KvTransfer
from results.records.router_spec import InstanceSpec, TransferRules
from runners.router.why import explain_picks
from tests.e2e.engine_pair import BLOCK, KEPT_S, Pair, Routed, cached, draw, ids, routed

pytestmark = [
    pytest.mark.engine, pytest.mark.fault, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session"),
]  # fmt: skip

EAR = {"hot_tokens": 2000, "cooldown_s": 60.0}
PREFIX = 64 * BLOCK
WAITING = 14
"""Prompts that the router knows nothing of, each as long as a context may be: a second of work. `h` has room for all of
them twice, so that the sessions' prefixes stay."""
RULES = TransferRules(timeout_s=20.0, priority=-1)


@pytest_asyncio.fixture(loop_scope="session")
async def pair(engines: Pair) -> Pair:
    """Both engines run with Mooncake and are idle."""
    await engines.ready("mooncake")
    return engines


@contextlib.asynccontextmanager
async def ear(
    pair: Pair, folder: Path, rules: TransferRules = RULES, members: tuple[InstanceSpec, ...] = ()
) -> AsyncIterator[Routed]:
    """A router with EAR; session `s` and its neighbor `x` live on `h`."""
    members = members or (pair.member("h"), pair.member("t"))
    async with routed(pair, folder, members, "ear", rules, **EAR) as made:
        homes = [(await made.turn(name, draw(2 * BLOCK))).headers["x-tracon-instance"] for name in ("s", "y", "x")]
        assert homes == ["h", "t", "h"]
        yield made


@contextlib.asynccontextmanager
async def hot(made: Routed) -> AsyncIterator[None]:
    """`h` is hot for the router: a prompt of its neighbor `x` waits behind others, for as long as the engine needs."""
    asked: list[asyncio.Task[Any]] = []
    try:
        async with asyncio.timeout(30):
            while (await made.loads())["h"]["pending_prefill_tokens"] <= EAR["hot_tokens"]:
                if not asked or asked[-1].done():  # done: the neighbor was answered before anybody looked
                    asked += [asyncio.create_task(made.pair.complete("h", draw(4000))) for _ in range(WAITING)]
                    await asyncio.sleep(0.05)
                    asked.append(asyncio.create_task(made.turn("x", draw(3900))))
                await asyncio.sleep(0.005)
        yield
    finally:
        await asyncio.gather(*asked, return_exceptions=True)


async def until_asked(made: Routed, session: str) -> None:
    """Wait until the router has begun a migration of this session."""
    async with asyncio.timeout(30):
        while not any(line.session == session for tick in made.ticks for line in tick.migrations):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def no_transfers(made: Routed) -> object:
    """The pairs between which no KV is moved for now."""
    return (await made.http.get("/admin/instances")).json()["no_transfers"]


def outcomes(made: Routed) -> list[str]:
    """What became of the picks that wanted to migrate."""
    return [record.outcome.migration for record, _ in moved(made) if record.outcome is not None]


def moved(made: Routed) -> list[tuple[DecisionRecord, KvTransfer]]:
    """The picks that wanted to migrate, with what became of their transfer."""
    found = []
    for record in made.records:
        if record.decision.migrate_from:
            assert record.outcome is not None
            assert record.outcome.transfer is not None
            found.append((record, record.outcome.transfer))
    return found


async def test_a_hot_session_moves_with_its_kv_and_is_answered_as_if_it_had_stayed(pair: Pair, tmp_path: Path) -> None:
    context = draw(PREFIX)
    turns = [context, context + draw(60), context + draw(120)]
    asked = {"max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
    async with ear(pair, tmp_path) as made:
        answers = [await made.turn("s", turns[0])]
        async with hot(made):
            answers.append(await made.turn("s", turns[1]))
        answers.append(await made.turn("s", turns[2]))
        assert [answer.headers["x-tracon-instance"] for answer in answers] == ["h", "t", "t"]
        assert cached(answers[1]) >= PREFIX - BLOCK, "out of the KV that was moved"
        alone = [await pair.complete("h", prompt, **asked) for prompt in turns]
        assert [ids(answer) for answer in answers] == [one["choices"][0]["token_ids"] for one in alone]
        async with asyncio.timeout(5):
            while not any(line.phase == "done" for tick in made.ticks for line in tick.migrations):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        page = (await made.http.get("/metrics")).text
        assert 'tracon_router_migrations_total{status="transferred"} 1.0' in page
    ((record, transfer),) = moved(made)
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.migration) == ("ok", "transferred")
    waiting = {load.instance: load.pending_prefill_tokens for load in record.cluster.instances}
    assert waiting["h"] > EAR["hot_tokens"] >= waiting["t"]
    assert (transfer.source, transfer.target, transfer.status) == ("h", "t", "transferred")
    assert transfer.prefix_tokens in (PREFIX - BLOCK, PREFIX)
    assert transfer.external_tokens is not None, transfer.counted_reason
    assert transfer.external_tokens >= PREFIX - 2 * BLOCK
    stamps = (
        record.t_ns, transfer.t_begin_ns, transfer.t_source_sent_ns, transfer.t_source_done_ns,
        transfer.t_target_sent_ns, transfer.t_done_ns,
    )  # fmt: skip
    assert list(stamps) == sorted(stamps)
    assert "the session's KV was moved" in explain_picks([record])[-1]
    later = made.records[-1]
    assert (later.request.owner, later.decision.reason) == ("t", "bound")
    assert later.request.cached_tokens["t"] >= PREFIX - BLOCK


async def test_what_the_source_has_lost_of_it_is_computed_for_the_transfer(pair: Pair, tmp_path: Path) -> None:
    context = draw(PREFIX)
    async with ear(pair, tmp_path) as made:
        await made.turn("s", context)
        await pair.forget("h")
        await pair.complete("h", context[: PREFIX // 2 + 1])
        async with hot(made):
            answer = await made.turn("s", context + draw(60))
        assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "t")
        assert cached(answer) >= PREFIX - BLOCK
    ((record, transfer),) = moved(made)
    assert record.outcome is not None
    assert (record.outcome.migration, transfer.source_cached_tokens) == ("transferred", PREFIX // 2)


async def test_a_transfer_that_is_dropped_is_recomputed_and_then_not_tried_for_a_while(
    pair: Pair, tmp_path: Path
) -> None:
    """No server listens at the source's bootstrap address."""
    members = (pair.member("h", bootstrap="http://127.0.0.1:9"), pair.member("t"))
    rules = TransferRules(timeout_s=10.0, attempts=1, failures_to_quarantine=1, quarantine_s=60.0, priority=-1)
    context = draw(PREFIX)
    async with ear(pair, tmp_path, rules, members) as made:
        await made.turn("s", context)
        async with hot(made):
            answer = await made.turn("s", context + draw(60))
            assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "t")
        neighbors = draw(PREFIX)
        await made.turn("x", neighbors)
        async with hot(made):
            follows = await made.turn("x", neighbors)
            assert follows.headers["x-tracon-instance"] == "t"
        assert await no_transfers(made)
    first, second = moved(made)
    for record, transfer, status in ((*first, "failed"), (*second, "refused")):
        assert record.outcome is not None
        assert (record.outcome.migration, transfer.status) == ("recomputed", status)
    assert "quarantine" in second[0].request.cut_off["t"] or "failed" in second[0].request.cut_off["t"]


async def test_a_target_that_stays_full_is_given_up_on_and_serves_once_it_has_room(pair: Pair, tmp_path: Path) -> None:
    rules = TransferRules(timeout_s=3.0, attempts=1, failures_to_quarantine=1, quarantine_s=60.0, priority=-1)
    context = draw(PREFIX)
    async with ear(pair, tmp_path, rules) as made:
        await made.turn("s", context)
        async with pair.full("t"), hot(made):
            asking = asyncio.create_task(made.turn("s", context + draw(60)))
            async with asyncio.timeout(30):
                while not await no_transfers(made):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert not asking.done()
        answer = await asking
        assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "t")
        assert cached(answer) == 0
        await pair.released("h", KEPT_S + 4.0)
    ((record, transfer),) = moved(made)
    assert record.outcome is not None
    assert (record.outcome.migration, transfer.status) == ("recomputed", "failed")
    assert transfer.reason == "not done within 3 s"
    assert transfer.t_target_sent_ns > 0


async def test_a_target_that_gets_room_in_time_takes_the_kv(pair: Pair, tmp_path: Path) -> None:
    context = draw(PREFIX)
    async with ear(pair, tmp_path) as made:
        await made.turn("s", context)
        prefills = pair.said("h", "prefill_done")
        async with contextlib.AsyncExitStack() as until_room:
            await until_room.enter_async_context(pair.full("t"))
            async with hot(made):
                asking = asyncio.create_task(made.turn("s", context + draw(60)))
                await pair.until_said("h", "prefill_done", prefills + 1)
                await until_room.aclose()  # now: the prompts that keep h hot may take longer than it keeps the KV
        answer = await asking
        assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "t")
        assert cached(answer) >= PREFIX - BLOCK
        await pair.released("h", KEPT_S + 4.0)
    assert outcomes(made) == ["transferred"]


async def test_a_client_that_leaves_during_the_transfer_leaves_nothing_behind(pair: Pair, tmp_path: Path) -> None:
    context = draw(PREFIX)
    async with ear(pair, tmp_path) as made:
        await made.turn("s", context)
        async with hot(made):
            with pair.stopped("t"):
                leaving = asyncio.create_task(made.turn("s", context + draw(60)))
                await until_asked(made, "s")
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)
        await pair.released("h", KEPT_S + 4.0)
        assert (await made.turn("s", context + draw(60))).headers["x-tracon-instance"] == "h"
    ((record, _),) = moved(made)
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.migration) == ("aborted", "failed")


async def test_a_session_does_not_move_to_an_instance_that_is_gone(pair: Pair, tmp_path: Path) -> None:
    context = draw(PREFIX)
    async with ear(pair, tmp_path) as made:
        await made.turn("s", context)
        async with hot(made):
            pair.signal("t", signal.SIGKILL)
            await made.until_available("h")
            answer = await made.turn("s", context + draw(60))
            assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "h")
            assert cached(answer) >= PREFIX - BLOCK
    assert outcomes(made) == []


async def test_a_target_that_dies_during_the_transfer_leaves_the_session_where_its_kv_is(
    pair: Pair, tmp_path: Path
) -> None:
    context = draw(PREFIX)
    async with ear(pair, tmp_path) as made:
        await made.turn("s", context)
        prefills = pair.said("h", "prefill_done")
        async with hot(made):
            with pair.stopped("t"):
                asking = asyncio.create_task(made.turn("s", context + draw(60)))
                await pair.until_said("h", "prefill_done", prefills + 1)
                pair.signal("t", signal.SIGKILL)
            answer = await asking
            assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "h")
        await made.until_available("h")
        assert cached(answer) >= PREFIX - BLOCK
        await pair.released("h", KEPT_S + 4.0)
        again = await made.turn("s", context + draw(60))
        assert again.headers["x-tracon-instance"] == "h"
    ((record, transfer),) = moved(made)
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.migration) == ("retried", "failed"), transfer.reason
    assert transfer.reason.startswith(("the target", "t is lost")), transfer.reason


async def test_a_target_that_dies_after_the_transfer_loses_its_stream_and_not_its_session(
    pair: Pair, tmp_path: Path
) -> None:
    context = draw(PREFIX)
    async with ear(pair, tmp_path) as made:
        await made.turn("s", context)
        async with hot(made):
            text = await made.killed_in_its_answer(context + draw(60), "t")
        assert "failed in the middle of the response" in text
        await made.until_available("h")
        answer = await made.turn("s", context + draw(60))
        assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "h")
        await pair.released("h", KEPT_S + 4.0)
    ((record, transfer),) = moved(made)
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.migration) == ("error", "transferred")
    assert transfer.status == "transferred"


@pytest.mark.parametrize("moment", ["known", "prefill request", "pull", "after"])
async def test_a_source_that_dies_costs_a_recompute_at_most(pair: Pair, tmp_path: Path, moment: str) -> None:
    context = draw(PREFIX)
    async with ear(pair, tmp_path) as made:
        await made.turn("s", context)
        prefills = pair.said("h", "prefill_done")
        async with hot(made):
            if moment == "known":
                pair.signal("h", signal.SIGKILL)
                await made.until_available("t")
                answer = await made.turn("s", context + draw(60))
            elif moment == "prefill request":
                with pair.stopped("h"):
                    asking = asyncio.create_task(made.turn("s", context + draw(60)))
                    await until_asked(made, "s")
                    pair.signal("h", signal.SIGKILL)
                answer = await asking
            elif moment == "pull":
                with pair.stopped("t"):
                    asking = asyncio.create_task(made.turn("s", context + draw(60)))
                    await pair.until_said("h", "prefill_done", prefills + 1)
                    await asyncio.sleep(0.1)  # the decode request follows at once
                    pair.signal("h", signal.SIGKILL)
                answer = await asking
            else:
                answer = await made.turn("s", context + draw(60))
                pair.signal("h", signal.SIGKILL)
            assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "t")
            assert (cached(answer) > 0) == (moment == "after")
        await made.until_available("t")
        again = await made.turn("s", context + draw(60))
        assert (again.status_code, again.headers["x-tracon-instance"]) == (200, "t")
        assert cached(again) >= PREFIX - BLOCK, "whatever became of it, the session's KV is there now"
    expected = {"known": [], "prefill request": ["recomputed"], "pull": ["recomputed"], "after": ["transferred"]}
    assert outcomes(made) == expected[moment]
    if moment in ("prefill request", "pull"):
        ((_, transfer),) = moved(made)
        assert transfer.reason.startswith(("the source", "h is lost")), (
            transfer.reason
        )  # the transfer request notices it, or a probe


async def test_a_source_that_stands_still_during_the_pull_costs_the_time_limit_and_a_recompute(
    pair: Pair, tmp_path: Path
) -> None:
    rules = TransferRules(timeout_s=4.0, attempts=1, priority=-1)
    context = draw(PREFIX)
    later = context + draw(60)
    async with ear(pair, tmp_path, rules) as made:
        await made.turn("s", context)
        prefills = pair.said("h", "prefill_done")
        async with hot(made):
            with contextlib.ExitStack() as h_stands:
                with pair.stopped("t"):
                    asking = asyncio.create_task(made.turn("s", later))
                    await pair.until_said("h", "prefill_done", prefills + 1)
                    h_stands.enter_context(pair.stopped("h"))
                answer = await asking
            assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "t")
            assert cached(answer) == 0
        await made.until_available("h", "t")
        await pair.released("h", KEPT_S + 4.0)
        await pair.released("t", KEPT_S + 4.0)
        alone = await pair.complete("h", later, max_tokens=8, ignore_eos=True, return_token_ids=True)
        assert ids(answer) == alone["choices"][0]["token_ids"], "what came late has spoilt nothing"
    ((record, transfer),) = moved(made)
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.migration) == ("ok", "recomputed")
    assert transfer.reason == "not done within 4 s"


async def test_a_session_moves_over_nixl_too(engines: Pair, tmp_path: Path) -> None:
    await engines.ready("nixl")
    context = draw(PREFIX)
    async with ear(engines, tmp_path) as made:
        await made.turn("s", context)
        async with hot(made):
            answer = await made.turn("s", context + draw(60))
            assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "t")
            assert cached(answer) >= PREFIX - BLOCK
        later = await made.turn("s", context + draw(60))
        assert later.headers["x-tracon-instance"] == "t"
        await engines.released("h", KEPT_S + 4.0)
    ((record, transfer),) = moved(made)
    assert record.outcome is not None
    assert (record.outcome.migration, transfer.transport, transfer.status) == ("transferred", "nixl", "transferred")
    assert transfer.external_tokens is not None, transfer.counted_reason
    assert transfer.external_tokens >= PREFIX - 2 * BLOCK
    assert transfer.bytes_from == "counter"
