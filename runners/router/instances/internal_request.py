"""The router's own requests to an instance, which no policy decides: probes, pages, transfer and pre-warm prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runners.router.failure import Failure
from runners.router.instances.upstream import Answer, InstanceConnection, Pool

BODY_LIMIT_BYTES = 8 << 20
CHUNKS_LIMIT = 4096
"""Chunks of an answer: joining them delays every stream by a microsecond each."""


class InternalRequestFailed(Exception):
    """No answer arrived, for the reason in `failure`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class _InternalRequest:
    """The caller of one request."""

    def __init__(self, sent: Callable[[int], None] | None) -> None:
        self.t_read_s = 0.0
        self.connection: InstanceConnection | None = None
        self._sent = sent
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answer: Answer | None = None
        self.data = bytearray()

    def note_sent(self, t_first_byte_ns: int) -> None:
        if self._sent is not None:
            self._sent(t_first_byte_ns)

    def receive_head(self, answer: Answer) -> bool:
        self.answer = answer
        return True

    def receive_body(self, data: bytes) -> None:
        self.data += data
        if len(self.data) > BODY_LIMIT_BYTES and not self.done.done():
            failure = Failure("protocol", f"a body of more than {BODY_LIMIT_BYTES} bytes")
            self.done.set_exception(InternalRequestFailed(failure))

    def end_response(self, *, proven: bool) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail_request(self, failure: Failure) -> None:
        if not self.done.done():
            self.done.set_exception(InternalRequestFailed(failure))


async def fetch_answer(
    pool: Pool,
    path: bytes,
    *,
    timeout_s: float,
    headers: bytes = b"",
    body: bytes = b"",
    sent: Callable[[int], None] | None = None,
) -> tuple[Answer, bytes]:
    """An instance's answer to a GET, or to a POST of `body`: the head, and the body without HTTP framing.

    `sent` is called as `Caller.note_sent`. Raises InternalRequestFailed.
    """
    request = _InternalRequest(sent)
    head = pool.target.head("POST" if body else "GET", path, headers, len(body))
    pool.send_request(request, (head, body) if body else (head,))
    try:
        async with asyncio.timeout(timeout_s):
            await request.done
    except TimeoutError:
        raise InternalRequestFailed(Failure("timeout", f"no answer within {timeout_s:g} s")) from None
    finally:
        if not request.done.done() or request.done.cancelled() or request.done.exception() is not None:
            pool.cancel_request(request)
    assert request.answer is not None
    data = bytes(request.data)
    return request.answer, join_chunks(data) if request.answer.chunked else data


async def fetch_metrics(pool: Pool, timeout_s: float) -> bytes | None:
    """An instance's `/metrics` page; None if it does not return one."""
    try:
        answer, page = await fetch_answer(pool, b"/metrics", timeout_s=timeout_s)
    except InternalRequestFailed:
        return None
    return page if answer.status == 200 else None


def join_chunks(data: bytes) -> bytes:
    """The body in whole HTTP chunks. Raises InternalRequestFailed for more than CHUNKS_LIMIT of them."""
    parts: list[bytes] = []
    position = 0
    while len(parts) <= CHUNKS_LIMIT:
        line_end = data.find(b"\r\n", position)
        size = int(data[position:line_end].partition(b";")[0], 16) if line_end >= 0 else 0
        position = line_end + 4 + size
        if not size or position > len(data):  # the last chunk, perhaps with trailers
            return b"".join(parts)
        parts.append(data[line_end + 2 : position - 2])
    raise InternalRequestFailed(Failure("protocol", f"a body in more than {CHUNKS_LIMIT} chunks"))
