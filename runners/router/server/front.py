"""Client connections: parse requests and answer them one at a time, in order of arrival."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from time import monotonic
from typing import Protocol, cast

import httptools
import msgspec

from results.records.visible import visible
from runners.router.instances.upstream import CONNECTION_ALONE, HEAD_LIMIT_BYTES, drop_named_headers
from runners.router.server.held_bytes import AHEAD_LIMIT_BYTES, LARGE_HEAD_BYTES, HeldBytes, HeldTotal, measure_head
from runners.router.server.http_message import HttpRequest, format_status_line

HEADER_LIMIT = 256
"""Headers of a request: parsed, each takes twenty times its bytes on the wire."""
QUEUE_LIMIT = 16
"""Requests that a client may pipeline on one connection."""
_NO_HEADERS: Mapping[bytes, bytes] = {}


@lru_cache(1024)
def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _drop_data(data: bytes) -> None:
    """`write` of a closed connection."""


class OpenRequest(Protocol):
    """The request that a connection is serving."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def abandon_request(self) -> None: ...


class Service(HeldTotal, Protocol):
    """The server behind client connections."""

    closing: bool
    """No further request is accepted."""
    body_limit_bytes: int

    def admit(self, connection: ClientConnection) -> str:
        """Register a connection; returns why it is refused, empty = accepted."""

    def forget(self, connection: ClientConnection) -> None: ...
    def serve(self, connection: ClientConnection, request: HttpRequest) -> None: ...


@dataclass(eq=False, repr=False, slots=True)
class ClientConnection(asyncio.Protocol):
    """A client's connection: pipelined requests are served one at a time, in the order they came."""

    _service: Service
    in_flight: OpenRequest | None = None
    keep_alive: bool = True
    local: bool = False
    """The client is on this machine."""
    shared: bool = False
    """It was accepted on a port that several processes share."""
    peer: str = ""
    """The client's address; empty = a socket without one."""
    t_read_s: float = field(default_factory=monotonic)
    t_begin_s: float = 0.0
    """When the first byte of an incomplete request arrived, advanced by pauses; 0 = no incomplete request."""
    t_full_s: float = 0.0
    """Since when the client reads slower than the router writes; 0 = it keeps up."""
    write: Callable[[bytes], None] = _drop_data
    """The transport's `write`, bound directly to save a call."""
    held: HeldBytes = field(init=False)
    """What it takes of the memory that all connections share."""
    _parser: httptools.HttpRequestParser = field(init=False)
    _transport: asyncio.Transport | None = None
    _queue: deque[tuple[HttpRequest, int]] = field(default_factory=deque)
    """Requests that wait for their turn, with their bytes in `held.ahead_bytes`."""
    _busy: bool = False
    _refused: bool = False
    _is_head: bool = False
    """The request being served is a HEAD."""
    _path: bytes = b""
    _headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    _named: Mapping[bytes, bytes] = field(default_factory=dict)
    """The same by name, once the head is complete."""
    _body: bytes | bytearray = b""
    """A single piece is stored as it is; several are joined, as small pieces would take many times their bytes."""
    _head_bytes: int = 0
    """Bytes read since the request began, since its head, or since the last piece of its body."""
    _read_bytes: int = 0
    """Bytes of the last read."""
    _first_read_bytes: int = 0
    """Bytes of the read in which the request began; `_head_bytes` does not count them."""
    _t_paused_s: float = 0.0
    """Since when reading is paused; 0 = not paused."""
    _in_head: bool = True

    def __post_init__(self) -> None:
        self.held = HeldBytes(self._service)
        self._parser = httptools.HttpRequestParser(self)

    @property
    def idle(self) -> bool:
        return not self._busy

    @property
    def is_paused(self) -> bool:
        """The router has paused reading, so an incomplete request is not the client's delay."""
        return self._t_paused_s > 0.0

    @property
    def in_head(self) -> bool:
        """The head of the next request is incomplete."""
        return self._in_head

    @property
    def unsent_bytes(self) -> int:
        """Bytes written that the client's socket has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not derive from asyncio's
        self._transport.set_write_buffer_limits(0)  # uvloop then writes at once, not at the end of the iteration
        self.write = self._transport.write
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = peer[0]
            self.local = _is_loopback(peer[0])
        why = self._service.admit(self)
        if why:
            self._reject_client(503, why, "router_overloaded")

    def data_received(self, data: bytes) -> None:
        self.t_read_s = monotonic()
        if self._refused:
            return
        self._read_bytes = len(data)
        self._head_bytes += self._read_bytes
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._reject_client(400, f"malformed HTTP request: {error}", "bad_request")
        if self._head_bytes > HEAD_LIMIT_BYTES:
            self._reject_head("head" if self._in_head else "trailer section")

    def _parse(self, data: bytes) -> None:
        """Parse data. The parser stops after a head that asks for an upgrade, which HTTP lets a server ignore: the head
        is parsed again without the upgrade, and the bytes after it are the request's body.
        """
        while not self._refused:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self._parser.get_method() == b"CONNECT":
                    self._reject_client(400, "the router is no tunnel: it takes no CONNECT", "bad_request")
                    return
                data = self._make_head_without_upgrade() + data[upgrade.args[0] :]
                self._clear_request()
                self._parser = httptools.HttpRequestParser(self)

    def _make_head_without_upgrade(self) -> bytes:
        lines = [b"%b: %b\r\n" % header for header in self._headers if header[0] != b"upgrade"]
        parser = self._parser
        first = b"%b %b HTTP/%b\r\n" % (parser.get_method(), self._path, parser.get_http_version().encode())
        return first + b"".join(lines) + b"\r\n"

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_request()
        self.held.close()
        self._queue.clear()
        self._transport, self.write = None, _drop_data
        self._parser = _SPENT
        self._service.forget(self)
        in_flight, self.in_flight = self.in_flight, None
        if in_flight is not None:
            in_flight.abandon_request()

    def pause_writing(self) -> None:
        self.t_full_s = monotonic()
        if self.in_flight is not None:
            self.in_flight.pause()

    def resume_writing(self) -> None:
        self.t_full_s = 0.0
        self.held.drop_unsent()
        if self.in_flight is not None:
            self.in_flight.resume()
        elif not self._busy:
            self._go_on()

    # httptools
    def on_message_begin(self) -> None:
        self._head_bytes = 0  # the rest was cleared after the last request
        self._first_read_bytes = self._read_bytes
        self.t_begin_s = self.t_read_s

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are dropped: authorization and session ids belong in the head
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._parser.should_upgrade():  # `_parse` parses the head again
            return
        self._in_head = False
        if len(self._headers) > HEADER_LIMIT:
            self._reject_client(431, f"a request head of more than {HEADER_LIMIT} headers", "bad_request")
            return
        headers = dict(self._headers)
        length = headers.get(b"content-length", b"0")
        body_bytes = int(length) if length.isdigit() else 0
        most_bytes = self._head_bytes + self._first_read_bytes  # with what else the first read held
        if most_bytes > LARGE_HEAD_BYTES and not self._hold_large_head():
            return
        self._head_bytes = 0
        self._named = headers
        is_plain = b"connection" not in headers or headers[b"connection"].lower() in CONNECTION_ALONE
        if not is_plain or len(headers) < len(self._headers):  # `headers` has only one of two with the same name
            self._headers = drop_named_headers(self._headers)
            self._named = dict(self._headers)
        if body_bytes > self._service.body_limit_bytes:
            self._reject_body()
        elif b"expect" in headers and headers[b"expect"].lower() == b"100-continue" and not self._busy:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        self._head_bytes = 0
        service = self._service
        service.held_bytes += len(body)
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            self._body = bytearray(self._body) + body
        if len(self._body) > service.body_limit_bytes:
            self._reject_body()
        elif service.held_bytes > service.held_limit_bytes:
            self._reject_full()
        elif self._busy or self.t_full_s:
            self._pause_ahead()

    def on_message_complete(self) -> None:
        parser = self._parser
        if self._refused or parser.should_upgrade():
            return
        request = HttpRequest(
            parser.get_method().decode("latin-1"),
            self._path,
            tuple(self._headers),
            self._named,
            bytes(self._body),
            parser.should_keep_alive(),
            parser.get_http_version(),
        )
        is_next = not (self._busy or self.t_full_s or self._queue or self._transport is None)
        if is_next or self._may_wait():
            self._body = b""
            request_bytes = self.held.end_arrival(len(request.body))
            if is_next:
                self._serve(request, request_bytes)
            else:
                self.held.ahead_bytes += request_bytes
                self._queue.append((request, request_bytes))
                self._pause_ahead()
                self._serve_next()
        self._clear_request()  # not before: the request is on its way by now

    # how a service answers
    def finish(self, *, keep: bool) -> None:
        self.in_flight = None
        self.held.end_serving()
        if self._transport is None:
            return
        if self.t_full_s:
            self.held.count_unsent(self._transport.get_write_buffer_size())
        self.t_read_s = monotonic()
        if not keep or not self.keep_alive or self._service.closing or self._refused:
            self._transport.close()
            return
        self._busy = False
        if not self.t_full_s:
            self._go_on()

    def guard(self, step: Callable[[], None]) -> None:
        """Run the step that a request waited for. If it raises, log the error and answer the client with a 500."""
        try:
            step()
        except Exception as error:  # noqa: BLE001  (no request may hang)
            self._answer_defect(error)

    def _answer_defect(self, error: Exception) -> None:
        sys.stderr.write(visible(f"a request could not be served:\n{traceback.format_exc()}"))
        self.refuse(500, f"{type(error).__name__}: {error}", "router_defect")

    def close(self) -> None:
        """Serve no further request, and close once the client has read everything written."""
        self._busy = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection, so that the client sees that the response is incomplete."""
        self.in_flight = None
        if self._transport is not None:
            self._transport.abort()

    def reply(self, status: int, body: bytes, content_type: str, headers: bytes = b"") -> None:
        closing = not self.keep_alive or self._service.closing
        self.write(
            b"%bcontent-type: %b\r\n%b%bcontent-length: %d\r\n\r\n%b"
            % (
                format_status_line(status),
                content_type.encode(),
                headers,
                b"connection: close\r\n" if closing else b"",
                len(body),
                b"" if self._is_head else body,
            )
        )
        self.finish(keep=True)

    def reply_json(self, status: int, value: object, headers: bytes = b"") -> None:
        self.reply(status, msgspec.json.encode(value), "application/json", headers)

    def refuse(self, status: int, message: str, kind: str, headers: bytes = b"") -> None:
        """Answer with an error of the router itself, in the API's format."""
        self.reply_json(status, {"error": {"message": message, "type": kind, "code": status}}, headers)

    def _serve_next(self) -> None:
        if self._busy or self.t_full_s or not self._queue or self._transport is None:
            return
        request, request_bytes = self._queue.popleft()
        self.held.ahead_bytes -= request_bytes
        self._serve(request, request_bytes)

    def _serve(self, request: HttpRequest, request_bytes: int) -> None:
        self._busy = True
        self.keep_alive = request.keep_alive
        self._is_head = request.method == "HEAD"
        self.held.serving_bytes = request_bytes
        if self.is_paused:
            self._resume_ahead()
        try:
            self._service.serve(self, request)
        except Exception as error:  # noqa: BLE001  (no request may hang)
            self._answer_defect(error)

    def _go_on(self) -> None:
        """The client has read the last response: serve the next request, if any."""
        if self.is_paused:
            self._resume_ahead()
        if self._queue:
            asyncio.get_running_loop().call_soon(self._serve_next)

    def _may_wait(self) -> bool:
        """Count the head of a request that is complete before its turn; refuse the client if it has sent too much."""
        if len(self._queue) >= QUEUE_LIMIT:
            self._reject_client(400, f"more than {QUEUE_LIMIT} requests sent ahead", "bad_request")
        elif not self.held.head_bytes:
            self._hold_head(self._measure_head())
        return not self._refused

    def _is_behind_large_head(self) -> bool:
        return any(request_bytes - len(request.body) > LARGE_HEAD_BYTES for request, request_bytes in self._queue)

    def _pause_ahead(self) -> None:
        """Pause reading while more than AHEAD_LIMIT_BYTES of pipelined requests wait, or one with a large head."""
        if self._transport is None or self.is_paused:
            return
        if self.held.ahead_bytes + len(self._body) > AHEAD_LIMIT_BYTES or self._is_behind_large_head():
            self._t_paused_s = monotonic()
            self._transport.pause_reading()

    def _resume_ahead(self) -> None:
        if self._transport is None or self._is_behind_large_head():
            return
        if self.held.ahead_bytes <= AHEAD_LIMIT_BYTES:
            if self.t_begin_s:  # the pause does not count against the client
                self.t_begin_s += monotonic() - max(self._t_paused_s, self.t_begin_s)
            self._t_paused_s = 0.0
            self._transport.resume_reading()

    def _clear_request(self) -> None:
        if self._body or self.held.head_bytes:
            self.held.drop_arrival(len(self._body))
        self._path = b""
        self._headers, self._named, self._body = [], _NO_HEADERS, b""
        self._head_bytes = 0
        self.t_begin_s = 0.0
        self._in_head = True

    def reject_late(self, message: str) -> None:
        """A request was not complete in time."""
        self._reject_client(408, message, "bad_request")

    def _measure_head(self) -> int:
        return measure_head(self._parser.get_method(), self._path, self._headers)

    def _hold_large_head(self) -> bool:
        """Measure a head that may be large, and count a large one as held. False = it is refused."""
        head_bytes = self._measure_head()
        if head_bytes > HEAD_LIMIT_BYTES:
            self._reject_head("head")
        elif head_bytes > LARGE_HEAD_BYTES:
            self._hold_head(head_bytes)
        return not self._refused

    def _hold_head(self, head_bytes: int) -> None:
        """Count a head of `head_bytes` on the wire as held, and refuse the client if that is too much."""
        if not self.held.count_head(head_bytes, len(self._headers)):
            self._reject_full()

    def _reject_full(self) -> None:
        why = f"the router holds {self._service.held_limit_bytes} bytes of requests, as many as it may"
        self._reject_client(503, why, "router_overloaded")

    def _reject_head(self, part: str) -> None:
        self._reject_client(431, f"a request {part} of more than {HEAD_LIMIT_BYTES} bytes", "bad_request")

    def _reject_body(self) -> None:
        limit = self._service.body_limit_bytes
        self._reject_client(413, f"a request body of more than {limit} bytes", "bad_request")

    def _reject_client(self, status: int, message: str, kind: str) -> None:
        """Refuse the client and close the connection; if a response is in flight, only close after it."""
        if self._refused:
            return
        self._refused = True
        self._clear_request()
        self.keep_alive = False
        if not self._busy:
            self._busy = True
            self.refuse(status, message, kind)


_SPENT = httptools.HttpRequestParser(object())
"""Replaces the parser of a closed connection, which refers back to it: such reference cycles would pile up."""
