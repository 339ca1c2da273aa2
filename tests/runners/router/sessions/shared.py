"""Bindings of several routers over one real Redis, without the routers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from time import monotonic

from results.records.router_spec import BindingRules
from runners.router.counts import Counts
from runners.router.sessions.bindings import BindingVersion, MigrationClaim
from runners.router.sessions.redis_rows import TableRow
from runners.router.sessions.shared_bindings import SharedBindings

NAMES = ("a", "b", "c")
WAIT_S = 8.0
"""No test depends on Redis being quick, but for those that say so."""


class Watched(SharedBindings):
    """Shared bindings that keep what Redis said to their commits."""

    def __init__(self, rules: BindingRules, **changes: float) -> None:
        super().__init__(rules, Counts(), lambda: NAMES, monotonic, **changes)  # type: ignore[arg-type]
        self.made: list[tuple[str, int, int, bool]] = []
        """Commits that Redis granted: session, version that its pick saw, version after it, whether it migrated."""
        self.open = 0

    def _call_script(
        self,
        operation: str,
        session: str,
        values: tuple[object, ...],
        answered: Callable[[TableRow], None],
        unanswered: Callable[[], None] = lambda: None,
    ) -> None:
        waiting = [operation]

        def end_wait() -> None:
            self.open -= len(waiting)  # an answer that is not waited for may still come
            waiting.clear()

        def note_answer(row: TableRow) -> None:
            end_wait()
            if operation == "commit" and row.granted:
                self.made.append((session, int(str(values[1])), row.version, bool(values[3])))
            answered(row)

        def note_silence() -> None:
            end_wait()
            unanswered()

        self.open += 1
        super()._call_script(operation, session, values, note_answer, note_silence)

    async def turn(self, session: str) -> int:
        """Ask for a session as a request does; returns its turn."""
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.ask_arrival(session, self._clock(), asked.set_result)
        return await asked

    async def claimed(self, session: str, instance: str) -> tuple[MigrationClaim | None, bool]:
        """Ask for a migration; returns the claim (None = Redis is away) and whether it was granted."""
        asked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        made = self.claim_migration(session, instance, self.find_version(session), asked.set_result)
        return made, made is None or await asked

    def serve(
        self, session: str, instance: str, binding: BindingVersion | None = None, claim: MigrationClaim | None = None
    ) -> None:
        """What a router does when an instance has begun to answer."""
        binding = self.find_version(session) if binding is None else binding
        self.commit_version(session, instance, monotonic(), binding, migrates=claim is not None, claim=claim)

    async def bind(self, session: str, instance: str) -> None:
        """A turn of the session, and this instance begins to answer it."""
        await self.turn(session)
        self.serve(session, instance)

    async def settled(self) -> None:
        """Wait until Redis has answered everything."""
        async with asyncio.timeout(WAIT_S):
            while self.open:  # noqa: ASYNC110  (what is waited for is in another process)
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def sharing(
    url: str, count: int = 2, *, wait_s: float = WAIT_S, claim_s: float = 30.0
) -> AsyncIterator[list[Watched]]:
    """Bindings of this many routers."""
    rules = BindingRules(url, wait_s=wait_s, claim_s=claim_s)
    made = [Watched(rules) for _ in range(count)]
    for one in made:
        await one.start()
    try:
        yield made
    finally:
        for one in made:
            await one.close()
