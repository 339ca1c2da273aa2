"""One connection to an instance: whatever pieces a response comes in, its caller gets the same bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from itertools import pairwise
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from runners.router.failure import Failure
from runners.router.instances import upstream
from runners.router.instances.internal_request import join_chunks
from runners.router.instances.upstream import Answer, Caller, Link, resolve_instance, whole_chunks
from tests.runners.router.routers import until

BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


class Taker:
    """A caller that stores what it is sent."""

    def __init__(self, *, wants: bool = True) -> None:
        self.t_read_s = 0.0
        self.link: Link | None = None
        self.wants = wants
        self.answer: Answer | None = None
        self.pieces: list[bytes] = []
        self.ends: list[object] = []
        self.sendings = 0

    def note_sent(self) -> None:
        self.sendings += 1

    def head_received(self, answer: Answer) -> bool:
        self.answer = answer
        return self.wants

    def body_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def response_ended(self, *, proven: bool) -> None:
        self.ends.append(proven)

    def request_failed(self, failure: Failure) -> None:
        self.ends.append(failure)


class Pool(upstream.Pool):
    """An owner that keeps what it is given."""

    def __init__(self) -> None:
        self.back: list[Link] = []
        self.again: list[Caller] = []

    def give_back(self, link: Link) -> None:
        self.back.append(link)

    def forget_link(self, link: Link) -> None:
        pass

    def send_again(self, caller: Caller, payload: tuple[bytes, ...]) -> None:
        self.again.append(caller)


class Wire(asyncio.Transport):
    """A transport that leads nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.full: Link | None = None
        """Whom to tell that the socket does not take it all at once."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0, "it tells when all has been written"

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self.full is not None:
            self.full.pause_writing()

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


def link_with(taker: Taker, *, pooled: bool = False) -> tuple[Link, Pool, Wire]:
    pool, wire = Pool(), Wire()
    link = Link(pool)
    link.connection_made(wire)
    link.send_request(taker, (b"request",), pooled=pooled)
    return link, pool, wire


def chunked(bodies: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies) + b"0\r\n\r\n"


def head(*, events: bool, framing: bytes = b"transfer-encoding: chunked", more: bytes = b"") -> bytes:
    kind = b"text/event-stream" if events else b"application/json"
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n%b\r\n" % (kind, framing, more)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


@given(BODIES, st.lists(st.integers(0, 10_000), max_size=12), st.booleans())
def test_a_body_arrives_byte_for_byte_in_whatever_pieces_it_came(
    bodies: list[bytes], cuts: list[int], events: bool
) -> None:
    taker = Taker()
    link, pool, _ = link_with(taker)
    body = chunked(bodies)
    for piece in pieces_of(head(events=events) + body, cuts):
        link.data_received(piece)
    assert b"".join(taker.pieces) == body
    assert taker.ends == [True]
    assert pool.back == [link]
    assert join_chunks(body) == b"".join(bodies)


@given(BODIES.filter(bool), st.integers(0, 10_000), st.lists(st.integers(0, 10_000), max_size=6))
def test_of_a_stream_that_breaks_only_whole_chunks_were_passed_on(
    bodies: list[bytes], at: int, cuts: list[int]
) -> None:
    taker = Taker()
    link, _, _ = link_with(taker)
    body = chunked(bodies)
    cut = at % len(body)
    for piece in pieces_of(head(events=True) + body[:cut], cuts):
        link.data_received(piece)
    link.connection_lost(None)
    passed = b"".join(taker.pieces)
    assert body.startswith(passed)
    assert whole_chunks(passed) == len(passed)
    assert not link.torn
    assert isinstance(taker.ends[-1], Failure)


@given(st.binary(max_size=80), st.lists(st.integers(0, 10_000), max_size=8))
def test_a_body_of_stated_length_is_passed_on_at_once(body: bytes, cuts: list[int]) -> None:
    taker = Taker()
    link, _, _ = link_with(taker)
    whole = head(events=False, framing=b"content-length: %d" % len(body)) + body
    for piece in pieces_of(whole, cuts):
        link.data_received(piece)
    assert b"".join(taker.pieces) == body
    assert taker.ends == [True]


def test_a_head_alone_is_not_yet_an_answer_to_the_client() -> None:
    taker = Taker()
    link, _, _ = link_with(taker)
    link.data_received(head(events=True))
    assert taker.answer is not None
    assert not taker.pieces


def test_what_is_not_wanted_is_dropped_with_its_connection() -> None:
    taker = Taker(wants=False)
    link, pool, wire = link_with(taker)
    link.data_received(head(events=True) + chunked([b"x"]))
    assert not taker.pieces
    assert not taker.ends
    assert wire.closed
    assert not pool.back


@pytest.mark.parametrize("data", [b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"])
def test_garbage_is_a_failure(data: bytes) -> None:
    taker = Taker()
    link, _, wire = link_with(taker)
    link.data_received(data)
    assert isinstance(taker.ends[0], Failure)
    assert taker.ends[0].kind == "protocol"
    assert wire.closed


def test_bytes_behind_the_end_never_reach_the_client() -> None:
    taker = Taker()
    link, _, _ = link_with(taker)
    link.data_received(head(events=True) + chunked([b"x"]) + head(events=True) + chunked([b"y"]))
    assert b"y" not in b"".join(taker.pieces)
    assert isinstance(taker.ends[0], Failure)


def test_an_informational_head_is_passed_over() -> None:
    taker = Taker()
    link, _, _ = link_with(taker)
    link.data_received(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + head(events=True) + chunked([b"x"]))
    assert taker.answer is not None
    assert taker.answer.status == 200
    assert taker.ends == [True]


def test_a_stale_pooled_connection_is_repeated_and_a_fresh_one_is_a_failure() -> None:
    for pooled in (True, False):
        taker = Taker()
        link, pool, _ = link_with(taker, pooled=pooled)
        link.connection_lost(None)
        assert bool(pool.again) is pooled
        assert bool(taker.ends) is not pooled


def test_a_connection_that_the_instance_closes_after_its_answer_is_not_used_again() -> None:
    taker = Taker()
    link, pool, wire = link_with(taker)
    link.data_received(head(events=True, more=b"connection: close\r\n") + chunked([b"x"]))
    assert taker.ends == [True]
    assert not pool.back
    assert wire.closed


def test_a_chunk_too_long_to_hold_back_is_passed_on_and_remembered() -> None:
    taker = Taker()
    link, _, _ = link_with(taker)
    link.data_received(head(events=True) + b"100000\r\n")
    for _ in range(8):
        link.data_received(b"x" * 0x10000)
    assert link.torn
    assert sum(map(len, taker.pieces)) > 256 << 10


def test_a_request_is_sent_when_the_socket_has_taken_its_last_byte() -> None:
    small, large = Taker(), Taker()
    link, _, wire = link_with(small)
    assert small.sendings == 1, "it fitted"
    link.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx")
    wire.full = link
    link.send_request(large, (b"request",), pooled=True)
    assert large.sendings == 0
    link.resume_writing()
    assert (small.sendings, large.sendings) == (1, 1)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_loops_own_transport_says_when_a_long_request_is_sent(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    run(_send_to_one_who_does_not_read())


async def _send_to_one_who_does_not_read() -> None:
    reads = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reads.wait()
        while await reader.read(1 << 20):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    target = await resolve_instance(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    pool = upstream.Pool(target, 2.0)
    taker = Taker()
    pool.send_request(taker, (b"head", bytes(32 << 20)))
    await until(lambda: taker.link is not None)
    await asyncio.sleep(0.05)
    assert taker.sendings == 0
    reads.set()
    await until(lambda: taker.sendings == 1)
    pool.close()
    server.close()
