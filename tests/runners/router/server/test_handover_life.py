"""Handovers on a real router between engines that move KV: the pull has an end, and what a source keeps is counted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from results.records.decisions import KvTransfer, RoutedOutcome
from results.records.router_spec import TransferRules
from tests.runners.router.routers import Router, by, router, until
from tests.runners.router.transfer.engines import BLOCK, Engine, World

PROMPT = list(range(100, 100 + 10 * BLOCK + 2))
PULL_S = 20.0
"""Less than a first byte may take."""
NEED = len(PROMPT) + 1
"""Room that the prompt takes where it is computed."""


@dataclass
class Pools:
    """A router before a prefill instance `p` and a decode instance `d`."""

    routed: Router
    prefill: Engine
    decode: Engine

    async def pull_out(self) -> None:
        """Let the pull that is under way take longer than it may."""
        await until(lambda: bool(self.decode.transfer_requests))
        self.routed.server._traffic.sweep_waiting(monotonic() + PULL_S + 1)

    async def outcomes(self, count: int) -> list[RoutedOutcome]:
        return [record.outcome for record in await self.routed.records(count) if record.outcome is not None]

    async def transfers(self, count: int) -> list[KvTransfer]:
        return [outcome.transfer for outcome in await self.outcomes(count) if outcome.transfer is not None]


@contextlib.asynccontextmanager
async def pools(
    folder: Path, *, p_capacity: int = 4096, parameters: dict[str, Any] | None = None, **rules: Any
) -> AsyncIterator[Pools]:
    world = World()
    async with Engine("p", world=world) as prefill, Engine("d", world=world) as decode:
        specs = (
            prefill.spec(role="prefill", kv_capacity_tokens=p_capacity),
            decode.spec(role="decode", kv_capacity_tokens=4096),
        )
        pd = router(
            (prefill, decode), "static_pd", folder=folder, instances=specs, parameters=parameters or {},
            transfer=TransferRules(**rules),
        )  # fmt: skip
        async with pd as routed:
            yield Pools(routed, prefill, decode)


async def test_a_handover_is_served_from_the_kv_that_came_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with pools(tmp_path) as on:
        answer = await on.routed.post("s", prompt=PROMPT)
        assert (answer.status_code, by(answer)) == (200, "d")
        (transfer,) = await on.transfers(1)
        assert (transfer.status, transfer.external_tokens) == ("transferred", len(PROMPT))
        stamps = (transfer.t_source_sent_ns, transfer.t_source_done_ns, transfer.t_target_sent_ns, transfer.t_done_ns)
        assert 0 < stamps[0] < stamps[1] < stamps[2] < stamps[3]


@pytest.mark.parametrize("fault", ["full", "hang_target"])
async def test_a_pull_that_does_not_end_is_given_up_and_computed_there(fault: str, tmp_path: Path) -> None:
    async with pools(tmp_path, timeout_s=PULL_S, failures_to_quarantine=1, quarantine_s=60.0) as on:
        setattr(on.decode, fault, True)
        asking = asyncio.create_task(on.routed.post("s", prompt=PROMPT))
        await on.pull_out()
        answer = await asking
        assert (answer.status_code, by(answer)) == (200, "d")
        transfer_requests = [seen.json for seen in on.decode.seen if "completions" in seen.path]
        assert ["kv_transfer_params" in one for one in transfer_requests] == [True, False]
        assert transfer_requests[1]["prompt"] == PROMPT, "as the client sent it"
        await until(lambda: on.decode.dropped == 1)
        assert on.decode.computed == len(PROMPT)
        (transfer,) = await on.transfers(1)
        assert (transfer.status, transfer.external_tokens) == ("failed", None)
        assert transfer.reason == "no byte of the response to the decode request within 20 s"
        if fault == "full":
            assert on.prefill.retained == {}, "its engine has them freed where the request never ran"
        assert not [seen for seen in (*on.prefill.seen, *on.decode.seen) if seen.json.get("prompt") == []]
        setattr(on.decode, fault, False)
        again = await on.routed.post("s", prompt=PROMPT)
        assert again.status_code == 200
        _, refused = await on.transfers(2)
        assert (refused.status, "quarantined" in refused.reason) == ("refused", True), "it was a strike"


async def test_a_pull_that_is_made_after_all_is_nobodys(tmp_path: Path) -> None:
    """Its engine counts it when the router has long asked for the prompt to be computed."""
    async with pools(tmp_path, timeout_s=PULL_S) as on:
        on.decode.hang_target = True
        asking = asyncio.create_task(on.routed.post("s", prompt=PROMPT))
        await on.pull_out()
        assert (await asking).status_code == 200
        on.decode.external += len(PROMPT)
        on.prefill.retained.clear()
        on.decode.hang_target = False
        other = [token + 1000 for token in PROMPT]
        assert (await on.routed.post("t", prompt=other)).status_code == 200
        assert (await on.routed.post("u", prompt=[token + 1000 for token in other])).status_code == 200
        first, second, third = await on.transfers(3)
        assert (first.status, first.external_tokens) == ("failed", None)
        assert (second.status, second.external_tokens) in (("transferred", None), ("transferred", len(PROMPT)))
        assert (third.status, third.external_tokens) == ("transferred", len(PROMPT))


@pytest.mark.parametrize("end", ["served", "failed", "left"])
async def test_blocks_that_a_source_keeps_are_not_free(end: str, tmp_path: Path) -> None:
    async with pools(tmp_path) as on:
        on.decode.gate = asyncio.Event()
        asking = asyncio.create_task(on.routed.post("s", prompt=PROMPT))
        await until(lambda: bool(on.prefill.retained) and bool(on.decode.seen))
        await until(lambda: on.routed.load("p").num_requests == 0)
        load = on.routed.load("p")
        assert (load.retained_tokens, load.free_kv_tokens) == (len(PROMPT), 4096 - len(PROMPT))
        assert await on.routed.metric('instance_retained_tokens{instance="p"}') == len(PROMPT)
        if end == "left":
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        else:
            if end == "failed":
                on.prefill.retained.clear()
            on.decode.gate.set()
            assert (await asking).status_code == 200
        await until(lambda: on.routed.load("p").retained_tokens == 0)
        assert on.routed.load("p").free_kv_tokens == 4096
        on.decode.gate.set()


@pytest.mark.parametrize("on_full", ["wait", "reject"])
async def test_a_prompt_waits_until_what_the_source_keeps_has_been_pulled(on_full: str, tmp_path: Path) -> None:
    async with pools(tmp_path, p_capacity=NEED + 10, parameters={"on_full": on_full}) as on:
        on.decode.gate = asyncio.Event()
        first = asyncio.create_task(on.routed.post("s", prompt=PROMPT))
        await until(lambda: on.routed.load("p").retained_tokens > 0)
        second = asyncio.create_task(on.routed.post("t", prompt=[token + 1000 for token in PROMPT]))
        await until(lambda: on.routed.server.tick().decisions.get(f"{on_full}_prefill_kv", 0) == 1)
        assert len(on.prefill.transfer_requests) == 1
        on.decode.gate.set()
        assert (await first).status_code == 200
        answer = await second
        assert answer.status_code == (200 if on_full == "wait" else 503)
        assert on_full == "wait" or "reject_prefill_kv" in answer.text
        assert len(on.prefill.transfer_requests) == (2 if on_full == "wait" else 1)


async def test_without_a_prefill_instance_the_prompt_is_computed_where_it_is_decoded(tmp_path: Path) -> None:
    async with pools(tmp_path) as on:
        await on.prefill.kill()
        answers = [await on.routed.post(f"s{number}", prompt=PROMPT) for number in range(2)]
        assert [(answer.status_code, by(answer)) for answer in answers] == [(200, "d")] * 2
        await until(lambda: on.routed.available() == {"d"})
        assert (await on.routed.post("s", prompt=PROMPT)).status_code == 200
        records = await on.routed.records(3)
    assert records[-1].decision.reason == "decode_alone"
    assert next(one.ruled_out for one in records[-1].decision.candidates if one.instance == "p")


async def test_a_prefill_instance_is_nobody_to_try_again(tmp_path: Path) -> None:
    """The client gets the error of the decode instance, not the one for an empty pool."""
    async with pools(tmp_path) as on:
        await on.decode.kill()
        answer = await on.routed.post("s", prompt=PROMPT)
        assert answer.status_code == 502
        assert "instance d" in answer.text
        (outcome,) = await on.outcomes(1)
        assert outcome.status == "error"
