"""Sends one request at a time through the load generator's client, which stamps t9 and t10 like every TTFT."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter_ns
from types import TracebackType
from typing import Self

import msgspec

from runners.load.bodies import build_body_preamble
from runners.load.client import LoadClient
from runners.load.messages import LoadError
from runners.load.stream import Exchange
from runners.target import resolve_target

SWEEP_S = 1.0
EVIDENCE = "usage"
"""Request a count in every chunk: token ids would echo the whole prompt before the first token."""


def build_completion_body(model: str, prompt: Sequence[int], output_tokens: int) -> bytes:
    """The body of a streamed completion of exactly `output_tokens` tokens."""
    return build_body_preamble(model, output_tokens, EVIDENCE) + msgspec.json.encode(list(prompt))[1:] + b"}"


class OneAtATime:
    """Sends to one server within an `async with` block. Raises LoadError where no server answers."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._client: LoadClient
        self._ended = asyncio.Event()
        self._count = 0

    async def __aenter__(self) -> Self:
        self._client = LoadClient(
            await resolve_target(self._url, LoadError),
            spares=1,
            request_timeout_s=self._timeout_s,
            stall_timeout_s=self._timeout_s,
        )
        await self._client.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.cut(perf_counter_ns())
        await self._client.close()

    async def send_request(self, request: str, body: bytes) -> Exchange:
        """Send and wait for the end; the exchange holds success or failure. A cancellation drops the request."""
        self._ended.clear()
        exchange = Exchange(self._count, self, perf_counter_ns())
        self._count += 1
        self._client.send(exchange, request, body)
        try:
            while exchange.status is None:
                try:
                    async with asyncio.timeout(SWEEP_S):
                        await self._ended.wait()
                except TimeoutError:
                    self._client.sweep(perf_counter_ns())
        except asyncio.CancelledError:
            self._client.cut(perf_counter_ns())
            raise
        return exchange

    # runners.load.stream.Listener
    def first_token(self, exchange: Exchange) -> None: ...

    def ended(self, exchange: Exchange) -> None:
        self._ended.set()
