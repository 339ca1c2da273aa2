"""Servers that send without end: each request still ends, and the generator holds only what it may."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from results.records.schemas import RequestStatus
from runners.load.client import HEAD_LIMIT_BYTES, LoadClient, RoutedConnection
from runners.load.messages import LoadError
from runners.load.stream import Exchange
from runners.target import resolve_target

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
MORE = 64 << 10
SENT_LIMIT_BYTES = 64 << 20


class Ended:
    """A listener that knows when its request has ended."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    def first_token(self, exchange: Exchange) -> None: ...

    def ended(self, exchange: Exchange) -> None:
        self.over.set()


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (HEAD, b"a: b\r\n" * (MORE // 6)),
        (HEAD + b"a: ", b"b" * MORE),
        (HEAD + b"\r\n" + CHUNK + b"0\r\na: ", b"b" * MORE),
        (HEAD + b"\r\n" + CHUNK + b"0\r\n", b"a: b\r\n" * (MORE // 6)),
        (HEAD + b"\r\n" + CHUNK + b"3;a=", b"b" * MORE),
    ],
    ids=["head", "header", "trailer", "trailers", "chunk extension"],
)
async def test_a_response_without_end_is_an_error_at_its_limit(begin: bytes, more: bytes) -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(begin)
            while sent < SENT_LIMIT_BYTES:
                writer.write(more)
                sent += len(more)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    target = await resolve_target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", LoadError)
    client = LoadClient(target, spares=0, request_timeout_s=60.0, stall_timeout_s=60.0, connection=RoutedConnection)
    listener = Ended()
    exchange = Exchange(0, listener, 0)
    client.send(exchange, "r0", b"{}")
    async with asyncio.timeout(20):
        await listener.over.wait()
    assert exchange.status is RequestStatus.ERROR
    assert exchange.error is not None
    assert f"more than {HEAD_LIMIT_BYTES} bytes" in exchange.error
    assert sent < SENT_LIMIT_BYTES / 2
    await client.close()
    server.close()
