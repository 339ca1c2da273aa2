"""The books of one target: which transfers ended there since its counters were last read, and what each brought.

Pages of metrics are fetched off the path of requests: the counters after one transfer are those before the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from runners.router.transfer.counters import Brought, Counters, Ended, attribute

SETTLE_S = 2.0
"""So long after its end a transfer's counters are waited for."""
NOTHING_S = 0.5
"""So long nothing has to come before nothing is believed: engines count before they answer."""
READ_AGAIN_S = 0.1
FRESH_S = 1.0
"""A page so old is as good as a new one, for what was counted before a transfer."""
NOT_COUNTED = Brought(reason="not counted: the rules say so")
Settled = Callable[[Brought], None]


@dataclass(eq=False, slots=True)
class _Entry:
    ended: Ended
    settled: Settled
    at_s: float
    due_s: float | None
    """Since when its counters may be read for it alone; None = its answer is still being generated there."""


@dataclass(slots=True)
class Tally:
    """One target's. `fetch` gets its counters; None = it could not be asked."""

    fetch: Callable[[], Awaitable[Counters | None]]
    clock: Callable[[], float]
    counters: Counters | None = None
    """As last read when nothing was on its way there: what came since belongs to `_entries`."""
    _read_s: float = 0.0
    _open: int = 0
    """Transfers that may bring something at any moment."""
    _begun: int = 0
    _strangers: bool = False
    """Something came, or may have come, that no entry stands for."""
    _entries: list[_Entry] = field(default_factory=list)
    _reading: asyncio.Task[None] | None = None

    @property
    def quiet(self) -> bool:
        """Nothing is on its way there, and all that came has been told."""
        return not self._open and not self._entries

    async def refresh(self) -> None:
        """Read the counters before a transfer, where nothing is on its way there. What has come by then is told."""
        known = self.counters is not None and not self._strangers and not self._entries
        fresh = known and self.clock() - self._read_s < FRESH_S
        if fresh or self._open or self._reading is not None:
            return
        begun = self._begun
        counters = await self.fetch()
        if counters is not None and not self._open and begun == self._begun:
            self._concluded(counters)

    async def until_quiet(self, limit_s: float) -> None:
        """Wait, for so long at most, until what came there is told apart from what is to come."""
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=limit_s)

    def begin(self) -> None:
        """A target leg is sent there."""
        self._open += 1
        self._begun += 1

    def drop(self) -> None:
        """It has failed: whether it was counted nobody knows."""
        self._open -= 1
        self._strangers = True

    def end(self, ended: Ended, settled: Settled, *, streams: bool = False) -> Callable[[], None]:
        """Its KV is there. `settled` hears once what it brought, within SETTLE_S and a read.

        `streams`: the target goes on with its answer, which no page of metrics is to disturb: the time begins when what
        is returned is called. Where another transfer needs the counters first, it is told by those.
        """
        self._open -= 1
        entry = _Entry(ended, settled, self.clock(), None if streams else self.clock())
        self._entries.append(entry)
        if not streams:
            self._begin_to_read()
        return partial(self._over, entry)

    def forget(self) -> None:
        """Its process is gone, and its counters with it."""
        self.counters, self._read_s, self._strangers = None, 0.0, True

    async def close(self, within_s: float) -> None:
        """Tell everybody who waits, after so long at most; what came is asked once more where it can be told apart."""
        for entry in self._entries:
            self._over(entry)
        if not self._open:
            await self.until_quiet(within_s)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._tell([Brought(reason="the router ended first")] * len(self._entries))

    def _over(self, entry: _Entry) -> None:
        if entry.due_s is None:
            entry.due_s = self.clock()
            if entry in self._entries:
                self._begin_to_read()

    def _begin_to_read(self) -> None:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        """Ask until all is told, while nothing else is on its way there: what that brings could not be told apart."""
        try:
            while any(entry.due_s is not None for entry in self._entries):
                if not self._open:
                    begun = self._begun
                    counters = await self.fetch()
                    if counters is not None and begun == self._begun and self._concluded(counters):
                        return
                self._give_up()
                await asyncio.sleep(READ_AGAIN_S)
        finally:
            self._reading = None

    def _concluded(self, counters: Counters) -> bool:
        """Tell what came, unless nothing came that still may."""
        before = self.counters
        expected = any(entry.ended.limit != 0 for entry in self._entries)
        waited = expected and self.clock() - self._entries[-1].at_s >= NOTHING_S
        if before is not None and expected and not waited and before.external_tokens == counters.external_tokens:
            return False
        if before is None:
            brought = [Brought(reason="its counters were not read before")] * len(self._entries)
        elif self._strangers:
            brought = [Brought(reason="another transfer there failed or was given up on")] * len(self._entries)
        else:
            brought = attribute(before, counters, [entry.ended for entry in self._entries])
        self._tell(brought)
        self._take(counters)
        return True

    def _give_up(self) -> None:
        """Tell entries that have waited for too long; what they brought can no more be told from the others'."""
        oldest_s = self.clock() - SETTLE_S
        late = [entry for entry in self._entries if entry.due_s is not None and entry.due_s <= oldest_s]
        self._entries = [entry for entry in self._entries if entry not in late]
        self._strangers = self._strangers or bool(late)
        for entry in late:
            entry.settled(
                Brought(reason=f"for {SETTLE_S:g} s another transfer was on its way there, or no counters came")
            )

    def _tell(self, brought: list[Brought]) -> None:
        entries, self._entries = self._entries, []
        for entry, said in zip(entries, brought, strict=True):
            entry.settled(said)

    def _take(self, counters: Counters) -> None:
        self.counters, self._read_s, self._strangers = counters, self.clock(), False


class Uncounted:
    """In the place of a Tally where the rules say that nothing is counted: nothing is read, and all is told at once."""

    quiet = True

    async def refresh(self) -> None:
        """Nothing is read."""

    async def until_quiet(self, limit_s: float) -> None:
        """Nothing is waited for."""

    def begin(self) -> None:
        """A target leg is sent there."""

    def drop(self) -> None:
        """It has failed."""

    def end(self, ended: Ended, settled: Settled, *, streams: bool = False) -> Callable[[], None]:
        """Its KV is there; how much that is nobody asks."""
        settled(NOT_COUNTED)
        return _nothing

    def forget(self) -> None:
        """Its process is gone."""

    async def close(self, within_s: float) -> None:
        """Nobody waits."""


def _nothing() -> None:
    """Nothing is left to do."""
