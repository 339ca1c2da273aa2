"""The steps of a transfer: a prefill request makes the source retain blocks, a decode request pulls and frees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from results.records.router_spec import KvEndpoint
from runners.router.transfer.engines import Engines, StepFailed
from runners.router.transfer.move_rules import Admission
from runners.router.transfer.movement import Movement
from runners.router.transfer.request_bodies import StepAnswer, make_release_body
from runners.router.transfer.transports import Transport, Unsound

PATH = "/v1/completions"
RELEASE_S = 30.0
"""Time limit for freeing the source's blocks; after it, its engine's own timeout frees them."""

Done = Callable[[Movement], None]


class RetainedBlocks(NamedTuple):
    """Blocks that a source retains until a target pulls them."""

    transfer: str
    params: Any
    """`kv_transfer_params` of the answer to the prefill request."""


@dataclass(eq=False, slots=True)
class Job:
    """A movement in progress."""

    movement: Movement
    admission: Admission
    transport: Transport
    endpoint: KvEndpoint
    """The source's."""
    authorization: bytes
    """The client's `authorization` header lines."""
    done: Done
    task: asyncio.Task[None] | None = None
    retained: RetainedBlocks | None = None
    pulling: bool = False
    """The decode request is in flight: the target's engine frees the source's blocks, whatever its outcome."""
    prompt_tokens: int | None = None

    @property
    def source(self) -> str:
        return self.admission.source

    @property
    def target(self) -> str:
        return self.admission.target


def select_authorization_lines(headers: bytes) -> bytes:
    return b"".join(line for line in headers.splitlines(keepends=True) if line.lower().startswith(b"authorization:"))


def make_request_headers(job: Job) -> bytes:
    """The headers of the job's requests; engines build their own request id from `x-request-id`."""
    name = job.movement.transfer.transfer.encode()
    return b"content-type: application/json\r\nx-request-id: %b\r\n%b" % (name, job.authorization)


async def send_prefill_request(
    engines: Engines, job: Job, path: str, body: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> None:
    """Make the source compute a prompt and retain its blocks. Raises StepFailed."""
    movement, transport = job.movement, job.transport
    transfer = movement.transfer.transfer
    if transport.asks_source:  # first: without its id no target could pull the retained blocks
        await engines.engine_id(job.source)
    answer = await engines.send_request(
        job.source, "source", path, make_request_headers(job), body(transport.make_source_params(transfer)),
        lambda _: movement.change_transfer(t_source_sent_ns=movement.now_ns()),
    )  # fmt: skip
    movement.change_transfer(t_source_done_ns=movement.now_ns(), source_cached_tokens=answer.cached_tokens)
    job.prompt_tokens = answer.prompt_tokens
    if answer.finish_reason not in transport.retains_after:
        why = f"the prefill request ended by {answer.finish_reason}: its blocks are not sent"
        raise StepFailed(why, strike=True)
    job.retained = RetainedBlocks(transfer, answer.params)


async def send_decode_request(engines: Engines, job: Job, body: Mapping[str, Any]) -> StepAnswer:
    """Make the target pull the blocks of a prefix. Raises StepFailed."""
    return await engines.send_request(
        job.target, "target", PATH, make_request_headers(job), body, job.movement.note_sent
    )


async def pull_params(engines: Engines, job: Job, retained: RetainedBlocks) -> dict[str, Any]:
    """The parameters of the decode request that pulls these blocks. Raises StepFailed."""
    engine = await engines.engine_id(job.source) if job.transport.asks_source else ""
    try:
        return job.transport.make_target_params(retained.transfer, job.endpoint, engine, retained.params)
    except Unsound as error:
        raise StepFailed(f"the source: {error}", strike=True) from error


async def free_blocks(engines: Engines, job: Job, retained: RetainedBlocks) -> None:
    """Free a source's blocks with a decode request that its engine refuses (vLLM 0.32 and later then free them).

    The request goes to the source itself if that works, as it is known to be alive; it would kill a kv_producer.
    """
    alone = job.transport.pulls_from_itself and job.endpoint.kv_role != "kv_producer"
    instance = job.source if alone else job.target
    try:
        async with asyncio.timeout(RELEASE_S):
            body = make_release_body(await pull_params(engines, job, retained))
            await engines.send_request(instance, "release", PATH, make_request_headers(job), body)
    except (StepFailed, TimeoutError):
        pass  # it was refused, as intended; or the instance is gone, and its blocks with it
