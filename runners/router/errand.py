"""The router's own requests to an instance: probes, pages, and prompts that no policy decides about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runners.router.link import Answer, Failure, Link, whole_chunks
from runners.router.upstream import Pool

BODY_LIMIT_BYTES = 8 << 20


class ErrandFailed(Exception):
    """No answer; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class _Errand:
    """The caller of one request."""

    def __init__(self, sent: Callable[[], None] | None) -> None:
        self.t_read_s = 0.0
        self.link: Link | None = None
        self._sent = sent
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answer: Answer | None = None
        self.data = bytearray()

    def sent(self) -> None:
        if self._sent is not None:
            self._sent()

    def answered(self, answer: Answer) -> bool:
        self.answer = answer
        return True

    def body(self, data: bytes) -> None:
        self.data += data
        if len(self.data) > BODY_LIMIT_BYTES and not self.done.done():
            self.done.set_exception(ErrandFailed(Failure("protocol", f"a body of more than {BODY_LIMIT_BYTES} bytes")))

    def finished(self, *, proven: bool) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def failed(self, failure: Failure) -> None:
        if not self.done.done():
            self.done.set_exception(ErrandFailed(failure))


async def fetch(
    pool: Pool,
    path: bytes,
    *,
    timeout_s: float,
    headers: bytes = b"",
    body: bytes = b"",
    sent: Callable[[], None] | None = None,
) -> tuple[Answer, bytes]:
    """An instance's answer to a GET, or to a POST of `body`: its head, and its body without framing.

    `sent` is called when the request's last byte has been handed to the socket. Raises ErrandFailed.
    """
    errand = _Errand(sent)
    head = pool.target.head("POST" if body else "GET", path, headers, len(body))
    pool.send(errand, (head, body) if body else (head,))
    try:
        async with asyncio.timeout(timeout_s):
            await errand.done
    except TimeoutError:
        raise ErrandFailed(Failure("timeout", f"no answer within {timeout_s:g} s")) from None
    finally:
        if not errand.done.done() or errand.done.cancelled() or errand.done.exception() is not None:
            pool.cancel(errand)
    assert errand.answer is not None
    data = bytes(errand.data)
    return errand.answer, unchunked(data) if errand.answer.chunked else data


def unchunked(data: bytes) -> bytes:
    """The content of a body that is whole HTTP chunks."""
    parts, place, end = [], 0, whole_chunks(data)
    while place < end:
        line_end = data.index(b"\r\n", place)
        size = int(data[place:line_end].partition(b";")[0], 16)
        parts.append(data[line_end + 2 : line_end + 2 + size])
        place = line_end + 4 + size
    return b"".join(parts)
