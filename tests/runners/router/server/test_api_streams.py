"""Streams of every API through the router: ends, errors, counts, the first output, and requests that vLLM aborts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import cast

import pytest

from runners.router.breaker import BreakerState
from runners.router.response_facts import is_preamble
from runners.router.server import proxy
from tests.runners.router.routers import STEADY, by, instances, raw_post, router, until
from tests.servers.api_streams import (
    CHAT,
    DONE,
    MESSAGE_START,
    MESSAGES,
    RESPONSE_OUTPUT,
    RESPONSE_PREAMBLE,
    RESPONSES,
    chat_event,
    chat_role,
    message_error,
    named,
    usage_event,
)
from tests.servers.backend import Backend

STREAMS = {"/v1/messages": MESSAGES, "/v1/responses": RESPONSES}
TOKEN = b'data: {"id":"cmpl-1","choices":[{"index":0,"text":"a"}]}\n\n'
CORE_DEAD = b'data: {"error":{"message":"EngineCore encountered an issue","type":"Error","code":500}}\n\n'
TOO_LONG = b'data: {"error":{"message":"too long","code":400}}\n\n'


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_is_passed_on_and_its_tokens_are_counted(path: str, tmp_path: Path) -> None:
    async with instances("a") as (a,), router([a], folder=tmp_path) as routed:
        a.script = STREAMS[path]
        answer = await routed.post(path=path)
        assert answer.content == b"".join(STREAMS[path])
        outcome = await routed.outcome_of()
        assert (outcome.status, outcome.prompt_tokens, outcome.cached_tokens, outcome.completion_tokens) == (
            "ok", 8, 4, 3,
        )  # fmt: skip


@pytest.mark.parametrize("path", STREAMS)
async def test_a_client_that_leaves_after_the_last_event_got_it_all(path: str, tmp_path: Path) -> None:
    async with instances("a") as (a,), router([a], folder=tmp_path) as routed:
        a.script = (*STREAMS[path], b": never sent\n\n")
        a.gate, a.gate_at = asyncio.Event(), len(STREAMS[path])
        reader, writer = await routed.connect(raw_post(b'{"stream":true}', path=path))
        await reader.readuntil(STREAMS[path][-1])
        writer.transport.abort()
        outcome = await routed.outcome_of()
        assert (outcome.status, outcome.completion_tokens) == ("ok", 3)
        a.gate.set()


@pytest.mark.parametrize(
    ("path", "script"),
    [
        ("/v1/completions", (TOKEN, CORE_DEAD, DONE)),
        ("/v1/messages", (MESSAGE_START, message_error(500))),
        ("/v1/messages", (MESSAGE_START, named("error", error={"type": "api_error", "message": "m"}))),
        ("/v1/responses", (*RESPONSES[:-1], named("error", code="server_error", message="m", param=None))),
        ("/v1/responses", (*RESPONSES[:-1], named("response.failed", response={"error": {"code": "server_error"}}))),
    ],
)
async def test_an_error_event_is_the_instances_failure(path: str, script: tuple[bytes, ...], tmp_path: Path) -> None:
    async with instances("a", "b") as (a, b), router([a, b], "round_robin", folder=tmp_path, health=STEADY) as routed:
        a.script, b.script = script, STREAMS.get(path, (TOKEN, DONE))
        answers = [await routed.post(path=path) for _ in range(10)]
        broken = [answer for answer in answers if by(answer) == "a"]
        assert [answer.content for answer in broken] == [b"".join(script)] * 3, "then its breaker is open"
        assert routed.server._fleet.health.find_state("a") is not BreakerState.CLOSED
        assert await routed.metric('failures_total{instance="a",kind="event"}') == 3
        assert await routed.metric('outcomes_total{instance="a",status="error"}') == 3


@pytest.mark.parametrize(
    ("path", "script"),
    [
        ("/v1/completions", (TOKEN, TOO_LONG, DONE)),
        ("/v1/messages", (MESSAGE_START, message_error(400))),
        ("/v1/messages", (MESSAGE_START, named("error", error={"type": "invalid_request_error", "message": "m"}))),
        ("/v1/responses", (*RESPONSES[:-1], named("error", code="context_length_exceeded", message="m"))),
        ("/v1/responses", (*RESPONSES[:-1], named("response.failed", response={"error": {"code": "invalid_prompt"}}))),
    ],
)
async def test_an_error_that_the_request_caused_costs_the_instance_nothing(
    path: str, script: tuple[bytes, ...], tmp_path: Path
) -> None:
    async with instances("a") as (a,), router([a], folder=tmp_path) as routed:
        a.script = script
        for _ in range(5):
            await routed.post(path=path)
        assert routed.server._fleet.health.find_state("a") is BreakerState.CLOSED
        assert (await routed.outcome_of(4)).status == "client_error"
        assert await routed.metric('failures_total{instance="a",kind="event"}') == 0


async def test_a_client_that_leaves_at_an_error_event_was_answered_with_an_error(tmp_path: Path) -> None:
    async with instances("a") as (a,), router([a], folder=tmp_path) as routed:
        a.script = (MESSAGE_START, message_error(500), b": never sent\n\n")
        a.gate, a.gate_at = asyncio.Event(), 2
        reader, writer = await routed.connect(raw_post(b'{"stream":true}', path="/v1/messages"))
        await reader.readuntil(message_error(500))
        writer.transport.abort()
        assert (await routed.outcome_of()).status == "error"
        a.gate.set()


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_that_breaks_ends_with_an_event_that_its_clients_read(path: str) -> None:
    async with instances("a") as (a,), router([a]) as routed:
        a.script, a.die_after = STREAMS[path], 4
        answer = await routed.post(path=path)
        sent = b"".join(STREAMS[path][:4])
        assert answer.content.startswith(sent)
        lines = answer.content.removeprefix(sent).decode().strip().splitlines()
        assert lines[0] == "event: error"
        event = json.loads(lines[1].removeprefix("data: "))
        assert (event["type"], event["error"]["code"]) == ("error", 502)
        assert "failed in the middle" in event["message"]


async def test_a_response_without_output_yet_is_retried_unseen(tmp_path: Path) -> None:
    async with instances("a", "b") as (a, b), router([a, b], "round_robin", folder=tmp_path, health=STEADY) as routed:
        a.script, a.die_after, b.script = RESPONSES, len(RESPONSE_PREAMBLE), RESPONSES
        answers = [await routed.post(path="/v1/responses") for _ in range(2)]
        assert [answer.content for answer in answers] == [b"".join(RESPONSES)] * 2
        assert {by(answer) for answer in answers} == {"b"}
        outcomes = [record.outcome.status for record in await routed.records(3) if record.outcome]
        assert set(outcomes) == {"ok", "retried"}


async def test_the_first_byte_of_a_response_is_its_first_output(tmp_path: Path) -> None:
    async with instances("a") as (a,), router([a], folder=tmp_path) as routed:
        a.script, a.gate, a.gate_at = RESPONSES, asyncio.Event(), len(RESPONSE_PREAMBLE)
        asking = asyncio.create_task(routed.post(path="/v1/responses"))
        await until(lambda: bool(a.seen))
        await asyncio.sleep(0.05)
        assert routed.load("a").pending_prefill_tokens > 0
        a.gate.set()
        assert (await asking).content == b"".join(RESPONSES)
        outcome = await routed.outcome_of()
        assert outcome.first_byte_s is not None
        assert outcome.first_byte_s > 0.04


async def test_a_response_that_ends_before_any_output_is_passed_on(tmp_path: Path) -> None:
    async with instances("a") as (a,), router([a], folder=tmp_path) as routed:
        for script in (RESPONSE_PREAMBLE, (b'data: {"type":"response.created"}\n\n', RESPONSE_OUTPUT[0])):
            a.script = script
            assert (await routed.post(path="/v1/responses")).content == b"".join(script)


async def test_an_api_that_the_model_lacks_is_no_failure_of_the_instance(tmp_path: Path) -> None:
    async with instances("a", "b") as both, router(both, folder=tmp_path, health=STEADY) as routed:
        for one in both:
            one.status = 501
        answers = [await routed.post(path="/v1/responses") for _ in range(8)]
        assert {answer.status_code for answer in answers} == {501}
        assert routed.available() == {"a", "b"}
        assert (await routed.outcome_of()).status == "client_error"
        assert sum(len(one.seen) for one in both) == 8


async def test_events_before_the_output_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that reports its progress for minutes must not make each of its events dearer than the last."""
    searched: list[int] = []

    def note_size(stream: bytes, **more: bool) -> bool:
        searched.append(len(stream))
        return is_preamble(stream, **more)

    monkeypatch.setattr(proxy, "is_preamble", note_size)
    async with instances("a") as (a,), router([a]) as routed:
        a.script, a.itl_s = (*RESPONSE_PREAMBLE * 40, *RESPONSE_OUTPUT), 0.002
        answer = await routed.post(path="/v1/responses")
        assert answer.content == b"".join(a.script)
    assert sum(searched) < 3 * len(answer.content)


CHATS = "/v1/chat/completions"
NO_TOKEN = usage_event(0)
"""The only event of a completion that vLLM 0.32 aborts before its first token, at its shutdown, before [DONE]."""


@pytest.mark.parametrize("itl_s", [0.0, 0.01])
@pytest.mark.parametrize("script", [(NO_TOKEN, DONE), (NO_TOKEN + DONE,), (DONE,)])
async def test_a_stream_that_ends_before_its_first_token_is_retried_unseen(
    script: tuple[bytes, ...], itl_s: float, tmp_path: Path
) -> None:
    """Whether its pieces come together or one by one; the last chunk of the response has no event."""
    async with instances("a", "b") as (a, b), router([a, b], "round_robin", folder=tmp_path, health=STEADY) as routed:
        a.script, a.itl_s = script, itl_s
        answers = [await routed.post() for _ in range(2)]
        assert {by(answer) for answer in answers} == {"b"}
        assert all(b'"text"' in answer.content and DONE in answer.content for answer in answers)
        outcomes = [record.outcome for record in await routed.records(4) if record.outcome]
        assert [outcome.status for outcome in outcomes].count("retried") == 2, "round robin asks `a` first, twice"
        assert "the stream ended before its first token" in {outcome.error for outcome in outcomes}


async def test_a_stream_without_a_token_is_an_error_where_no_instance_is_left(tmp_path: Path) -> None:
    async with instances("a") as (a,), router([a], folder=tmp_path, health=STEADY) as routed:
        a.script = (NO_TOKEN, DONE)
        answer = await routed.post()
        assert answer.status_code == 502
        assert "the stream ended before its first token" in answer.text
        assert (await routed.outcome_of()).status == "error"


async def test_a_first_event_without_a_token_is_passed_on_with_what_follows() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        a.script, a.itl_s = (NO_TOKEN, TOKEN, DONE), 0.01
        assert (await routed.post()).content == NO_TOKEN + TOKEN + DONE


@pytest.mark.parametrize("itl_s", [0.0, 0.01])
@pytest.mark.parametrize(
    "script",
    [
        (chat_role(), DONE),
        (chat_role() + DONE,),
        (chat_role(), NO_TOKEN, DONE),
        (chat_role(0), chat_role(1), NO_TOKEN + DONE),
        (chat_event({"role": "assistant"}), DONE),
    ],
    ids=["apart", "together", "usage", "two choices", "without content"],
)
async def test_a_chat_that_ends_after_its_role_is_retried_unseen(
    script: tuple[bytes, ...], itl_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "ROLE_HELD_S", 30.0)
    async with instances("a", "b") as (a, b), router([a, b], "round_robin", folder=tmp_path, health=STEADY) as routed:
        a.script, a.itl_s, b.script = script, itl_s, CHAT
        answers = [await routed.post(path=CHATS) for _ in range(2)]
        assert {by(answer) for answer in answers} == {"b"}
        assert [answer.content for answer in answers] == [b"".join(CHAT)] * 2
        outcomes = [record.outcome for record in await routed.records(4) if record.outcome]
        assert [outcome.status for outcome in outcomes].count("retried") == 2, "round robin asks `a` first, twice"
        assert proxy.NO_TOKEN in {outcome.error for outcome in outcomes}


async def test_a_role_that_waits_for_its_token_is_passed_on(tmp_path: Path) -> None:
    """A parser may hold back the first tokens for seconds; the prefill is over all the same."""
    async with instances("a") as (a,), router([a], folder=tmp_path) as routed:
        a.script, a.gate = CHAT, asyncio.Event()
        reader, writer = await routed.connect(raw_post(b'{"stream":true}', path=CHATS))
        await reader.readuntil(CHAT[0])
        assert routed.load("a").pending_prefill_tokens == 0
        a.gate.set()
        await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        assert (await routed.outcome_of()).status == "ok"


async def test_a_roles_timer_ends_with_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would wake the router again in the middle of every chat."""
    monkeypatch.setattr(proxy, "ROLE_HELD_S", 30.0)
    async with instances("a") as (a,), router([a]) as routed:
        a.script, a.gate = CHAT, asyncio.Event()
        reader, writer = await routed.connect(raw_post(b'{"stream":true}', path=CHATS))
        waiting = cast(dict[proxy.ProxiedRequest, None], routed.server._traffic.waiting)
        await until(lambda: any(one._role_timer is not None for one in waiting))
        (timer,) = [one._role_timer for one in waiting]
        assert timer is not None
        assert not timer.cancelled()
        a.gate.set()
        await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        assert timer.cancelled()


async def test_a_chat_whose_role_was_passed_on_and_that_has_no_token_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "ROLE_HELD_S", 0.0)
    async with instances("a", "b") as (a, b), router([a, b], "round_robin", folder=tmp_path, health=STEADY) as routed:
        a.script, a.itl_s = (chat_role(), NO_TOKEN, DONE), 0.1
        assert (await routed.post(path=CHATS)).content == b"".join(a.script)
        outcome = await routed.outcome_of()
        assert (outcome.status, outcome.error) == ("error", proxy.NO_TOKEN)
        assert await routed.metric('failures_total{instance="a",kind="event"}') == 1


@pytest.mark.parametrize("finish", [chat_event({"content": ""}, "stop"), chat_event({}, "tool_calls")])
@pytest.mark.parametrize("itl_s", [0.0, 0.03])
async def test_a_whole_chat_without_text_is_no_failure(finish: bytes, itl_s: float, tmp_path: Path) -> None:
    async with instances("a", "b") as both, router(both, "round_robin", folder=tmp_path, health=STEADY) as routed:
        for one in both:
            one.script, one.itl_s = (chat_role(), finish, usage_event(1), DONE), itl_s
        assert (await routed.post(path=CHATS)).content == b"".join(both[0].script)
        assert (await routed.outcome_of()).status == "ok"


@pytest.mark.parametrize(
    ("path", "script"),
    [
        (CHATS, (*CHAT[:3], chat_event({"content": ""}, "abort"), usage_event(2), DONE)),
        ("/v1/completions", (b'data: {"choices":[{"text":"a"}]}\n\n',
                             b'data: {"choices":[{"text":"","finish_reason":"abort"}]}\n\n', usage_event(1), DONE)),
    ],
)  # fmt: skip
async def test_a_stream_that_the_instance_aborts_after_a_token_is_its_failure(
    path: str, script: tuple[bytes, ...], tmp_path: Path
) -> None:
    async with instances("a", "b") as (a, b), router([a, b], "round_robin", folder=tmp_path, health=STEADY) as routed:
        a.script, a.gate, a.gate_at = script, asyncio.Event(), len(script) - 3
        reader, writer = await routed.connect(raw_post(b'{"stream":true}', path=path))
        await reader.readuntil(script[len(script) - 4])
        a.gate.set()
        assert b'"finish_reason":"abort"' in await reader.readuntil(b"0\r\n\r\n"), "what was sent is passed on"
        writer.close()
        outcome = await routed.outcome_of()
        assert (outcome.status, outcome.error) == ("error", proxy.ABORTED)
        assert await routed.metric('failures_total{instance="a",kind="event"}') == 1


@pytest.mark.parametrize("path", [CHATS, "/v1/completions"])
async def test_an_answer_at_once_that_the_instance_aborted_is_retried_unseen(path: str, tmp_path: Path) -> None:
    async with instances("a", "b") as (a, b), router([a, b], "round_robin", folder=tmp_path, health=STEADY) as routed:
        a.finish_reason, b.finish_reason = "abort", "stop"
        answer = await routed.post(path=path, stream=False)
        assert by(answer) == "b"
        assert answer.json()["choices"][0]["finish_reason"] == "stop"
        outcome = await routed.outcome_of()
        assert (outcome.status, outcome.error) == ("retried", proxy.ABORTED)


async def test_an_aborted_answer_is_passed_on_where_no_instance_is_left(tmp_path: Path) -> None:
    """Its client may want the tokens that it has: it reads that the answer is not whole."""
    async with instances("a") as (a,), router([a], folder=tmp_path, health=STEADY) as routed:
        a.finish_reason = "abort"
        answer = await routed.post(stream=False)
        assert (answer.status_code, answer.json()["choices"][0]["finish_reason"]) == (200, "abort")
        outcome = await routed.outcome_of()
        assert (outcome.status, outcome.error) == ("error", proxy.ABORTED)


async def test_a_token_whose_event_is_cut_into_two_chunks_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a proxy before an instance may cut it."""
    monkeypatch.setattr(proxy, "ROLE_HELD_S", 30.0)
    token = chat_event({"content": "a"})
    async with instances("a") as (a,), router([a], folder=tmp_path) as routed:
        a.script = (chat_role() + token[:2], token[2:] + DONE)
        answer = await routed.post(path=CHATS)
        assert (answer.status_code, answer.content) == (200, b"".join(a.script))
        assert (await routed.outcome_of()).status == "ok"


class Halving(Backend):
    """Sends an aborted answer up to the middle of its finish reason, the rest when its gate opens."""

    async def _at_once(self, writer: asyncio.StreamWriter) -> bool:
        assert self.gate is not None
        body = b'{"choices":[{"index":0,"text":"a","finish_reason":"abort"}]}'
        half = body.index(b"_reason")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body[:half])
        await self.gate.wait()
        writer.write(body[half:])
        await writer.drain()
        return True


async def test_an_abort_is_read_across_the_pieces_of_an_answer(tmp_path: Path) -> None:
    async with Halving("a", gate=asyncio.Event()) as a, router([a], folder=tmp_path) as routed:
        reader, writer = await routed.connect(raw_post(b'{"prompt":[1]}'))
        await reader.readuntil(b'"finish')
        assert a.gate is not None
        a.gate.set()
        await reader.readuntil(b"}]}")
        outcome = await routed.outcome_of()
        assert (outcome.status, outcome.error) == ("error", proxy.ABORTED)
        writer.close()
