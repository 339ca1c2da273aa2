"""Prefill here, decode there: the source computes the client's prompt, and the request itself is the decode request."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from results.records.decisions import RoutedRequest
from runners.router.facts import ClientMessage
from runners.router.transfer.movement import Movement, MoveRequest
from tests.runners.router.routers import SOON_S, until
from tests.runners.router.transfer.engines import BLOCK, Bench, bench

PROMPT = [*range(100, 100 + 10 * BLOCK + 2)]
REQUEST = RoutedRequest(
    request="r-1", session="s", turn=0, input_tokens=len(PROMPT), max_tokens=8, block_tokens=BLOCK, cached_tokens={}
)  # fmt: skip
HEADERS = b"content-type: application/json\r\n"
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 9, "tools": [{"type": "function"}]}


def body(prompt: object = PROMPT, **fields: object) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt, "max_tokens": 8, "n": 1, "stop": ["x"], **fields}).encode()


def begin(on: Bench, client_body: bytes, path: str = "/v1/completions") -> tuple[Movement, asyncio.Future[Movement]]:
    over: asyncio.Future[Movement] = asyncio.get_running_loop().create_future()
    message = ClientMessage(path.encode(), HEADERS, client_body)
    return on.transfers.start_movement(MoveRequest("handover", REQUEST, "h", "t", message), over.set_result), over


async def handed_over(on: Bench, client_body: bytes | None = None, path: str = "/v1/completions") -> Movement:
    """A handover whose prefill request is over."""
    movement, over = begin(on, client_body or body(), path)
    async with asyncio.timeout(SOON_S):
        assert await over is movement
    return movement


async def decode(on: Bench, movement: Movement, path: str = "/v1/completions") -> httpx.Response:
    """The request at the target, as the router's proxy sends it."""
    async with httpx.AsyncClient(base_url=on.target.url, trust_env=False) as http:
        return await http.post(path, content=movement.body, headers={"content-type": "application/json"})


@pytest.mark.parametrize("transport", ["mooncake", "nixl"])
async def test_the_target_gets_the_prompts_kv_and_the_clients_request(transport: str) -> None:
    async with bench(transport) as on:
        movement = await handed_over(on)
        assert (movement.open, movement.over) == (True, True)
        movement.note_sent(movement.now_ns())
        assert (movement.transfer.status, movement.transfer.prefix_tokens) == ("failed", len(PROMPT))
        sent = json.loads(movement.body)
        params = sent.pop("kv_transfer_params")
        assert sent == json.loads(body()), "all that the client asked for"
        assert params["do_remote_prefill"] is True
        assert "remote_prefill_cached_tokens" not in params
        assert "stop" not in on.source.transfer_requests[0]
        answer = (await decode(on, movement)).json()
        movement.serve_handover()
        movement.serve_handover()
        movement.end_answer(None, None)
        transfer = await on.settle(movement)
        assert (transfer.purpose, transfer.status, transfer.reason) == ("handover", "transferred", "")
        assert transfer.external_tokens == len(PROMPT)
        assert (transfer.source_cached_tokens, transfer.blocks) == (0, 11)
        assert (transfer.local_tokens, transfer.computed_tokens) == (None, None)
        assert transfer.counted_reason
        usage = answer["usage"]
        movement.end_answer(usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])
        assert (movement.transfer.local_tokens, movement.transfer.computed_tokens) == (0, 0)
        assert movement.transfer.counted_reason == ""
        stamps = (transfer.t_source_sent_ns, transfer.t_source_done_ns, transfer.t_target_sent_ns, transfer.t_done_ns)
        assert 0 < stamps[0] <= stamps[1] <= stamps[2] <= stamps[3]


async def test_a_chats_prefill_request_is_the_chat() -> None:
    async with bench() as on:
        client_body = json.dumps({"model": "m", **CHAT}).encode()
        movement = await handed_over(on, client_body, "/v1/chat/completions")
        (prefill,) = on.source.transfer_requests
        assert (prefill["messages"], prefill["tools"], prefill["max_tokens"]) == (CHAT["messages"], CHAT["tools"], 1)
        assert "max_completion_tokens" not in prefill
        assert next(seen for seen in on.source.seen if seen.json == prefill).path == "/v1/chat/completions"
        assert (await decode(on, movement, "/v1/chat/completions")).status_code == 200
        movement.serve_handover()


@pytest.mark.parametrize(
    ("client_body", "why"),
    [
        (body(n=2), "several answers"),
        (body(prompt_logprobs=1), "log probabilities"),
        (body([[1], [2]]), "more than one"),
        (body(kv_transfer_params={"do_remote_decode": True}), "of its own"),
    ],
)
async def test_what_cannot_be_handed_over_goes_to_the_target_as_it_came(client_body: bytes, why: str) -> None:
    async with bench() as on:
        movement = await handed_over(on, client_body)
        assert movement.transfer.status == "refused"
        assert why in movement.transfer.reason
        assert (movement.body, movement.open, movement.settled) == (client_body, False, True)
        assert on.source.transfer_requests == []
        movement.serve_handover()
        movement.fail_handover("nothing", strike=True, freed=False)
        assert movement.transfer.status == "refused"


async def test_a_source_that_fails_leaves_the_target_to_compute() -> None:
    async with bench(failures_to_quarantine=1) as on:
        on.source.source_status = 500
        movement = await handed_over(on)
        assert (movement.transfer.status, movement.transfer.attempts) == ("failed", 2)
        assert (movement.body, movement.open) == (body(), False)
        refused = await handed_over(on)
        assert (refused.transfer.status, refused.body) == ("refused", body())
        assert "quarantined" in refused.transfer.reason
        assert len(on.source.transfer_requests) == 2


@pytest.mark.parametrize(("status", "strike"), [(500, True), (503, False)], ids=["it fails", "it does not admit"])
async def test_a_target_that_does_not_decode_is_told_and_the_source_freed(status: int, strike: bool) -> None:
    """A request that is not admitted frees nothing, and speaks against no pair."""
    async with bench(failures_to_quarantine=1) as on:
        on.target.target_status = status
        movement = await handed_over(on)
        answer = await decode(on, movement)
        assert answer.status_code == status
        assert len(on.source.retained) == 1
        movement.fail_handover(f"HTTP {status}", strike=strike, freed=False)
        movement.fail_handover("again", strike=True, freed=False)
        assert (movement.transfer.status, movement.transfer.reason) == ("failed", f"HTTP {status}")
        assert movement.settled
        await until(lambda: not on.source.retained)
        assert bool(on.transfers.rules.explain_refusal("h", "t")) == strike


@pytest.mark.parametrize("strike", [True, False], ids=["it is at fault", "it is not"])
async def test_a_source_at_fault_is_asked_again_which_engine_it_is(strike: bool) -> None:
    """It may be another process now: with the old engine's id every later handover would fail."""
    async with bench() as on:
        movement = await handed_over(on)
        movement.fail_handover("HTTP 500", strike=strike, freed=True)
        await handed_over(on)
        assert on.source.queries == (2 if strike else 1)


async def test_what_the_target_frees_is_not_freed_twice() -> None:
    """Mooncake answers the second one by waiting out its own limit."""
    async with bench(failures_to_quarantine=1) as on:
        movement = await handed_over(on)
        movement.fail_handover("no byte within 300 s", strike=True, freed=True)
        assert on.transfers.rules.explain_refusal("h", "t")
        await on.transfers.close()
        assert not [seen for seen in (*on.source.seen, *on.target.seen) if seen.json.get("prompt") == []]


async def test_a_client_that_leaves_while_the_target_works_ends_the_handover() -> None:
    async with bench(failures_to_quarantine=1) as on:
        movement = await handed_over(on)
        movement.abandon_transfer()
        movement.serve_handover()
        assert (movement.transfer.status, movement.transfer.reason) == ("failed", "the client left")
        assert on.transfers.rules.explain_refusal("h", "t") == ""
        again = await handed_over(on)
        await decode(on, again)
        again.serve_handover()
        again.end_answer(None, None)
        assert (await on.settle(again)).status == "transferred"


async def test_a_client_that_leaves_during_the_prefill_ends_it() -> None:
    async with bench() as on:
        on.source.hang_source = True
        movement, over = begin(on, body())
        await until(lambda: bool(on.source.transfer_requests))
        movement.abandon_transfer()
        await until(lambda: on.source.dropped == 1)
        assert not over.done()


async def test_handovers_to_one_target_go_side_by_side_and_are_told_apart_where_they_can_be() -> None:
    async with bench() as on:
        cold = [await handed_over(on, body([*range(k, k + 10 * BLOCK)])) for k in (100, 200, 300)]
        for movement in cold:
            await decode(on, movement)
        for movement in cold:
            movement.serve_handover()
        for movement in cold:
            movement.end_answer(None, None)
            assert (await on.settle(movement)).external_tokens == 10 * BLOCK, "all brought as much as they could"
        warm = [await handed_over(on, body([*range(k, k + 12 * BLOCK)])) for k in (100, 400)]
        for movement in warm:
            await decode(on, movement)
            movement.serve_handover()
        for movement in warm:
            movement.end_answer(None, None)
            transfer = await on.settle(movement)
            assert transfer.external_tokens is None
            assert "overlapped" in transfer.counted_reason
            assert transfer.status == "transferred"


async def test_the_counters_are_not_read_while_the_answer_is_generated() -> None:
    """A page of metrics costs the engine time, and would land in the very decode that is measured."""
    async with bench() as on:
        movement = await handed_over(on)
        await decode(on, movement)
        before = on.target.pages
        movement.serve_handover()
        on.advance(60.0)
        await asyncio.sleep(0.05)
        assert (on.target.pages, movement.settled) == (before, False)
        movement.end_answer(len(PROMPT), len(PROMPT))
        transfer = await on.settle(movement)
        assert on.target.pages == before + 1
        assert (transfer.external_tokens, transfer.counted_by) == (len(PROMPT), "counters")


async def test_a_next_handover_reads_them_first_so_that_both_are_known() -> None:
    async with bench() as on:
        first = await handed_over(on)
        await decode(on, first)
        first.serve_handover()
        second = await handed_over(on, body([*PROMPT, *range(1000, 1000 + 2 * BLOCK)]))
        assert first.settled, "it is still being answered, and what it brought is known"
        assert first.transfer.external_tokens == len(PROMPT)
        await decode(on, second)
        second.serve_handover()
        for movement in (first, second):
            movement.end_answer(None, None)
        transfer = await on.settle(second)
        assert transfer.external_tokens == 2 * BLOCK + len(PROMPT) % BLOCK, "the rest was there already"


async def test_an_answer_that_still_streams_when_the_router_ends_is_counted_then() -> None:
    async with bench() as on:
        movement = await handed_over(on)
        await decode(on, movement)
        movement.serve_handover()
        await on.transfers.close()
        assert (movement.settled, movement.transfer.external_tokens) == (True, len(PROMPT))


async def test_where_the_rules_say_so_no_page_is_read_and_nothing_is_waited_for() -> None:
    async with bench(count=False) as on:
        movement = await handed_over(on)
        await decode(on, movement)
        movement.serve_handover()
        assert movement.settled
        assert (movement.transfer.status, movement.transfer.external_tokens) == ("transferred", None)
        assert movement.transfer.counted_reason == "not counted: the rules say so"
        movement.end_answer(len(PROMPT), len(PROMPT) - 1)
        assert movement.transfer.computed_tokens == 1
        failed = await handed_over(on)
        failed.fail_handover("HTTP 500", strike=True, freed=False)
        await until(lambda: not on.source.retained)
        assert on.source.pages == on.target.pages == 0
