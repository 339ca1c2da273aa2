"""The bench of a `pd-lifecycle` run: a prefill and a decode engine, a router before them, and who asks them.

Cells share it: engines are started once, and again where one of them died or fresh ones are to empty the caches.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from launch.command import ports_needed
from launch.errors import LaunchError
from launch.instance import http_client
from results.lifecycle.probe import read_probe
from runners.context import RunContext
from runners.engine_counters import CacheShape, cache_shape
from runners.errors import CellFailed
from runners.experiments.pd_lifecycle_caches import Caches, EngineCache
from runners.experiments.pd_lifecycle_client import OneAtATime
from runners.experiments.pd_lifecycle_evidence import NEEDED, SIDES, WRITE
from runners.experiments.pd_lifecycle_grid import Grid
from runners.experiments.routing_transfers import endpoint_of, kv_bytes_per_token
from runners.group import GroupPlan, Member, engine_group
from runners.load.prompts import token_ids
from runners.router.process import RouterProcess
from runners.router.spec import InstanceSpec, Limits, RouterSpec, TransferRules
from runners.sampler import MetricsText
from state.events import Noted
from state.run import CellPlan

POLICY = "static_pd"
EXTRA_ENV = {"VLLM_SERVER_DEV_MODE": "1"}
"""Without it an engine has no /reset_prefix_cache."""
NEVER = 1_000_000
"""Failures to a quarantine: each is counted here, and none must keep the next from being tried."""
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
    handed_over: OneAtATime
    """Sends to the router, which has the prompt computed at one engine and the request served at the other."""
    combined: OneAtATime
    """Sends to the decode engine alone."""
    caches: Caches
    draw: Draw
    decisions: Path
    probes: Mapping[str, Path]
    """Of each side: where its probe writes."""
    block_tokens: int
    capacity_tokens: int | None
    """Of the smaller KV cache; None = an engine does not say."""
    kv_bytes_per_token: int | None
    """Over all layers; None = the model's folder does not say."""

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
        shapes = [await _shape_of(client, side, timeout_s) for client, side in zip(clients, SIDES, strict=True)]
        decisions = folder / "decisions.jsonl"
        source = members[0].engine.spec.tiny_model or Path(model.source)
        bytes_per_token = kv_bytes_per_token(source)
        spec = _router_spec(grid, context, members, shapes, decisions, bytes_per_token)
        router = await stack.enter_async_context(RouterProcess(spec, folder / "router.spec.json"))
        block_tokens = _block_tokens(shapes)
        prefill, decode = (
            EngineCache(*each, model.served_name, timeout_s) for each in zip(SIDES, clients, strict=True)
        )
        capacities = [shape.capacity_tokens for shape in shapes if shape.capacity_tokens is not None]
        bench = Bench(
            prefill=members[0],
            decode=members[1],
            router=router,
            handed_over=await stack.enter_async_context(OneAtATime(router.url, timeout_s)),
            combined=await stack.enter_async_context(OneAtATime(members[1].engine.url, timeout_s)),
            caches=Caches((prefill, decode), block_tokens, _checks(draw)),
            draw=draw,
            decisions=decisions,
            probes={side: member.engine.spec.rings for side, member in zip(SIDES, members, strict=True)},
            block_tokens=block_tokens,
            capacity_tokens=min(capacities) if len(capacities) == len(shapes) else None,
            kv_bytes_per_token=bytes_per_token,
        )
        for text in _blind(bench):
            context.emit(Noted("warning", cell.cell, text))
        yield bench


def _router_spec(
    grid: Grid,
    context: RunContext,
    members: tuple[Member, ...],
    shapes: list[CacheShape],
    decisions: Path,
    bytes_per_token: int | None,
) -> RouterSpec:
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
        policy=POLICY,
        decisions_path=str(decisions),
        limits=Limits(first_byte_s=timeout_s, stall_s=timeout_s, attempts=1),
        transfer=TransferRules(timeout_s=timeout_s, attempts=1, failures_to_quarantine=NEVER),
    )


async def _shape_of(client: httpx.AsyncClient, side: str, timeout_s: float) -> CacheShape:
    """Raises CellFailed where the engine does not answer."""
    try:
        page = (await client.get("/metrics", timeout=timeout_s)).text
        return cache_shape(MetricsText().values(page))
    except (httpx.HTTPError, ValueError) as error:
        raise CellFailed(f"the {side} engine's /metrics cannot be read: {error or type(error).__name__}") from error


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
