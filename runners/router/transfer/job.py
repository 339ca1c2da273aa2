"""A movement on its way, and what its legs need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from runners.router.spec import KvEndpoint
from runners.router.transfer.engines import LegFailed
from runners.router.transfer.legs import Leg
from runners.router.transfer.movement import Movement
from runners.router.transfer.transports import Transport, Unsound

Done = Callable[[Movement], None]


class Kept(NamedTuple):
    """Blocks that a source keeps for whoever pulls them."""

    transfer: str
    answered: Mapping[str, Any]
    """The answer of its leg."""


@dataclass(eq=False, slots=True)
class Job:
    """A movement on its way."""

    movement: Movement
    source: str
    target: str
    transport: Transport
    endpoint: KvEndpoint
    """The source's."""
    authorization: bytes
    """The client's header lines that say who asks."""
    done: Done
    probe: bool
    task: asyncio.Task[None] | None = None
    kept: Kept | None = None
    """The source keeps blocks until a target leg comes for them."""
    pulling: bool = False
    """The target leg is on its way: the target's engine frees the source's blocks, whatever becomes of the leg."""
    prompt_tokens: int | None = None


def keep(job: Job, transfer: str, leg: Leg) -> Kept:
    """What the source keeps now that its leg is answered. Raises LegFailed where that is nothing."""
    if leg.finish_reason not in job.transport.kept_after:
        raise LegFailed(f"the source leg ended by {leg.finish_reason}: its blocks are not sent", strike=True)
    return Kept(transfer, leg.body)


def pull_params(job: Job, kept: Kept, engine: str) -> dict[str, Any]:
    """What a target leg must say to pull what is kept; `engine`: the source's id. Raises LegFailed."""
    try:
        return job.transport.target_params(kept.transfer, job.endpoint, engine, kept.answered)
    except Unsound as error:
        raise LegFailed(f"the source: {error}", strike=True) from error


def authorization(headers: bytes) -> bytes:
    """The lines of a request's head that say who asks."""
    return b"".join(line for line in headers.splitlines(keepends=True) if line.lower().startswith(b"authorization:"))


def leg_headers(job: Job) -> bytes:
    """The head of a leg; engines put its id into their own for the request."""
    name = job.movement.transfer.transfer.encode()
    return b"content-type: application/json\r\nx-request-id: %b\r\n%b" % (name, job.authorization)
