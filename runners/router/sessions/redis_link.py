"""One connection to Redis that all requests of a router share: pipelined calls, in order.

No request waits longer than `wait_s` for a call, and while Redis is away or slow callers skip it (`prompt`). The
connection is restored automatically.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from redis.asyncio import Connection, Redis
from redis.exceptions import RedisError

from results.records.router_spec import PASSWORD, BindingRules
from results.records.visible import visible
from runners.router.counts import Counts
from runners.router.sessions.redis_rows import SCRIPTS

UNANSWERED = (RedisError, OSError, TimeoutError, asyncio.IncompleteReadError, ValueError, RecursionError)
"""Errors of a connection; the last two if an answer violates Redis' protocol."""
CONNECT_S = 2.0
DEAD_S = 5.0
"""A connection without an answer for this long is closed."""
AGAIN_S, AGAIN_MAX_S = 0.05, 1.0
"""First and longest delay between two attempts to connect."""
CALLS_AT_ONCE = 256
"""Calls per batch."""


class _Call(NamedTuple):
    operation: str
    key: bytes
    argument: bytes
    answered: Callable[[bytes | None], None]


class RedisLink:
    """Calls to the scripts of the shared table. `rules` have a URL; `connected` is called at each new connection.

    A call's `answered` receives the script's answer, or None when the wait ends. After None the answer may still
    arrive, in a second call of `answered`: the script did run.
    """

    def __init__(self, rules: BindingRules, counts: Counts, connected: Callable[[], None]) -> None:
        self._rules = rules
        self._counts = counts
        self._connected = connected
        self._redis = Redis.from_url(
            rules.redis_url, password=os.environ.get(PASSWORD) or None, socket_connect_timeout=CONNECT_S, protocol=2
        )
        self._shas: dict[str, bytes] = {}
        self._queue: list[_Call] = []
        self._sent: list[_Call] = []
        self._wake = asyncio.Event()
        self._up = self._late = False
        self._pause_s = AGAIN_S
        self._reported = False
        """The current outage has been reported on stderr."""
        self._running: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()

    @property
    def up(self) -> bool:
        """Connected, as far as is known."""
        return self._up

    @property
    def prompt(self) -> bool:
        """Connected, and no answer is overdue."""
        return self._up and not self._late

    async def start(self) -> None:
        """Wait for the first attempt to connect; further attempts run in the background."""
        self._running = asyncio.create_task(self._keep_connected())
        await self._tried.wait()

    async def close(self) -> None:
        """Send waiting calls for at most `wait_s`, and disconnect."""
        if self._running is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rules.wait_s):
                while self._up and (self._queue or self._sent):  # noqa: ASYNC110  (once in a router's life)
                    await asyncio.sleep(0.001)
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self._note_outage("")
        await self._redis.aclose()

    def call_script(
        self, operation: str, key: bytes, argument: bytes, answered: Callable[[bytes | None], None]
    ) -> None:
        """Run a script; `answered` is never called before this returns, unless Redis is away."""
        if not self._up:
            self._counts.binding_failures["away"] += 1
            answered(None)
            return
        self._queue.append(_Call(operation, key, argument, answered))
        self._wake.set()

    async def _keep_connected(self) -> None:
        """Connect, serve calls until the connection fails, and reconnect."""
        while True:
            connection = self._redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._load_scripts(connection)
                await self._serve_calls(connection)
            except UNANSWERED as error:
                self._note_outage(f"{type(error).__name__}: {error}")
            finally:
                with contextlib.suppress(RedisError, OSError):
                    await connection.disconnect(nowait=True)
                self._tried.set()
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(AGAIN_MAX_S, self._pause_s * 2)

    async def _load_scripts(self, connection: Connection) -> None:
        await connection.connect()  # type: ignore[no-untyped-call]
        for name, text in SCRIPTS.items():
            await connection.send_command("SCRIPT", "LOAD", text)
            self._shas[name] = await connection.read_response()
        self._up = True
        self._tried.set()
        self._connected()

    async def _serve_calls(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._sent, self._queue = self._queue[:CALLS_AT_ONCE], self._queue[CALLS_AT_ONCE:]
            if not self._queue:
                self._wake.clear()
            overdue = loop.call_later(self._rules.wait_s, self._stop_waiting)
            t_s = perf_counter()
            try:
                async with asyncio.timeout(DEAD_S):
                    await connection.send_packed_command([_pack_call(self._shas, call) for call in self._sent])
                    await self._read_answers(connection, t_s)
            finally:
                overdue.cancel()
            self._late, self._pause_s = False, AGAIN_S
            if self._reported:
                self._reported = False
                sys.stderr.write("the bindings are shared through Redis again\n")

    async def _read_answers(self, connection: Connection, t_s: float) -> None:
        loop = asyncio.get_running_loop()
        while self._sent:
            answer = await connection.read_response()
            call = self._sent.pop(0)
            self._counts.binding_trips[call.operation] += 1
            self._counts.binding_trip.add_value(perf_counter() - t_s)
            loop.call_soon(call.answered, answer)  # so that its errors do not close the connection

    def _stop_waiting(self) -> None:
        """Stop waiting for open calls, and for new ones until one is answered."""
        self._late = True
        self._give_up("timeout", (*self._sent, *self._queue))

    def _note_outage(self, why: str) -> None:
        """Redis is away: fail the open calls."""
        self._up = self._late = False
        if why and not self._reported:
            self._reported = True
            text = f"Redis does not answer, each router keeps its own bindings until it does: {why}\n"
            sys.stderr.write(visible(text))
        calls = (*self._sent, *self._queue)
        self._sent, self._queue = [], []
        self._give_up("lost", calls)

    def _give_up(self, kind: str, calls: tuple[_Call, ...]) -> None:
        loop = asyncio.get_running_loop()
        for call in calls:
            self._counts.binding_failures[kind] += 1
            loop.call_soon(call.answered, None)


def _pack_call(shas: dict[str, bytes], call: _Call) -> bytes:
    sha, key, argument = shas[call.operation], call.key, call.argument
    head = b"*5\r\n$7\r\nEVALSHA\r\n$%d\r\n%b\r\n$1\r\n1\r\n" % (len(sha), sha)
    return b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n" % (head, len(key), key, len(argument), argument)
