"""The transfer probe inside real engines: one request from P to D leaves every event of its way, in order."""

from __future__ import annotations

import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from launch.command import build_launch, write_launch
from launch.environment import Engine, find_engine
from launch.instance import Instance
from launch.local import LocalBackend
from launch.profile import load_config, load_profile
from launch.transfer_request import BOOTSTRAP_PORT
from results.records.layout import ConfigLayout
from tests.launch.engines import ignore_start
from tests.ports import own_port

pytestmark = [
    pytest.mark.engine, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures("patches"),
]  # fmt: skip

PROFILE = load_profile("cpu-tiny")
BLOCK, BYTES_PER_TOKEN, LAYERS = 128, 512, 2
"""The CPU build's block; 2 layers x (K and V) x 2 heads x 32 values x 2 bytes."""
CONTEXT, NEW = 2 * BLOCK, 3 * BLOCK
FLUSHED_S = 10.0

Line = dict[str, Any]


@asynccontextmanager
async def pair(backend: LocalBackend, engine: Engine, config: str, folder: Path) -> AsyncIterator[list[Instance]]:
    """Two engines of a config, with the transfer log on."""
    async with AsyncExitStack() as stack:
        instances = []
        for place, name in enumerate(("p", "d")):
            layout = ConfigLayout(folder / name)
            spec = build_launch(
                PROFILE, load_config(config), engine, instance=name, port=own_port(24_000 + 100 * place, 2),
                layout=layout, launch=1, transfer_log=True,
            )  # fmt: skip
            write_launch(spec, layout)
            instance = await backend.start(spec, ignore_start)
            stack.push_async_callback(instance.stop, PROFILE.launch.stop_grace_s, 0.0)
            instances.append(instance)
        for instance in instances:
            await instance.wait_ready(PROFILE.launch.ready_timeout_s)
        yield instances


def lines(instance: Instance) -> list[Line]:
    """What an engine has written so far, whole lines only."""
    (path,) = instance.spec.rings.glob("transfer.*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def wait_for(instance: Instance, enough: Callable[[list[Line]], bool]) -> list[Line]:
    """The log is written by a thread of its own, a moment later."""
    deadline = time.monotonic() + FLUSHED_S
    while not enough(said := lines(instance)):
        assert time.monotonic() < deadline, said
        time.sleep(0.05)
    return said


def ends_with(line: Line, event: str, **values: str) -> bool:
    return line["event"] == event and values.items() <= line.items()


async def complete(instance: Instance, prompt: list[int], tokens: int, transfer: Line | None) -> Line:
    body: Line = {"model": instance.spec.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    body |= {"ignore_eos": True} | ({} if transfer is None else {"kv_transfer_params": transfer})
    async with httpx.AsyncClient(base_url=instance.url, timeout=60) as client:
        answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    result: Line = answer.json()
    return result


def of(said: list[Line], event: str, key: str, value: str) -> Line:
    """The one line of an event about one transfer or request."""
    (found,) = [line for line in said if line["event"] == event and line.get(key) == value]
    return found


def seeded(source: random.Random) -> tuple[list[int], list[int]]:
    """A context, and a prompt that begins with it."""
    prompt = [source.randrange(256) for _ in range(CONTEXT + NEW)]
    return prompt[:CONTEXT], prompt


async def test_a_transfer_of_mooncake_leaves_its_whole_way(backend: LocalBackend, tmp_path: Path) -> None:
    source = random.Random(1)
    async with pair(backend, find_engine("cpu"), "mooncake_both", tmp_path) as (prefill, decode):
        address = f"http://127.0.0.1:{prefill.ports[BOOTSTRAP_PORT]}"
        async with httpx.AsyncClient() as client:
            peer = next(iter((await client.get(f"{address}/query")).json().values()))["engine_id"]
        for transfer in ("warm-up", "measured"):  # a first transfer also connects the engines
            context, prompt = seeded(source)
            await complete(decode, context, 1, None)
            params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
            await complete(prefill, prompt, 1, params)
            params = {
                "do_remote_decode": False, "do_remote_prefill": True, "transfer_id": transfer,
                "remote_engine_id": peer, "remote_bootstrap_addr": address,
            }  # fmt: skip
            await complete(decode, prompt, 4, params)
        sent = wait_for(prefill, lambda said: ends_with(said[-1], "response_sent", transfer="measured"))
        got = wait_for(decode, lambda said: ends_with(said[-1], "scheduled", transfer="measured"))

    for said in (sent, got):
        statuses = [line for line in said if line["event"] == "status"]
        assert said[: len(statuses)] == statuses
        assert {line["role"] for line in statuses} == {"engine", "worker"}
        seen = {event: true for line in statuses for event, true in line["available"].items()}
        assert [event for event, true in seen.items() if not true] == ["write_submit"]

    def p(event: str) -> Line:
        return of(sent, event, "transfer", "measured")

    def d(event: str) -> Line:
        return of(got, event, "transfer", "measured")

    write = p("write")
    order = [
        p("scheduled")["t_ns"], p("prefill_done")["t_ns"], p("send_ready")["t_ns"], d("blocks_allocated")["t_ns"],
        d("load_started")["t_ns"], d("pull_sent")["t_ns"], p("metadata_received")["t_ns"], write["t5_ns"],
        write["t6_ns"], d("received")["t_ns"], d("promoted")["t_ns"], d("scheduled")["t_ns"],
    ]  # fmt: skip
    assert order == sorted(order)
    assert write["ok"]
    assert write["bytes"] == NEW * BYTES_PER_TOKEN
    assert (write["blocks"], write["layers"]) == (NEW // BLOCK, LAYERS)
    assert LAYERS <= write["operations"] <= LAYERS * write["blocks"]
    assert write["submit_us"] is None
    assert write["build_params_us"] > 0
    assert (p("scheduled")["part"], p("scheduled")["prompt_tokens"]) == ("prefill", CONTEXT + NEW)
    assert (p("scheduled")["cached_tokens"], p("prefill_done")["blocks"]) == (0, (CONTEXT + NEW) // BLOCK)
    allocated = d("blocks_allocated")
    assert (allocated["local_tokens"], allocated["external_tokens"]) == (CONTEXT, NEW)
    assert allocated["blocks"] == p("metadata_received")["blocks"] == write["blocks"]
    assert d("scheduled")["cached_tokens"] == CONTEXT + NEW - 1
    assert d("received")["ok"]
    assert d("promoted")["ok"]
    assert d("steps")["steps"] >= 1
    assert d("steps")["step_p50_us"] > 0


async def test_a_transfer_of_nixl_leaves_what_it_shows(backend: LocalBackend, tmp_path: Path) -> None:
    source = random.Random(2)
    async with pair(backend, find_engine("cpu"), "nixl_both", tmp_path) as (prefill, decode):
        offered: Line = {}
        for _ in range(2):
            context, prompt = seeded(source)
            await complete(decode, context, 1, None)
            params = {"do_remote_decode": True, "do_remote_prefill": False}
            offered = (await complete(prefill, prompt, 1, params))["kv_transfer_params"]
            await complete(decode, prompt, 4, offered)
        request = offered["remote_request_id"]
        sent = wait_for(prefill, lambda said: ends_with(said[-1], "send_ready", request=request))
        got = wait_for(decode, lambda said: ends_with(said[-1], "scheduled", remote_request=request))

    status = next(line for line in got if line["event"] == "status" and line["role"] == "worker")
    unseen = {"metadata_received", "response_sent", "write_submit"}
    assert {event for event, true in status["available"].items() if not true} == unseen
    assert set(status["reasons"]) == unseen

    def p(event: str) -> Line:
        return of(sent, event, "request", request)

    def d(event: str) -> Line:
        return of(got, event, "remote_request", request)

    write = d("write")
    received = d("received")
    order = [
        p("scheduled")["t_ns"], p("prefill_done")["t_ns"], d("blocks_allocated")["t_ns"], d("load_started")["t_ns"],
        d("pull_sent")["t_ns"], write["t5_ns"], write["t6_ns"], received["t_ns"], d("promoted")["t_ns"],
        d("scheduled")["t_ns"],
    ]  # fmt: skip
    assert order == sorted(order)
    assert write["ok"]
    assert write["t6_from"] == "telemetry"
    assert write["bytes"] == NEW * BYTES_PER_TOKEN
    assert (write["blocks"], write["layers"]) == (NEW // BLOCK, LAYERS)
    assert write["operations"] >= 1
    assert (p("send_ready")["request"], received["ok"]) == (request, True)
