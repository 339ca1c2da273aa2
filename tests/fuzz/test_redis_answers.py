"""Whatever Redis answers: a router goes on with its own copy, and no request waits for ever."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from results.records.router_spec import BindingRules
from runners.router.counts import Counts
from runners.router.sessions.redis_rows import read_row
from runners.router.sessions.shared_bindings import SharedBindings
from tests.examples import examples
from tests.fuzz.mutations import mutated

ROW = msgspec.msgpack.encode((1, 2, 3, "a", 5, "", 0, "", "life", 1, 2, 3))
SHA = b"$40\r\n" + b"0" * 40 + b"\r\n"


@given(mutated([ROW]) | st.binary(max_size=40))
@settings(max_examples=examples(300))
def test_a_row(answer: bytes) -> None:
    with contextlib.suppress(ValueError):
        row = read_row(answer, ("a",))
        assert isinstance(row.turns, int)
        assert isinstance(row.instance, str)
        assert isinstance(row.instances["a"].active, int)


async def ask(answer: bytes) -> tuple[int, bool]:
    """A router whose Redis answers every call of a script so; the turn of a session, and whether it still listens."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2].upper())
                if words[0] == b"SCRIPT":
                    writer.write(SHA)
                elif words[0] == b"EVALSHA":
                    writer.write(answer)
                else:
                    writer.write(b"+OK\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    rules = BindingRules(redis_url=f"redis://127.0.0.1:{port}/0")
    bindings = SharedBindings(rules, Counts(), lambda: ("a",), lambda: 0.0, 10, 60.0)
    try:
        await bindings.start()
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        bindings.ask_arrival("s", 0.0, turn.set_result)
        async with asyncio.timeout(5.0):
            first = await turn
        running = bindings._link._running
        return first, running is not None and not running.done()
    finally:
        await bindings.close()
        server.close()


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


REPLIES = [bulk(ROW), b"-ERR no\r\n", b":1\r\n", b"*1\r\n$1\r\na\r\n", b"$-1\r\n"]


@given(mutated(REPLIES) | st.binary(max_size=40).map(bulk))
@settings(max_examples=examples(25))
@example(bulk(b"\xc1"))
@example(bulk(msgspec.msgpack.encode((1, "two"))))
@example(b"$abc\r\n")
@example(b"garbage")
def test_an_answer(answer: bytes) -> None:
    turn, alive = asyncio.run(ask(answer))
    assert isinstance(turn, int)
    assert alive
