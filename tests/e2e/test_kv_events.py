"""The exact index against a real engine: what it expects is what the engine's prefix cache then has, under eviction."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import httpx
import pytest

from launch.command import build_launch
from launch.environment import find_engine
from launch.local import LocalBackend
from launch.preflight_checks import counter, read_exposition
from launch.profile import load_config, load_profile
from results.records.layout import ConfigLayout
from runners.router.instances.kv_events import EventIndex, KvEvents, ZmqWire
from runners.router.prefix_index import PrefixIndex, count_cached_by_instance, make_block_keys
from tests.launch.engines import ignore_start
from tests.ports import own_port

pytest.importorskip("zmq")
pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

BLOCK, BLOCKS = 32, 65
"""64 usable blocks: vLLM keeps one for itself."""
PROMPTS = 30
SETTLE_S = 10.0


async def hits(client: httpx.AsyncClient) -> float:
    """Prompt tokens that the engine found in its prefix cache so far."""
    return counter(await read_exposition(client), "vllm:prefix_cache_hits_total") or 0.0


def settle(events: KvEvents, messages: int) -> None:
    """Take what the engine says until it has said something new and then nothing for a moment."""
    deadline = time.monotonic() + SETTLE_S
    quiet_s = time.monotonic()
    while time.monotonic() < deadline and (events.messages == messages or time.monotonic() - quiet_s < 0.15):
        if events.apply_messages():
            quiet_s = time.monotonic()
        time.sleep(0.005)


async def test_the_index_expects_what_the_engine_then_has(backend: LocalBackend, tmp_path: Path) -> None:
    profile, engine = load_profile("cpu-tiny"), find_engine("cpu")
    replay = f"tcp://127.0.0.1:{own_port(23_500)}"
    wire = ZmqWire("tcp://127.0.0.1:0", replay)
    settings = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": wire.bound,
        "replay_endpoint": replay,
        "topic": "kv-events",
    }
    spec = build_launch(
        profile, load_config("plain"), engine,
        instance="events-1", port=own_port(23_000, 2), layout=ConfigLayout(tmp_path), launch=1,
        extra_args=(
            "--block-size", str(BLOCK), "--num-gpu-blocks-override", str(BLOCKS),
            "--max-model-len", "1536", "--kv-events-config", json.dumps(settings),
        ),
    )  # fmt: skip
    index, guess = EventIndex(BLOCK), PrefixIndex(BLOCK, BLOCKS - 1)
    events = KvEvents(index, wire, time.monotonic)
    source = random.Random(3)
    heads = [[source.randrange(256) for _ in range(4 * BLOCK)] for _ in range(4)]
    wrong, expected, approximate = [], 0, 0
    try:
        instance = await backend.start(spec, ignore_start)
        try:
            await instance.wait_ready(120)
            async with httpx.AsyncClient(base_url=instance.url, timeout=60) as client:
                for number in range(PROMPTS):
                    prompt = source.choice(heads) + [source.randrange(256) for _ in range(source.randrange(1, 300))]
                    keys = make_block_keys(prompt, BLOCK)
                    cached = count_cached_by_instance({"engine": index, "guess": guess}, keys, len(prompt))
                    indexed_tokens = cached["engine"]
                    approximate += cached["guess"] == indexed_tokens
                    before, messages = await hits(client), events.messages
                    body = {"model": spec.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
                    (await client.post("/v1/completions", json=body)).raise_for_status()
                    guess.insert_keys(keys)
                    found = await hits(client) - before
                    expected += indexed_tokens
                    if found != indexed_tokens:
                        wrong.append((number, len(prompt), indexed_tokens, found))
                    if len(keys) * BLOCK > indexed_tokens + BLOCK:  # it stores at least one new block, and says so
                        settle(events, messages)
        finally:
            await instance.stop(profile.launch.stop_grace_s, 0.0)
    finally:
        events.close()
    assert wrong == []
    assert expected > PROMPTS * BLOCK, "there was something to find"
    assert events.damaged == 0
    assert events.gaps_open == 0, "the first messages are lost before the subscription, and replayed"
    assert len(index) <= BLOCKS - 1
    assert approximate >= PROMPTS - 3, "the router's own index agrees nearly always"
