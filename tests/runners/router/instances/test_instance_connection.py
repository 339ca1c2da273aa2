"""One connection to an instance: whatever pieces a response comes in, its caller gets the same bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from itertools import accumulate, pairwise
from time import perf_counter_ns, sleep
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from results.records.decisions import RoutedRequest
from runners.router.facts import ClientMessage
from runners.router.failure import Failure
from runners.router.instances import upstream
from runners.router.instances.internal_request import (
    CHUNKS_LIMIT,
    InternalRequestFailed,
    _InternalRequest,
    join_chunks,
)
from runners.router.instances.upstream import (
    HEAD_LIMIT_BYTES,
    JOINED_LIMIT_BYTES,
    LONE_CHUNK_LIMIT_BYTES,
    Answer,
    Caller,
    InstanceConnection,
    measure_whole_chunks,
    resolve_instance,
)
from runners.router.transfer.movement import MoveRequest
from runners.target import Target
from tests.runners.router.fake_transfers import FakeTransfers
from tests.runners.router.routers import until

REQUEST = RoutedRequest(
    request="r", session="s", turn=0, input_tokens=1, max_tokens=1, block_tokens=16, cached_tokens={}
)  # fmt: skip
MESSAGE = ClientMessage(b"", b"", b"")
BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
LIKE_CHUNKS = st.lists(
    st.binary(min_size=1, max_size=20) | st.sampled_from((b"1\r\na\r\n", b"\r\n", b"0\r\n\r\n", b"x\r\n2\r\nab\r\n")),
    min_size=1,
    max_size=6,
)
"""Bodies of chunks, some of which look like chunks themselves."""


class Taker:
    """A caller that stores what it is sent."""

    def __init__(self, *, wants: bool = True) -> None:
        self.t_read_s = 0.0
        self.connection: InstanceConnection | None = None
        self.wants = wants
        self.answer: Answer | None = None
        self.pieces: list[bytes] = []
        self.ends: list[object] = []
        self.sendings = 0

    def note_sent(self, t_first_byte_ns: int) -> None:
        self.sendings += 1

    def receive_head(self, answer: Answer) -> bool:
        self.answer = answer
        return self.wants

    def receive_body(self, data: bytes) -> None:
        self.pieces.append(data)

    def end_response(self, *, proven: bool) -> None:
        self.ends.append(proven)

    def fail_request(self, failure: Failure) -> None:
        self.ends.append(failure)


class Pool(upstream.Pool):
    """An owner that keeps what it is given."""

    def __init__(self) -> None:
        self.back: list[InstanceConnection] = []
        self.again: list[Caller] = []

    def give_back(self, connection: InstanceConnection) -> None:
        self.back.append(connection)

    def forget_connection(self, connection: InstanceConnection) -> None:
        pass

    def send_again(self, caller: Caller, payload: tuple[bytes, ...]) -> None:
        self.again.append(caller)


class Wire(asyncio.Transport):
    """A transport that leads nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.full: InstanceConnection | None = None
        """Whom to tell that the socket does not take it all at once."""
        self.write_s = 0.0
        """The router has no core for this long behind the write."""
        self.t_received_ns = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0, "it tells when all has been written"

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.t_received_ns = perf_counter_ns()
        sleep(self.write_s)
        if self.full is not None:
            self.full.pause_writing()

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


def connection_with(taker: Taker, *, pooled: bool = False) -> tuple[InstanceConnection, Pool, Wire]:
    pool, wire = Pool(), Wire()
    connection = InstanceConnection(pool)
    connection.connection_made(wire)
    connection.send_request(taker, (b"request",), pooled=pooled)
    return connection, pool, wire


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
    connection, pool, _ = connection_with(taker)
    body = chunked(bodies)
    for piece in pieces_of(head(events=events) + body, cuts):
        connection.data_received(piece)
    assert b"".join(taker.pieces) == body
    assert taker.ends == [True]
    assert pool.back == [connection]
    assert join_chunks(body) == b"".join(bodies)


@given(BODIES.filter(bool), st.integers(0, 10_000), st.lists(st.integers(0, 10_000), max_size=6))
def test_of_a_stream_that_breaks_only_whole_chunks_were_passed_on(
    bodies: list[bytes], at: int, cuts: list[int]
) -> None:
    taker = Taker()
    connection, _, _ = connection_with(taker)
    body = chunked(bodies)
    cut = at % len(body)
    for piece in pieces_of(head(events=True) + body[:cut], cuts):
        connection.data_received(piece)
    connection.connection_lost(None)
    passed = b"".join(taker.pieces)
    assert body.startswith(passed)
    assert measure_whole_chunks(passed) == len(passed)
    assert not connection.torn
    assert isinstance(taker.ends[-1], Failure)


def one_by_one(bodies: list[bytes]) -> list[bytes]:
    """Each chunk, and then the end."""
    return [b"%x\r\n%b\r\n" % (len(body), body) for body in bodies] + [b"0\r\n\r\n"]


@pytest.mark.parametrize("longest", [1, 16, LONE_CHUNK_LIMIT_BYTES - 20, 2 * LONE_CHUNK_LIMIT_BYTES])
def test_a_chunk_that_comes_alone_is_passed_on_at_once(longest: int) -> None:
    taker = Taker()
    connection, pool, _ = connection_with(taker)
    connection.data_received(head(events=True))
    chunks = one_by_one([b"x" * length for length in range(max(1, longest - 40), longest + 1)])
    for position, chunk in enumerate(chunks):
        connection.data_received(chunk)
        assert taker.pieces == chunks[: position + 1]
    assert taker.ends == [True]
    assert pool.back == [connection]


@given(LIKE_CHUNKS, st.lists(st.tuples(st.integers(0, 20), st.integers(-3, 3)), max_size=8), st.integers(0, 10_000))
def test_reads_that_end_near_chunks_neither_lose_nor_split_one(
    bodies: list[bytes], ends: list[tuple[int, int]], at: int
) -> None:
    chunks = one_by_one(bodies)
    body = b"".join(chunks)
    places = [0, *accumulate(map(len, chunks))]
    cuts = [max(0, places[number % len(places)] + by) for number, by in ends]
    whole, broken = Taker(), Taker()
    connection, _, _ = connection_with(whole)
    connection.data_received(head(events=True))
    for piece in pieces_of(body, cuts):
        connection.data_received(piece)
        passed = b"".join(whole.pieces)
        assert measure_whole_chunks(passed) == len(passed)
    assert b"".join(whole.pieces) == body
    assert whole.ends == [True]

    connection, _, _ = connection_with(broken)
    connection.data_received(head(events=True))
    for piece in pieces_of(body[: at % len(body)], cuts):
        connection.data_received(piece)
    connection.connection_lost(None)
    assert len(b"".join(broken.pieces)) == max(place for place in places if place <= at % len(body))


def test_a_read_that_looks_like_a_chunk_within_another_waits_for_its_end() -> None:
    taker = Taker()
    connection, _, _ = connection_with(taker)
    connection.data_received(head(events=True))
    connection.data_received(b"a\r\nxy")
    connection.data_received(b"3\r\nabc\r\n")
    assert not taker.pieces
    connection.data_received(b"\r\n")
    assert b"".join(taker.pieces) == b"a\r\nxy3\r\nabc\r\n\r\n"


@pytest.mark.parametrize(
    ("size_line", "body"), [(b"0003", b"abc"), (b"3;name=value", b"abc"), (b"A", b"x" * 10), (b"0a", b"x" * 10)]
)
def test_a_size_that_is_written_otherwise_is_read_too(size_line: bytes, body: bytes) -> None:
    taker = Taker()
    connection, _, _ = connection_with(taker)
    chunks = [size_line + b"\r\n" + body + b"\r\n", b"2\r\nab\r\n", b"0\r\n\r\n"]
    for data in (head(events=True), *chunks):
        connection.data_received(data)
    assert taker.pieces == chunks
    assert taker.ends == [True]


@pytest.mark.parametrize("garbage", [b"zz\r\n", b"3\r\nabcd\r\n", b"3\r\nabXYZ", b"-3\r\nabc\r\n", b"\r\n"])
def test_garbage_between_chunks_is_a_failure_and_not_passed_on(garbage: bytes) -> None:
    taker = Taker()
    connection, _, wire = connection_with(taker)
    for data in (head(events=True), b"3\r\nabc\r\n", garbage):
        connection.data_received(data)
    assert taker.pieces == [b"3\r\nabc\r\n"]
    assert isinstance(taker.ends[0], Failure)
    assert taker.ends[0].kind == "protocol"
    assert wire.closed


def test_a_connection_is_as_good_as_new_for_its_next_response() -> None:
    """Nothing of a stream's state is left for a body that is no stream, and the other way round."""
    one, two, three = Taker(), Taker(), Taker()
    connection, _, _ = connection_with(one)
    for data in (head(events=True), *one_by_one([b"abc"])):
        connection.data_received(data)
    connection.send_request(two, (b"request",), pooled=True)
    connection.data_received(head(events=False, framing=b"content-length: 8"))
    connection.data_received(b"3\r\nabc\r\n")
    connection.send_request(three, (b"request",), pooled=True)
    for data in (head(events=True), b"3\r\nab", b"c\r\n0\r\n\r\n"):
        connection.data_received(data)
    assert (two.pieces, two.ends) == ([b"3\r\nabc\r\n"], [True])
    assert (three.pieces, three.ends) == ([b"3\r\nabc\r\n0\r\n\r\n"], [True])


@pytest.mark.parametrize("length", [0, 1, JOINED_LIMIT_BYTES, JOINED_LIMIT_BYTES + 1])
def test_a_post_is_the_same_bytes_in_one_piece_or_two(length: int) -> None:
    target = Target("127.0.0.1", 1, "host:1", "host", "/base", tls=False)
    headers, body = b"a: b\r\nx-request-id: r\r\n", b"x" * length
    pieces = upstream.Pool(target, 1.0).make_post(b"/v1/completions?a=b", headers, body)
    assert b"".join(pieces) == target.head("POST", b"/v1/completions?a=b", headers, length) + body
    assert len(pieces) == (1 if length <= JOINED_LIMIT_BYTES else 2)
    assert length <= JOINED_LIMIT_BYTES or pieces[1] is body, "a long body is not copied"


@given(st.binary(max_size=80), st.lists(st.integers(0, 10_000), max_size=8))
def test_a_body_of_stated_length_is_passed_on_at_once(body: bytes, cuts: list[int]) -> None:
    taker = Taker()
    connection, _, _ = connection_with(taker)
    whole = head(events=False, framing=b"content-length: %d" % len(body)) + body
    for piece in pieces_of(whole, cuts):
        connection.data_received(piece)
    assert b"".join(taker.pieces) == body
    assert taker.ends == [True]


def test_a_head_alone_is_not_yet_an_answer_to_the_client() -> None:
    taker = Taker()
    connection, _, _ = connection_with(taker)
    connection.data_received(head(events=True))
    assert taker.answer is not None
    assert not taker.pieces


def test_what_is_not_wanted_is_dropped_with_its_connection() -> None:
    taker = Taker(wants=False)
    connection, pool, wire = connection_with(taker)
    connection.data_received(head(events=True) + chunked([b"x"]))
    assert not taker.pieces
    assert not taker.ends
    assert wire.closed
    assert not pool.back


@pytest.mark.parametrize("data", [b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"])
def test_garbage_is_a_failure(data: bytes) -> None:
    taker = Taker()
    connection, _, wire = connection_with(taker)
    connection.data_received(data)
    assert isinstance(taker.ends[0], Failure)
    assert taker.ends[0].kind == "protocol"
    assert wire.closed


def test_bytes_behind_the_end_never_reach_the_client() -> None:
    taker = Taker()
    connection, _, _ = connection_with(taker)
    connection.data_received(head(events=True) + chunked([b"x"]) + head(events=True) + chunked([b"y"]))
    assert b"y" not in b"".join(taker.pieces)
    assert isinstance(taker.ends[0], Failure)


def test_an_informational_head_is_passed_over() -> None:
    taker = Taker()
    connection, _, _ = connection_with(taker)
    connection.data_received(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + head(events=True) + chunked([b"x"]))
    assert taker.answer is not None
    assert taker.answer.status == 200
    assert taker.ends == [True]


@pytest.mark.parametrize("events", [False, True])
def test_trailers_go_on_with_the_body_and_are_no_headers(events: bool) -> None:
    """Also those in the middle of which a read ends."""
    body = b"3\r\nabc\r\n0\r\nT: u\r\nContent-Encoding: gzip\r\n\r\n"
    data = head(events=events) + body
    for cut in range(len(data)):
        taker = Taker()
        connection, pool, _ = connection_with(taker)
        for piece in pieces_of(data, [cut]):
            connection.data_received(piece)
        assert b"".join(taker.pieces) == body, cut
        assert taker.ends == [True]
        assert pool.back == [connection]
        assert taker.answer is not None
        assert [name for name, _ in taker.answer.headers] == [b"content-type", b"transfer-encoding"]
    assert join_chunks(body) == b"abc"
    assert measure_whole_chunks(body[:-1]) == len(b"3\r\nabc\r\n")


def test_an_answer_in_many_chunks_is_refused_before_they_are_joined() -> None:
    assert join_chunks(chunked([b"x"] * CHUNKS_LIMIT)) == b"x" * CHUNKS_LIMIT
    with pytest.raises(InternalRequestFailed, match="chunks"):
        join_chunks(chunked([b"x"] * (CHUNKS_LIMIT + 1)))


ENDLESS = {
    "many trailers": (b"0\r\n", b"t: u\r\n" * 4096),
    "a trailer without end": (b"0\r\nt: ", b"u" * 16_384),
    "a chunk extension without end": (b"3;name=", b"u" * 16_384),
}


@pytest.mark.parametrize("endless", ENDLESS)
@pytest.mark.parametrize("events", [False, True])
def test_framing_without_body_is_bounded(events: bool, endless: str) -> None:
    taker = Taker()
    connection, _, wire = connection_with(taker)
    connection.data_received(head(events=events) + b"3\r\nabc\r\n")
    begin, more = ENDLESS[endless]
    connection.data_received(begin)
    sent = 0
    while not wire.closed and sent < 64 * len(more):
        connection.data_received(more)
        sent += len(more)
    assert isinstance(taker.ends[0], Failure)
    assert taker.ends[0].kind == "protocol"
    assert sent <= HEAD_LIMIT_BYTES + len(more)
    assert b"".join(taker.pieces).startswith(b"3\r\nabc\r\n")
    assert not events or b"".join(taker.pieces) == b"3\r\nabc\r\n", "an error event can still end the stream"


@pytest.mark.parametrize("events", [False, True])
def test_framing_without_body_does_not_prolong_a_response(events: bool) -> None:
    """The limit of a stall ends a response whose trailers come a byte at a time."""
    taker = Taker()
    connection, _, _ = connection_with(taker)
    connection.data_received(head(events=events) + b"3\r\nabc\r\n")
    taker.t_read_s = 1.0
    for byte in (b"0", b"\r\n", b"t", b": u"):
        connection.data_received(byte)
    assert taker.t_read_s == 1.0
    taker.t_read_s = 1.0
    other, _, _ = connection_with(taker)
    other.data_received(head(events=events))
    other.data_received(b"2000\r\n")
    other.data_received(b"body")
    assert taker.t_read_s > 1.0


def test_a_stale_pooled_connection_is_repeated_and_a_fresh_one_is_a_failure() -> None:
    for pooled in (True, False):
        taker = Taker()
        connection, pool, _ = connection_with(taker, pooled=pooled)
        connection.connection_lost(None)
        assert bool(pool.again) is pooled
        assert bool(taker.ends) is not pooled


def test_a_connection_that_the_instance_closes_after_its_answer_is_not_used_again() -> None:
    taker = Taker()
    connection, pool, wire = connection_with(taker)
    connection.data_received(head(events=True, more=b"connection: close\r\n") + chunked([b"x"]))
    assert taker.ends == [True]
    assert not pool.back
    assert wire.closed


def test_a_chunk_too_long_to_hold_back_is_passed_on_and_remembered() -> None:
    taker = Taker()
    connection, _, _ = connection_with(taker)
    connection.data_received(head(events=True) + b"100000\r\n")
    for _ in range(8):
        connection.data_received(b"x" * 0x10000)
    assert connection.torn
    assert sum(map(len, taker.pieces)) > 256 << 10


def test_a_request_is_sent_when_the_socket_has_taken_its_last_byte() -> None:
    small, large = Taker(), Taker()
    connection, _, wire = connection_with(small)
    assert small.sendings == 1, "it fitted"
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx")
    wire.full = connection
    connection.send_request(large, (b"request",), pooled=True)
    assert large.sendings == 0
    connection.resume_writing()
    assert (small.sendings, large.sendings) == (1, 1)


@pytest.mark.parametrize("fits", [True, False])
async def test_a_slow_write_leaves_the_decode_requests_stamp_before_its_receipt(fits: bool) -> None:
    transfers = FakeTransfers()
    movement = transfers.start_movement(MoveRequest("handover", REQUEST, "h", "t", MESSAGE), lambda _: None)
    connection, _, wire = connection_with(Taker())
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx")
    wire.write_s, wire.full = 0.002, None if fits else connection
    t_begin_ns = perf_counter_ns()
    connection.send_request(_InternalRequest(movement.note_sent), (b"request",), pooled=True)
    if not fits:
        connection.resume_writing()
    assert t_begin_ns <= movement.transfer.t_target_sent_ns <= wire.t_received_ns


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
    await until(lambda: taker.connection is not None)
    await asyncio.sleep(0.05)
    assert taker.sendings == 0
    reads.set()
    await until(lambda: taker.sendings == 1)
    pool.close()
    server.close()


class Compared(InstanceConnection):
    """Counts the comparisons with other connections."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return self is other

    __hash__ = InstanceConnection.__hash__


def idle_pool(connections: int) -> tuple[upstream.Pool, list[Compared]]:
    pool = upstream.Pool(Target("127.0.0.1", 1, "i", "i", "", tls=False), 1.0)
    idle = [Compared(pool) for _ in range(connections)]
    for connection in idle:
        connection.connection_made(Wire())
        pool.give_back(connection)
    return pool, idle


def test_a_connection_that_closes_is_not_searched_among_all_idle_ones() -> None:
    _, idle = idle_pool(200)
    Compared.times = 0
    for connection in idle[100:]:
        connection.connection_lost(None)
    assert Compared.times == 0


def test_connections_that_have_been_idle_for_too_long_are_closed_and_the_newest_is_used_first() -> None:
    pool, idle = idle_pool(5)
    for connection in idle[:2]:
        connection.t_idle_s -= upstream.IDLE_S + 1.0
    pool.close_idle()
    assert [connection.usable for connection in idle] == [False, False, True, True, True]
    idle[3].connection_lost(None)
    for connection in (idle[4], idle[2]):
        taker = Taker()
        pool.send_request(taker, (b"request",))
        assert taker.connection is connection
