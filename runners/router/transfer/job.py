"""A movement on its way, and what its legs need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from runners.router.spec import KvEndpoint
from runners.router.transfer.movement import Movement
from runners.router.transfer.transports import Transport

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


def authorization(headers: bytes) -> bytes:
    """The lines of a request's head that say who asks."""
    return b"".join(line for line in headers.splitlines(keepends=True) if line.lower().startswith(b"authorization:"))


def leg_headers(job: Job) -> bytes:
    """The head of a leg; engines put its id into their own for the request."""
    name = job.movement.transfer.transfer.encode()
    return b"content-type: application/json\r\nx-request-id: %b\r\n%b" % (name, job.authorization)
