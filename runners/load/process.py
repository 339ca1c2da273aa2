"""The load in a process of its own: the campaign's work would otherwise delay the stamps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from results.records.layout import name_spec_beside
from results.records.load_specs import LoadSpec, ReplaySpec
from runners.child_process import ChildProcess, start_child, write_spec
from runners.load.messages import LoadError, LoadLine, LoadOutcome, LoadTick
from runners.load.replay_messages import ReplayOutcome, ReplayTick

CUT_GRACE_S = 15.0
"""From the cut to the outcome: the records of what was in flight are still written."""
END_GRACE_S = 2.0

Tick = TypeVar("Tick")
OutcomeOf = TypeVar("OutcomeOf")


async def run_load(
    spec: LoadSpec, on_tick: Callable[[LoadTick], None], *, cut: asyncio.Event | None = None
) -> LoadOutcome:
    """Run a cell in a load process and return how it ended; its spec is stored beside its records.

    Setting `cut` ends the cell now, with an outcome (`cancelled`). Cancelling this coroutine ends the process at once,
    without one. Raises LoadError where nothing was measured.
    """
    return await _run_child(spec, LoadLine[LoadTick, LoadOutcome], on_tick, cut or asyncio.Event())


async def run_replay(
    spec: ReplaySpec, on_tick: Callable[[ReplayTick], None], *, cut: asyncio.Event | None = None
) -> ReplayOutcome:
    """As `run_load`, for a replay."""
    return await _run_child(spec, LoadLine[ReplayTick, ReplayOutcome], on_tick, cut or asyncio.Event(), "replay")


async def _run_child(
    spec: LoadSpec | ReplaySpec,
    line_type: type[LoadLine[Tick, OutcomeOf]],
    on_tick: Callable[[Tick], None],
    cut: asyncio.Event,
    *mode: str,
) -> OutcomeOf:
    path = write_spec(name_spec_beside(Path(spec.requests_path)), spec, LoadError)
    child = await start_child("runners.load", *mode, str(path), line_type=line_type, end_grace_s=END_GRACE_S)
    cutting = asyncio.create_task(_cut_on(child, cut))
    try:
        line = await child.follow_ticks(on_tick)
    finally:
        cutting.cancel()
        await child.end()
    if line is not None and line.outcome is not None:
        return line.outcome
    raise child.make_error(line, "the load process ended with no outcome", LoadError)


async def _cut_on(child: ChildProcess[LoadLine[Tick, OutcomeOf]], cut: asyncio.Event) -> None:
    await cut.wait()
    child.terminate()
    await asyncio.sleep(CUT_GRACE_S)
    child.kill()
