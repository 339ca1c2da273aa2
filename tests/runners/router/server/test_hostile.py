"""Clients that mean harm, or are broken: each costs its own request, never the router or the others."""

from __future__ import annotations

import asyncio
import resource
import threading
import tracemalloc
from dataclasses import replace

import msgspec
import pytest

from results.records.errors import SpecError
from results.records.router_spec import InstanceSpec, KvEndpoint, Limits, RouterSpec
from runners.router import facts
from runners.router.facts import HASHED_TOKENS, LONG_BYTES, PROMPTS_LIMIT, Facts, read_facts
from runners.router.instances.fleet import UNKNOWN_CAPACITY_BLOCKS, Fleet
from runners.router.instances.upstream import drop_named_headers
from runners.router.policies import make_policy
from runners.router.prefix_index import PrefixIndex
from runners.router.server import proxy
from runners.router.server.front import HEADER_LIMIT, ClientConnection
from runners.router.server.held_bytes import AHEAD_LIMIT_BYTES, KEY_BYTES, PARSED_HEADER_BYTES, PARSED_REQUEST_BYTES
from runners.router.server.pages import Pages
from runners.router.server.proxy import Proxy
from runners.router.server.server import STREAMS_LIMIT, Server
from tests.runners.router.routers import BODY, SHORT, Router, instances, raw_post, router, until

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


async def answer_to(routed: Router, *pieces: bytes) -> bytes:
    """The first line of the answer to bytes sent as they are."""
    reader, writer = await routed.connect()
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    line = await reader.readline()
    writer.close()
    return line


@pytest.mark.parametrize("field", ["session_id", "user", "max_tokens", "prompt", "unknown"])
async def test_deep_json_gets_an_answer(field: str) -> None:
    async with instances("a") as (a,), router([a]) as routed:
        deep = b'{"%b":' % field.encode() + b"[" * 100_000 + b"]" * 100_000 + b"}"
        line = await answer_to(routed, raw_post(deep))
        assert line.startswith(b"HTTP/1.1 ")
        assert read_facts(deep, 4, chat=False).session == ""


async def test_a_defect_while_serving_is_answered_and_written_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a defect \x1b]52;c;AAAA\x07")

    async with instances("a") as (a,), router([a]) as routed:
        monkeypatch.setattr(Proxy, "route_request", fail)
        answer = await routed.post()
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "router_defect"
        stderr = capsys.readouterr().err
        assert "ZeroDivisionError" in stderr
        assert "\x1b" not in stderr
        assert (await routed.http.get("/health")).status_code == 200


@pytest.mark.parametrize("session", ["\x1b]52;c;aGk=\x07", "a\x9bb", "right\u202eleft", "two\nlines", "\x7f"])
async def test_a_session_id_with_control_characters_is_refused(session: str) -> None:
    async with instances("a") as (a,), router([a]) as routed:
        answer = await routed.post(session_id=session)
        assert answer.status_code == 400
        assert "control character" in answer.json()["error"]["message"]
        assert not a.seen


async def test_a_session_id_beyond_ascii_is_the_same_in_header_and_body() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        name = "müller 会話"
        assert (await routed.post(session_id=name)).status_code == 200
        assert b" 200 " in await answer_to(routed, raw_post(headers=b"x-session-id: %b\r\n" % name.encode()))
        assert [pick.session for pick in routed.server.tick().latest] == [name, name]


async def test_a_head_of_more_headers_than_any_client_sends_is_refused() -> None:
    """A header takes some 100 bytes here, whatever it takes on the wire: heads sent ahead held twenty times theirs."""
    async with instances("a") as (a,), router([a]) as routed:
        most = b"a:\r\n" * (HEADER_LIMIT - 2)  # beside the host and the length
        assert b" 200 " in await answer_to(routed, raw_post(headers=most))
        assert b" 431 " in await answer_to(routed, raw_post(headers=most + b"a:\r\n"))
        assert len(a.seen) == 1


async def test_trailers_are_dropped_and_bounded() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        sent = CHUNKED + b"%x\r\n%b\r\n" % (len(BODY), BODY)
        trailers = b"0\r\nauthorization: Bearer stolen\r\nx-session-id: s\r\n\r\n"
        assert b" 200 " in await answer_to(routed, sent + trailers)
        assert "authorization" not in a.seen[0].headers
        assert routed.server.tick().latest[-1].session == ""
        many = [b"x-%d: %b\r\n" % (number, b"y" * 60_000) for number in range(20)]
        assert b" 431 " in await answer_to(routed, sent + b"0\r\n", *many)
        line_without_end = [b"x-endless: "] + [b"y" * 60_000] * 20
        assert b" 431 " in await answer_to(routed, sent + b"0\r\n", *line_without_end)


class Holding:
    """A service that counts what connections hold, and answers nothing."""

    closing = False
    body_limit_bytes = 64 << 20
    held_limit_bytes = 1 << 30
    held_bytes = 0

    def __init__(self) -> None:
        self.served = 0

    def admit(self, connection: ClientConnection) -> str:
        return ""

    def forget(self, connection: ClientConnection) -> None: ...

    def serve(self, connection: ClientConnection, request: object) -> None:
        self.served += 1


class Wire(asyncio.Transport):
    """A transport that remembers what was done to it."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It is never full."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reading = True

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 1_000


def connected(service: Holding) -> tuple[ClientConnection, Wire]:
    connection, wire = ClientConnection(service), Wire()
    connection.connection_made(wire)
    return connection, wire


def held_head_bytes(request: bytes) -> int:
    """What its head counts as held."""
    head = request.partition(b"\r\n\r\n")[0]
    return PARSED_REQUEST_BYTES + len(head) + len(b"\r\n\r\n") + PARSED_HEADER_BYTES * head.count(b"\r\n")


def get(headers: int, value_bytes: int) -> bytes:
    lines = b"".join(b"x-%04d: %b\r\n" % (number, b"y" * value_bytes) for number in range(headers))
    return b"GET /health HTTP/1.1\r\n%b\r\n" % lines


def test_small_chunks_cost_their_bytes() -> None:
    connection, _ = connected(Holding())
    connection.data_received(CHUNKED)
    connection.data_received(b"2\r\nab\r\n" * 100_000)
    assert len(connection._body) == 200_000
    assert isinstance(connection._body, bytearray)


async def test_bodies_sent_ahead_stay_in_the_clients_socket_beyond_a_bound() -> None:
    service = Holding()
    connection, wire = connected(service)
    body = b"x" * (AHEAD_LIMIT_BYTES // 2 - 4_000)
    one = raw_post(body)
    connection.data_received(one)
    assert wire.reading
    sent = 0
    while wire.reading:
        connection.data_received(one)
        sent += 1
    assert sent == 3
    each = len(body) + held_head_bytes(one)
    assert service.held_bytes == 3 * each + len(body), "the small head of the one in flight does not count"
    connection.finish(keep=True)
    assert service.held_bytes == 3 * each


@pytest.mark.parametrize("shape", [(250, 236), (250, 1), (1, 61_000), (3, 10)])
def test_what_a_waiting_head_takes_counts_as_held(shape: tuple[int, int]) -> None:
    service = Holding()
    connection, _ = connected(service)
    one = get(*shape)
    connection.data_received(one)
    before = service.held_bytes
    tracemalloc.start()
    for _ in range(10):
        connection.data_received(one)
    taken_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert service.held_bytes - before == 10 * held_head_bytes(one)
    assert 0.75 * taken_bytes < service.held_bytes - before < 2 * taken_bytes
    connection.connection_lost(None)
    assert service.held_bytes == 0


def test_a_large_head_counts_though_a_larger_body_is_announced() -> None:
    service = Holding()
    connection, _ = connected(service)
    head = b"POST /v1/completions HTTP/1.1\r\ncontent-length: 70000\r\nx-filler: " + b"f" * 60_000 + b"\r\n\r\n"
    connection.data_received(head)
    assert service.held_bytes > len(head)
    connection.connection_lost(None)
    assert service.held_bytes == 0


async def test_behind_a_large_head_nothing_is_read_until_its_turn() -> None:
    service = Holding()
    connection, wire = connected(service)
    one = get(250, 236)
    for ahead in range(2):
        assert wire.reading
        connection.data_received(one)
        assert service.held_bytes == (ahead + 1) * held_head_bytes(one)
    assert not wire.reading
    connection.finish(keep=True)
    await asyncio.sleep(0)
    assert (wire.reading, service.served, service.held_bytes) == (True, 2, held_head_bytes(one))
    connection.finish(keep=True)
    assert service.held_bytes == 0


async def test_a_small_head_behind_a_large_one_is_served_after_it() -> None:
    service = Holding()
    connection, wire = connected(service)
    large, small = get(250, 236), get(3, 10)
    connection.data_received(small + large + large + small)
    for served, is_reading in ((1, False), (2, False), (3, True), (4, True)):
        assert (service.served, wire.reading) == (served, is_reading)
        connection.finish(keep=True)
        await asyncio.sleep(0)
    assert service.held_bytes == 0


@pytest.mark.parametrize("ahead", [0, 1])
def test_heads_and_bodies_together_are_bounded(ahead: int) -> None:
    """Heads that are served and heads that wait."""
    service = Holding()
    large, small = get(250, 236), get(3, 10)
    service.held_limit_bytes = 4 * held_head_bytes(large)
    wires = []
    for _ in range(5):
        connection, wire = connected(service)
        for request in [small] * ahead + [large]:
            connection.data_received(request)
        wires.append((connection, wire))
    last, wire = wires[-1]
    assert last._refused
    assert wire.written[9:12] == (b"" if ahead else b"503")
    assert not any(connection._refused for connection, _ in wires[:-1])
    assert service.held_bytes == 4 * held_head_bytes(large)
    for connection, _ in wires:
        connection.connection_lost(None)
    assert service.held_bytes == 0


async def test_heads_are_given_back_however_requests_end() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        large = raw_post(headers=b"x-large: %b\r\n" % (b"y" * 40_000))
        assert b" 200 " in await answer_to(routed, large)
        await until(lambda: routed.server.held_bytes == 0)
        a.gate_at, a.gate = 0, asyncio.Event()
        _, writer = await routed.connect(large * 3)
        await until(lambda: routed.server.held_bytes >= 2 * held_head_bytes(large))
        writer.transport.abort()
        a.gate.set()
        await until(lambda: routed.server.held_bytes == 0)


async def test_a_connection_that_was_held_up_goes_on_when_its_turn_comes() -> None:
    service = Holding()
    connection, wire = connected(service)
    one = raw_post(b"x" * AHEAD_LIMIT_BYTES)
    connection.data_received(one)
    connection.data_received(one)
    connection.data_received(one[: len(one) // 2])
    assert not wire.reading
    connection.finish(keep=True)
    await asyncio.sleep(0)
    assert wire.reading
    connection.connection_lost(None)
    assert service.held_bytes == 0


def test_all_bodies_together_are_bounded() -> None:
    service = Holding()
    service.held_limit_bytes = 5_000
    wires = []
    for _ in range(3):
        connection, wire = connected(service)
        connection.data_received(HEAD + b"content-length: 4000\r\n\r\n" + b"x" * 2_000)
        wires.append((connection, wire))
    assert [wire.written[9:12] for _, wire in wires] == [b"", b"", b"503"]
    for connection, _ in wires:
        connection.connection_lost(None)
    assert service.held_bytes == 0


async def test_the_keys_of_a_prompt_are_held_with_its_body() -> None:
    """A key takes 56 bytes; with blocks of one token, 28 times the bytes of the body."""
    async with instances("a") as (a,), router([a]) as routed:
        a.gate = asyncio.Event()
        body = b'{"prompt":[%b]}' % b",".join([b"1"] * 4_000)
        _, writer = await routed.connect(raw_post(body))
        await until(lambda: bool(a.seen))
        assert routed.server.held_bytes == len(body) + KEY_BYTES * 4_000 // routed.server._fleet.block_tokens
        a.gate.set()
        await until(lambda: routed.server.held_bytes == 0)
        writer.close()


async def test_what_is_held_is_given_back_however_requests_end() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        for _ in range(3):
            await routed.post(prompt="x" * 300_000)
        _, writer = await routed.connect(HEAD + b"content-length: 400000\r\n\r\n" + b"x" * 200_000)
        await until(lambda: routed.server.held_bytes > 0)
        writer.transport.abort()
        await until(lambda: routed.server.held_bytes == 0)


@pytest.mark.parametrize("part", ["head", "body"])
async def test_a_request_that_drips_in_is_ended_by_an_absolute_limit(part: str) -> None:
    limits = replace(SHORT, head_s=0.2, body_s=0.2)
    async with instances("a") as (a,), router([a], limits=limits) as routed:
        reader, writer = await routed.connect(HEAD if part == "head" else HEAD + b"content-length: 100000\r\n\r\n")
        dripping = asyncio.create_task(drip(writer, b"x" if part == "body" else b"x: y\r\n"))
        async with asyncio.timeout(5.0):
            line = await reader.readline()
        dripping.cancel()
        assert b" 408 " in line
        writer.close()


async def test_events_that_cannot_be_read_keep_nothing_from_its_time_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Fleet) -> None:
        raise ValueError("an event \x1b]52;c;AAAA\x07")

    monkeypatch.setattr(Fleet, "follow_events", fail)
    async with instances("a") as (a,), router([a], limits=replace(SHORT, head_s=0.2)) as routed:
        reader, writer = await routed.connect(HEAD)
        async with asyncio.timeout(5.0):
            assert b" 408 " in await reader.readline()
        writer.close()
    stderr = capsys.readouterr().err
    assert "a beat of the router's clock failed" in stderr
    assert "\x1b" not in stderr


async def drip(writer: asyncio.StreamWriter, piece: bytes) -> None:
    while True:
        writer.write(piece)
        await asyncio.sleep(0.01)


async def test_one_address_cannot_take_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(streams=8, peer_streams=2)
    async with instances("a") as (a,), router([a], limits=limits) as routed:
        there = [ClientConnection(routed.server, peer="10.0.0.9") for _ in range(3)]
        assert [bool(routed.server.admit(one)) for one in there] == [False, False, True]
        assert routed.server.admit(ClientConnection(routed.server, peer="10.0.0.8")) == ""
        here = [ClientConnection(routed.server, peer="127.0.0.1", local=True) for _ in range(3)]
        assert not any(routed.server.admit(one) for one in here)
        for one in there:
            routed.server.forget(one)
        assert routed.server.admit(there[0]) == ""


@pytest.mark.parametrize(
    ("streams", "hard", "limit"),
    [
        (0, 1_000, 468),
        (50, 1_000, 50),
        (9_000, 1_000, 468),
        (0, 1 << 20, STREAMS_LIMIT),
        (100_000, 1 << 20, 100_000),
        (0, resource.RLIM_INFINITY, STREAMS_LIMIT),
    ],
)
def test_no_more_connections_are_held_than_descriptors_and_memory_allow(
    streams: int, hard: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (100, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: raised.append(limits))
    spec = RouterSpec((InstanceSpec("a", "http://127.0.0.1:1"),), limits=Limits(streams=streams))
    server = Server(spec, make_policy("load_only", {}), lambda tick: None)
    assert (server._limit, raised) == (limit, [(hard, hard)])


async def test_a_connection_too_many_learns_how_many_there_may_be() -> None:
    async with instances("a") as (a,), router([a], limits=Limits(streams=2)) as routed:
        why = [routed.server.admit(ClientConnection(routed.server, local=True)) for _ in range(3)]
    assert why == ["", "", "the router holds 2 connections, as many as it may"]


@pytest.mark.parametrize(
    "wish",
    [
        b"connection: upgrade\r\nupgrade: websocket\r\n",
        b"upgrade: h2c\r\n",
        b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQA\r\n",
        b"connection: upgrade\r\nupgrade: TLS/1.0\r\nupgrade: foo/2\r\n",
    ],
)
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_wish_for_another_protocol_is_passed_over(wish: bytes, is_chunked: bool) -> None:
    chunked = HEAD + wish + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    one = chunked if is_chunked else raw_post(headers=wish)
    async with instances("a") as (a,), router([a]) as routed:
        for cut in (0, 30, len(one) - 10):
            a.seen.clear()
            reader, writer = await routed.connect(one[:cut])
            await asyncio.sleep(0.01)
            writer.write(one[cut:] + one)
            assert b" 200 " in await reader.readline()
            await until(lambda: len(a.seen) == 2)
            assert [seen.body for seen in a.seen] == [BODY, BODY]
            assert not {"upgrade", "http2-settings"} & set(a.seen[0].headers)
            writer.close()


async def test_the_router_is_no_tunnel() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        line = await answer_to(routed, b"CONNECT 10.0.0.1:22 HTTP/1.1\r\nhost: 10.0.0.1:22\r\n\r\nSSH-2.0")
        assert b" 400 " in line


async def test_a_head_request_gets_no_body() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        sent = b"HEAD /nothing HTTP/1.1\r\nhost: x\r\n\r\nGET /ping HTTP/1.1\r\nhost: x\r\n\r\n"
        reader, writer = await routed.connect(sent)
        first = await reader.readuntil(b"\r\n\r\n")
        assert b" 404 " in first
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_headers_that_connection_names_go_no_further() -> None:
    async with instances("a") as (a,), router([a]) as routed:
        await answer_to(routed, raw_post(headers=b"connection: x-secret, close\r\nx-secret: 1\r\nx-open: 2\r\n"))
        await until(lambda: bool(a.seen))
        assert "x-secret" not in a.seen[0].headers
        assert a.seen[0].headers["x-open"] == "2"
        await answer_to(routed, raw_post(headers=b"connection: x-secret\r\nconnection: close\r\nx-secret: 1\r\n"))
        await until(lambda: len(a.seen) == 2)
        assert "x-secret" not in a.seen[1].headers
        a.answer_headers = {"connection": "x-inner", "x-inner": "3"}
        assert "x-inner" not in (await routed.post(stream=False)).headers
    framed = [(b"connection", b"content-length, x"), (b"content-length", b"3"), (b"x", b"1")]
    assert drop_named_headers(framed) == framed[:2]


@pytest.mark.parametrize("kind", [b"", b"content-type: text/plain;charset=UTF-8\r\n", b"content-type: x\r\n"])
async def test_what_any_web_page_may_send_is_neither_picked_nor_passed_on(kind: bytes) -> None:
    """A browser sends a text to another origin without a preflight. vLLM refuses it, but the router would have bound
    its session and counted its prompt as cached."""
    session, page = b"x-session-id: s\r\n", b"origin: http://evil.example\r\n"
    async with instances("a") as (a,), router([a]) as routed:
        line = await answer_to(routed, raw_post(headers=page + session + kind))
        assert line.startswith(b"HTTP/1.1 415 ")
        assert not a.seen
        assert routed.server._bindings.find_owner("s") == ""
        answer = await answer_to(routed, raw_post(headers=session + kind))
        assert answer.startswith(b"HTTP/1.1 200 "), "curl and scripts name no origin: the instance decides"


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
async def test_a_web_page_behind_the_routers_own_proxy_sends_json(kind: str) -> None:
    async with instances("a") as (a,), router([a]) as routed:
        headers = {"origin": "http://127.0.0.1:8080", "content-type": kind}
        answer = await routed.http.post("/v1/completions", content=BODY, headers=headers)
        assert answer.status_code == 200
        assert len(a.seen) == 1


async def test_an_index_whose_engine_does_not_report_its_capacity_is_bounded() -> None:
    async with instances("a") as (a,), router([a], instances=(InstanceSpec("a", a.url),)) as routed:
        index = routed.server._fleet.indexes["a"]
        assert isinstance(index, PrefixIndex)
        index.insert_keys(range(UNKNOWN_CAPACITY_BLOCKS + 1000))
        assert len(index) == UNKNOWN_CAPACITY_BLOCKS


@pytest.mark.parametrize("chat", [False, True])
def test_hashing_a_prompt_takes_a_bounded_time(chat: bool) -> None:
    text = "x" * (8 * HASHED_TOKENS)
    body = b'{"messages":"%b"}' % text.encode() if chat else b'{"prompt":"%b"}' % text.encode()
    facts = read_facts(body, 16, chat=chat)
    assert len(facts.keys) == HASHED_TOKENS // 16
    assert facts.input_tokens == pytest.approx(2 * HASHED_TOKENS, abs=2)
    ids = b"[" + b",".join([b"1"] * (HASHED_TOKENS + 160)) + b"]"
    facts = read_facts(b'{"prompt":%b}' % ids, 16, chat=False)
    assert (len(facts.keys), facts.input_tokens) == (HASHED_TOKENS // 16, HASHED_TOKENS + 160)


async def test_a_long_body_is_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[threading.Thread] = []

    def note_reader(body: bytes, block_tokens: int, *, chat: bool) -> Facts:
        readers.append(threading.current_thread())
        return read_facts(body, block_tokens, chat=chat)

    monkeypatch.setattr(proxy, "read_facts", note_reader)
    async with instances("a") as (a,), router([a]) as routed:
        for prompt in ("short", "long" * (LONG_BYTES // 4)):
            assert (await routed.post(prompt=prompt)).status_code == 200
    assert [reader is threading.main_thread() for reader in readers] == [True, False]


@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_an_instances_urls_carry_no_credentials(scheme: str) -> None:
    url = f"{scheme}://me:secret@127.0.0.1:8000"
    bootstrap = KvEndpoint("mooncake", bootstrap=url)
    for instance in (InstanceSpec("a", url), InstanceSpec("a", "http://127.0.0.1:8000", transfer=bootstrap)):
        with pytest.raises(SpecError, match="contains a user or a password") as refused:
            RouterSpec((instance,))
        assert "secret" not in f"{refused.value} {refused.value.remedy}"


def test_no_depth_of_json_makes_reading_fail() -> None:
    for depth in range(900, 1010):
        for field in (b"prompt", b"input"):
            body = b'{"%b":[[1],' % field + b"[" * depth + b"]" * depth + b"]}"
            assert read_facts(body, 16, chat=field == b"input").input_tokens > 0


def test_many_inputs_and_huge_numbers_cost_little() -> None:
    many = b'{"prompt":[' + b",".join([b"[1]"] * 100_000) + b"]}"
    assert read_facts(many, 16, chat=False).keys
    huge = b'{"prompt":[1],"max_tokens":%b}' % (b"9" * 400)
    assert read_facts(huge, 16, chat=False).max_tokens == 16


@pytest.mark.parametrize("field", ["session_id", "user", "max_tokens", "max_output_tokens", "previous_response_id"])
def test_lists_and_objects_are_not_built_where_a_text_or_a_number_is_expected(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty lists would hold the loop far longer than as many bytes of token ids."""
    read: list[bytes] = []
    monkeypatch.setattr(facts, "_read_any", lambda value: read.append(value))
    assert {one.type for one in msgspec.structs.fields(facts._Body)} == {msgspec.Raw}
    for value in (b"[[],[]]", b'{"a":[]}', b" [ ] "):
        made = read_facts(b'{"prompt":[1,2,3],"%b":%b}' % (field.encode(), value), 2, chat=False)
        assert (made.session, made.previous, made.input_tokens, made.max_tokens) == ("", "", 3, 16)
    assert read == []
    read_facts(b'{"prompt":[1],"%b":7}' % field.encode(), 2, chat=False)
    assert read == [b"7"]


def test_prompts_are_read_one_by_one_only_up_to_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    most = b'{"prompt":[ %b]}' % b",".join([b"[1]"] * PROMPTS_LIMIT)
    assert read_facts(most, 16, chat=False).input_tokens == PROMPTS_LIMIT

    def fail(prompt: bytes) -> list[msgspec.Raw]:
        raise AssertionError("its prompts are listed")

    monkeypatch.setattr(facts, "_read_many", fail)
    for body in (most.replace(b"]]}", b"],[1]]}"), b'{"prompt":["a","b"]}', b'{"prompt":["[",[1]]}'):
        assert read_facts(body, 16, chat=False).input_tokens == -(-(len(body) - len(b'{"prompt":[]}')) // 4)


async def test_a_long_body_that_cannot_be_read_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> Facts:
        raise MemoryError("no room \x1b]52;c;AAAA\x07")

    monkeypatch.setattr(proxy, "read_facts", fail)
    async with instances("a") as (a,), router([a]) as routed:
        async with asyncio.timeout(5.0):
            answer = await routed.post(prompt="long" * (LONG_BYTES // 4))
        assert answer.status_code == 500
        assert "\x1b" not in capsys.readouterr().err


async def test_a_body_that_a_thread_reads_is_held_after_its_client_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun = threading.Event(), threading.Event()

    def read_slowly(body: bytes, block_tokens: int, *, chat: bool) -> Facts:
        begun.set()
        gate.wait(20.0)
        return read_facts(body, block_tokens, chat=chat)

    monkeypatch.setattr(proxy, "read_facts", read_slowly)
    async with instances("a") as (a,), router([a]) as routed:
        size = 2 * LONG_BYTES
        _, writer = await routed.connect(raw_post(b"x" * size))
        await until(begun.is_set)
        writer.transport.abort()
        await until(lambda: routed.server.connections == 0)
        assert routed.server.held_bytes == size
        gate.set()
        await until(lambda: routed.server.held_bytes == 0)
        assert not a.seen


async def test_a_client_that_takes_no_response_gets_no_second_one() -> None:
    service = Holding()
    connection, _ = connected(service)
    connection.data_received(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
    connection.pause_writing()
    connection.reply(200, b"x" * 1_000, "text/plain")
    await asyncio.sleep(0)
    waiting = held_head_bytes(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (service.served, service.held_bytes) == (1, 1_000 + 2 * waiting)
    connection.resume_writing()
    await asyncio.sleep(0)
    assert (service.served, service.held_bytes) == (2, 2 * waiting)


def test_a_client_that_is_refused_before_it_took_its_response_leaves_nothing_held() -> None:
    service = Holding()
    connection, wire = connected(service)
    connection.data_received(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
    connection.pause_writing()
    connection.reply(200, b"x" * 1_000, "text/plain")
    connection.data_received(b"no HTTP\r\n\r\n")
    assert b"HTTP/1.1 400 " in wire.written
    connection.connection_lost(None)
    assert service.held_bytes == 0


@pytest.mark.parametrize("close", [b"", b"connection: close\r\n"])
async def test_a_client_that_does_not_take_its_last_response_is_cut(
    monkeypatch: pytest.MonkeyPatch, close: bytes
) -> None:
    monkeypatch.setattr(Pages, "_make_metrics", lambda _: b"x" * (32 << 20))
    async with instances("a") as (a,), router([a], limits=replace(SHORT, client_stall_s=0.3)) as routed:
        _, writer = await routed.connect(b"GET /metrics HTTP/1.1\r\nhost: x\r\n%b\r\n" % close)
        # it reads no more than a stream's own limit
        await until(lambda: routed.server.held_bytes > 0)
        await until(lambda: routed.server.connections == 0, 10.0)
        assert routed.server.held_bytes == 0
        writer.transport.abort()


async def test_a_wait_of_the_routers_own_is_no_delay_of_the_client() -> None:
    service = Holding()
    connection, wire = connected(service)
    one = raw_post(b"x" * (AHEAD_LIMIT_BYTES + 1))
    connection.data_received(one)
    connection.data_received(one + HEAD)  # a third one has begun
    assert connection.is_paused
    begun_s = connection.t_begin_s
    assert begun_s > 0
    await asyncio.sleep(0.05)
    connection.finish(keep=True)
    await asyncio.sleep(0)
    assert wire.reading
    assert connection.t_begin_s > begun_s  # its limit goes on from here
