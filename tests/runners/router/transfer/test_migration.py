"""A session's prefix moves from one engine to another, or the record says why it did not."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from results.records.decisions import RoutedRequest
from runners.router.facts import ClientMessage
from runners.router.instances.upstream import Pool, resolve_instance
from runners.router.transfer import engines, transfers
from runners.router.transfer.movement import Movement, MoveRequest
from runners.router.transfer.request_bodies import read_movable_request
from tests.runners.router.routers import SOON_S, until
from tests.runners.router.transfer.engines import BLOCK, Bench, bench

PROMPT = tuple(range(100, 100 + 10 * BLOCK + 2))
"""Ten whole blocks, and two tokens of the next."""
HEADERS = b"content-type: application/json\r\nauthorization: Bearer sesame\r\nx-session-id: s\r\n"


def asked(held: int = 9 * BLOCK, at_target: int = 0, tokens: int = len(PROMPT)) -> RoutedRequest:
    return RoutedRequest(
        request="r-1", session="s", turn=3, input_tokens=tokens, max_tokens=8, block_tokens=BLOCK,
        cached_tokens={"h": held, "t": at_target},
    )  # fmt: skip


def body(prompt: object = PROMPT, **fields: object) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt, "max_tokens": 8, "stream": True, **fields}).encode()


def begin(
    on: Bench,
    request: RoutedRequest | None = None,
    client_body: bytes | None = None,
    done: Callable[[Movement], None] | None = None,
    path: str = "/v1/completions",
    source: str = "h",
) -> Movement:
    """A migration to t; without `done` no request waits for its end."""
    message = ClientMessage(path.encode(), HEADERS, client_body or body())
    move = MoveRequest("migration", request or asked(), source, "t", message)
    return on.transfers.start_movement(move, done or _never)


async def migrated(
    on: Bench, request: RoutedRequest | None = None, client_body: bytes | None = None, path: str = "/v1/completions"
) -> Movement:
    """A migration from h to t that is over, its counters read."""
    over: asyncio.Future[Movement] = asyncio.get_running_loop().create_future()
    movement = begin(on, request, client_body, over.set_result, path)
    assert not over.done()
    assert not movement.over
    async with asyncio.timeout(SOON_S):
        assert await over is movement
    await on.settle(movement)
    return movement


@pytest.mark.parametrize("transport", ["mooncake", "nixl"])
async def test_what_the_source_holds_is_in_the_targets_cache_and_counted(transport: str) -> None:
    async with bench(transport) as on:
        on.source.cached.add(PROMPT)
        movement = await migrated(on)
        transfer = movement.transfer
        assert (transfer.status, transfer.reason, transfer.transport) == ("transferred", "", transport)
        assert transfer.prefix_tokens == transfer.external_tokens == 9 * BLOCK
        assert (transfer.local_tokens, transfer.computed_tokens, transfer.blocks) == (0, 0, 9)
        assert transfer.counted_by == "counters"
        assert transfer.source_cached_tokens == 8 * BLOCK, "all but the block of its last token"
        expected = (9 * BLOCK * 512, "tokens") if transport == "mooncake" else (9 * BLOCK * 10, "counter")
        assert (transfer.bytes, transfer.bytes_from, transfer.counted_reason) == (*expected, "")
        stamps = (transfer.t_begin_ns, transfer.t_source_sent_ns, transfer.t_source_done_ns, transfer.t_target_sent_ns)
        assert 0 < stamps[0] <= stamps[1] <= stamps[2] <= stamps[3] <= transfer.t_done_ns
        assert movement.body == body(), "the request goes to the target as it came"
        assert on.target.hits(PROMPT) == 9 * BLOCK
        assert on.source.retained == {}


async def test_its_requests_are_the_clients_prefix_under_the_transfers_id() -> None:
    async with bench(priority=-1) as on:
        movement = await migrated(on, client_body=body(cache_salt="pepper", stop=["x"], n=2))
        (source,), (target,) = on.source.transfer_requests, on.target.transfer_requests
        assert source["prompt"] == target["prompt"] == list(PROMPT[: 9 * BLOCK])
        assert (source["cache_salt"], source["priority"], target["priority"]) == ("pepper", -1, -1)
        assert not {"stop", "n"} & (set(source) | set(target))
        transfer_id = movement.transfer.transfer
        assert source["kv_transfer_params"]["transfer_id"] == target["kv_transfer_params"]["transfer_id"] == transfer_id
        sent = next(seen for seen in on.target.seen if "completions" in seen.path)
        assert (sent.headers["x-request-id"], sent.headers["authorization"]) == (transfer_id, "Bearer sesame")
        assert "x-session-id" not in sent.headers


@pytest.mark.parametrize("long", [False, True])
async def test_a_long_body_is_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch, long: bool) -> None:
    """Its answers too: they repeat a prompt's tokens."""
    readers: list[threading.Thread] = []

    def noting(read: Callable[..., Any]) -> Callable[..., Any]:
        def note_reader(*arguments: object) -> object:
            readers.append(threading.current_thread())
            return read(*arguments)

        return note_reader

    monkeypatch.setattr(engines, "LONG_BYTES", 0 if long else 1 << 20)
    monkeypatch.setattr(transfers, "read_movable_request", noting(read_movable_request))
    for name in ("read_answer", "token_ids"):
        monkeypatch.setattr(engines, name, noting(getattr(engines, name)))
    async with bench() as on:
        assert (await migrated(on, client_body=body("some text"))).transfer.status != "failed"
    assert len(readers) == 4
    assert all((reader is not threading.main_thread()) == long for reader in readers)


async def test_only_what_the_target_lacks_is_counted_as_moved() -> None:
    async with bench() as on:
        on.target.cached.add(PROMPT[: 4 * BLOCK])
        transfer = (await migrated(on, asked(at_target=4 * BLOCK))).transfer
        assert (transfer.external_tokens, transfer.local_tokens, transfer.blocks) == (5 * BLOCK, 4 * BLOCK, 5)


@pytest.mark.parametrize(
    ("held", "at_target", "rules"),
    [(0, 0, {}), (9 * BLOCK, 9 * BLOCK, {}), (5 * BLOCK, 9 * BLOCK, {}), (9 * BLOCK, 6 * BLOCK, {"min_tokens": 13})],
)
async def test_nothing_worth_moving_is_not_moved(held: int, at_target: int, rules: dict[str, Any]) -> None:
    async with bench(**rules) as on:
        transfer = (await migrated(on, asked(held, at_target))).transfer
        assert (transfer.status, transfer.attempts) == ("unneeded", 0)
        assert transfer.reason.startswith("nothing to move")
        assert on.source.transfer_requests == on.target.transfer_requests == []


@pytest.mark.parametrize("transport", ["mooncake", "nixl"])
async def test_where_the_rules_say_so_no_page_of_metrics_is_read(transport: str) -> None:
    async with bench(transport, count=False) as on:
        on.source.cached.add(PROMPT)
        on.transfers.recover_instance("t")
        transfer = (await migrated(on)).transfer
        assert (transfer.status, transfer.external_tokens, transfer.bytes) == ("transferred", None, None)
        assert (transfer.counted_by, transfer.counted_reason) == ("", "not counted: the rules say so")
        assert transfer.computed_tokens == 0, "its own answer says so"
        await on.transfers.close()
        assert on.source.pages == on.target.pages == 0


async def test_text_and_chats_are_moved_in_the_targets_tokens() -> None:
    async with bench() as on:
        text = "word " * 20
        request = asked(held=20, tokens=25)
        transfer = (await migrated(on, request, body(text))).transfer
        assert (transfer.status, transfer.prefix_tokens) == ("transferred", 80), "the same share of 100 tokens"
        assert on.source.transfer_requests[-1]["prompt"] == list(text.encode())[:80]
        chat = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
        assert (await migrated(on, request, chat, "/v1/chat/completions")).transfer.status == "transferred"
        image = {"role": "user", "content": [{"type": "image_url"}]}
        seen = json.dumps({"model": "m", "messages": [image]}).encode()
        refused = (await migrated(on, request, seen, "/v1/chat/completions")).transfer
        assert (refused.status, refused.reason) == ("refused", "its messages hold more than text")
        on.target.status = 500
        failed = (await migrated(on, request, chat, "/v1/chat/completions")).transfer
        assert (failed.status, failed.reason) == ("failed", "the target's /tokenize answers HTTP 500")


async def test_a_restarted_source_is_asked_for_its_new_id_and_the_move_tried_again() -> None:
    async with bench() as on:
        await migrated(on)
        assert on.source.queries == 1
        on.source.reborn()
        transfer = (await migrated(on, client_body=body([*range(7, 7 + len(PROMPT))]))).transfer
        assert (transfer.status, transfer.attempts) == ("transferred", 2)
        assert transfer.transfer == on.target.transfer_requests[-1]["kv_transfer_params"]["transfer_id"]
        await until(lambda: not on.source.retained)
        asked_so_far = on.source.queries
        on.source.reborn()
        on.transfers.forget_process("h")
        on.transfers.recover_instance("h")
        transfer = (await migrated(on, client_body=body([*range(9, 9 + len(PROMPT))]))).transfer
        assert (transfer.attempts, on.source.queries) == (1, asked_so_far + 1), "after the outage it asks first"


FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str, int, bool]] = {
    "the source fails": ({"source_status": 500}, {}, "the source answers HTTP 500", 2, True),
    "the source is full": ({"source_status": 503}, {}, "the source answers HTTP 503", 1, False),
    "the source refuses": ({"source_status": 400}, {}, "the source answers HTTP 400", 1, False),
    "the source ends early": ({"finish": "stop"}, {}, "the prefill request ended by stop", 1, True),
    "the rank is ambiguous": ({"engines_named": 2}, {}, "names 2 engines", 1, True),
    "no bootstrap": ({"query_status": 500}, {}, "bootstrap server answers HTTP 500", 1, True),
    "the pull fails": ({}, {"target_status": 500}, "the target answers HTTP 500", 2, True),
    "the target refuses": ({}, {"target_status": 404}, "the target answers HTTP 404", 1, False),
    "nothing comes": ({"forgets": True}, {"recomputes": True}, "the target has computed the prefix", 1, True),
    "the source hangs": ({"hang_source": True}, {}, "not done within 0.3 s", 1, True),
    "the target hangs": ({}, {"full": True}, "not done within 0.3 s", 1, True),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_failure_is_told_bounded_counted_against_the_pair_and_leaves_nothing_behind(fault: str) -> None:
    at_source, at_target, why, attempts, strike = FAULTS[fault]
    hangs = "hangs" in fault
    async with bench(failures_to_quarantine=1, timeout_s=0.3 if hangs else SOON_S) as on:
        for engine, faults in ((on.source, at_source), (on.target, at_target)):
            for name, value in faults.items():
                setattr(engine, name, value)
        movement = await migrated(on)
        transfer = movement.transfer
        assert (transfer.status, transfer.attempts) == ("failed", attempts)
        assert why in transfer.reason
        assert transfer.t_done_ns >= transfer.t_begin_ns > 0
        assert transfer.external_tokens is None
        assert transfer.counted_reason
        assert movement.body == body(), "the target serves it as it came"
        assert bool(on.transfers.rules.explain_refusal("h", "t")) == strike
        if not hangs or at_target:
            await until(lambda: not on.source.retained)


async def test_a_dead_target_or_source_is_found_out_at_once_and_not_tried_twice() -> None:
    async with bench() as on:
        await on.target.kill()
        transfer = (await migrated(on)).transfer
        assert (transfer.status, transfer.attempts) == ("failed", 1)
        assert "the target: cannot connect" in transfer.reason
        await until(lambda: not on.source.retained)
        await on.source.kill()
        transfer = (await migrated(on)).transfer
        assert (transfer.status, transfer.attempts) == ("failed", 1)
        assert "the source" in transfer.reason


async def test_a_client_that_leaves_during_the_prefill_request_has_it_dropped() -> None:
    async with bench(failures_to_quarantine=1) as on:
        on.source.hang_source = True
        movement = begin(on)
        await until(lambda: bool(on.source.transfer_requests))
        movement.abandon_transfer()
        movement.abandon_transfer()
        assert (movement.transfer.status, movement.transfer.reason) == ("failed", "the client left")
        assert movement.settled
        await until(lambda: on.source.dropped == 1)
        assert on.target.transfer_requests == []
        assert on.transfers.rules.explain_refusal("h", "t") == "", "neither instance is at fault"


async def test_a_client_that_leaves_before_anything_was_sent_leaves_nothing() -> None:
    async with bench(queue=2) as on:
        begin(on).abandon_transfer()
        refused = begin(on, asked(0))
        refused.abandon_transfer()
        await migrated(on)
        assert len(on.source.transfer_requests) == 1


@pytest.mark.parametrize("transport", ["mooncake", "nixl"])
async def test_a_client_that_leaves_between_the_requests_has_the_sources_blocks_freed(transport: str) -> None:
    async with bench(transport) as on:
        gate = on.target.metrics_gate = asyncio.Event()
        movement = begin(on)
        await until(lambda: movement.transfer.t_source_done_ns > 0)
        assert len(on.source.retained) == 1
        movement.abandon_transfer()
        gate.set()
        await until(lambda: not on.source.retained)
        assert on.target.transfer_requests == []


async def test_a_decode_request_on_its_way_is_ended_properly_though_its_client_left() -> None:
    async with bench() as on:
        on.target.gate = asyncio.Event()
        movement = begin(on)
        await until(lambda: bool(on.target.transfer_requests))
        movement.abandon_transfer()
        transfer = movement.transfer
        on.target.gate.set()
        await until(lambda: not on.source.retained)
        await migrated(on, client_body=body([*range(7, 7 + len(PROMPT))]))
        assert movement.transfer is transfer, "what is recorded changes no more"
        assert on.target.dropped == 0


async def test_a_decode_request_that_fails_after_its_client_left_is_not_tried_again() -> None:
    async with bench() as on:
        on.target.gate, on.source.forgets = asyncio.Event(), True
        movement = begin(on)
        await until(lambda: bool(on.target.transfer_requests))
        movement.abandon_transfer()
        on.target.gate.set()
        on.source.forgets = False
        await migrated(on, client_body=body([*range(7, 7 + len(PROMPT))]))
        assert len(on.source.transfer_requests) == len(on.target.transfer_requests) == 2, "one each"


async def test_transfers_to_one_target_are_made_one_at_a_time_and_told_apart() -> None:
    async with bench(queue=4) as on:
        done: list[Movement] = []
        prompts = [[*range(100 * n, 100 * n + len(PROMPT))] for n in range(1, 6)]
        movements = [
            begin(on, asked(held), body(prompt), done.append)
            for prompt, held in zip(prompts, (8, 12, 16, 20, 24), strict=True)
        ]
        await until(lambda: len(done) == 5)
        assert done == movements
        settled_transfers = [await on.settle(movement) for movement in movements]
        assert [transfer.external_tokens for transfer in settled_transfers] == [8, 12, 16, 20, 24]
        spans = [(transfer.t_source_sent_ns, transfer.t_done_ns) for transfer in settled_transfers]
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


async def test_a_transfer_that_only_waited_for_its_turn_speaks_against_nobody() -> None:
    async with bench(failures_to_quarantine=1, timeout_s=0.5) as on:
        on.target.hang_target = True
        gate = on.target.tokenize_gate = asyncio.Event()
        done: list[Movement] = []
        on.specs["h2"] = replace(on.specs["h"], instance="h2")
        early = msgspec.structs.replace(asked(held=20, tokens=25), cached_tokens={"h2": 20})
        waiting = begin(on, early, body("word " * 20), done.append, source="h2")
        await until(lambda: bool(on.target.seen))
        stuck = begin(on, done=done.append)
        await until(lambda: bool(on.target.transfer_requests))
        gate.set()
        await until(lambda: len(done) == 2)
        assert done == [waiting, stuck]
        assert [movement.transfer.attempts for movement in done] == [0, 1]
        assert {movement.transfer.reason for movement in done} == {"not done within 0.5 s"}
        assert on.transfers.list_quarantined().keys() == {("h", "t")}


async def test_tokens_that_another_router_moves_there_are_not_claimed() -> None:
    async with bench() as on:
        on.target.also_external = 1000
        transfer = (await migrated(on)).transfer
        assert (transfer.status, transfer.external_tokens, transfer.bytes) == ("transferred", None, None)
        assert "not only this one's" in transfer.counted_reason
        assert transfer.computed_tokens == 0, "that the target's own answer says"


async def test_an_engine_that_does_not_tell_cached_tokens_still_counts_them() -> None:
    async with bench() as on:
        on.target.tells_cached = on.source.tells_cached = False
        movement = await migrated(on)
        movement.end_answer(len(PROMPT), len(PROMPT))
        transfer = movement.transfer
        assert (transfer.status, transfer.external_tokens) == ("transferred", 9 * BLOCK)
        assert (transfer.local_tokens, transfer.computed_tokens, transfer.source_cached_tokens) == (None, None, None)
        assert "prompt-tokens-details" in transfer.counted_reason


async def test_a_pair_is_quarantined_after_failures_and_probed_back() -> None:
    async with bench(failures_to_quarantine=2, quarantine_s=10.0) as on:
        on.target.target_status = 404
        for _ in range(3):
            await migrated(on)
        assert on.transfers.rules.explain_refusal("h", "t") == "", "requests at fault do not count"
        on.target.target_status, on.target.full = 200, False
        on.source.finish = "stop"
        for _ in range(2):
            assert (await migrated(on)).transfer.status == "failed"
        assert on.transfers.cut_off("h", ["h", "t"]).keys() == {"t"}
        assert on.transfers.list_quarantined().keys() == {("h", "t")}
        assert on.transfers.rules.explain_refusal("t", "h") == "", "the other way may work"
        transfer_requests = len(on.source.transfer_requests)
        refused = (await migrated(on)).transfer
        assert (refused.status, len(on.source.transfer_requests)) == ("refused", transfer_requests)
        assert "quarantined" in refused.reason
        on.advance(10.0)
        on.source.finish = "length"
        assert on.transfers.cut_off("h", ["t"]) == {}
        assert (await migrated(on)).transfer.status == "transferred"
        assert on.transfers.list_quarantined() == {}


async def test_a_found_instance_may_be_probed_at_once() -> None:
    async with bench(failures_to_quarantine=1, quarantine_s=1000.0) as on:
        await on.target.kill()
        await migrated(on)
        assert on.transfers.rules.explain_refusal("h", "t")
        await on.target.start()
        on.transfers.recover_instance("t")
        assert (await migrated(on)).transfer.status == "transferred"


async def test_of_an_instance_that_is_removed_nothing_is_waited_for_or_remembered() -> None:
    async with bench(failures_to_quarantine=1, quarantine_s=1000.0) as on:
        on.target.target_status = 500
        await migrated(on)
        assert on.transfers.rules.explain_refusal("h", "t")
        on.target.target_status, on.target.hang_target = 200, True
        on.advance(1000.0)
        movement = begin(on)
        await until(lambda: movement.transfer.t_target_sent_ns > 0)
        movement.abandon_transfer()
        on.pools.pop("t").close()  # as the fleet does
        endpoint = on.specs.pop("t")
        on.transfers.remove_instance("t")
        assert on.transfers.list_quarantined() == {}
        await until(lambda: not on.transfers._jobs)
        assert len(on.transfers.rules.pairs) == 0
        on.specs["t"], on.pools["t"] = endpoint, Pool(await resolve_instance(on.target.url), 2.0)
        on.target.hang_target = False
        on.transfers.recover_instance("t")
        assert (await migrated(on)).transfer.status == "transferred", "no transfer blocks its turn"
        assert len(on.transfers.rules.pairs) == 0, "of a sound pair nothing is kept"


@pytest.mark.parametrize("queue", [0, 1, 2])
async def test_a_target_for_which_sessions_queue_is_said_to_be_none(queue: int) -> None:
    async with bench(queue=queue) as on:
        on.source.hang_source = True
        moving: list[Movement] = []
        for _ in range(queue + 1):
            assert on.transfers.cut_off("h", ["t"]) == {}, [move.transfer for move in moving]
            moving.append(begin(on))
        assert on.transfers.cut_off("h", ["t"]) == {"t": f"{queue + 1} sessions are on their way there"}
        assert on.transfers.cut_off("t", ["h"]) == {}
        assert on.transfers.rules.explain_refusal("h", "t") == "", "a handover waits for no turn"
        refused = await migrated(on)
        assert (refused.transfer.status, "on their way" in refused.transfer.reason) == ("refused", True)
        for move in moving:
            move.abandon_transfer()
        await until(lambda: on.transfers.cut_off("h", ["t"]) == {})


async def test_what_can_never_exchange_kv_is_said_and_not_tried() -> None:
    async with bench() as on:
        specs = on.specs
        specs["plain"] = replace(specs["t"], instance="plain", transfer=None)
        mooncake = specs["t"].transfer
        assert mooncake is not None
        for name, endpoint in {
            "nixl": replace(mooncake, transport="nixl"),
            "producer": replace(mooncake, kv_role="kv_producer"),
            "consumer": replace(mooncake, kv_role="kv_consumer"),
            "nameless": replace(mooncake, bootstrap=""),
            "carrier": replace(mooncake, transport="pigeon"),
            "coop": replace(mooncake, transport="pigeon"),
        }.items():
            specs[name] = replace(specs["t"], instance=name, transfer=endpoint)
        between = on.transfers.rules.explain_refusal
        assert "no KV transport" in between("h", "plain")
        assert "no KV transport" in between("gone", "h")
        assert "the target nixl" in between("h", "nixl")
        assert "takes nothing" in between("h", "producer")
        assert "sends nothing" in between("consumer", "h")
        assert "bootstrap" in between("nameless", "h")
        assert "mooncake, the target pigeon" in between("h", "carrier")
        assert "'pigeon'" in between("coop", "carrier")
        assert between("h", "consumer") == between("producer", "t") == between("h", "nameless") == ""
        assert "there already" in between("h", "h")
        assert on.transfers.is_configured
        specs.clear()
        assert not on.transfers.is_configured
        assert on.transfers.cut_off("h", ["t"]) == {}


async def test_the_router_ends_with_transfers_on_their_way() -> None:
    async with bench() as on:
        on.source.hang_source = True
        begin(on)
        await until(lambda: bool(on.source.transfer_requests))
        await on.transfers.close()
        await until(lambda: on.source.dropped == 1)


def _never(movement: Movement) -> None:
    raise AssertionError(f"no request waits for {movement.transfer}")
