"""The bench's router between two engines: both kinds of requests through it, and nothing else asked meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from launch.profile import load_config, load_profile
from launch.transfer_request import BOOTSTRAP_PORT
from results.records.decisions import DecisionRecord
from results.records.router_spec import RouterSpec
from runners.campaign.context import RunContext
from runners.experiments.pd_lifecycle.bench import Draw, build_router_spec, warm_up
from runners.experiments.pd_lifecycle.one_at_a_time import OneAtATime, build_completion_body
from runners.experiments.pd_lifecycle.static_pd_or_combined import ALONE, COLO, COMBINED, HANDOVER, PLAIN
from runners.router.server.process import RouterProcess
from runners.samplers.engine_counters import CacheShape
from tests.runners.experiments.pd_lifecycle.test_cell import grid
from tests.runners.router.transfer.engines import BLOCK, Engine, World
from tests.servers.backend import Seen

SLOW_S = 0.15
"""Of each answer: what else the engine is asked meanwhile falls into it."""


@dataclass
class Watched(Engine):
    """An engine that keeps when its metrics were asked for."""

    asked_at: list[float] = field(default_factory=list)

    async def _answer(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if seen.path == "/metrics":
            self.asked_at.append(perf_counter())
        return await super()._answer(seen, reader, writer)

    async def _complete(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(SLOW_S)
        return await super()._complete(seen, reader, writer)


def spec_of(prefill: Engine, decode: Engine, folder: Path, plain: Engine | None = None) -> RouterSpec:
    """As the bench makes it."""
    engines = {"prefill": prefill, "decode": decode, **({} if plain is None else {"both": plain})}
    members = tuple(
        SimpleNamespace(
            role=side,
            engine=SimpleNamespace(url=engine.url, ports={BOOTSTRAP_PORT: urlsplit(engine.url).port}),
        )
        for side, engine in engines.items()
    )
    configs = {name: load_config(name) for name in ("mooncake_both", "plain")}
    context = SimpleNamespace(profile=load_profile("cpu-tiny"), configs=configs)
    shapes = [CacheShape(BLOCK, 4096)] * len(engines)
    decisions = folder / "decisions.jsonl"
    return build_router_spec(grid(), cast(RunContext, context), cast(Any, members), shapes, decisions, 512)


async def asked_during(prefill: Watched, decode: Watched, spec: RouterSpec, folder: Path) -> list[float]:
    """Times at which either engine was asked for metrics while one of six requests, back to back, was served."""
    windows: list[tuple[float, float]] = []
    async with RouterProcess(spec, folder / "spec.json") as router:
        async with httpx.AsyncClient(base_url=router.url, trust_env=False, timeout=30) as client:
            for number in range(6):
                name = f"{COMBINED if number % 2 else 'lc-'}{number}"
                body = {"model": "m", "prompt": [number] * 3 * BLOCK, "max_tokens": 1}
                begin = perf_counter()
                answer = await client.post("/v1/completions", json=body, headers={"x-request-id": name})
                windows.append((begin, perf_counter()))
                assert answer.status_code == 200, answer.text
        await router.end()
    asked = (*prefill.asked_at, *decode.asked_at)
    return [at for at in asked if any(begin <= at <= end for begin, end in windows)]


@pytest.mark.parametrize("counts", [False, True], ids=["as the bench has it", "with a router that counts"])
async def test_no_engine_is_asked_for_metrics_between_a_send_and_its_last_token(tmp_path: Path, counts: bool) -> None:
    world = World()
    async with (
        Watched("prefill", world=world) as prefill,
        Watched("decode", world=world) as decode,
    ):
        spec = spec_of(prefill, decode, tmp_path)
        if counts:
            spec = replace(spec, transfer=replace(spec.transfer, count=True))
        during = await asked_during(prefill, decode, spec, tmp_path)
        assert bool(during) is counts
        transfer_requests = (len(prefill.transfer_requests), len(decode.transfer_requests))
        assert transfer_requests == (3, 3), "the combined requests ask the decode engine alone"
        assert decode.served == 6
    records = msgspec.json.Decoder(DecisionRecord).decode_lines((tmp_path / "decisions.jsonl").read_bytes())
    # A record is written once its transfer is counted: with counters, the next request's may stand before it.
    actual = sorted(records, key=lambda one: one.seq)
    assert [(one.decision.reason, one.decision.prefill) for one in actual] == [
        ("pools", "prefill"),
        ("combined", ""),
    ] * 3
    assert {one.decision.instance for one in actual} == {"decode"}
    assert [one.outcome is not None and one.outcome.transfer is not None for one in actual] == [True, False] * 3


async def test_each_kind_of_request_reaches_its_engine_and_no_other(tmp_path: Path) -> None:
    """The plain engine has the most free KV: `static_pd` alone would send it every decode."""
    world, named = World(), {"lc-1": "decode", f"{COMBINED}2": "decode", f"{ALONE}3": PLAIN}
    async with (
        Watched("prefill", world=world) as prefill,
        Watched("decode", world=world) as decode,
        Watched(PLAIN, world=world) as plain,
    ):
        spec = spec_of(prefill, decode, tmp_path, plain)
        async with RouterProcess(spec, tmp_path / "spec.json") as router:
            client = OneAtATime(router.url, 30.0)
            async with client:
                draw = Draw(1, 0, 256)
                warm_ups = await warm_up(client, [HANDOVER, COLO, PLAIN], draw, "m", 2 * BLOCK)
                for name in named:
                    exchange = await client.send_request(name, build_completion_body("m", [7] * 3 * BLOCK, 1))
                    assert exchange.http_status == 200, exchange.error
            await router.end()
        assert (len(prefill.transfer_requests), len(decode.transfer_requests)) == (3, 3)
        assert (decode.served, plain.served) == (6, 3)
    assert [one.purpose for one in warm_ups] == [HANDOVER, COLO, PLAIN] * 2
    actual = msgspec.json.Decoder(DecisionRecord).decode_lines((tmp_path / "decisions.jsonl").read_bytes())
    picks = {one.request.request: one.decision.instance for one in actual}
    assert {name: picks[name] for name in named} == named
