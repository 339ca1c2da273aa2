"""Many slow streams at once, counted: the client of `bench_router --streams`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

TOKENS = 6
BODY = b'{"model":"m","prompt":[1,2,3,4],"max_tokens":%d,"stream":true}' % TOKENS
OPEN_PER_S = 1000
LIMIT_S = 180.0


class _Stream(asyncio.Protocol):
    def __init__(self, counts: _Counts) -> None:
        self._counts = counts
        self._tail = b""
        self.tokens = 0
        self.whole = False
        self.begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY)
        self._transport.write(head + BODY)

    def data_received(self, data: bytes) -> None:
        if not self.begun:
            self.begun = True
            self._counts.change(+1)
        self.tokens += data.count(b'"text"')
        self._tail = (self._tail + data)[-64:]
        if self._tail.endswith(b"0\r\n\r\n"):
            self.whole = b"[DONE]" in self._tail
            self._counts.change(-1)
            self._counts.ended(self)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._tail.endswith(b"0\r\n\r\n"):
            if self.begun:
                self._counts.change(-1)
            self._counts.ended(self)


class _Counts:
    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.open_now = self.open_most = self.finished = self.whole = self.tokens = 0
        self.over = asyncio.Event()

    def change(self, by: int) -> None:
        self.open_now += by
        self.open_most = max(self.open_most, self.open_now)

    def ended(self, stream: _Stream) -> None:
        self.finished += 1
        self.whole += stream.whole and stream.tokens == TOKENS
        self.tokens += stream.tokens
        if self.finished == self.wanted:
            self.over.set()


async def _hold(urls: list[str], count: int) -> dict[str, Any]:
    loop, counts, begun_s = asyncio.get_running_loop(), _Counts(count), time.monotonic()
    places = [(parts.hostname or "", parts.port or 80) for parts in map(urlsplit, urls)]

    async def open_some(numbers: Iterable[int]) -> None:
        for number in numbers:
            host, port = places[number % len(places)]
            await loop.create_connection(lambda: _Stream(counts), host, port)

    for first in range(0, count, OPEN_PER_S // 10):
        due_s = begun_s + first / OPEN_PER_S
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        await open_some(range(first, min(count, first + OPEN_PER_S // 10)))
    opened_s = time.monotonic() - begun_s
    async with asyncio.timeout(LIMIT_S):
        await counts.over.wait()
    return {
        "streams": count,
        "open_at_once": counts.open_most,
        "whole": counts.whole,
        "lost": count - counts.whole,
        "tokens": counts.tokens,
        "opening_s": round(opened_s, 1),
        "all_s": round(time.monotonic() - begun_s, 1),
    }


def hold(urls: list[str], count: int) -> dict[str, Any]:
    """Open `count` streams over the routers, hold them until each has ended, and say how many came whole."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_hold(urls, count))
