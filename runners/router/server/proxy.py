"""The live proxy: read a client's request, look up its session, run its lifecycle over HTTP, stream the response.

The instance's response head is held back until the first body byte, so that any failure before it can be retried.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from os import urandom
from time import monotonic
from typing import TypeVar

import msgspec

from results.records.visible import has_controls, visible
from runners.router.dispatch import Request
from runners.router.facts import LONG_BYTES, ClientMessage, Facts, read_facts, read_session_name
from runners.router.failure import REFUSALS, Failure
from runners.router.instances.upstream import Answer, InstanceConnection, Pool
from runners.router.request_lifecycle import RequestLifecycle
from runners.router.response_facts import (
    NAMED_EVENTS,
    Usage,
    has_role_alone,
    is_aborted,
    is_done,
    is_empty,
    is_preamble,
    pause_s,
    read_error_event,
)
from runners.router.server.front import ClientConnection
from runners.router.server.http_message import HttpRequest, format_status_line
from runners.router.sessions.responses import StoredResponses
from runners.router.traffic import Traffic

REQUEST_ID_LIMIT = 200
TAIL_PIECES = 4
"""Last pieces of a body, searched for its usage, its end and an error event."""
RESPONSES = b"/v1/responses"
PREAMBLE_LIMIT_BYTES = 1 << 20
"""The first events of a stream are held back up to this size: they repeat the request's instructions and tools."""
NAMING_ABORTS = (b"/v1/completions", b"/v1/chat/", b"/inference/")
"""Prefixes of the paths whose answers have a finish reason."""
ROLE_HELD_S = 0.02
"""How long a chat's role waits for the token behind it. vLLM sends both in one step, and the end of a chat that it
aborts. Some parsers hold the first tokens back: then the role is passed on, as the sign that the prefill is over."""
NO_TOKEN = "the stream ended before its first token"
ABORTED = "the instance aborted the request: finish_reason 'abort'"
_RESPONSE_ID = re.compile(rb'"id"\s*:\s*"([\w.-]{1,200})"')
"""The first match in an answer is the id of the response itself."""
_Value = TypeVar("_Value")


class Arrival:
    """A complete request before its pick that waits for a result; the wait ends if its client leaves."""

    __slots__ = ("_client", "_traffic")

    def __init__(self, traffic: Traffic, client: ClientConnection) -> None:
        self._traffic = traffic
        self._client = client

    def wait_for(self, ask: Callable[[Callable[[_Value], None]], None], then: Callable[[_Value], None]) -> None:
        """Call `ask` with a callback for the result; the result goes to `then` unless the client has left."""
        self._traffic.arriving[self] = None
        self._client.in_flight = self

        def answered(value: _Value) -> None:
            if self in self._traffic.arriving:
                self._traffic.end_arrival(self)
                self._client.guard(partial(then, value))

        ask(answered)

    def pause(self) -> None:
        """Do nothing: nothing has been written yet."""

    def resume(self) -> None:
        """Do nothing: nothing was held back."""

    def abandon_request(self) -> None:
        """The client is gone."""
        self._traffic.end_arrival(self)

    def cut_request(self, why: str) -> None:
        self._traffic.end_arrival(self)
        self._client.refuse(503, why, "cut")


class ProxiedRequest(RequestLifecycle):
    """One client request: the caller of an instance's connection, and the open request of a client connection."""

    __slots__ = (
        "_answer", "_client", "_has_role_alone", "_head", "_holds_preamble", "_pool", "_pools", "_preamble",
        "_responses", "_role_timer", "_tail", "connection",
    )  # fmt: skip

    def __init__(
        self,
        traffic: Traffic,
        pools: Mapping[str, Pool],
        client: ClientConnection,
        request: Request,
        message: ClientMessage,
        responses: StoredResponses | None = None,
    ) -> None:
        """`responses`: stores the id of the answer, so that a later request can continue it; None = not stored."""
        super().__init__(traffic, request, message)
        self.connection: InstanceConnection | None = None
        self._responses = responses
        self._pools = pools
        self._client = client
        self._pool: Pool | None = None
        self._answer: Answer
        self._head: bytes
        """Head of the response to the client, built while the instance computes the first body byte."""
        self._holds_preamble: bool
        """The answer is a stream of `/v1/responses`: its first events are held back."""
        self._tail: deque[bytes]
        """The last pieces of the body that were passed on."""
        self._preamble = b""
        """Events sent before the instance computes anything: while it has only these, the request can be retried."""
        self._has_role_alone = False
        """The role of a chat was passed on before any token."""
        self._role_timer: asyncio.TimerHandle | None = None
        """Passes on the role of a chat if its token does not come soon; ended by the token, as it would wake the router
        again for every chat."""

    # the lifecycle's side
    def _send_request(self, body: bytes) -> None:
        self.connection = None
        self._preamble = b""
        self._end_role_timer()
        self._pool = pool = self._pools[self.instance]
        pool.send_request(self, pool.make_post(self._message.path, self._message.headers, body))
        self._tail = deque(maxlen=TAIL_PIECES)  # the answer does not begin before the event loop goes on

    def _cancel_request(self) -> None:
        if self._pool is not None:
            self._pool.cancel_request(self)

    def _refuse_client(self, status: int, message: str, kind: str, headers: bytes = b"") -> None:
        self._client.refuse(status, message, kind, headers)

    def _abort_client(self) -> None:
        self._client.abort()

    def _read_usage(self) -> Usage | tuple[bytes, ...]:
        return tuple(self._tail)

    def _break_off(self, message: str) -> None:
        """End an event stream with an error event, and any other response by closing the connection."""
        answer, torn = self._answer, self.connection is not None and self.connection.torn
        if not answer.events or answer.sized or torn:
            self._client.abort()
            return
        named, tail = self._message.path.startswith(NAMED_EVENTS), b"".join(self._tail)
        self._client.write(last_event(message, self.instance, tail, named=named, chunked=answer.chunked))
        self._client.finish(keep=answer.chunked)

    # the instance's side
    def receive_head(self, answer: Answer) -> bool:
        self._answer = answer
        if not self.accept_head(answer.status, pause_s(answer.named, refusal=answer.status in REFUSALS)):
            return False
        self._head = make_response_head(answer, self.instance, self._request.request)
        self._holds_preamble = answer.events and self._message.path.startswith(RESPONSES)
        return True

    def receive_body(self, data: bytes) -> None:
        if self._is_open:
            self._client.write(data)  # first
            self._tail.append(data)
            return
        self._tail.append(data)
        if self._may_name_abort and is_aborted(data) and self._may_retry():
            self.fail_attempt(Failure("event", ABORTED))
        elif self._holds_preamble:
            self._hold_preamble(data)
        elif self._answer.events and self._is_without_token(data):
            if self._role_timer is None and has_role_alone(data):
                self._role_timer = asyncio.get_running_loop().call_later(ROLE_HELD_S, self._pass_on_role)
            self._preamble += data
        else:
            self._open_response(self._preamble + data)

    @property
    def _may_name_abort(self) -> bool:
        """It is an answer with finish reasons. Others, such as embeddings, may be long: they are not searched."""
        return self._status < 400 and self._message.path.startswith(NAMING_ABORTS)

    def _is_without_token(self, data: bytes) -> bool:
        held = self._preamble
        return len(held) < PREAMBLE_LIMIT_BYTES and is_empty(data, follows=bool(held))

    def _pass_on_role(self) -> None:
        """The role of a chat has waited for long enough, if its attempt still waits."""
        if self in self._traffic.waiting and not is_done(self._preamble):
            self._has_role_alone = True
            self._client.guard(partial(self._open_response, self._preamble))

    def _end_role_timer(self) -> None:
        if self._role_timer is not None:
            self._role_timer.cancel()
            self._role_timer = None

    def _hold_preamble(self, data: bytes) -> None:
        before = len(self._preamble)
        self._preamble += data
        line = self._preamble.rfind(b"\n", 0, before) + 1  # what is before it has been searched
        held = is_preamble(self._preamble[line:], follows=before > 0)
        if not held or len(self._preamble) > PREAMBLE_LIMIT_BYTES:
            self._open_response(self._preamble)

    def end_response(self, *, proven: bool) -> None:
        tail = b"".join(self._tail) if self._answer.events else b""
        if not proven and self._answer.events and not is_done(tail):
            self.fail_request(Failure("closed", "connection closed mid-stream"))
            return
        if not self._is_open and not self._holds_preamble and is_done(self._preamble):
            self.fail_request(Failure("event", NO_TOKEN))
            return
        if not self._is_open:  # a stream that ended before any output, or an empty body
            self._open_response(self._preamble)
        self._complete_stream(tail)
        self._client.finish(keep=proven)

    def _complete_stream(self, tail: bytes) -> None:
        """The client has the whole response; `tail`: the end of an event stream, else empty."""
        error = read_error_event(tail)
        if self._status >= 400:
            self.complete_response()
        elif error is not None:
            self.complete_with_error(*error)
        elif self._may_name_abort and is_aborted(tail or b"".join(self._tail)):
            self.complete_aborted(ABORTED)
        elif self._has_role_alone and is_empty(tail):
            self.complete_aborted(NO_TOKEN)
        else:
            self.complete_response()

    def _open_response(self, data: bytes) -> None:
        answer, head = self._answer, self._head
        if not self._client.keep_alive or not (answer.chunked or answer.sized):
            head = head[:-2] + b"connection: close\r\n\r\n"
        self._client.write(head + data)  # first: counting can wait
        self._head = b""
        self._end_role_timer()
        self.start_response()
        if self._responses is not None and self._status == 200:
            named = _RESPONSE_ID.search(data)
            if named is not None:
                self._responses.add_response(named[1].decode(), self.instance, self._request.session)

    # the client's side
    def abandon_request(self, why: str = "the client left") -> None:
        """The client is gone. If it has the stream's last event or an error event, the response counts as complete."""
        tail = b"".join(self._tail) if self._is_open and self._answer.events and not self.t_paused_s else b""
        if is_done(tail) or read_error_event(tail) is not None:
            self._cancel_request()
            self._complete_stream(tail)
        else:
            super().abandon_request(why)

    def pause(self) -> None:
        """The client's buffers are full."""
        self.t_paused_s = monotonic()
        if self.connection is not None:
            self.connection.pause_reading()

    def resume(self) -> None:
        """The client reads again."""
        self.t_paused_s, self.t_read_s = 0.0, monotonic()
        if self.connection is not None:
            self.connection.resume_reading()


class Proxy:
    """Starts the requests of client connections, after their body is read and their session looked up."""

    def __init__(self, traffic: Traffic, pools: Mapping[str, Pool]) -> None:
        self._traffic = traffic
        self._pools = pools
        self._responses = StoredResponses()

    def route_request(self, connection: ClientConnection, request: HttpRequest, *, chat: bool) -> None:
        block_tokens = self._traffic.dispatcher.block_tokens
        if len(request.body) <= LONG_BYTES:
            self._route_read(connection, request, read_facts(request.body, block_tokens, chat=chat))
        else:
            arrival = Arrival(self._traffic, connection)

            def read() -> Facts | None:
                wanted = arrival in self._traffic.arriving  # else its client has left meanwhile
                return read_facts(request.body, block_tokens, chat=chat) if wanted else None

            def take(facts: Facts | None) -> None:
                if facts is None:
                    raise RuntimeError("the body could not be read")
                self._route_read(connection, request, facts)

            arrival.wait_for(partial(_read_aside, connection, len(request.body), read), take)

    def _route_read(self, connection: ClientConnection, http_request: HttpRequest, facts: Facts) -> None:
        stored = self._responses.find_response(facts.previous) if facts.previous else None
        headers = http_request.named
        session = facts.session or (stored.session if stored else "")
        if b"x-session-id" in headers:
            session = read_session_name(headers[b"x-session-id"]) or session
        if has_controls(session):
            connection.refuse(400, "the session id contains a control character", "bad_request")
            return
        wanted = stored.instance if stored else ""
        dispatcher = self._traffic.dispatcher
        if session and dispatcher.asks_first:
            begin = partial(self._begin_request, connection, http_request, facts, session, wanted)
            Arrival(self._traffic, connection).wait_for(partial(dispatcher.ask_arrival, session), begin)
        else:
            turn = dispatcher.count_arrival(session)
            self._begin_request(connection, http_request, facts, session, wanted, turn)

    def _begin_request(
        self,
        connection: ClientConnection,
        http_request: HttpRequest,
        facts: Facts,
        session: str,
        wanted: str,
        turn: int,
    ) -> None:
        client_id = http_request.named.get(b"x-request-id", b"")
        if not 0 < len(client_id) <= REQUEST_ID_LIMIT:
            client_id = b"tracon-%b" % urandom(16).hex().encode()
        name, path = client_id.decode("latin-1"), http_request.target
        request = Request(name, session, turn, facts.keys, facts.input_tokens, facts.max_tokens, wanted)
        message = ClientMessage(path, http_request.forwarded(client_id), http_request.body)
        responses = self._responses if path.startswith(RESPONSES) else None
        proxied = ProxiedRequest(self._traffic, self._pools, connection, request, message, responses)
        connection.held.count_keys(len(facts.keys))
        connection.in_flight = proxied
        proxied.start_request()


def _read_aside(
    client: ClientConnection, body_bytes: int, read: Callable[[], Facts | None], then: Callable[[Facts | None], None]
) -> None:
    """Read a body in a thread; the body counts as held until then, even if its client leaves before."""

    def end_reading(done: asyncio.Future[Facts | None]) -> None:
        client.held.return_body(body_bytes)
        error = done.exception()
        if error is not None:
            sys.stderr.write(visible(f"a body could not be read: {type(error).__name__}: {error}\n"))
        then(None if error is not None else done.result())

    client.held.lend_body(body_bytes)
    asyncio.get_running_loop().run_in_executor(None, read).add_done_callback(end_reading)


def make_response_head(answer: Answer, instance: str, request: str) -> bytes:
    """The response head for the client, made of an instance's `answer` to `request`; the connection stays open."""
    lines = [*map(b": ".join, answer.headers), b"x-tracon-instance: %b" % instance.encode()]
    if b"x-request-id" not in answer.named:
        lines.append(b"x-request-id: %b" % request.encode("latin-1"))
    return b"%b%b\r\n\r\n" % (format_status_line(answer.status), b"\r\n".join(lines))


def last_event(message: str, instance: str, tail: bytes, *, named: bool, chunked: bool) -> bytes:
    """The error event that ends a broken event stream; `tail`: the last bytes that the client received.

    `named`: events of this stream have names; its clients ignore events without one.
    """
    error = {"message": message, "type": "instance_failed", "code": 502, "instance": instance}
    if named:
        content = {"type": "error", "code": "instance_failed", "message": message, "param": None, "error": error}
        event = b"event: error\ndata: " + msgspec.json.encode(content) + b"\n\n"
    else:
        event = b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"
    body = tail.removesuffix(b"\r\n") if chunked else tail
    if body and not body.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
        event = b"\n\n" + event
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event) if chunked else event
