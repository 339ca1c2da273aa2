"""Whatever bytes a client sends: no exception, no request that was framed in two ways, nothing held for ever."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement

from runners.router.instances.upstream import HEAD_LIMIT_BYTES
from runners.router.server import front
from runners.router.server.front import ClientConnection
from runners.router.server.http_message import HttpRequest
from tests.examples import examples
from tests.fuzz.mutations import mutated
from tests.runners.router.server.test_hostile import Holding, connected

BODY = b'{"prompt":[1]}'
LINE = b"POST /v1/completions?a=1 HTTP/1.1\r\nHost: x\r\n"
SIZED = LINE + b"Content-Length: 14\r\n\r\n" + BODY
PIECES = b"7\r\n%b\r\n7;x=y\r\n%b\r\n0\r\nT: u\r\n\r\n" % (BODY[:7], BODY[7:])
CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n" + PIECES
UPGRADE = LINE + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: 14\r\n\r\n" + BODY
SEEDS = (SIZED, CHUNKED, UPGRADE, SIZED + CHUNKED + UPGRADE, b"GET /health HTTP/1.0\r\nExpect: 100-continue\r\n\r\n")
REFUSED = (
    LINE + b"Content-Length: 14\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SIZED,
    LINE + b"Transfer-Encoding: chunked\r\nContent-Length: 14\r\n\r\n0\r\n\r\n" + SIZED,
    LINE + b"Content-Length: 14\r\nContent-Length: 15\r\n\r\n" + BODY,
    LINE + b"Content-Length: +14\r\n\r\n" + BODY,
    LINE + b"Content-Length: 14, 14\r\n\r\n" + BODY,
    LINE + b"Content-Length: -1\r\n\r\n",
    LINE + b"Content-Length: 99999999999999999999999\r\n\r\n",
    LINE + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    LINE + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\na",
    LINE + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding: chunked\r\n\r\n1\na\n0\n\n",
    LINE + b"X: a\r\n b\r\n\r\n",
    LINE + b"X: a\x00b\r\n\r\n",
    LINE + b"X: a\rb\r\n\r\n",
    LINE + b"X\xe9: a\r\n\r\n",
    LINE + b" X: a\r\n\r\n",
    b"POST /v1 /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01",
    LINE + b"Upgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 14\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
)
"""Each could be framed, or read, in two ways."""


class Noting(Holding):
    """A service that stores what it is asked and answers at once."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[HttpRequest] = []

    def serve(self, connection: ClientConnection, request: object) -> None:
        assert isinstance(request, HttpRequest)
        self.requests.append(request)
        connection.in_flight = None
        connection.held.end_serving()
        connection._busy = False
        connection._serve_next()


def serve(data: bytes, cuts: list[int]) -> tuple[list[HttpRequest], bytes, Noting]:
    """What is served of these bytes, sent in pieces, and what was answered to them by the connection itself."""
    service = Noting()
    connection, wire = connected(service)
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for begin, end in pairwise(places):
        connection.data_received(data[begin:end])
    connection.connection_lost(None)
    return service.requests, wire.written, service


@given(mutated(SEEDS) | st.binary(max_size=200), st.lists(st.integers(0, 1 << 20), max_size=6))
@settings(max_examples=examples(300))
def test_whatever_comes_is_served_or_refused(data: bytes, cuts: list[int]) -> None:
    requests, answered, service = serve(data, cuts)
    whole, refused, _ = serve(data, [])
    assert requests == whole, "how the bytes came must not matter"
    assert answered[:12] == refused[:12]
    assert service.held_bytes == 0
    for request in requests:
        names = [name for name, _ in request.headers]
        assert not (b"content-length" in names and b"transfer-encoding" in names)
        for name, value in request.headers:
            assert not set(name + value) & set(b"\r\n\x00")
        lengths = [int(value) for name, value in request.headers if name == b"content-length"]
        assert all(length == len(request.body) for length in lengths)
        assert b"\r\nupgrade:" not in b"\r\n" + request.forwarded()


@given(st.lists(st.sampled_from((SIZED, CHUNKED, UPGRADE)), min_size=1, max_size=4), st.lists(st.integers(0, 1 << 20)))
@settings(max_examples=examples(100))
@example([UPGRADE] * 4, [])
def test_what_is_whole_is_served_whole_however_it_is_cut(sent: list[bytes], cuts: list[int]) -> None:
    requests, answered, _ = serve(b"".join(sent), cuts)
    assert [request.body for request in requests] == [BODY] * len(sent)
    assert answered == b""


@given(
    st.integers(-60_000, -1_000) | st.integers(0, 200_000), st.lists(st.integers(0, 1 << 20), max_size=6), st.booleans()
)
@settings(max_examples=examples(60))
@example(1, [], False)
@example(150_000, [], True)
@example(0, [32_853], False)
def test_a_head_beyond_its_limit_is_refused_however_it_comes(beyond: int, cuts: list[int], ahead: bool) -> None:
    """All of it with one read too, behind another request too."""
    long = LINE + b"X: %b\r\nContent-Length: 14\r\n\r\n" % (b"y" * (HEAD_LIMIT_BYTES + beyond)) + BODY
    requests, answered, service = serve(SIZED * ahead + long, cuts)
    assert len(requests) == ahead + (beyond < 0)
    assert answered[:12] == (b"" if beyond < 0 else b"HTTP/1.1 431")
    assert service.held_bytes == 0


def chunked_request(size_bytes: int) -> bytes:
    """A request whose head with its blank line has `size_bytes`."""
    lines = b"Transfer-Encoding: chunked\r\nX: %b\r\n\r\n"
    return LINE + lines % (b"y" * (size_bytes - len(LINE + lines % b""))) + PIECES


@given(st.integers(-9, 9), st.lists(st.integers(0, 1 << 20), max_size=6), st.booleans())
@settings(max_examples=examples(60))
@example(0, [1], False)
@example(0, [1, HEAD_LIMIT_BYTES + 1], False)
@example(1, [], False)
@example(1, [], True)
def test_the_limit_is_of_the_head_with_its_blank_line(beyond: int, cuts: list[int], ahead: bool) -> None:
    requests, answered, service = serve(SIZED * ahead + chunked_request(HEAD_LIMIT_BYTES + beyond), cuts)
    assert len(requests) == ahead + (beyond <= 0)
    assert answered[:12] == (b"" if beyond <= 0 else b"HTTP/1.1 431")
    assert service.held_bytes == 0


def test_a_head_at_its_limit_is_served_wherever_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "HEAD_LIMIT_BYTES", 200)
    monkeypatch.setattr(front, "LARGE_HEAD_BYTES", 100)
    for beyond in (0, 1):
        data = chunked_request(200 + beyond)
        for cut in range(len(data)):
            assert len(serve(data, [cut])[0]) == 1 - beyond, (beyond, cut)
            assert len(serve(data, [1, cut])[0]) == 1 - beyond, (beyond, cut)


@pytest.mark.parametrize("data", REFUSED)
def test_what_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    requests, answered, _ = serve(data, [])
    assert requests == []
    assert answered.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 "))


def test_no_parser_may_be_installed_but_the_one_that_is_shown_to_be_strict() -> None:
    root = Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    allowed = next(one for one in map(Requirement, project["dependencies"]) if one.name == "httptools").specifier
    locked = re.search(r"^httptools==(\S+)", (root / "requirements.lock").read_text(), re.MULTILINE)
    assert locked is not None
    assert allowed.contains(locked[1])
    assert version("httptools") == locked[1], "what this file shows is shown of the locked version"
    assert not allowed.contains("0.8.99")
    assert not allowed.contains("0.10.0")
