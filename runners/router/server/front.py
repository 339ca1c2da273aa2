"""The clients' side: connections, requests parsed off them, one answered at a time in the order they came."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from typing import NamedTuple, Protocol, cast

import httptools
import msgspec

from runners.router.instances.upstream import HOP_BY_HOP

HEAD_LIMIT_BYTES = 64 << 10
QUEUE_LIMIT = 16
"""Requests that a client may send ahead on one connection."""
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
NOT_FORWARDED = HOP_BY_HOP | {b"host", b"content-length", b"transfer-encoding", b"expect", b"x-request-id"}


def _drop_data(data: bytes) -> None:
    """Where the writes of a connection go that is gone."""


class HttpRequest(NamedTuple):
    """One whole request."""

    method: str
    target: bytes
    """Path and query as they came."""
    headers: tuple[tuple[bytes, bytes], ...]
    """Names in lower case."""
    body: bytes
    keep_alive: bool
    version: str
    """`1.0` or `1.1`."""

    @property
    def path(self) -> str:
        return self.target.partition(b"?")[0].decode("latin-1")

    @property
    def query(self) -> str:
        return self.target.partition(b"?")[2].decode("latin-1")

    def forwarded(self) -> bytes:
        """The header lines that go on to an instance; the request id is added to them."""
        return b"".join([b"%b: %b\r\n" % pair for pair in self.headers if pair[0] not in NOT_FORWARDED])


class OpenRequest(Protocol):
    """What a connection is busy with."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def abandon_request(self) -> None: ...


class Service(Protocol):
    """Who answers."""

    closing: bool
    """No request is accepted any more."""
    body_limit_bytes: int

    def admit(self, connection: ClientConnection) -> bool:
        """Take a connection; False = there are as many as may be."""

    def forget(self, connection: ClientConnection) -> None: ...
    def serve(self, connection: ClientConnection, request: HttpRequest) -> None: ...


@dataclass(eq=False, repr=False, slots=True)
class ClientConnection(asyncio.Protocol):
    """One client connection."""

    _service: Service
    in_flight: OpenRequest | None = None
    keep_alive: bool = True
    local: bool = False
    """The client is on this machine."""
    t_read_s: float = field(default_factory=monotonic)
    write: Callable[[bytes], None] = _drop_data
    """The transport's own, without a step between."""
    _parser: httptools.HttpRequestParser = field(init=False)
    _transport: asyncio.Transport | None = None
    _queue: deque[HttpRequest] = field(default_factory=deque)
    _busy: bool = False
    _refused: bool = False
    _path: bytes = b""
    _headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    _body: list[bytes] = field(default_factory=list)
    _head_bytes: int = 0
    _body_bytes: int = 0
    _in_head: bool = True

    def __post_init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)

    @property
    def idle(self) -> bool:
        return not self._busy

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class derives from nothing of asyncio
        self.write = self._transport.write
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        self.local = bool(peer) and ipaddress.ip_address(peer[0]).is_loopback
        if not self._service.admit(self):
            self._reject_client(503, "the router holds as many connections as it may", "router_overloaded")

    def data_received(self, data: bytes) -> None:
        self.t_read_s = monotonic()
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._reject_client(400, "the router speaks HTTP/1.1 only and upgrades to nothing", "bad_request")
        except httptools.HttpParserError as error:
            self._reject_client(400, f"malformed HTTP request: {error}", "bad_request")
        if self._in_head and self._head_bytes > HEAD_LIMIT_BYTES:
            self._reject_client(431, f"a request head of more than {HEAD_LIMIT_BYTES} bytes", "bad_request")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self.write = None, _drop_data
        self._parser = _SPENT
        self._service.forget(self)
        in_flight, self.in_flight = self.in_flight, None
        if in_flight is not None:
            in_flight.abandon_request()

    def pause_writing(self) -> None:
        if self.in_flight is not None:
            self.in_flight.pause()

    def resume_writing(self) -> None:
        if self.in_flight is not None:
            self.in_flight.resume()

    # httptools
    def on_message_begin(self) -> None:
        self._clear_request()

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        headers = dict(self._headers)
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._service.body_limit_bytes:
            self._reject_body()
        elif headers.get(b"expect", b"").lower() == b"100-continue" and not self._busy:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > self._service.body_limit_bytes:
            self._reject_body()

    def on_message_complete(self) -> None:
        if self._refused:
            return
        parser = self._parser
        request = HttpRequest(
            parser.get_method().decode("latin-1"),
            self._path,
            tuple(self._headers),
            self._body[0] if len(self._body) == 1 else b"".join(self._body),
            parser.should_keep_alive(),
            parser.get_http_version(),
        )
        self._clear_request()
        if len(self._queue) >= QUEUE_LIMIT:
            self._reject_client(400, f"more than {QUEUE_LIMIT} requests sent ahead", "bad_request")
            return
        self._queue.append(request)
        if not self._busy:
            self._serve_next()

    # what a service answers with
    def finish(self, *, keep: bool) -> None:
        self.in_flight = None
        if self._transport is None:
            return
        self.t_read_s = monotonic()
        if not keep or not self.keep_alive or self._service.closing or self._refused:
            self._transport.close()
            return
        self._busy = False
        if self._queue:
            asyncio.get_running_loop().call_soon(self._serve_next)

    def abort(self) -> None:
        """The response cannot be made whole: cut the connection, so that the client sees it."""
        self.in_flight = None
        if self._transport is not None:
            self._transport.abort()

    def reply(self, status: int, body: bytes, content_type: str, headers: bytes = b"") -> None:
        closing = not self.keep_alive or self._service.closing
        self.write(
            b"%bcontent-type: %b\r\n%b%bcontent-length: %d\r\n\r\n%b"
            % (
                STATUS_LINES[status],
                content_type.encode(),
                headers,
                b"connection: close\r\n" if closing else b"",
                len(body),
                body,
            )
        )
        self.finish(keep=True)

    def reply_json(self, status: int, value: object, headers: bytes = b"") -> None:
        self.reply(status, msgspec.json.encode(value), "application/json", headers)

    def refuse(self, status: int, message: str, kind: str, headers: bytes = b"") -> None:
        """An error of the router's own, in the shape of the API."""
        self.reply_json(status, {"error": {"message": message, "type": kind, "code": status}}, headers)

    def _serve_next(self) -> None:
        if self._busy or not self._queue or self._transport is None:
            return
        request = self._queue.popleft()
        self._busy = True
        self.keep_alive = request.keep_alive
        self._service.serve(self, request)

    def _clear_request(self) -> None:
        self._path = b""
        self._headers, self._body = [], []
        self._head_bytes = self._body_bytes = 0
        self._in_head = True

    def _reject_body(self) -> None:
        limit = self._service.body_limit_bytes
        self._reject_client(413, f"a request body of more than {limit} bytes", "bad_request")

    def _reject_client(self, status: int, message: str, kind: str) -> None:
        """The connection is good for nothing more: say why, once what is in flight has ended, and close."""
        if self._refused:
            return
        self._refused = True
        self._clear_request()
        self.keep_alive = False
        if not self._busy:
            self._busy = True
            self.refuse(status, message, kind)


_SPENT = httptools.HttpRequestParser(object())
"""Takes the place of a dead connection's parser, which refers back to it: such cycles would pile up."""
