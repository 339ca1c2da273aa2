"""One cell of `routing`: fresh engines, a router with one policy before them, one replay of the trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from launch.command import count_ports_needed
from results.records.layout import TrialLayout
from results.records.load_specs import ReplaySpec
from results.records.plan import CellPlan
from results.records.router_spec import InstanceSpec, Prewarm
from results.records.trace_lines import Turn
from results.records.turns import TraceRecord
from runners.campaign.context import RunContext
from runners.campaign.engine_group import GroupPlan, Member, engine_group
from runners.campaign.experiment import CellOutcome
from runners.errors import CellFailed
from runners.experiments.engine_choice import require_common_block_tokens
from runners.experiments.kv_endpoints import endpoint_of, kv_bytes_per_token
from runners.experiments.routing.artifacts import Replayed, describe_engine, publish_cell
from runners.experiments.routing.grid import Grid
from runners.experiments.routing.plan import can_move, count_ports_per_instance
from runners.experiments.routing.specs import make_replay_spec, make_router_spec
from runners.experiments.routing.watch import Watch
from runners.load.block_prompts import BlockShape, make_prompt_ids
from runners.load.messages import LoadError
from runners.load.process import run_replay
from runners.load.replay_messages import ReplayOutcome, ReplayTick
from runners.router.server.process import RouterProcess
from runners.samplers.engine import MetricsSampler
from runners.samplers.engine_counters import CacheShape, read_baseline_shape, read_span
from runners.trace.common_prefix import common_prefix
from runners.trace.formats import read_trace


async def replay_cell(cell: CellPlan, attempt: int, grid: Grid, trace: TraceRecord, context: RunContext) -> CellOutcome:
    """Measure the cell and publish its artifacts.

    Raises CellFailed where an engine or the router died or nothing was completed, LaunchError where engines did not
    start. The attempt's folder keeps what there was.
    """
    assert cell.config is not None
    folder, config = context.attempt_folder(cell, attempt), context.configs[cell.config]
    roles = tuple(cell.params["roles"])
    group = GroupPlan(
        configs=(cell.config,) * len(roles),
        roles=roles,
        folder=TrialLayout(folder).instances,
        ports=count_ports_per_instance(grid, count_ports_needed(config)),
        events=grid.router.index == "events",
        gpus=grid.gpus,
        transfer_log=can_move(config, context.profile.engine.kind),
        args=_make_size_args(cell.params.get("kv_cache_memory_bytes")),
        decode_args=_make_size_args(grid.decode_kv_cache_memory_bytes),
    )
    async with engine_group(context.launcher, group) as members:
        replayed = await _replay_trace(cell, grid, members, folder, context)
    return await asyncio.to_thread(publish_cell, cell, attempt, grid, trace, replayed, folder, context)


async def _replay_trace(
    cell: CellPlan, grid: Grid, members: tuple[Member, ...], folder: Path, context: RunContext
) -> Replayed:
    """The replay with everything that watches it, all of it ended; the engines still run."""
    cut, written = asyncio.Event(), TrialLayout(folder)
    async with AsyncExitStack() as stack:
        scrapes = {member.name: written.scrapes(member.name) for member in members}
        samplers = {
            member.name: await stack.enter_async_context(MetricsSampler(member.engine.url, scrapes[member.name]))
            for member in members
        }
        shapes = {member.name: read_baseline_shape(scrapes[member.name]) for member in members}
        watch = stack.enter_context(Watch(cell, members, samplers, written.engines, context.emit, cut))
        instances = _list_instances(cell, grid, members, shapes, context)
        block = require_common_block_tokens(shapes.values(), "the trace's bound is not defined for them")
        spec = make_router_spec(cell, grid, instances, folder, _choose_prewarm(cell, context))
        async with RouterProcess(spec, written.router_spec, watch.note_router_tick) as router:
            path = context.layout.trace_of(cell.params.get("trace", ""))
            replay = make_replay_spec(cell, grid, context.profile.model, router.url, path, block, folder)

            def tick(progress: ReplayTick) -> None:
                watch.note_replay_tick(progress)
                if not router.alive:
                    cut.set()  # `router.end` says why

            outcome = await replay_behind(router, replay, tick, cut)
            await watch.require_engines()
            ended = await router.end()
    spans = {name: await asyncio.to_thread(read_span, path) for name, path in scrapes.items()}
    engines = tuple(
        describe_engine(instance, spans[member.name], member.engine.spec.started_by, member.engine.pid)
        for instance, member in zip(instances, members, strict=True)
    )
    return Replayed(outcome, ended, engines, spans)


async def replay_behind(
    router: RouterProcess, spec: ReplaySpec, on_tick: Callable[[ReplayTick], None], cut: asyncio.Event
) -> ReplayOutcome:
    """Run the replay.

    Raises RouterError where the replay failed because the router had died, LoadError where it failed by itself.
    """
    try:
        return await run_replay(spec, on_tick, cut=cut)
    except LoadError:
        if not router.alive:
            await router.end()
        raise


def _make_size_args(size: int | None) -> tuple[str, ...]:
    """vLLM takes the last of several values."""
    return () if size is None else ("--kv-cache-memory-bytes", str(size))


def _list_instances(
    cell: CellPlan,
    grid: Grid,
    members: Sequence[Member],
    shapes: Mapping[str, CacheShape],
    context: RunContext,
) -> tuple[InstanceSpec, ...]:
    assert cell.config is not None
    config, kind = context.configs[cell.config], context.profile.engine.kind
    model = members[0].engine.spec.model_folder
    bytes_per_token = grid.router.kv_bytes_per_token or kv_bytes_per_token(model or Path(context.profile.model.source))
    return tuple(
        InstanceSpec(
            instance=member.name,
            url=member.engine.url,
            role=member.role,
            kv_capacity_tokens=shapes[member.name].capacity_tokens,
            block_tokens=shapes[member.name].block_tokens,
            kv_events="" if member.events is None else member.events.endpoint,
            kv_replay="" if member.events is None else member.events.replay_endpoint,
            transfer=endpoint_of(member, config, kind, bytes_per_token) if cell.params["moves_kv"] else None,
        )
        for member in members
    )


def _choose_prewarm(cell: CellPlan, context: RunContext) -> Prewarm | None:
    """The trace's common prefix, as the replay will send it, where the policy asks for it (specs/load_floor.md, Q2.E).

    Raises CellFailed where the sessions of the trace share nothing.
    """
    tokens = cell.params["parameters"].get("prewarm_tokens", 0)
    if not tokens:
        return None
    trace = read_trace(context.layout.trace_of(cell.params.get("trace", "")))
    hashes = common_prefix(trace, tokens)
    if not hashes:
        raise CellFailed(
            f"prewarm_tokens={tokens}, and no two sessions of the trace are known to share their first "
            f"{trace.facts.block_tokens} tokens: there is nothing to send ahead"
        )
    model, facts = context.profile.model, trace.facts
    shape = BlockShape(
        cell.params["replay_seed"], facts.block_tokens, facts.hash_scope, model.vocab_low, model.vocab_high
    )
    prefix = Turn(arrival_s=0.0, input_tokens=len(hashes) * facts.block_tokens, output_tokens=1, hashes=hashes)
    return Prewarm(model.served_name, tuple(make_prompt_ids(shape, "", 0, prefix).tolist()))
