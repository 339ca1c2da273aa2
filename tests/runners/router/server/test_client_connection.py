"""One client connection: each request has its own headers and body, and a defect costs one request."""

from __future__ import annotations

import asyncio

import pytest

from runners.router.server.front import ClientConnection
from runners.router.server.http_message import HttpRequest
from tests.runners.router.routers import instances, raw_post, router, until
from tests.runners.router.server.test_hostile import Holding, connected

FIRST = b"POST /first?a=b HTTP/1.1\r\nhost: x\r\nx-session-id: s\r\nauthorization: t\r\ncontent-length: 3\r\n\r\nabc"
SECOND = b"POST /second HTTP/1.1\r\nhost: y\r\nconnection: x-drop\r\nx-drop: 1\r\nx-twice: 1\r\nX-Twice: 2\r\n\r\n"


class Answering(Holding):
    """A service that answers each request at once, the first one with a defect if `fails`."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.requests: list[HttpRequest] = []
        self.fails = fails

    def serve(self, connection: ClientConnection, request: object) -> None:
        assert isinstance(request, HttpRequest)
        self.requests.append(request)
        if self.fails and len(self.requests) == 1:
            raise ZeroDivisionError("a defect")
        connection.reply(200, b"fine", "text/plain")


@pytest.mark.parametrize("cut", [len(FIRST), len(FIRST) + 9, len(FIRST) - 2, len(FIRST + SECOND)])
async def test_a_request_has_nothing_of_the_one_before_it(cut: int) -> None:
    service = Answering()
    connection, wire = connected(service)
    for data in ((FIRST + SECOND)[:cut], (FIRST + SECOND)[cut:]):
        if data:
            connection.data_received(data)
    await until(lambda: len(service.requests) == 2)
    first, second = service.requests
    assert (first.path, first.query, first.body) == ("/first", "a=b", b"abc")
    assert (second.path, second.query, second.body) == ("/second", "", b"")
    assert first.named == {
        b"host": b"x",
        b"x-session-id": b"s",
        b"authorization": b"t",
        b"content-length": b"3",
    }
    assert second.named == {b"host": b"y", b"connection": b"x-drop", b"x-twice": b"2"}
    assert second.headers == ((b"host", b"y"), (b"connection", b"x-drop"), (b"x-twice", b"1"), (b"x-twice", b"2"))
    assert wire.written.count(b" 200 ") == 2
    assert service.held_bytes == 0


def test_what_goes_on_to_an_instance_are_the_clients_lines_and_the_id() -> None:
    service = Answering()
    connection, _ = connected(service)
    connection.data_received(FIRST.replace(b"host: x", b"host: x\r\nte: trailers\r\nx-request-id: theirs"))
    request = service.requests[0]
    lines = b"x-session-id: s\r\nauthorization: t\r\n"
    assert request.forwarded() == lines
    assert request.forwarded(b"ours") == lines + b"x-request-id: ours\r\n"


@pytest.mark.parametrize("together", [True, False])
async def test_a_defect_costs_one_request(together: bool, capsys: pytest.CaptureFixture[str]) -> None:
    service = Answering(fails=True)
    connection, wire = connected(service)
    for data in [FIRST + SECOND] if together else [FIRST, SECOND]:
        connection.data_received(data)
    await until(lambda: len(service.requests) == 2)
    assert wire.written.count(b" 500 ") == 1
    assert wire.written.count(b" 200 ") == 1
    assert wire.written.index(b" 500 ") < wire.written.index(b" 200 ")
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert service.held_bytes == 0


async def test_an_idle_connection_holds_nothing_of_its_last_request() -> None:
    service = Answering()
    connection, _ = connected(service)
    connection.data_received(FIRST)
    assert not connection._headers
    assert not connection._named
    assert not connection._body


async def test_a_client_that_turns_to_garbage_gets_a_head_that_says_close() -> None:
    """The instance's head had come before: what the client gets is decided with the first byte of the body."""
    async with instances("a") as (a,), router([a]) as routed:
        a.script, a.gate_at, a.gate = (b'data: {"choices": []}\n\n', b"data: [DONE]\n\n"), 0, asyncio.Event()
        reader, writer = await routed.connect(raw_post())
        traffic = routed.server._traffic
        await until(lambda: any(hasattr(one, "_head") for one in traffic.waiting))
        writer.write(b"no HTTP\r\n\r\n")
        await until(lambda: not any(client.keep_alive for client in routed.server._clients))
        a.gate.set()
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nconnection: close" in head
    assert body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
