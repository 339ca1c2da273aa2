"""Sessions and prompts move between two real engines behind a real router, and what becomes of them when things break.

The engines schedule by priority, hold 49 152 tokens in blocks of 32, and free what nobody pulls after some seconds. A
session migrates because its instance is hot: its neighbour's long prompt waits there, behind prompts that the router
knows nothing of.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from launch import patching
from launch.environment import find_engine
from launch.local import LocalBackend
from results.decisions import DecisionRecord, KvTransfer
from runners.router.spec import InstanceSpec, TransferRules
from runners.router.why import explain
from tests.e2e.engine_pair import BLOCK, KEPT_S, PROFILE, Pair, Routed, draw, routed

pytestmark = [
    pytest.mark.engine, pytest.mark.fault, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module"),
]  # fmt: skip

EAR = {"hot_tokens": 2000, "cooldown_s": 60.0}
PREFIX = 64 * BLOCK
WAITING = 8
"""Prompts that the router knows nothing of, each as long as a context may be; `h` has room for all of them."""
RULES = TransferRules(timeout_s=20.0, leg_priority=-1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    engine = find_engine("cpu")
    patching.apply(engine)
    async with LocalBackend(PROFILE, engine) as backend:
        yield Pair(backend, engine, tmp_path_factory.mktemp("engines"))


@pytest_asyncio.fixture(loop_scope="module")
async def pair(engines: Pair) -> Pair:
    """Both engines run with Mooncake and are idle."""
    await engines.ready("mooncake")
    return engines


@contextlib.asynccontextmanager
async def ear(
    pair: Pair, folder: Path, rules: TransferRules = RULES, members: tuple[InstanceSpec, ...] = ()
) -> AsyncIterator[Routed]:
    """A router with EAR; session `s` and its neighbour `x` live on `h`."""
    members = members or (pair.member("h"), pair.member("t"))
    async with routed(pair, folder, members, "ear", rules, **EAR) as made:
        homes = [(await made.turn(name, draw(2 * BLOCK))).headers["x-tracon-instance"] for name in ("s", "y", "x")]
        assert homes == ["h", "t", "h"]
        yield made


@contextlib.asynccontextmanager
async def hot(made: Routed) -> AsyncIterator[None]:
    """`h` is hot for the router: a prompt of its neighbour `x` waits behind others, for as long as the engine needs."""
    asked = [asyncio.create_task(made.pair.complete("h", draw(4000))) for _ in range(WAITING)]
    neighbour: asyncio.Task[Any] | None = None
    try:
        await asyncio.sleep(0.05)
        async with asyncio.timeout(30):
            while (await made.loads())["h"]["pending_prefill_tokens"] <= EAR["hot_tokens"]:
                if neighbour is None or neighbour.done():  # done: it was answered before anybody looked
                    neighbour = asyncio.create_task(made.turn("x", draw(3900)))
                    asked.append(neighbour)
                await asyncio.sleep(0.005)
        yield
    finally:
        await asyncio.gather(*asked, return_exceptions=True)


def moved(made: Routed) -> list[tuple[DecisionRecord, KvTransfer]]:
    """The picks that wanted to migrate, with what became of their transfer."""
    found = []
    for record in made.records:
        if record.decision.migrate_from:
            assert record.outcome is not None
            assert record.outcome.transfer is not None
            found.append((record, record.outcome.transfer))
    return found


def ids(answer: httpx.Response) -> list[int]:
    """The tokens of an answer."""
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def cached(answer: httpx.Response) -> int:
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


@pytest.mark.parametrize("transport", ["nixl", "mooncake"])
async def test_a_prompt_that_one_engine_computed_is_answered_by_the_other(
    engines: Pair, tmp_path: Path, transport: str
) -> None:
    await engines.ready(transport)
    members = (engines.member("h", "prefill"), engines.member("t", "decode"))
    prompt = draw(1000)
    async with routed(engines, tmp_path, members, "static_pd", TransferRules()) as made:
        answer = await made.turn("s", prompt)
        assert answer.headers["x-tracon-instance"] == "t"
        alone = await engines.complete("h", prompt, max_tokens=8, ignore_eos=True, return_token_ids=True)
        assert ids(answer) == alone["choices"][0]["token_ids"]
        await made.recorded(1)  # its counters have been read: two transfers between two readings are not told apart
        streamed = await made.turn("s", prompt, stream=True, max_tokens=4)
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert "kv_transfer_params" not in streamed.text
        assert streamed.text.count("data: ") >= 2
        assert streamed.text.endswith("data: [DONE]\n\n")
        await engines.released("h", KEPT_S)
    first, second = [record.outcome.transfer for record in made.records if record.outcome]
    assert first is not None
    assert (first.purpose, first.transport, first.status) == ("handover", transport, "transferred")
    assert (first.prefix_tokens, first.external_tokens) == (1000, 1000), first.counted_reason
    assert (first.bytes or 0) >= 1000 * 512
    assert second is not None
    assert second.status == "transferred"


async def test_a_hot_session_moves_with_its_kv_and_is_answered_as_if_it_had_stayed(pair: Pair, tmp_path: Path) -> None:
    context = draw(PREFIX)
    turns = [context, context + draw(60), context + draw(120)]
    asked = {"max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
    async with ear(pair, tmp_path) as made:
        answers = [await made.turn("s", turns[0])]
        async with hot(made):
            answers.append(await made.turn("s", turns[1]))
            assert (await made.loads())["h"]["num_requests"] == 1, "the neighbour still waits"
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
    assert (transfer.source, transfer.target, transfer.status) == ("h", "t", "transferred")
    assert transfer.prefix_tokens in (PREFIX - BLOCK, PREFIX)
    assert transfer.external_tokens is not None, transfer.counted_reason
    assert transfer.external_tokens >= PREFIX - 2 * BLOCK
    stamps = (
        record.t_ns, transfer.t_begin_ns, transfer.t_source_sent_ns, transfer.t_source_done_ns,
        transfer.t_target_sent_ns, transfer.t_done_ns,
    )  # fmt: skip
    assert list(stamps) == sorted(stamps)
    assert "the session's KV was moved" in explain([record])[-1]
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
    """Nobody listens where the source's bootstrap server should be."""
    members = (pair.member("h", bootstrap="http://127.0.0.1:9"), pair.member("t"))
    rules = TransferRules(timeout_s=10.0, attempts=1, failures_to_quarantine=1, quarantine_s=60.0, leg_priority=-1)
    context = draw(PREFIX)
    async with ear(pair, tmp_path, rules, members) as made:
        await made.turn("s", context)
        async with hot(made):
            answer = await made.turn("s", context + draw(60))
            assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "t")
        async with hot(made):
            stays = await made.turn("x", draw(PREFIX))
            assert stays.headers["x-tracon-instance"] == "h"
        assert (await made.http.get("/admin/instances")).json()["no_transfers"]
    ((record, transfer),) = moved(made)
    assert record.outcome is not None
    assert (record.outcome.migration, transfer.status) == ("recomputed", "failed")
    kept = [record for record in made.records if record.decision.reason == "hot_no_target"]
    assert kept
    assert "quarantine" in kept[0].request.cut_off["t"] or "failed" in kept[0].request.cut_off["t"]


async def test_a_target_whose_kv_pool_is_full_serves_it_in_the_end(pair: Pair, tmp_path: Path) -> None:
    rules = TransferRules(timeout_s=2.0, attempts=1, leg_priority=-1)
    context = draw(PREFIX)
    async with ear(pair, tmp_path, rules) as made:
        await made.turn("s", context)
        filling = [
            asyncio.create_task(pair.complete("t", draw(3900), max_tokens=190, ignore_eos=True)) for _ in range(12)
        ]
        while await pair.usage("t") < 0.9:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with hot(made):
            answer = await made.turn("s", context + draw(60))
            assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "t")
        await asyncio.gather(*filling)
        await pair.released("h", KEPT_S + 4.0)
    ((record, _),) = moved(made)
    assert record.outcome is not None
    assert record.outcome.migration in ("transferred", "recomputed")


async def test_a_client_that_leaves_during_the_transfer_leaves_nothing_behind(pair: Pair, tmp_path: Path) -> None:
    context = draw(PREFIX)
    async with ear(pair, tmp_path) as made:
        await made.turn("s", context)
        async with hot(made):
            with pair.stopped("t"):
                leaving = asyncio.create_task(made.turn("s", context + draw(60)))
                await asyncio.sleep(0.5)
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)
        await pair.released("h", KEPT_S + 4.0)
        assert (await made.turn("s", context + draw(60))).headers["x-tracon-instance"] == "h"
    ((record, _),) = moved(made)
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.migration) == ("aborted", "failed")


@pytest.mark.parametrize("moment", ["before", "during"])
async def test_a_target_that_dies_leaves_the_session_where_its_kv_is(pair: Pair, tmp_path: Path, moment: str) -> None:
    context = draw(PREFIX)
    async with ear(pair, tmp_path) as made:
        await made.turn("s", context)
        async with hot(made):
            if moment == "before":
                pair.signal("t", signal.SIGKILL)
                answer = await made.turn("s", context + draw(60))
            else:
                with pair.stopped("t"):
                    asking = asyncio.create_task(made.turn("s", context + draw(60)))
                    await asyncio.sleep(0.5)
                    pair.signal("t", signal.SIGKILL)
                answer = await asking
            assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "h")
        await made.until_available("h")
        assert cached(answer) >= PREFIX - BLOCK
        await pair.released("h", KEPT_S + 4.0)
        again = await made.turn("s", context + draw(60))
        assert again.headers["x-tracon-instance"] == "h"
    assert all(record.outcome and record.outcome.migration == "failed" for record, _ in moved(made))


async def test_a_target_that_dies_after_the_transfer_loses_its_stream_and_not_its_session(
    pair: Pair, tmp_path: Path
) -> None:
    context = draw(PREFIX)
    async with ear(pair, tmp_path) as made:
        await made.turn("s", context)
        async with hot(made):
            text = await _until_first_token_then_kill(made, context + draw(60))
        assert "failed in the middle of the response" in text
        await made.until_available("h")
        answer = await made.turn("s", context + draw(60))
        assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "h")
        await pair.released("h", KEPT_S + 4.0)
    ((record, transfer),) = moved(made)
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.migration) == ("error", "transferred")
    assert transfer.status == "transferred"


async def _until_first_token_then_kill(made: Routed, prompt: list[int]) -> str:
    asked: dict[str, Any] = {
        "model": PROFILE.model.served_name, "prompt": prompt, "max_tokens": 1500, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    text = ""
    async with made.http.stream("POST", "/v1/completions", json=asked, headers={"x-session-id": "s"}) as answer:
        assert answer.headers["x-tracon-instance"] == "t"
        async for piece in answer.aiter_text():
            if not text:
                made.pair.signal("t", signal.SIGKILL)
            text += piece
    return text


@pytest.mark.parametrize("moment", ["before", "during", "after"])
async def test_a_source_that_dies_costs_a_recompute_at_most(pair: Pair, tmp_path: Path, moment: str) -> None:
    context = draw(PREFIX)
    async with ear(pair, tmp_path) as made:
        await made.turn("s", context)
        async with hot(made):
            if moment == "before":
                pair.signal("h", signal.SIGKILL)
                answer = await made.turn("s", context + draw(60))
            elif moment == "during":
                with pair.stopped("t"):
                    asking = asyncio.create_task(made.turn("s", context + draw(60)))
                    await asyncio.sleep(0.5)
                    pair.signal("h", signal.SIGKILL)
                    await asyncio.sleep(0.2)
                answer = await asking
            else:
                answer = await made.turn("s", context + draw(60))
                pair.signal("h", signal.SIGKILL)
            assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "t")
        await made.until_available("t")
        again = await made.turn("s", context + draw(60))
        assert (again.status_code, again.headers["x-tracon-instance"]) == (200, "t")
        assert cached(again) >= PREFIX - BLOCK, "whatever became of it, the session's KV is there now"
    outcomes = [record.outcome.migration for record, _ in moved(made) if record.outcome is not None]
    assert outcomes == (["transferred"] if moment == "after" else outcomes)
