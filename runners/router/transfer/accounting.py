"""Transfer accounting of one target: which transfers ended since its counters were last read, and what each moved.

Metrics are fetched off the request path; the counters read after one transfer serve as those before the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from runners.router.transfer.counters import Attribution, Counters, TargetAnswer, attribute_rise

SETTLE_S = 2.0
"""Longest wait for a transfer's counters after its end."""
NOTHING_S = 0.5
"""Counters that have not risen for this long will not rise: engines count before they answer."""
READ_AGAIN_S = 0.1
FRESH_S = 1.0
"""Before a transfer, counters read at most this long ago are reused."""
NOT_COUNTED = Attribution(reason="not counted: the rules say so")
Settle = Callable[[Attribution], None]


@dataclass(eq=False, slots=True)
class _Entry:
    answer: TargetAnswer
    settle: Settle
    at_s: float
    due_s: float | None
    """Since when its counters may be read; None = the target is still generating its answer."""


@dataclass(slots=True)
class TransferAccounting:
    """The transfer accounting of one target. `fetch` reads its counters; it returns None if they cannot be read.

    Without `fetch` each transfer is settled at its end as not counted.
    """

    fetch: Callable[[], Awaitable[Counters | None]] | None
    now_s: Callable[[], float]
    counters: Counters | None = None
    """Last read while no transfer was open: the rise since then belongs to `_entries`."""
    _read_s: float = 0.0
    _open: int = 0
    """Transfers that may still move tokens."""
    _begun: int = 0
    _unattributed: bool = False
    """Tokens have arrived, or may have, that belong to no entry."""
    _entries: list[_Entry] = field(default_factory=list)
    _reading: asyncio.Task[None] | None = None

    @property
    def is_quiet(self) -> bool:
        """No transfer is open, and all ended ones are settled."""
        return not self._open and not self._entries

    async def refresh_counters(self) -> None:
        """Read the counters before a transfer if no other is open, and settle the transfers that ended before."""
        known = self.counters is not None and not self._unattributed and not self._entries
        fresh = known and self.now_s() - self._read_s < FRESH_S
        if self.fetch is None or fresh or self._open or self._reading is not None:
            return
        begun = self._begun
        counters = await self.fetch()
        if counters is not None and not self._open and begun == self._begun:
            self._conclude_reading(counters)

    async def wait_until_quiet(self, limit_s: float) -> None:
        """Wait for at most `limit_s` until all transferred tokens are attributed."""
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=limit_s)

    def begin_transfer(self) -> None:
        self._open += 1
        self._begun += 1

    def fail_transfer(self) -> None:
        """A transfer has failed. Its tokens cannot be attributed: the engine may or may not have counted them."""
        self._open -= 1
        self._unattributed = True

    def end_transfer(self, answer: TargetAnswer, settle: Settle, *, streams: bool = False) -> Callable[[], None]:
        """A transfer has completed. `settle` is called once with its tokens, within SETTLE_S plus one read.

        `streams`: the target is still generating and must not be disturbed by a read of its metrics, so the time begins
        when the returned function is called. If another transfer needs the counters first, one read serves both.
        """
        self._open -= 1
        if self.fetch is None:
            settle(NOT_COUNTED)
            return lambda: None
        entry = _Entry(answer, settle, self.now_s(), None if streams else self.now_s())
        self._entries.append(entry)
        if not streams:
            self._start_reading()
        return partial(self._make_due, entry)

    def forget_counters(self) -> None:
        """The target's process is gone, and its counters with it."""
        self.counters, self._read_s, self._unattributed = None, 0.0, True

    async def close(self, within_s: float) -> None:
        """Settle every entry within this time; read the counters again if no transfer is open."""
        for entry in self._entries:
            self._make_due(entry)
        if not self._open:
            await self.wait_until_quiet(within_s)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._settle_entries([Attribution(reason="the router ended first")] * len(self._entries))

    def _make_due(self, entry: _Entry) -> None:
        if entry.due_s is None:
            entry.due_s = self.now_s()
            if entry in self._entries:
                self._start_reading()

    def _start_reading(self) -> None:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_until_settled())

    async def _read_until_settled(self) -> None:
        """Read until all entries are settled. Do not read while a transfer is open: its tokens would count too."""
        try:
            while any(entry.due_s is not None for entry in self._entries):
                if not self._open:
                    begun = self._begun
                    counters = await self.fetch() if self.fetch is not None else None
                    if counters is not None and begun == self._begun and self._conclude_reading(counters):
                        return
                self._give_up()
                await asyncio.sleep(READ_AGAIN_S)
        finally:
            self._reading = None

    def _conclude_reading(self, counters: Counters) -> bool:
        """Settle all entries by these counters, unless the counters have not risen yet."""
        before = self.counters
        expected = any(entry.answer.limit != 0 for entry in self._entries)
        waited = expected and self.now_s() - self._entries[-1].at_s >= NOTHING_S
        if before is not None and expected and not waited and before.external_tokens == counters.external_tokens:
            return False
        if before is None:
            attributions = [Attribution(reason="its counters were not read before")] * len(self._entries)
        elif self._unattributed:
            reason = "another transfer there failed or was given up on"
            attributions = [Attribution(reason=reason)] * len(self._entries)
        else:
            attributions = attribute_rise(before, counters, [entry.answer for entry in self._entries])
        self._settle_entries(attributions)
        self.counters, self._read_s, self._unattributed = counters, self.now_s(), False
        return True

    def _give_up(self) -> None:
        """Settle entries that have waited too long: their tokens can no longer be attributed."""
        oldest_s = self.now_s() - SETTLE_S
        late = [entry for entry in self._entries if entry.due_s is not None and entry.due_s <= oldest_s]
        self._entries = [entry for entry in self._entries if entry not in late]
        self._unattributed = self._unattributed or bool(late)
        for entry in late:
            entry.settle(
                Attribution(reason=f"for {SETTLE_S:g} s another transfer was on its way there, or no counters came")
            )

    def _settle_entries(self, attributions: list[Attribution]) -> None:
        entries, self._entries = self._entries, []
        for entry, attribution in zip(entries, attributions, strict=True):
            entry.settle(attribution)
