"""The bench of a `pd-lifecycle` run: a prefill and a decode engine, a router before them, and who asks them.

Cells share it: engines are started once, and again where one of them died or fresh ones are to empty the caches.
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
from results.transfer_probe import read_probe
from runners.context import RunContext
from runners.engine_counters import CacheShape, cache_shape
from runners.errors import CellFailed
from runners.experiments import pd_lifecycle_policy
from runners.experiments.pd_lifecycle_caches import Aged, Caches, EngineCache, NotEmptied
from runners.experiments.pd_lifecycle_client import OneAtATime
from runners.experiments.pd_lifecycle_evidence import NEEDED, SIDES, WRITE
from runners.experiments.pd_lifecycle_grid import Grid
from runners.experiments.routing_transfers import endpoint_of, kv_bytes_per_token
from runners.group import GroupPlan, Member, engine_group
from runners.load.prompts import token_ids
from runners.router.process import RouterProcess
from runners.router.spec import HealthRules, InstanceSpec, Limits, RouterSpec, TransferRules
from state.events import Noted
from state.run import CellPlan

ALLOCATED = "blocks_allocated"
"""The event that says what the decode engine held, and what it waits for."""
EXTRA_ENV = {"VLLM_SERVER_DEV_MODE": "1"}
"""Without it an engine has no /reset_prefix_cache."""
NEVER = 1_000_000
"""Failures to a quarantine: each is counted here, and none must keep the next from being tried."""
HEALTH_S = 3600.0
"""Between two looks of the router at engines that are well: none in a request that is measured. One that ended is seen
by its connection."""
CHECK_PROMPTS, PREFIX_PROMPTS, CELL_PROMPTS = 0, 1, 1_000
"""Streams of prompts: no two of them share a beginning. A cell's is CELL_PROMPTS and its place in the grid."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Random prompts of the profile's vocabulary, all of one seed."""

    seed: int
    low: int
    high: int

    def tokens(self, stream: int, index: int, count: int) -> list[int]:
        """The first `count` tokens of a prompt; no two of (stream, index) begin alike."""
        if not count:
            return []
        drawn = token_ids(seed=self.seed, cell_index=stream, index=index, count=count, low=self.low, high=self.high)
        return [int(token) for token in drawn]


@dataclass(frozen=True, slots=True)
class Bench:
    """Ready to be measured with."""

    prefill: Member
    decode: Member
    router: RouterProcess
    client: OneAtATime
    """Sends to the router, which tells by a request's name whether it is handed over or served by the decode engine."""
    caches: Caches
    aged: Aged
    draw: Draw
    decisions: Path
    probes: Mapping[str, Path]
    """Of each side: where its probe writes."""
    block_tokens: int
    capacity_tokens: int | None
    """Of the smaller KV cache; None = an engine does not say."""
    kv_bytes_per_token: int | None
    """Over all layers; None = the model's folder does not say."""
    counted_by: Literal["probe", "counters"] = "probe"
    """Who says what the decode engine held of a prompt: the probe, or its counters, read when nothing runs."""

    def why_dead(self) -> str:
        """Which part of it ended, with its last words; empty = all of it lives."""
        for side, member in zip(SIDES, (self.prefill, self.decode), strict=True):
            if not member.engine.alive():
                return f"the {side} engine died. Its last words: {member.engine.tail(8)}"
        return "" if self.router.alive else "the router died"


class BenchSlot:
    """Holds at most one bench. One that could not be set up is not tried again: it was, engine by engine."""

    def __init__(self, grid: Grid, context: RunContext) -> None:
        self._grid = grid
        self._context = context
        self._stack = AsyncExitStack()
        self._bench: Bench | None = None
        self._failure: LaunchError | None = None

    async def get(self, cell: CellPlan) -> Bench:
        """The bench at hand if it lives, else a fresh one. Raises LaunchError, RouterError or LoadError."""
        if self._bench is not None and not self._bench.why_dead():
            return self._bench
        await self.release()
        if self._failure is not None:
            raise self._failure
        stack = AsyncExitStack()
        try:
            folder = _next_folder(self._context.layout.root / "results" / "lifecycle" / "engines")
            self._bench = await stack.enter_async_context(open_bench(self._grid, self._context, cell, folder))
        except LaunchError as error:
            self._failure = error
            raise
        self._stack = stack
        return self._bench

    async def release(self) -> None:
        """End router and engines, if there are any, and wait until all of it is gone."""
        stack, self._stack, self._bench = self._stack, AsyncExitStack(), None
        await stack.aclose()


@asynccontextmanager
async def open_bench(grid: Grid, context: RunContext, cell: CellPlan, folder: Path) -> AsyncIterator[Bench]:
    """Fresh engines, empty caches, a router of its own; all of it is ended on leaving.

    Raises LaunchError, RouterError or LoadError where a part does not start, CellFailed where an engine does not say
    how its cache is made.
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
        shapes = [cache_shape(await engine.metrics()) for engine in engines]
        decisions = folder / "decisions.jsonl"
        source = members[0].engine.spec.tiny_model or Path(model.source)
        bytes_per_token = kv_bytes_per_token(source)
        spec = router_spec(grid, context, members, shapes, decisions, bytes_per_token)
        router = await stack.enter_async_context(RouterProcess(spec, folder / "router.spec.json"))
        block_tokens = _block_tokens(shapes)
        capacities = [shape.capacity_tokens for shape in shapes if shape.capacity_tokens is not None]
        capacity_tokens = min(capacities) if len(capacities) == len(shapes) else None
        caches = Caches((engines[0], engines[1]), block_tokens, _checks(draw))
        probes = {side: member.engine.spec.rings for side, member in zip(SIDES, members, strict=True)}
        bench = Bench(
            prefill=members[0],
            decode=members[1],
            router=router,
            client=await stack.enter_async_context(OneAtATime(router.url, timeout_s)),
            caches=caches,
            aged=await _age(grid, caches, capacity_tokens, context, cell),
            draw=draw,
            decisions=decisions,
            probes=probes,
            block_tokens=block_tokens,
            capacity_tokens=capacity_tokens,
            kv_bytes_per_token=bytes_per_token,
            counted_by="counters" if read_probe(probes["decode"]).blind(ALLOCATED) else "probe",
        )
        for text in _blind(bench):
            context.emit(Noted("warning", cell.cell, text))
        yield bench


def router_spec(
    grid: Grid,
    context: RunContext,
    members: tuple[Member, ...],
    shapes: list[CacheShape],
    decisions: Path,
    bytes_per_token: int | None,
) -> RouterSpec:
    """The router before both engines: one try of everything, and nothing asked of an engine while a request runs."""
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
        # A page of metrics costs the decode engine's process milliseconds, within the answer that is measured.
        transfer=TransferRules(timeout_s=timeout_s, attempts=1, failures_to_quarantine=NEVER, count=False),
    )


async def _age(grid: Grid, caches: Caches, capacity_tokens: int | None, context: RunContext, cell: CellPlan) -> Aged:
    """Both pools gone through once, then empty caches again where that is how they are emptied. Raises CellFailed."""
    if not grid.age:
        return Aged(reason="the preset says so")
    if capacity_tokens is None:
        return Aged(reason="an engine does not say how many tokens its KV cache holds")
    aged = await caches.age(capacity_tokens)
    if grid.evict == "reset":
        try:
            await caches.empty()
        except NotEmptied as error:
            context.emit(Noted("warning", cell.cell, f"{error}: it begins with what its KV pool was aged with"))
    return aged


def _block_tokens(shapes: list[CacheShape]) -> int:
    """Raises CellFailed where the engines do not say it, or differ."""
    found = {shape.block_tokens for shape in shapes}
    size = found.pop() if len(found) == 1 else None
    if size is None:
        raise CellFailed("the engines state no common KV block size: what they hold cannot be told")
    return size


def _checks(draw: Draw) -> Callable[[int], list[int]]:
    numbers = itertools.count()
    return lambda count: draw.tokens(CHECK_PROMPTS, next(numbers), count)


def _blind(bench: Bench) -> list[str]:
    """What the transfer probe says it cannot see, a line per side."""
    found = []
    for side, folder in bench.probes.items():
        log = read_probe(folder)
        reasons = {event: log.blind(event) for event in (*NEEDED[side], WRITE)}
        if not log.statuses:
            found.append(f"the transfer probe of the {side} engine wrote nothing: its stamps will be missing")
        elif any(reasons.values()):
            named = "; ".join(f"{event} ({why})" for event, why in reasons.items() if why)
            found.append(f"the transfer probe of the {side} engine does not see {named}")
    return found


def _next_folder(parent: Path) -> Path:
    """Numbered on, over all processes of the run."""
    taken = [int(path.name) for path in parent.glob("*") if path.name.isdigit()]
    return parent / str(max(taken, default=0) + 1)
