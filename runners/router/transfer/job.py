"""A movement on its way, and what its requests to engines need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from runners.router.spec import KvEndpoint
from runners.router.transfer.move_rules import Admission
from runners.router.transfer.movement import Movement
from runners.router.transfer.transports import Transport

Done = Callable[[Movement], None]


class RetainedBlocks(NamedTuple):
    """Blocks that a source retains until a target pulls them."""

    transfer: str
    answer: Mapping[str, Any]
    """Body of the answer to the prefill request."""


@dataclass(eq=False, slots=True)
class Job:
    """A movement on its way."""

    movement: Movement
    admission: Admission
    transport: Transport
    endpoint: KvEndpoint
    """The source's."""
    authorization: bytes
    """The client's header lines that authorize it."""
    done: Done
    task: asyncio.Task[None] | None = None
    retained: RetainedBlocks | None = None
    pulling: bool = False
    """The decode request is on its way: the target's engine frees the source's blocks, whatever becomes of it."""
    prompt_tokens: int | None = None

    @property
    def source(self) -> str:
        return self.admission.source

    @property
    def target(self) -> str:
        return self.admission.target


def authorization_lines(headers: bytes) -> bytes:
    """The lines of a request's head that authorize the client."""
    return b"".join(line for line in headers.splitlines(keepends=True) if line.lower().startswith(b"authorization:"))


def request_headers(job: Job) -> bytes:
    """The head of the job's requests; engines put its id into their own for the request."""
    name = job.movement.transfer.transfer.encode()
    return b"content-type: application/json\r\nx-request-id: %b\r\n%b" % (name, job.authorization)
