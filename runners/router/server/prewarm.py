"""Pre-warming: every instance computes one prompt before the first request comes (specs/load_floor.md, Q2.E)."""

from __future__ import annotations

import asyncio

import msgspec

from runners.router.instances.fleet import Fleet
from runners.router.instances.internal_request import InternalRequestFailed, fetch_answer
from runners.router.prefix_index import block_keys
from runners.router.spec import Prewarm, RouterError

_HEADERS = b"content-type: application/json\r\n"


async def prewarm_fleet(wanted: Prewarm, fleet: Fleet, timeout_s: float) -> None:
    """Send the prompt to every instance, all at once, and insert it into every index.

    Raises RouterError naming the instance that did not compute it.
    """
    asked = {"model": wanted.model, "prompt": wanted.token_ids, "max_tokens": 1, "temperature": 0}
    body = msgspec.json.encode(asked)
    await asyncio.gather(*(_compute_prompt(fleet, instance, body, timeout_s) for instance in fleet.specs))
    fleet.insert_prewarmed(block_keys(wanted.token_ids, fleet.block_tokens))


async def _compute_prompt(fleet: Fleet, instance: str, body: bytes, timeout_s: float) -> None:
    remedy = "See that it is up and takes a prompt of that length, or leave prewarm out."
    try:
        answer, text = await fetch_answer(
            fleet.pools[instance], b"/v1/completions", timeout_s=timeout_s, headers=_HEADERS, body=body
        )
    except InternalRequestFailed as error:
        raise RouterError(f"instance {instance} was not pre-warmed: {error}", remedy=remedy) from error
    if answer.status != 200:
        reply = " ".join(text[:200].decode("utf-8", "backslashreplace").split())
        raise RouterError(f"instance {instance} was not pre-warmed: HTTP {answer.status}: {reply}", remedy=remedy)
