"""A real router before two real engines: sessions of every API, prompts that go from one engine to the other, deaths.

`h` only prefills and `t` only decodes. Whatever happens a request is served or ends in a clear error, the router's
counters return to zero (`routed` looks), and no block stays pinned.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from results.records.decisions import DecisionRecord, KvTransfer
from results.records.router_spec import TransferRules
from tests.e2e.engine_pair import BLOCK, KEPT_S, PROFILE, Pair, Routed, cached, draw, ids, routed

pytestmark = [
    pytest.mark.engine, pytest.mark.fault, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session"),
]  # fmt: skip

PROMPT = 1000


@dataclass(frozen=True, slots=True)
class Api:
    """An API beside completions and chat: its body, and where its answers have their usage."""

    prompt: str
    limit: str
    last_event: str
    """Of a stream."""


APIS = {
    "/v1/messages": Api("messages", "max_tokens", "message_stop"),
    "/v1/responses": Api("input", "max_output_tokens", "response.completed"),
}
QUESTION = "What does an approach controller do with two aircraft that want the same runway? " * 8


def usage_in(data: Any) -> dict[str, int]:  # noqa: ANN401 - JSON
    """The counts of an answer, or of one of its events."""
    usage = data.get("usage") or data.get("message", {}).get("usage") or data.get("response", {}).get("usage") or {}
    return {name: count for name, count in usage.items() if isinstance(count, int)}


def counts_in(answer: httpx.Response, api: Api, *, stream: bool) -> tuple[int, int]:
    """Tokens of the prompt and of the output. `/v1/messages` counts the prompt tokens of the cache apart."""
    assert answer.status_code == 200, answer.text
    lines = [f"data: {answer.text}"]
    if stream:
        lines = answer.text.splitlines()
        assert [line for line in lines if line.startswith("event: ")][-1] == f"event: {api.last_event}"
    counts: dict[str, int] = {}
    for line in lines:
        if line.startswith("data: {"):
            counts |= usage_in(json.loads(line.removeprefix("data: ")))
    cached_tokens = sum(count for name, count in counts.items() if name.startswith("cache_"))
    return counts["input_tokens"] + cached_tokens, counts["output_tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", APIS)
async def test_sessions_of_other_apis_stay_at_their_engine_and_their_tokens_are_counted(
    engines: Pair, tmp_path: Path, path: str, stream: bool
) -> None:
    await engines.ready("mooncake")
    members, api = (engines.member("h"), engines.member("t")), APIS[path]
    homes: list[str] = []
    counted: list[tuple[int, int]] = []
    async with routed(engines, tmp_path, members, "unified_spread", TransferRules()) as made:
        for session in ("s", "x", "s", "x"):
            text = f"{session} {tmp_path.name} {QUESTION}" + "And then? " * (len(homes) > 1)
            body = {
                "model": PROFILE.model.served_name, api.prompt: [{"role": "user", "content": text}], api.limit: 6,
                "stream": stream,
            }  # fmt: skip
            answer = await made.http.post(path, json=body, headers={"x-session-id": session})
            counted.append(counts_in(answer, api, stream=stream))
            homes.append(answer.headers["x-tracon-instance"])
    assert homes in (["h", "t"] * 2, ["t", "h"] * 2), homes
    outcomes = [record.outcome for record in made.records if record.outcome]
    assert [outcome.status for outcome in outcomes] == ["ok"] * 4
    assert counted == [(outcome.prompt_tokens, outcome.completion_tokens) for outcome in outcomes]
    cached_tokens = [outcome.cached_tokens for outcome in outcomes]
    assert cached_tokens[2:] == [pytest.approx(len(QUESTION), abs=4 * BLOCK)] * 2, "the tiny model's tokens are bytes"


async def handing_over(made: Routed, prompt: list[int]) -> asyncio.Task[httpx.Response]:
    """A turn whose prompt `h` has just computed and keeps, and whose decode request is with `t`, which stands still."""
    prefills = made.pair.said("h", "prefill_done")
    asking = asyncio.create_task(made.turn("s", prompt))
    await made.pair.until_said("h", "prefill_done", prefills + 1)
    await asyncio.sleep(0.1)  # the decode request follows at once
    return asking


async def computing(made: Routed, prompt: list[int]) -> asyncio.Task[httpx.Response]:
    """A turn whose prefill request is with `h`, which stands still."""
    asking = asyncio.create_task(made.turn("s", prompt))
    async with asyncio.timeout(30):
        while not (await made.loads())["h"]["num_requests"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return asking


def handed_over(made: Routed) -> list[tuple[DecisionRecord, KvTransfer]]:
    """The picks with a handover, and what became of it."""
    return [(one, one.outcome.transfer) for one in made.records if one.outcome and one.outcome.transfer]


@pytest.mark.parametrize("moment", ["prefill request", "pull"])
async def test_a_prefill_instance_that_dies_costs_a_recompute(engines: Pair, tmp_path: Path, moment: str) -> None:
    await engines.ready("mooncake")
    members = (engines.member("h", "prefill"), engines.member("t", "decode"))
    prompt = draw(PROMPT)
    async with routed(engines, tmp_path, members, "static_pd", TransferRules(timeout_s=20.0)) as made:
        if moment == "prefill request":
            with engines.stopped("h"):
                asking = await computing(made, prompt)
                engines.signal("h", signal.SIGKILL)
        else:
            with engines.stopped("t"):
                asking = await handing_over(made, prompt)
                engines.signal("h", signal.SIGKILL)
        answer = await asking
        assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "t")
        assert cached(answer) == 0, "it was computed there"
        alone = await engines.complete("t", prompt, max_tokens=8, ignore_eos=True, return_token_ids=True)
        assert ids(answer) == alone["choices"][0]["token_ids"]
        await made.until_available("t")
        await engines.released("t", KEPT_S + 4.0)
    statuses = [transfer.status for _, transfer in handed_over(made)]
    assert statuses == ["failed"]


@pytest.mark.parametrize("moment", ["prefill request", "pull", "answer"])
async def test_a_decode_instance_that_dies_is_an_error_said_clearly(engines: Pair, tmp_path: Path, moment: str) -> None:
    await engines.ready("mooncake")
    members = (engines.member("h", "prefill"), engines.member("t", "decode"))
    prompt = draw(PROMPT)
    async with routed(engines, tmp_path, members, "static_pd", TransferRules(timeout_s=20.0)) as made:
        if moment == "answer":
            assert "failed in the middle of the response" in await made.killed_in_its_answer(prompt, "t")
        else:
            if moment == "prefill request":
                with engines.stopped("h"):
                    asking = await computing(made, prompt)
                    engines.signal("t", signal.SIGKILL)
                    await made.until_available("h")
            else:
                with engines.stopped("t"):
                    asking = await handing_over(made, prompt)
                    engines.signal("t", signal.SIGKILL)
            answer = await asking
            assert answer.status_code == 502, answer.text
            assert answer.json()["error"]["message"].startswith("instance t: ")
        await made.until_available("h")
        await engines.released("h", KEPT_S + 4.0)


async def test_a_pull_that_does_not_end_is_computed_in_time_and_spoils_nothing_when_it_does(
    engines: Pair, tmp_path: Path
) -> None:
    """The instance that has computed the prompt stands still, and with it the pull."""
    await engines.ready("mooncake")
    members = (engines.member("h", "prefill"), engines.member("t", "decode"))
    prompt = draw(PROMPT)
    async with routed(engines, tmp_path, members, "static_pd", TransferRules(timeout_s=4.0)) as made:
        with contextlib.ExitStack() as h_stands:
            with engines.stopped("t"):
                asking = await handing_over(made, prompt)
                h_stands.enter_context(engines.stopped("h"))
            answer = await asking
        assert (answer.status_code, answer.headers["x-tracon-instance"]) == (200, "t")
        assert cached(answer) == 0, "it was computed there"
        await made.until_available("h", "t")
        await engines.released("h", KEPT_S + 4.0)
        await engines.released("t", KEPT_S + 4.0)
        alone = await engines.complete("h", prompt, max_tokens=8, ignore_eos=True, return_token_ids=True)
        assert ids(answer) == alone["choices"][0]["token_ids"]
    ((_, transfer),) = handed_over(made)
    assert (transfer.status, transfer.reason) == ("failed", "no byte of the response to the decode request within 4 s")


@pytest.mark.parametrize("transport", ["mooncake", "nixl"])  # NIXL last: both engines start again for it
async def test_a_prompt_that_one_engine_computed_is_answered_by_the_other(
    engines: Pair, tmp_path: Path, transport: str
) -> None:
    await engines.ready(transport)
    members = (engines.member("h", "prefill"), engines.member("t", "decode"))
    prompt = draw(PROMPT)
    async with routed(engines, tmp_path, members, "static_pd", TransferRules()) as made:
        answer = await made.turn("s", prompt)
        assert answer.headers["x-tracon-instance"] == "t"
        alone = await engines.complete("h", prompt, max_tokens=8, ignore_eos=True, return_token_ids=True)
        assert ids(answer) == alone["choices"][0]["token_ids"]
        await made.recorded(1)  # its counters have been read: two transfers between two readings cannot be separated
        streamed = await made.turn("s", prompt, stream=True, max_tokens=4)
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert "kv_transfer_params" not in streamed.text
        assert streamed.text.count("data: ") >= 2
        assert streamed.text.endswith("data: [DONE]\n\n")
        await engines.released("h", KEPT_S)
    first, second = [record.outcome.transfer for record in made.records if record.outcome]
    assert first is not None
    assert (first.purpose, first.transport, first.status) == ("handover", transport, "transferred")
    assert (first.prefix_tokens, first.external_tokens) == (PROMPT, PROMPT), first.counted_reason
    assert (first.bytes or 0) >= PROMPT * 512
    assert second is not None
    assert second.status == "transferred"
