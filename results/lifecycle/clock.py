"""The clocks of two hosts: how far apart they are, how well that is known, and whether one was set meanwhile.

One exchange gives four stamps: the decode instance asks (its clock), the prefill instance hears and answers (its
clock), the decode instance has the answer. Messages cannot arrive before they are sent, so the offset of the prefill
host's clock lies between `answered - got` and `heard - asked`, whatever the network did (as in NTP, RFC 5905, section
8).

Over many exchanges a clock may run faster than the other by a constant rate, at most MAX_RATE. A line through all
bounds gives the offset at any moment, with what all exchanges together leave open. Where no such line exists, a clock
was set in between: the exchanges fall into stretches that each have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from results.lifecycle.record import Clock, LifecycleRecord, MoreStamps, Place, Stamps

MAX_RATE = 5e-4
"""Seconds per second: the most that Linux slews a clock by (adjtimex), and more than crystals differ by."""
_ROUNDS = 60
"""Of a ternary search: the bracket shrinks to 1e-10 of its size."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Four stamps of one exchange, nanoseconds."""

    asked: int
    """Decode host."""
    heard: int
    """Prefill host."""
    answered: int
    """Prefill host."""
    got: int
    """Decode host."""

    @property
    def low_ns(self) -> int:
        """The offset is at least this."""
        return self.answered - self.got

    @property
    def high_ns(self) -> int:
        """The offset is at most this; below `low_ns` where a clock was set during the exchange."""
        return self.heard - self.asked


@dataclass(frozen=True, slots=True)
class Step:
    """A clock was set, during one of the exchanges `first` to `last` or between them (places in the order of time)."""

    first: int
    last: int
    by_ms: float | None
    """By how much the offset changed; None where one side has no exchange to tell it from."""
    text: str


@dataclass(frozen=True, slots=True)
class Estimated:
    """The offset at one moment; None = not known, and `reason` says why."""

    offset_ns: int | None
    error_ns: int | None
    reason: str = ""


SET_DURING = "an answer came before it was asked for: a clock was set during the request"


def exchange_of(stamps: Stamps, more: MoreStamps) -> Exchange | None:
    """A request's own exchange; None where a stamp of it is missing."""
    four = (more.d_pull_sent, stamps.t4_zmq_metadata, more.p_response_sent, stamps.t7_d_recv_signal)
    asked, heard, answered, got = four
    if asked is None or heard is None or answered is None or got is None:
        return None
    return Exchange(asked, heard, answered, got)


def clock_of(router: str, prefill: str, decode: str, exchange: Exchange | None) -> Clock:
    """What one exchange says of the clocks; the hosts are given by their boot ids."""
    hosts = Clock(router, prefill, decode)
    if prefill and prefill == decode:
        return replace(hosts, offset_ns=0, error_ns=0)
    if not (prefill and decode):
        return replace(hosts, reason="the boot id of a host is not known: nothing says that its clock is the others'")
    if exchange is None:
        return replace(hosts, reason="two hosts, and the four stamps of their exchange are not all there")
    if exchange.high_ns < exchange.low_ns:
        return replace(hosts, reason=SET_DURING)
    own = _estimated(exchange.low_ns, exchange.high_ns)
    return replace(hosts, offset_ns=own.offset_ns, error_ns=own.error_ns)


def shift_ns(clock: Clock, begin: Place, end: Place) -> tuple[int, int] | str:
    """What to add to `end - begin` so that it is a duration, and by how much that may be wrong; or why it is none."""
    hosts = {"router": clock.router, "prefill": clock.prefill, "decode": clock.decode}
    first, last = hosts[begin], hosts[end]
    if begin == end or (first and first == last):
        return 0, 0
    for host in (first, last):
        if not host or host not in (clock.prefill, clock.decode):
            return f"two hosts ({begin}, {end}), and nothing says how their clocks compare"
    if clock.offset_ns is None or clock.error_ns is None:
        return clock.reason or f"two hosts ({begin}, {end}), and the offset of their clocks is not known"
    return (-clock.offset_ns if last == clock.prefill else clock.offset_ns), clock.error_ns


def aligned(records: Sequence[LifecycleRecord]) -> tuple[tuple[Clock, ...], tuple[Step, ...]]:
    """The clock of each record by what all exchanges of the same two hosts say, and where a clock was set.

    A record beside a step has no offset: the step may lie inside it. `records`: in any order; clocks come in theirs.
    """
    clocks = [record.clock for record in records]
    steps: list[Step] = []
    pairs = dict.fromkeys(
        (clock.prefill, clock.decode)
        for clock in clocks
        if clock.prefill and clock.decode and clock.prefill != clock.decode
    )
    for pair in pairs:
        found = {
            place: exchange
            for place, clock in enumerate(clocks)
            if (clock.prefill, clock.decode) == pair
            and (exchange := exchange_of(records[place].timestamps_ns, records[place].more_timestamps_ns)) is not None
        }
        order = sorted(found, key=lambda place: found[place].asked)
        estimates, own = offsets([found[place] for place in order])
        steps.extend(own)
        for place, one in zip(order, estimates, strict=True):
            clocks[place] = replace(clocks[place], offset_ns=one.offset_ns, error_ns=one.error_ns, reason=one.reason)
    return tuple(clocks), tuple(steps)


def offsets(exchanges: Sequence[Exchange]) -> tuple[tuple[Estimated, ...], tuple[Step, ...]]:
    """The offset at each exchange, and where a clock was set. `exchanges`: in the order of time."""
    found: list[Estimated] = []
    steps: list[Step] = []
    begin = 0
    while begin < len(exchanges):
        end = _feasible_to(exchanges, begin)
        line = _Line(exchanges[begin:end])
        if line.exists:
            found += [_estimated(*line.bounds(exchange.asked)) for exchange in exchanges[begin:end]]
        else:
            found.append(Estimated(None, None, SET_DURING))
        if end < len(exchanges):
            steps.append(_step(exchanges, begin, end, line))
        begin = end
    for step in steps:
        for place in range(step.first, step.last + 1):
            found[place] = Estimated(None, None, found[place].reason or step.text)
    return tuple(found), tuple(steps)


def _estimated(low_ns: float, high_ns: float) -> Estimated:
    return Estimated(round((low_ns + high_ns) / 2), math.ceil((high_ns - low_ns) / 2) + 1)


def _feasible_to(exchanges: Sequence[Exchange], begin: int) -> int:
    """The end of the longest stretch from `begin` on that one line explains; at least one exchange."""
    low, high = begin + 1, len(exchanges)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _Line(exchanges[begin:middle]).exists else (low, middle - 1)
    return low


def _step(exchanges: Sequence[Exchange], begin: int, end: int, before: _Line) -> Step:
    """The step that keeps `exchanges[end]` out of the stretch that began at `begin`.

    It may have come before any exchange that a line shares with that one: these are doubtful.
    """
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _Line(exchanges[middle : end + 1]).exists else (middle + 1, high)
    after = _Line(exchanges[end : _feasible_to(exchanges, end)])
    by_ms = None
    if before.exists and after.exists:
        at = exchanges[end].asked
        by_ms = (sum(after.bounds(at)) - sum(before.bounds(at))) / 2e6
    size = "" if by_ms is None else f" by about {by_ms:+.3g} ms"
    text = f"the clock of one host was set{size} beside this request: the hosts cannot be compared in it"
    return Step(max(low - 1, begin), end, by_ms, text)


class _Line:
    """All lines `offset + rate x time` that keep within the bounds of some exchanges."""

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        first = exchanges[0]
        self._t0, self._base = first.asked, first.low_ns  # subtracted as integers: a float64 cannot hold them to the ns
        self._at = np.array([exchange.asked - self._t0 for exchange in exchanges], dtype=np.float64)
        self._low = np.array([exchange.low_ns - self._base for exchange in exchanges], dtype=np.float64)
        self._high = np.array([exchange.high_ns - self._base for exchange in exchanges], dtype=np.float64)
        self._rate = _highest(self._room, -MAX_RATE, MAX_RATE)

    @property
    def exists(self) -> bool:
        """There is such a line."""
        return self._room(self._rate) >= -1.0  # a nanosecond for rounding

    def bounds(self, t_ns: int) -> tuple[float, float]:
        """The lowest and the highest offset (ns) that such a line has at `t_ns` of the decode host's clock."""
        at = float(t_ns - self._t0)
        slow, fast = self._rates

        def high(rate: float) -> float:
            return float((self._high - rate * (self._at - at)).min())

        def low(rate: float) -> float:
            return -float((self._low - rate * (self._at - at)).max())

        top, bottom = high(_highest(high, slow, fast)), -low(_highest(low, slow, fast))
        return self._base + min(top, bottom), self._base + max(top, bottom)

    @cached_property
    def _rates(self) -> tuple[float, float]:
        """The lowest and the highest rate of such a line."""
        return self._edge(-MAX_RATE), self._edge(MAX_RATE)

    def _room(self, rate: float) -> float:
        """Between the bounds, for a line of this rate: below zero where there is none."""
        slope = rate * self._at
        return float((self._high - slope).min() - (self._low - slope).max())

    def _edge(self, towards: float) -> float:
        """The last rate from the best one `towards` a limit at which a line exists."""
        inside, outside = self._rate, towards
        if self._room(outside) >= 0:
            return outside
        for _ in range(_ROUNDS):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if self._room(middle) >= 0 else (inside, middle)
        return inside


def _highest(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a concave function is highest."""
    for _ in range(_ROUNDS):
        third = (high - low) / 3
        left, right = low + third, high - third
        low, high = (left, high) if function(left) < function(right) else (low, right)
    return (low + high) / 2
