"""A replay: the sessions of a trace arrive at their recorded times; each sends a turn when the one before has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from runners.load.block_prompts import BlockShape
from runners.load.client import LoadClient, RoutedConnection, resolve
from runners.load.meter import allow_connections, at_once, follow, quiet_gc
from runners.load.recorder import Recorder
from runners.load.replay import Replay
from runners.load.replay_plan import ReplayPlan, plan_replay
from runners.load.replay_spec import ReplayOutcome, ReplaySpec, ReplayTick
from runners.load.spec import LoadError
from runners.trace.formats import read_trace
from runners.trace.reusable_tokens import count_reusable_tokens


async def run_trace(spec: ReplaySpec, on_tick: Callable[[ReplayTick], None], cut: asyncio.Event) -> ReplayOutcome:
    """Run the replay in this process, on this event loop, and write a TurnRecord for every turn of the trace.

    `cut` ends it early: what is in flight or was not sent is recorded as CUT. Raises LoadError where nothing can be
    measured, TraceError where the trace is malformed.
    """
    plan, blocks = read_plan(spec)
    wide = plan.widest(spec.max_inflight_sessions)
    allow_connections(wide + spec.spare_connections, "limit max_inflight_sessions")
    client = LoadClient(
        await resolve(spec.url),
        spares=spec.spare_connections,
        request_timeout_s=spec.request_timeout_s,
        stall_timeout_s=spec.stall_timeout_s,
        connection=RoutedConnection,
    )
    recorder = Recorder(Path(spec.requests_path))
    replay = Replay(spec, plan, blocks, client, recorder)
    try:
        replay.prepare()
        await client.open()
        with quiet_gc(), at_once(spec.realtime) as replay.realtime:
            replay.start()
            await follow(replay, client, (recorder,), on_tick, cut, spec.drain_s)
    finally:
        replay.finish()
        await client.close()
        await recorder.close()
    return replay.outcome()


def read_plan(spec: ReplaySpec) -> tuple[ReplayPlan, BlockShape]:
    """The plan of the spec's trace and the shape of its prompts. Raises LoadError where the trace holds no turn."""
    trace = read_trace(Path(spec.trace_path))
    if not trace.requests:
        raise LoadError(f"{spec.trace_path} holds no turn", remedy="Give a trace with at least one request.")
    blocks = BlockShape(spec.seed, trace.facts.block_tokens, trace.facts.hash_scope, spec.vocab_low, spec.vocab_high)
    return plan_replay(trace, count_reusable_tokens(trace, spec.block_tokens), spec.pace), blocks
