"""Pooled connections to an instance: send a request and stream its response to the caller.

The response head is parsed; the body is forwarded byte for byte, framing included. Of an event stream only whole HTTP
chunks are forwarded, so that the router can still end the stream with an error event if the instance dies. A chunk that
arrives alone, as a token does, bypasses the parser, which is between two chunks before and after it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from time import monotonic, perf_counter_ns
from typing import Protocol, cast

import httptools
import msgspec

from runners.router.failure import Failure
from runners.router.messages import RouterError
from runners.target import Target, resolve_target

IDLE_S = 4.0
"""Idle connections older than this are not reused: servers close theirs after 5 s, which could race with a request."""
OWN_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL)
"""This process or machine is at its limit; the instance is not to blame."""
HEAD_LIMIT_BYTES = 64 << 10
"""Limit of a head with its blank line, and of bytes in a row that are neither head nor body: trailers, chunk sizes with
their extensions. Of requests and responses."""
HELD_LIMIT_BYTES = 256 << 10
"""A longer chunk is forwarded in pieces; its stream can then only be cut, not ended with an event."""
LONE_CHUNK_LIMIT_BYTES = 4096
"""A longer chunk goes through the parser, even if it arrives alone."""
JOINED_LIMIT_BYTES = 4 << 10
"""A body up to this size is sent in one buffer with its head: copying it costs less than a second buffer."""
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer upgrade".split()
)
CONNECTION_ALONE = (b"keep-alive", b"close")
"""Values of a `connection` header that name no other header."""
_FRAMING = frozenset((b"content-length", b"transfer-encoding", b"content-type", b"content-encoding"))


class Answer(msgspec.Struct, frozen=True):
    """The head of an instance's response."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    """Without hop-by-hop headers."""
    named: Mapping[bytes, bytes]
    """The same by name."""
    chunked: bool
    sized: bool
    """Its length is known; a body that is neither chunked nor sized ends with the connection."""
    events: bool
    """An event stream, not compressed."""


class Caller(Protocol):
    """The sender of a request, which receives its response."""

    t_read_s: float
    """Time of the last read, `time.monotonic()`."""
    connection: InstanceConnection | None
    """Its connection; set when the request is sent."""

    def note_sent(self, t_first_byte_ns: int) -> None:
        """The request's last byte has been handed to the socket; called again if it is resent on a new connection.

        `t_first_byte_ns`: `time.perf_counter_ns()` before the first byte was written. The instance may have received
        the request before this call, but not before that time.
        """

    def receive_head(self, answer: Answer) -> bool:
        """The head has arrived. False = drop the connection and the response."""

    def receive_body(self, data: bytes) -> None:
        """The next bytes of the body; an empty body is one call without bytes."""

    def end_response(self, *, proven: bool) -> None:
        """The response is complete. Not `proven`: it ended with its connection, so it may be truncated."""

    def fail_request(self, failure: Failure) -> None:
        """The response will not be complete; the connection is gone."""


async def resolve_instance(url: str) -> Target:
    """The target of a base URL. Raises RouterError if its host has no address."""
    return await resolve_target(url, RouterError)


@dataclass(eq=False, repr=False, slots=True)
class InstanceConnection(asyncio.Protocol):
    """One connection to an instance: at most one request at a time."""

    _pool: Pool
    transport: asyncio.Transport | None = None
    caller: Caller | None = None
    payload: tuple[bytes, ...] = ()
    """The bytes sent, stored until the response begins so that they can be resent once."""
    pooled: bool = False
    t_idle_s: float = 0.0
    torn: bool = False
    """Part of a chunk has been forwarded: the stream can no longer be ended with an event."""
    _parser: httptools.HttpResponseParser = field(init=False)
    _paused: bool = False
    _writing: bool = False
    """The socket has not taken all of the request yet."""
    _t_first_byte_ns: int = 0
    _messages: int = 0
    _headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    _in_head: bool = True
    """False: headers that follow are trailers, which go on to the client with the body."""
    _gathered: bytes = b""
    _held: bytes = b""
    _framing_bytes: int = 0
    """Bytes read since the head or the last piece of the body."""
    _answer: Answer | None = None
    _bytes_seen: bool = False
    _complete: bool = False
    _keep: bool = False
    _in_chunk: bool = False
    _guarded: bool = False
    _between_chunks: bool = False
    """Guarded body: the next byte begins a chunk, and all bytes before it have been forwarded."""

    def __post_init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)

    @property
    def usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def send_request(self, caller: Caller, payload: tuple[bytes, ...], *, pooled: bool) -> None:
        self.caller, self.payload, self.pooled = caller, payload, pooled
        caller.connection = self
        if self.transport is not None:
            self._t_first_byte_ns = perf_counter_ns()
            self.transport.writelines(payload)
            if not self._writing:
                caller.note_sent(self._t_first_byte_ns)

    def pause_reading(self) -> None:
        """Stop reading from the instance: the client is slower."""
        if self.transport is not None and self.usable and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.transport is not None and self.usable and self._paused:
            self.transport.resume_reading()
        self._paused = False

    def drop_connection(self) -> None:
        """Close at once, so that the instance drops the request too; its caller is not notified."""
        self.caller, self.payload = None, ()
        if self.transport is not None:
            self.transport.abort()

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's class does not derive from asyncio's
        self.transport.set_write_buffer_limits(0)  # so that resume_writing reports when all is written
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def pause_writing(self) -> None:
        self._writing = True

    def resume_writing(self) -> None:
        self._writing = False
        if self.caller is not None:
            self.caller.note_sent(self._t_first_byte_ns)

    def data_received(self, data: bytes) -> None:
        caller = self.caller
        if caller is None:  # bytes that belong to no request: the framing is lost
            self.drop_connection()
            return
        size = len(data)
        if (
            self._between_chunks
            and size <= LONE_CHUNK_LIMIT_BYTES
            and data.startswith(_SIZE_LINES[size])
            and data.endswith(b"\r\n")
        ):
            caller.t_read_s = monotonic()
            caller.receive_body(data)
        else:
            self._parse_response(caller, data)

    def _parse_response(self, caller: Caller, data: bytes) -> None:
        self._bytes_seen, self.payload = True, ()
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail_caller(Failure("protocol", f"malformed HTTP response: {error}"))
            return
        if not self._framing_bytes or self._complete:  # else trailers in small pieces would never exceed `stall_s`
            caller.t_read_s = monotonic()
        if self._messages > 1:
            self._fail_caller(Failure("protocol", "bytes behind the end of the response"))
        elif self._answer is not None and self._framing_bytes > HEAD_LIMIT_BYTES:
            why = f"more than {HEAD_LIMIT_BYTES} bytes of trailers or of a chunk's size line"
            self._fail_caller(Failure("protocol", why))
        elif self._answer is None:
            self._gather_head(caller, data)
        else:
            self._pass_on(caller, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._parser = _SPENT
        self._pool.forget_connection(self)
        caller, payload = self.caller, self.payload
        self.caller, self.payload = None, ()
        if caller is None:
            return
        answer = self._answer
        if answer is not None and not answer.chunked and not answer.sized and exc is None:
            caller.end_response(proven=False)
        elif payload and self.pooled and not self._bytes_seen:
            self._pool.send_again(caller, payload)
        else:
            why = f" ({exc})" if exc is not None else ""
            when = "mid-response" if self._bytes_seen else "before any byte of the response"
            caller.fail_request(Failure("closed", f"connection closed {when}{why}"))

    # httptools
    def on_message_begin(self) -> None:
        self._messages += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._framing_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0

    def on_chunk_header(self) -> None:
        self._in_chunk = True

    def on_chunk_complete(self) -> None:
        self._in_chunk = False

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # 100 Continue: the response is still to come
            self._messages -= 1
            self._headers.clear()
            self._in_head = True
        else:
            self._complete, self._keep = True, self._parser.should_keep_alive()

    def _reset_response(self) -> None:
        self._headers.clear()
        self._gathered = self._held = b""
        self._framing_bytes = 0
        self._answer = None
        self._bytes_seen = self._complete = self._keep = self.torn = False
        self._in_chunk = self._guarded = self._between_chunks = False
        self._in_head = True
        self._messages = 0

    def _gather_head(self, caller: Caller, data: bytes) -> None:
        """Collect the head; once it is complete, ask the caller whether to continue."""
        self._gathered = (self._gathered + data).lstrip(b"\r\n")  # the parser skips empty lines before a head
        head, end, body = self._gathered.partition(b"\r\n\r\n")
        while end and head.startswith(b"HTTP/1.1 1") and len(head + end) <= HEAD_LIMIT_BYTES:
            self._gathered = body.lstrip(b"\r\n")
            head, end, body = self._gathered.partition(b"\r\n\r\n")
        if len(head + end) > HEAD_LIMIT_BYTES:
            self._fail_caller(Failure("protocol", f"a response head of more than {HEAD_LIMIT_BYTES} bytes"))
            return
        if not end:
            return
        self._gathered = b""
        self._answer = answer = _read_head(self._parser.get_status_code(), self._headers)
        self._guarded = answer.chunked and answer.events
        if not caller.receive_head(answer):
            self.drop_connection()
        elif body or self._complete:
            self._pass_on(caller, body)
        else:
            self._between_chunks = self._guarded and not self._in_chunk

    def _pass_on(self, caller: Caller, data: bytes) -> None:
        if self._guarded:
            data = self._take_whole_chunks(data)
            if not data:
                return
        caller.receive_body(data)
        if self._complete and self.caller is caller:
            self._finish_response(caller)

    def _finish_response(self, caller: Caller) -> None:
        self.caller, keep = None, self._keep
        self._reset_response()
        if keep and self.usable:
            self.resume_reading()
            self._pool.give_back(self)
        else:
            self.drop_connection()
        caller.end_response(proven=True)

    def _take_whole_chunks(self, data: bytes) -> bytes:
        """The bytes up to the end of the last whole chunk; the rest is held until the chunk is complete."""
        if self._held:
            data = self._held + data
        self._between_chunks = not self._in_chunk and not self.torn and data.endswith(b"\r\n")
        if self._complete or self.torn or self._between_chunks:
            self._held = b""
            return data
        cut = measure_whole_chunks(data)
        self._held = data[cut:]
        if len(self._held) > HELD_LIMIT_BYTES:
            self.torn, self._held = True, b""
            return data
        return data[:cut]

    def _fail_caller(self, failure: Failure) -> None:
        caller = self.caller
        self.drop_connection()
        if caller is not None:
            caller.fail_request(failure)


_SPENT = httptools.HttpResponseParser(object())
"""Replaces the parser of a closed connection, which refers back to it: such reference cycles would pile up."""


def _list_size_lines() -> tuple[bytes, ...]:
    """For each length of a whole chunk, the size line that such a chunk begins with."""
    lines = [b"no chunk has this length"] * (LONE_CHUNK_LIMIT_BYTES + 1)
    for size in range(1, LONE_CHUNK_LIMIT_BYTES):
        line = b"%x\r\n" % size
        length = len(line) + size + len(b"\r\n")
        if length <= LONE_CHUNK_LIMIT_BYTES:
            lines[length] = line
    return tuple(lines)


_SIZE_LINES = _list_size_lines()


def measure_whole_chunks(data: bytes) -> int:
    """Length in bytes of the whole HTTP chunks at the beginning of `data`, which starts with a size line."""
    position = 0
    while True:
        line_end = data.find(b"\r\n", position)
        if line_end < 0:
            return position
        size = int(data[position:line_end].partition(b";")[0], 16)
        if not size:  # the last chunk: trailers may follow, up to a blank line
            end = data.find(b"\r\n\r\n", line_end)
            return position if end < 0 else end + 4
        end = line_end + 4 + size
        if end > len(data):
            return position
        position = end


def drop_named_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers without those that a `connection` header names, which apply to this hop only."""
    options = [value for name, value in headers if name == b"connection"]
    named = {option.strip().lower() for value in options for option in value.split(b",")} - _FRAMING
    return [header for header in headers if header[0] not in named]


def _read_head(status: int, headers: list[tuple[bytes, bytes]]) -> Answer:
    named = dict(headers)
    if not HOP_BY_HOP.isdisjoint(named):
        if any(value.lower() not in CONNECTION_ALONE for name, value in headers if name == b"connection"):
            headers = drop_named_headers(headers)
        headers = [header for header in headers if header[0] not in HOP_BY_HOP]
        named = dict(headers)
    coding = named.get(b"transfer-encoding", b"").lower().rpartition(b",")[2]
    kind = named.get(b"content-type", b"").lower()
    return Answer(
        status,
        tuple(headers),
        named,
        chunked=coding.strip() == b"chunked",  # as the parser reads it
        sized=b"content-length" in named or status in (204, 304),
        events=kind.startswith(b"text/event-stream") and b"content-encoding" not in named,
    )


class Pool:
    """The connections to one instance. Idle ones are reused, the newest first."""

    def __init__(self, target: Target, connect_s: float) -> None:
        self.target = target
        self._post = f"POST {target.base}".encode()
        self._host = f" HTTP/1.1\r\nhost: {target.host}\r\n".encode()
        self._connect_s = connect_s
        self._tls = ssl.create_default_context() if target.tls else None
        self._idle: list[InstanceConnection] = []
        """The longest idle first. One that was closed stays until it is taken or expires: to search each of thousands
        that close at once among all others would stop every stream."""
        self._connections: set[InstanceConnection] = set()
        self._connecting: dict[Caller, asyncio.Task[None]] = {}

    def make_post(self, path: bytes, headers: bytes, body: bytes) -> tuple[bytes, ...]:
        """A POST to this instance, as the payload of `send_request`; `headers`: whole lines."""
        pieces = (self._post, path, self._host, headers, b"content-length: %d\r\n\r\n" % len(body))
        if len(body) <= JOINED_LIMIT_BYTES:
            return (b"".join((*pieces, body)),)
        return b"".join(pieces), body

    def send_request(self, caller: Caller, payload: tuple[bytes, ...]) -> None:
        """Send a request; the caller's methods receive its response. Never blocks."""
        idle, oldest_s = self._idle, monotonic() - IDLE_S
        while idle:
            connection = idle.pop()
            if connection.usable and connection.t_idle_s >= oldest_s:
                connection.send_request(caller, payload, pooled=True)
                return
            connection.drop_connection()
        self.send_again(caller, payload)

    def send_again(self, caller: Caller, payload: tuple[bytes, ...]) -> None:
        """Send it on a new connection: the pooled one was stale, or there was none."""
        self._connecting[caller] = asyncio.get_running_loop().create_task(self._connect_and_send(caller, payload))

    def cancel_request(self, caller: Caller) -> None:
        task = self._connecting.pop(caller, None)
        if task is not None:
            task.cancel()
        elif caller.connection is not None and caller.connection.caller is caller:
            caller.connection.drop_connection()

    def give_back(self, connection: InstanceConnection) -> None:
        connection.t_idle_s = monotonic()
        self._idle.append(connection)

    def forget_connection(self, connection: InstanceConnection) -> None:
        self._connections.discard(connection)

    def close_idle(self) -> None:
        oldest_s = monotonic() - IDLE_S
        expired = list(takewhile(lambda one: one.t_idle_s < oldest_s, self._idle))
        del self._idle[: len(expired)]
        for connection in expired:
            connection.drop_connection()

    def close(self) -> None:
        """Drop all connections; requests in flight must have been ended before."""
        for task in self._connecting.values():
            task.cancel()
        for connection in tuple(self._connections):
            connection.drop_connection()

    async def _connect_and_send(self, caller: Caller, payload: tuple[bytes, ...]) -> None:
        try:
            connection = await self._open_connection()
        except TimeoutError:
            failure = Failure("connect", f"no connection within {self._connect_s:g} s", dead=True)
        except OSError as error:
            ours = error.errno in OWN_ERRORS
            kind, text = "own" if ours else "connect", f"cannot connect: {error.strerror or error}"
            failure = Failure(kind, text, dead=not ours, gone=isinstance(error, ConnectionRefusedError))
        else:
            self._connecting.pop(caller, None)
            if connection.transport is not None:
                connection.send_request(caller, payload, pooled=False)
            else:
                caller.fail_request(Failure("closed", "connection closed as soon as it was made"))
            return
        if self._connecting.pop(caller, None) is not None:
            caller.fail_request(failure)

    async def _open_connection(self) -> InstanceConnection:
        target = self.target
        async with asyncio.timeout(self._connect_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: InstanceConnection(self),
                target.address,
                target.port,
                ssl=self._tls,
                server_hostname=target.name if self._tls else None,
            )
        self._connections.add(connection)
        return connection
