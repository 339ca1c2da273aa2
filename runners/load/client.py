"""The streaming HTTP client of the load: one connection per request in flight, stamped first thing when bytes arrive.

A request's send stamp is taken just before its first byte is written, or just before connecting where no connection
was open. A pooled connection that the server closed before any byte of the response is stale: the request is sent again
on a fresh connection and keeps its first send stamp, so that its latency includes the retry.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from time import perf_counter_ns
from typing import cast

import httptools

from results.records.schemas import TIMED_OUT
from runners.load.messages import LoadError
from runners.load.stream import Exchange
from runners.target import Target

STALE_WITHIN_NS = 1_000_000_000
"""A pooled connection that dies later than this after the send was not stale: the server dropped the request."""
CONNECT_TIMEOUT_S = 10.0
HEAD_LIMIT_BYTES = 64 << 10
"""Limit of a head, and of bytes in a row that are no body: trailers, chunk sizes with their extensions."""
INSTANCE_HEADER = b"x-tracon-instance"
HEADERS = b"user-agent: tracon\r\naccept: text/event-stream\r\ncontent-type: application/json\r\n"


class Connection(asyncio.Protocol):
    """One connection: at most one exchange at a time."""

    __slots__ = ("_client", "_framing_bytes", "_parser", "_transport", "exchange", "payload", "pooled", "t_read_ns")

    def __init__(self, client: LoadClient) -> None:
        self._client = client
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._framing_bytes = 0
        """Bytes read since the head or the last piece of the body."""
        self.exchange: Exchange | None = None
        self.payload = b""
        """The bytes sent, held for one retry until the response begins."""
        self.pooled = False
        self.t_read_ns = 0

    @property
    def usable(self) -> bool:
        return self.exchange is None and self._transport is not None and not self._transport.is_closing()

    def start(self, exchange: Exchange, payload: bytes, *, pooled: bool) -> None:
        """Write the request; its send stamp is already taken."""
        self.exchange, self.payload, self.pooled = exchange, payload, pooled
        if self._transport is not None:
            self._transport.write(payload)

    def close(self) -> None:
        """Drop the connection at once; the caller ends the request in flight on it."""
        self.exchange, self.payload = None, b""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class derives from nothing of asyncio
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self.t_read_ns = t_ns = perf_counter_ns()
        exchange = self.exchange
        if exchange is None:  # bytes that belong to no request: the framing is lost
            self.close()
            return
        if not exchange.t_bytes_ns:
            self.payload = b""
        exchange.t_bytes_ns = t_ns
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.close()
            exchange.fail(f"malformed HTTP response: {error}", t_ns)
            return
        if exchange.fault and exchange.status is None:
            self.close()
            exchange.fail("malformed stream", t_ns)
        elif self._framing_bytes > HEAD_LIMIT_BYTES and exchange.status is None:
            self.close()
            exchange.fail(f"more than {HEAD_LIMIT_BYTES} bytes that are no body", t_ns)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._parser = _SPENT
        self._client.forget(self)
        exchange, payload = self.exchange, self.payload
        self.exchange, self.payload = None, b""
        if exchange is None:
            return
        t_ns = perf_counter_ns()
        if exchange.done_marker or exchange.http_status not in (None, 200):  # a body that ends with its connection
            exchange.complete(t_ns)
        elif payload and self.pooled and t_ns - exchange.t_send_ns < STALE_WITHIN_NS:
            self._client.send_again(exchange, payload)
        else:
            why = f" ({exc})" if exc is not None else ""
            when = "mid-response" if exchange.t_bytes_ns else "before any byte of the response"
            exchange.fail(f"connection closed {when}{why}", t_ns)

    # httptools
    def on_headers_complete(self) -> None:
        self._framing_bytes = 0
        exchange = self.exchange
        if exchange is not None:
            exchange.http_status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        exchange = self.exchange
        if exchange is not None:
            exchange.feed(body, self.t_read_ns)

    def on_message_complete(self) -> None:
        exchange = self.exchange
        if exchange is None or (exchange.http_status or 0) < 200:  # 100 Continue: the response is still to come
            return
        self.exchange = None
        if self._parser.should_keep_alive() and not exchange.fault:
            self._client.give_back(self)
        else:
            self.close()
        exchange.complete(self.t_read_ns)


class RoutedConnection(Connection):
    """Also records which instance answered. A class of its own, because it costs a call per header of a response."""

    __slots__ = ()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.exchange is not None and name.lower() == INSTANCE_HEADER:
            self.exchange.instance = value.decode("latin-1")


_SPENT = httptools.HttpResponseParser(object())
"""Replaces a dead connection's parser, which refers back to it: with garbage collection off, such cycles pile up."""


class LoadClient:
    """Sends exchanges over pooled connections. Every exchange ends, whatever the server does.

    Call `sweep` a few times a second: it ends requests that time out.
    """

    def __init__(
        self,
        target: Target,
        *,
        spares: int,
        request_timeout_s: float,
        stall_timeout_s: float,
        connection: type[Connection] = Connection,
    ) -> None:
        self.retried = 0
        self._connection = connection
        self._target = target
        self._tls = ssl.create_default_context() if target.tls else None
        self._spares = spares
        self._request_timeout_ns = int(request_timeout_s * 1e9)
        self._stall_timeout_ns = int(stall_timeout_s * 1e9)
        self._idle: list[Connection] = []
        """Newest last. The newest is used first, so that spare ones age and the server may close them."""
        self._connections: set[Connection] = set()
        self._connecting: dict[Exchange, asyncio.Task[None]] = {}
        self._topping_up: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the first connections. Raises LoadError where the server does not accept one."""
        try:
            for _ in range(max(1, self._spares)):
                self._idle.append(await self._open_connection())
        except (OSError, TimeoutError) as error:
            raise LoadError(
                f"cannot connect to {self._target.host}: {error or 'timed out'}",
                remedy="Check that the engine is up and listens there (GET /health).",
            ) from error

    def send(self, exchange: Exchange, request_id: str, body: bytes, extra_headers: str = "") -> None:
        """Stamp and send; never waits. `extra_headers`: whole lines, each with its line end."""
        headers = b"%bx-request-id: %b\r\n%b" % (HEADERS, request_id.encode("ascii"), extra_headers.encode("ascii"))
        payload = self._target.head("POST", b"/v1/completions", headers, len(body)) + body
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.usable:
                exchange.t_send_ns = perf_counter_ns()
                connection.start(exchange, payload, pooled=True)
                break
        else:
            exchange.t_send_ns = perf_counter_ns()
            self._send_fresh(exchange, payload)
        if len(idle) < self._spares and self._topping_up is None:
            self._topping_up = asyncio.create_task(self._top_up())

    def send_again(self, exchange: Exchange, payload: bytes) -> None:
        """Send it on a fresh connection: the pooled one was stale."""
        self.retried += 1
        self._send_fresh(exchange, payload)

    def give_back(self, connection: Connection) -> None:
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now_ns: int) -> None:
        """End every request that has timed out."""
        for exchange, task in tuple(self._connecting.items()):
            if now_ns - exchange.t_send_ns > self._request_timeout_ns:
                task.cancel()
                exchange.fail(f"{TIMED_OUT}: no connection {self._request_timeout_ns / 1e9:g} s after the send", now_ns)
        for connection in tuple(self._connections):
            in_flight = connection.exchange
            reason = self._explain_overdue(in_flight, now_ns) if in_flight is not None else ""
            if in_flight is not None and reason:
                connection.close()
                in_flight.fail(reason, now_ns)

    def cut(self, now_ns: int) -> None:
        """End every request that is still in flight as CUT and drop its connection, so that the engine drops it too."""
        for exchange, task in tuple(self._connecting.items()):
            task.cancel()
            exchange.cut(now_ns)
        for connection in tuple(self._connections):
            in_flight = connection.exchange
            if in_flight is not None:
                connection.close()
                in_flight.cut(now_ns)

    async def close(self) -> None:
        """Drop all connections; nothing may be in flight."""
        tasks = [*self._connecting.values(), *([self._topping_up] if self._topping_up else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in tuple(self._connections):
            connection.close()
        await asyncio.sleep(0)

    def _explain_overdue(self, exchange: Exchange, now_ns: int) -> str:
        if exchange.t_bytes_ns and now_ns - exchange.t_bytes_ns > self._stall_timeout_ns:
            return f"{TIMED_OUT}: the stream stalled, nothing came for {self._stall_timeout_ns / 1e9:g} s"
        if now_ns - exchange.t_send_ns > self._request_timeout_ns:
            return f"{TIMED_OUT}: not finished {self._request_timeout_ns / 1e9:g} s after the send"
        return ""

    def _send_fresh(self, exchange: Exchange, payload: bytes) -> None:
        self._connecting[exchange] = asyncio.create_task(self._connect_and_send(exchange, payload))

    async def _connect_and_send(self, exchange: Exchange, payload: bytes) -> None:
        try:
            connection = await self._open_connection()
        except (OSError, TimeoutError) as error:
            exchange.fail(f"cannot connect: {error or 'timed out'}", perf_counter_ns())
            return
        finally:
            del self._connecting[exchange]
        if exchange.status is not None:  # it timed out meanwhile
            self.give_back(connection)
        else:
            connection.start(exchange, payload, pooled=False)

    async def _open_connection(self) -> Connection:
        target = self._target
        name = target.name if self._tls else None
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: self._connection(self), target.address, target.port, ssl=self._tls, server_hostname=name
            )
        self._connections.add(connection)
        return connection

    async def _top_up(self) -> None:
        try:
            while len(self._idle) < self._spares:
                self._idle.append(await self._open_connection())
        except (OSError, TimeoutError):
            return  # the next request that finds no connection open reports what is wrong with the server
        finally:
            self._topping_up = None
