"""The bench of a `pd-lifecycle` run: a prefill engine, a decode engine, a router before them, and a client.

Cells share it. Engines start once, and again where one died or where a restart empties the caches.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launch.command import ports_needed
from launch.errors import LaunchError
from launch.instance import http_client
from results.records.layout import AttemptLayout, LifecycleLayout
from results.records.transfer_log import read_probe
from runners.campaign.context import RunContext
from runners.campaign.engine_group import GroupPlan, Member, engine_group
from runners.experiments.engines import common_block_tokens
from runners.experiments.pd_lifecycle import policy as pd_lifecycle_policy
from runners.experiments.pd_lifecycle.caches import Aged, Caches, EngineCache, NotEmptied
from runners.experiments.pd_lifecycle.client import OneAtATime
from runners.experiments.pd_lifecycle.evidence import NEEDED, SIDES, WRITE
from runners.experiments.pd_lifecycle.grid import Grid
from runners.experiments.routing.transfers import endpoint_of, kv_bytes_per_token
from runners.load.prompts import token_ids
from runners.router.server.process import RouterProcess
from runners.router.spec import HealthRules, InstanceSpec, Limits, RouterSpec, TransferRules
from runners.samplers.engine_counters import CacheShape, parse_cache_shape
from state.events import Noted
from state.run import CellPlan

ALLOCATED = "blocks_allocated"
"""The event with the tokens that the decode engine holds, and those for which it waits."""
EXTRA_ENV = {"VLLM_SERVER_DEV_MODE": "1"}
"""Enables /reset_prefix_cache in an engine."""
NEVER = 1_000_000
"""Failures before a quarantine: no failure may stop the next request."""
HEALTH_S = 3600.0
"""Interval of the router's health checks, too long to fall into a measured request. A connection reveals a dead
engine."""
CHECK_PROMPTS, PREFIX_PROMPTS, CELL_PROMPTS = 0, 1, 1_000
"""Streams of prompts, which share no prefix. A cell has CELL_PROMPTS plus its index in the grid."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Draws random prompts from the profile's vocabulary with one seed."""

    seed: int
    low: int
    high: int

    def draw_tokens(self, stream: int, index: int, count: int) -> list[int]:
        """The first `count` tokens of a prompt. No two (stream, index) share a prefix."""
        if not count:
            return []
        drawn = token_ids(seed=self.seed, cell_index=stream, index=index, count=count, low=self.low, high=self.high)
        return [int(token) for token in drawn]


@dataclass(frozen=True, slots=True)
class Bench:
    prefill: Member
    decode: Member
    router: RouterProcess
    client: OneAtATime
    """Sends to the router, which hands a request over or serves it on the decode engine, by the request's name."""
    caches: Caches
    aged: Aged
    draw: Draw
    decisions: Path
    probes: Mapping[str, Path]
    """Side to the folder of its probe."""
    block_tokens: int
    capacity_tokens: int | None
    """Capacity of the smaller KV cache; None = an engine does not report it."""
    kv_bytes_per_token: int | None
    """Over all layers; None = the model's folder does not state it."""
    counted_by: Literal["probe", "counters"] = "probe"
    """Source of the tokens that the decode engine held of a prompt: the probe, or its counters, read while idle."""

    async def why_dead(self) -> str:
        """The part that ended, and how; empty = all parts are alive."""
        for side, member in zip(SIDES, (self.prefill, self.decode), strict=True):
            if died := await member.engine.explain_death():
                return f"the {side} engine {died}"
        return "" if self.router.alive else "the router died"


class BenchSlot:
    """Holds at most one bench. After a LaunchError it does not try again: the launcher has retried each engine."""

    def __init__(self, grid: Grid, context: RunContext) -> None:
        self._grid = grid
        self._context = context
        self._stack = AsyncExitStack()
        self._bench: Bench | None = None
        self._failure: LaunchError | None = None

    async def get_bench(self, cell: CellPlan) -> Bench:
        """The current bench if it is alive, else a fresh one. Raises LaunchError, RouterError or LoadError."""
        if self._bench is not None and not await self._bench.why_dead():
            return self._bench
        await self.release()
        if self._failure is not None:
            raise self._failure
        stack = AsyncExitStack()
        try:
            folder = LifecycleLayout(self._context.layout.root).next_start()
            self._bench = await stack.enter_async_context(open_bench(self._grid, self._context, cell, folder))
        except LaunchError as error:
            self._failure = error
            raise
        self._stack = stack
        return self._bench

    async def release(self) -> None:
        """Stop router and engines, if any, and wait until they have ended."""
        stack, self._stack, self._bench = self._stack, AsyncExitStack(), None
        await stack.aclose()


@asynccontextmanager
async def open_bench(grid: Grid, context: RunContext, cell: CellPlan, folder: Path) -> AsyncIterator[Bench]:
    """Start fresh engines with empty caches and a router; stops all on exit.

    Raises LaunchError, RouterError or LoadError where a part does not start, CellFailed where an engine does not report
    the layout of its cache.
    """
    profile, configs = context.profile, [context.configs[name] for name in (grid.prefill_config, grid.decode_config)]
    group = GroupPlan(
        config=grid.decode_config,
        configs=(grid.prefill_config, grid.decode_config),
        roles=("prefill", "decode"),
        folder=folder,
        ports=max(ports_needed(config) for config in configs),
        events=False,
        gpus=grid.gpus,
        env=EXTRA_ENV,
        transfer_log=True,
    )
    model, timeout_s = profile.model, grid.request_timeout_s
    draw = Draw(cell.params["load_seed"], model.vocab_low, model.vocab_high)
    async with AsyncExitStack() as stack:
        members = await stack.enter_async_context(engine_group(context.launcher, group))
        clients = [await stack.enter_async_context(http_client(member.engine.url)) for member in members]
        engines = [EngineCache(*each, model.served_name, timeout_s) for each in zip(SIDES, clients, strict=True)]
        shapes = [parse_cache_shape(await engine.read_metrics()) for engine in engines]
        attempted = AttemptLayout(folder)
        decisions = attempted.decisions
        source = members[0].engine.spec.tiny_model or Path(model.source)
        bytes_per_token = kv_bytes_per_token(source)
        spec = build_router_spec(grid, context, members, shapes, decisions, bytes_per_token)
        router = await stack.enter_async_context(RouterProcess(spec, attempted.router_spec))
        block_tokens = common_block_tokens(shapes, "the tokens that they hold are unknown")
        capacities = [shape.capacity_tokens for shape in shapes if shape.capacity_tokens is not None]
        capacity_tokens = min(capacities) if len(capacities) == len(shapes) else None
        caches = Caches((engines[0], engines[1]), block_tokens, _draw_check_prompts(draw))
        probes = {side: member.engine.spec.rings for side, member in zip(SIDES, members, strict=True)}
        bench = Bench(
            prefill=members[0],
            decode=members[1],
            router=router,
            client=await stack.enter_async_context(OneAtATime(router.url, timeout_s)),
            caches=caches,
            aged=await _age_pools(grid, caches, capacity_tokens, context, cell),
            draw=draw,
            decisions=decisions,
            probes=probes,
            block_tokens=block_tokens,
            capacity_tokens=capacity_tokens,
            kv_bytes_per_token=bytes_per_token,
            counted_by="counters" if read_probe(probes["decode"]).blind(ALLOCATED) else "probe",
        )
        for text in _describe_blind_spots(bench):
            context.emit(Noted("warning", cell.cell, text))
        yield bench


def build_router_spec(
    grid: Grid,
    context: RunContext,
    members: tuple[Member, ...],
    shapes: list[CacheShape],
    decisions: Path,
    bytes_per_token: int | None,
) -> RouterSpec:
    """The router before both engines: one attempt per request, and no query to an engine during a request."""
    kind, timeout_s = context.profile.engine.kind, grid.request_timeout_s
    return RouterSpec(
        instances=tuple(
            InstanceSpec(
                instance=side,
                url=member.engine.url,
                role=member.role,
                kv_capacity_tokens=shape.capacity_tokens,
                block_tokens=shape.block_tokens,
                transfer=endpoint_of(member, context.configs[config], kind, bytes_per_token),
            )
            for side, member, shape, config in zip(
                SIDES, members, shapes, (grid.prefill_config, grid.decode_config), strict=True
            )
        ),
        policy=pd_lifecycle_policy.__file__,
        decisions_path=str(decisions),
        health=HealthRules(probe_interval_s=HEALTH_S),
        limits=Limits(first_byte_s=timeout_s, stall_s=timeout_s, attempts=1),
        # A page of metrics takes milliseconds of the decode engine's process, within the measured answer.
        transfer=TransferRules(timeout_s=timeout_s, attempts=1, failures_to_quarantine=NEVER, count=False),
    )


async def _age_pools(
    grid: Grid, caches: Caches, capacity_tokens: int | None, context: RunContext, cell: CellPlan
) -> Aged:
    """Fill both pools once, then empty the caches where `evict` is reset. Raises CellFailed."""
    if not grid.age:
        return Aged(reason="the preset turns it off")
    if capacity_tokens is None:
        return Aged(reason="an engine does not report the capacity of its KV cache")
    aged = await caches.age_pools(capacity_tokens)
    if grid.evict == "reset":
        try:
            await caches.empty()
        except NotEmptied as error:
            context.emit(Noted("warning", cell.cell, f"{error}: it still holds the prompts that aged its KV pool"))
    return aged


def _draw_check_prompts(draw: Draw) -> Callable[[int], list[int]]:
    numbers = itertools.count()
    return lambda count: draw.draw_tokens(CHECK_PROMPTS, next(numbers), count)


def _describe_blind_spots(bench: Bench) -> list[str]:
    """The events that the transfer probes cannot see, one line per side."""
    warnings = []
    for side, folder in bench.probes.items():
        log = read_probe(folder)
        reasons = {event: log.blind(event) for event in (*NEEDED[side], WRITE)}
        if not log.statuses:
            warnings.append(f"the transfer probe of the {side} engine wrote nothing: its stamps will be missing")
        elif any(reasons.values()):
            named = "; ".join(f"{event} ({why})" for event, why in reasons.items() if why)
            warnings.append(f"the transfer probe of the {side} engine does not see {named}")
    return warnings
