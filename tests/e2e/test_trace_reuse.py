"""A trace's reuse, seen by a real engine: its prefix cache hits what the block hashes say, turn by turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from launch.command import build_launch, write_launch
from launch.environment import find_engine
from launch.local import LocalBackend
from launch.profile import load_config, load_profile
from results.records.layout import ConfigLayout
from results.records.schemas import RequestStatus
from results.records.trace_lines import MAIN, Turn
from runners.load.standalone_replay import ReplayOptions, ReplayReport, replay_trace
from runners.trace.formats.tracon import write_trace
from runners.trace.session import Session, Trace, TraceFacts
from tests.launch.engines import ignore_start
from tests.ports import own_port
from tests.runners.load.traces import read_turns

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session")]

START_S = 180.0
ENGINE_BLOCK = 32
POINTS = 0.02
"""How far the measured APC may lie from the trace's bound."""


@asynccontextmanager
async def engine(backend: LocalBackend, folder: Path) -> AsyncIterator[str]:
    """The URL of an engine with room for everything, which says of every prompt how much of it was cached."""
    profile, plain = load_profile("cpu-tiny"), load_config("plain")
    arguments = (*profile.engine.extra_args, "--enable-prompt-tokens-details")
    profile = msgspec.structs.replace(
        profile, engine=msgspec.structs.replace(profile.engine, block_size=ENGINE_BLOCK, extra_args=arguments)
    )
    layout = ConfigLayout(folder)
    spec = build_launch(
        profile, plain, find_engine("cpu"), instance="plain-1", port=own_port(23_000, 2), layout=layout, launch=1
    )
    write_launch(spec, layout)
    instance = await backend.start(spec, ignore_start)
    try:
        await instance.wait_ready(START_S)
        yield spec.url
    finally:
        await instance.stop(profile.launch.stop_grace_s, 0.0)


def agentic() -> Trace:
    """Coding sessions: every turn repeats most of the one before; a sub-agent begins like its session and goes its own
    way. Hashes count from 1 in every session."""
    draw = np.random.default_rng(3)
    sessions = [Session(f"coding {number}", tuple(_coding(draw, number * 0.3))) for number in range(6)]
    facts = TraceFacts(source="agentic.jsonl", block_tokens=48, tail_rule="floor", hash_scope="session")
    return Trace(facts, tuple(sessions))


def _coding(draw: np.random.Generator, start_s: float) -> Iterator[Turn]:
    def turn(agent: str, number: int, arrival_s: float, hashes: list[int], after: tuple[int, ...]) -> Turn:
        tail = int(draw.integers(0, 48))
        think = 0.01 if after else None
        return Turn(
            agent=agent,
            turn=number,
            arrival_s=arrival_s,
            think_s=think,
            input_tokens=48 * len(hashes) + tail,
            output_tokens=4,
            hashes=tuple(hashes),
            after=after,
        )

    fresh = iter(range(1, 10_000))
    history = [next(fresh) for _ in range(int(draw.integers(6, 14)))]
    side: list[int] = []
    for number in range(6):
        yield turn(MAIN, number, start_s + number, history, (2 * number - 2,) if number else ())
        if number == 0:
            side = history[:3]
        side = [*side, *(next(fresh) for _ in range(2))]
        yield turn("helper", number, start_s + number + 0.5, side, (2 * number,))
        history = [*history[:-1], *(next(fresh) for _ in range(int(draw.integers(2, 6))))]


def conversations() -> Trace:
    """Requests without sessions over global hashes, the last block of each not full."""
    draw = np.random.default_rng(4)
    fresh = iter(range(1, 10_000))
    shared = [[next(fresh) for _ in range(9)] for _ in range(3)]
    sessions = []
    for number in range(24):
        source = shared[int(draw.integers(3))]
        shared_hashes = source[: int(draw.integers(2, len(source) + 1))]
        hashes = (*shared_hashes, *(next(fresh) for _ in range(int(draw.integers(1, 6)))))
        tokens = 80 * len(hashes) - int(draw.integers(0, 80))
        only = Turn(arrival_s=number * 0.1, input_tokens=tokens, output_tokens=4, hashes=hashes)
        sessions.append(Session(str(number), (only,)))
    facts = TraceFacts(
        source="conversations.jsonl", block_tokens=80, tail_rule="ceil", hash_scope="global", has_sessions=False
    )
    return Trace(facts, tuple(sessions))


async def replayed(url: str, trace: Trace, folder: Path) -> ReplayReport:
    path = folder / trace.facts.source
    write_trace(path, trace.facts, trace.sessions)
    options = ReplayOptions(path, None, url, None, folder, {"seed": 1, "block_tokens": None, "realtime": False})
    return await replay_trace(options, lambda text: None, lambda tick: None, asyncio.Event())


async def test_the_engine_hits_what_the_hashes_share(backend: LocalBackend, tmp_path: Path) -> None:
    async with engine(backend, tmp_path / "engine") as url:
        for trace in (agentic(), conversations()):
            folder = tmp_path / trace.facts.source.partition(".")[0]
            report = await replayed(url, trace, folder)
            assert report.outcome.completed == trace.requests
            assert report.outcome.wrong_length == 0
            assert (report.spec.block_tokens, report.block_tokens_from) == (ENGINE_BLOCK, "the engine")
            measured, bound = report.numbers["apc"].value, report.outcome.apc_bound_any
            assert measured is not None
            assert 0.3 < bound < 0.9
            assert measured == pytest.approx(bound, abs=POINTS)
            assert report.numbers["apc_usage"].value == pytest.approx(bound, abs=POINTS)
            rows = read_turns(report.spec.requests_path)
            assert all(row.status is RequestStatus.OK for row in rows)
            exact = sum(row.cached_tokens == row.reusable_any_tokens for row in rows)
            assert exact >= 0.9 * len(rows), [(row.cached_tokens, row.reusable_any_tokens) for row in rows]
