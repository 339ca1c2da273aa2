"""The bench of a `pd-lifecycle` run: a prefill and a decode engine, a plain combined one, a router, and a client.

The cells of a trial share it. Engines start once per trial, and again where one died or where a restart empties the
caches.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launch.command import count_ports_needed
from launch.errors import LaunchError
from launch.instance import make_http_client
from results.records.decisions import Role
from results.records.events import Noted
from results.records.layout import AttemptLayout, LifecycleLayout
from results.records.lifecycle_cells import Aged, WarmUp
from results.records.plan import CellPlan
from results.records.router_spec import HealthRules, InstanceSpec, Limits, RouterSpec, TransferRules
from results.records.transfer_log import read_probe
from runners.campaign.context import RunContext
from runners.campaign.engine_group import GroupPlan, Member, engine_group
from runners.experiments.engine_choice import require_common_block_tokens
from runners.experiments.kv_endpoints import endpoint_of, kv_bytes_per_token
from runners.experiments.pd_lifecycle import static_pd_or_combined
from runners.experiments.pd_lifecycle.caches import Caches, EngineCache, NotEmptied
from runners.experiments.pd_lifecycle.evidence import NEEDED, SIDES, WRITE
from runners.experiments.pd_lifecycle.grid import Grid, read_shape
from runners.experiments.pd_lifecycle.one_at_a_time import OneAtATime, build_completion_body
from runners.experiments.pd_lifecycle.static_pd_or_combined import BEGINS, PLAIN
from runners.load.prompts import token_ids
from runners.router.server.process import RouterProcess
from runners.samplers.engine_counters import CacheShape, parse_cache_shape

ALLOCATED = "blocks_allocated"
"""The event with the tokens that the decode engine holds, and those for which it waits."""
EXTRA_ENV = {"VLLM_SERVER_DEV_MODE": "1"}
"""Enables /reset_prefix_cache in an engine."""
NEVER = 1_000_000
"""Failures before a quarantine: no failure may stop the next request."""
HEALTH_S = 3600.0
"""Interval of the router's health checks, too long to fall into a measured request. A connection reveals a dead
engine."""
CHECK_PROMPTS, PREFIX_PROMPTS, WARM_PROMPTS, CELL_PROMPTS = 0, 1, 2, 1_000
"""Streams of prompts, which share no prefix. A cell has CELL_PROMPTS plus its index in the grid."""
ENGINES = (*SIDES, PLAIN)
ROLES: tuple[Role, ...] = ("prefill", "decode", "both")
"""Roles of ENGINES. A bench without a plain engine has the first two."""
WARM_ROUNDS = 2
"""Requests of each kind that set up connections and transfers before the first cell: as many as the specification
discards (specs/pd_lifecycle, "Risks & Mitigations")."""


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
    plain: Member | None
    """The combined engine without a connector; None = the cells have no request for it."""
    router: RouterProcess
    client: OneAtATime
    """Sends to the router, which hands a request over or serves it on a combined engine, by the request's name."""
    caches: Caches
    aged: Aged
    warm_ups: tuple[WarmUp, ...]
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

    @property
    def members(self) -> dict[str, Member]:
        """Every engine by its name in messages and files."""
        plain = [] if self.plain is None else [self.plain]
        return dict(zip(ENGINES, (self.prefill, self.decode, *plain), strict=False))

    async def explain_dead_part(self) -> str:
        """The part that ended, and how; empty = all parts are alive."""
        for side, member in self.members.items():
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
        self._trial = 0
        """Trial of the current bench."""
        self._failure: LaunchError | None = None

    async def get_bench(self, cell: CellPlan) -> Bench:
        """The current bench if it is of the cell's trial and alive, else a fresh one.

        Raises LaunchError, RouterError or LoadError.
        """
        if self._bench is not None and self._trial == cell.trial and not await self._bench.explain_dead_part():
            return self._bench
        await self.release()
        if self._failure is not None:
            raise self._failure
        stack = AsyncExitStack()
        try:
            folder = LifecycleLayout(self._context.layout.root).name_next_start()
            self._bench = await stack.enter_async_context(open_bench(self._grid, self._context, cell, folder))
        except LaunchError as error:
            self._failure = error
            raise
        self._stack, self._trial = stack, cell.trial
        return self._bench

    async def release(self) -> None:
        """Stop router and engines, if any, and wait until they have ended."""
        stack, self._stack, self._bench = self._stack, AsyncExitStack(), None
        await stack.aclose()


def plan_group(grid: Grid, context: RunContext, cell: CellPlan, folder: Path) -> GroupPlan:
    """The engines of a bench; the plain one is among them if the cell asks for it."""
    plain = cell.params.get("plain", "")
    configs = (grid.prefill_config, grid.decode_config, *([plain] if plain else []))
    return GroupPlan(
        configs=configs,
        roles=ROLES[: len(configs)],
        folder=folder,
        ports=max(count_ports_needed(config) for config in context.configs.values()),
        events=False,
        gpus=grid.gpus,
        env=EXTRA_ENV,
        transfer_log=True,
    )


@asynccontextmanager
async def open_bench(grid: Grid, context: RunContext, cell: CellPlan, folder: Path) -> AsyncIterator[Bench]:
    """Start fresh engines with empty caches and a router; stops all on exit.

    Raises LaunchError, RouterError or LoadError where a part does not start, CellFailed where an engine does not report
    the layout of its cache.
    """
    profile, group = context.profile, plan_group(grid, context, cell, folder)
    plain = len(group.configs) > len(SIDES)
    model, timeout_s = profile.model, grid.request_timeout_s
    draw = Draw(cell.params["load_seed"], model.vocab_low, model.vocab_high)
    async with AsyncExitStack() as stack:
        members = await stack.enter_async_context(engine_group(context.launcher, group))
        clients = [await stack.enter_async_context(make_http_client(member.engine.url)) for member in members]
        named = zip(ENGINES, clients, strict=False)
        engines = [EngineCache(*each, model.served_name, timeout_s) for each in named]
        shapes = [parse_cache_shape(await engine.read_metrics()) for engine in engines]
        attempted = AttemptLayout(folder)
        decisions = attempted.decisions
        source = members[0].engine.spec.model_folder or Path(model.source)
        bytes_per_token = kv_bytes_per_token(source)
        spec = build_router_spec(grid, context, members, shapes, decisions, bytes_per_token)
        router = await stack.enter_async_context(RouterProcess(spec, attempted.router_spec))
        block_tokens = require_common_block_tokens(shapes, "the tokens that they hold are unknown")
        capacities = [shape.capacity_tokens for shape in shapes if shape.capacity_tokens is not None]
        capacity_tokens = min(capacities) if len(capacities) == len(shapes) else None
        caches = Caches(engines, block_tokens, _draw_check_prompts(draw))
        probes = {side: member.engine.spec.rings for side, member in zip(SIDES, members[:2], strict=True)}
        client = await stack.enter_async_context(OneAtATime(router.url, timeout_s))
        aged = await _age_pools(grid, caches, capacity_tokens, context, cell)
        purposes = grid.order_requests(read_shape(cell), 1, cell.trial, plain=plain)
        bench = Bench(
            prefill=members[0],
            decode=members[1],
            plain=members[2] if plain else None,
            router=router,
            client=client,
            caches=caches,
            aged=aged,
            warm_ups=await warm_up(client, purposes, draw, model.served_name, 2 * block_tokens),
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


async def warm_up(
    client: OneAtATime, purposes: Sequence[str], draw: Draw, model: str, prompt_tokens: int
) -> tuple[WarmUp, ...]:
    """Send each kind of request WARM_ROUNDS times: the first ones between new engines set up connections."""
    warm_ups = []
    for number, purpose in enumerate(list(purposes) * WARM_ROUNDS):
        body = build_completion_body(model, draw.draw_tokens(WARM_PROMPTS, number, prompt_tokens), 2)
        exchange = await client.send_request(f"{BEGINS[purpose]}warm-{number}", body)
        ttft_ms = None if exchange.ttft_s is None else exchange.ttft_s * 1e3
        warm_ups.append(WarmUp(purpose, ttft_ms, str(exchange.status)))
    return tuple(warm_ups)


def build_router_spec(
    grid: Grid,
    context: RunContext,
    members: tuple[Member, ...],
    shapes: list[CacheShape],
    decisions: Path,
    bytes_per_token: int | None,
) -> RouterSpec:
    """The router before all engines: one attempt per request, and no query to an engine during a request."""
    kind, timeout_s = context.profile.engine.kind, grid.request_timeout_s
    configs = (grid.prefill_config, grid.decode_config, grid.plain)
    return RouterSpec(
        instances=tuple(
            InstanceSpec(
                instance=name,
                url=member.engine.url,
                role=member.role,
                kv_capacity_tokens=shape.capacity_tokens,
                block_tokens=shape.block_tokens,
                transfer=endpoint_of(member, context.configs[config], kind, bytes_per_token),
            )
            for name, member, shape, config in zip(ENGINES, members, shapes, configs, strict=False)
        ),
        policy=static_pd_or_combined.__file__,
        decisions_path=str(decisions),
        health=HealthRules(probe_interval_s=HEALTH_S),
        limits=Limits(first_byte_s=timeout_s, stall_s=timeout_s, attempts=1),
        # A page of metrics takes milliseconds of the decode engine's process, within the measured answer.
        transfer=TransferRules(timeout_s=timeout_s, attempts=1, failures_to_quarantine=NEVER, count=False),
    )


async def _age_pools(
    grid: Grid, caches: Caches, capacity_tokens: int | None, context: RunContext, cell: CellPlan
) -> Aged:
    """Fill all pools once, then empty the caches where `evict` is reset. Raises CellFailed."""
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
