"""The steps of a movement: a leg that makes the source keep blocks, what pulls them, and what frees them instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

from runners.router.transfer.engines import Engines, LegFailed
from runners.router.transfer.job import Job, Kept, leg_headers
from runners.router.transfer.legs import Leg, release_leg
from runners.router.transfer.transports import Unsound

LEG_PATH = "/v1/completions"
RELEASE_S = 30.0
"""For freeing the source's blocks; then its engine's own time limit does."""


async def source_leg(
    engines: Engines, job: Job, path: str, body: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> None:
    """Have the source compute a prompt and keep its blocks. Raises LegFailed."""
    movement, transport = job.movement, job.transport
    transfer = movement.transfer.transfer
    if transport.asks_source:  # before it keeps anything that nobody could be told to pull
        await engines.engine_id(job.source)
    leg = await engines.leg(
        job.source, "source", path, leg_headers(job), body(transport.source_params(transfer)),
        lambda: movement.change(t_source_sent_ns=perf_counter_ns()),
    )  # fmt: skip
    movement.change(t_source_done_ns=perf_counter_ns(), source_cached_tokens=leg.cached_tokens)
    job.prompt_tokens = leg.prompt_tokens
    job.kept = _keep(job, transfer, leg)


async def target_leg(engines: Engines, job: Job, body: Mapping[str, Any]) -> Leg:
    """Have the target pull the blocks of a prefix. Raises LegFailed."""
    movement = job.movement
    return await engines.leg(job.target, "target", LEG_PATH, leg_headers(job), body, movement.sent)


async def pull_params(engines: Engines, job: Job, kept: Kept) -> dict[str, Any]:
    """What a target leg must say to pull what is kept. Raises LegFailed."""
    engine = await engines.engine_id(job.source) if job.transport.asks_source else ""
    try:
        return job.transport.target_params(kept.transfer, job.endpoint, engine, kept.answered)
    except Unsound as error:
        raise LegFailed(f"the source: {error}", strike=True) from error


async def free(engines: Engines, job: Job, kept: Kept) -> None:
    """A target leg that its engine refuses frees what it would have pulled (vLLM does so since 0.32).

    The source itself is asked where that works, as it is known to live; a kv_producer would die of it.
    """
    alone = job.transport.pulls_from_itself and job.endpoint.kv_role != "kv_producer"
    where = job.source if alone else job.target
    try:
        async with asyncio.timeout(RELEASE_S):
            body = release_leg(await pull_params(engines, job, kept))
            await engines.leg(where, "release", LEG_PATH, leg_headers(job), body)
    except (LegFailed, TimeoutError):
        pass  # it was refused, as it should be; or nobody is there, and nothing is kept any more


def _keep(job: Job, transfer: str, leg: Leg) -> Kept:
    """What the source keeps now that its leg is answered. Raises LegFailed where that is nothing."""
    if leg.finish_reason not in job.transport.kept_after:
        raise LegFailed(f"the source leg ended by {leg.finish_reason}: its blocks are not sent", strike=True)
    return Kept(transfer, leg.body)
