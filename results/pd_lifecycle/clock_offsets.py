"""The offset between the clocks of two hosts, its error, and whether a clock was set during the run.

One exchange gives four stamps: the decode instance asks (its clock), the prefill instance receives and answers (its
clock), the decode instance receives the answer. No message arrives before it is sent, so the offset of the prefill
host's clock lies between `answered - got` and `heard - asked` (as in NTP, RFC 5905, section 8).

Over many exchanges one clock may run faster than the other by a constant rate, at most MAX_RATE. A line within the
bounds of all exchanges gives the offset at any moment, and its error. Where no such line exists, a clock was set: the
exchanges split into segments that each have a line.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from results.records.lifecycle import Clock, ClockSide, LifecycleRecord, MoreStamps, Stamps

MAX_RATE = 5e-4
"""Seconds per second: the most by which Linux slews a clock (adjtimex), and more than crystals differ."""
_ROUNDS = 60
"""Rounds of a ternary search: the bracket shrinks to 1e-10 of its size."""


@dataclass(frozen=True, slots=True)
class StampedExchange:
    """Four stamps of one exchange, in nanoseconds."""

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
    """A clock was set during or between the exchanges `first` to `last` (indexes in the order of time)."""

    first: int
    """Index of the first exchange."""
    last: int
    """Index of the last exchange."""
    by_ms: float | None
    """Change of the offset; None where no exchange on one side of the step bounds it."""
    text: str
    """The same in words."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The offset at one moment; None = unknown, `reason` says why."""

    offset_ns: int | None
    error_ns: int | None
    reason: str = ""


SET_DURING = "the answer is stamped before its request: a clock was set during the request"


def exchange_of(stamps: Stamps, more: MoreStamps) -> StampedExchange | None:
    """The exchange of one request; None where a stamp is missing."""
    four = (more.d_pull_sent, stamps.t4_zmq_metadata, more.p_response_sent, stamps.t7_d_recv_signal)
    asked, heard, answered, got = four
    if asked is None or heard is None or answered is None or got is None:
        return None
    return StampedExchange(asked, heard, answered, got)


def estimate_clock(router: str, prefill: str, decode: str, exchange: StampedExchange | None) -> Clock:
    """The clocks by one exchange alone. router, prefill, decode: boot ids of their hosts."""
    hosts = Clock(router, prefill, decode)
    if prefill and prefill == decode:
        return replace(hosts, offset_ns=0, error_ns=0)
    if not (prefill and decode):
        return replace(hosts, reason="the boot id of a host is unknown: its clock cannot be compared with the others")
    if exchange is None:
        return replace(hosts, reason="two hosts, and a stamp of their exchange is missing")
    if exchange.high_ns < exchange.low_ns:
        return replace(hosts, reason=SET_DURING)
    own = _center_of(exchange.low_ns, exchange.high_ns)
    return replace(hosts, offset_ns=own.offset_ns, error_ns=own.error_ns)


def shift_ns(clock: Clock, begin: ClockSide, end: ClockSide) -> tuple[int, int] | str:
    """(correction, error) in ns to add to `end - begin`, or the reason why the clocks cannot be compared."""
    hosts = {"router": clock.router, "prefill": clock.prefill, "decode": clock.decode}
    first, last = hosts[begin], hosts[end]
    if begin == end or (first and first == last):
        return 0, 0
    for host in (first, last):
        if not host or host not in (clock.prefill, clock.decode):
            return f"two hosts ({begin}, {end}), and no exchange compares their clocks"
    if clock.offset_ns is None or clock.error_ns is None:
        return clock.reason or f"two hosts ({begin}, {end}), and the offset of their clocks is unknown"
    return (-clock.offset_ns if last == clock.prefill else clock.offset_ns), clock.error_ns


def align_clocks(records: Sequence[LifecycleRecord]) -> tuple[tuple[Clock, ...], tuple[Step, ...]]:
    """The clock of each record, in their order, by all exchanges of its two hosts; and where a clock was set.

    A record next to a step has no offset: the step may lie inside the request.
    """
    clocks = [record.clock for record in records]
    steps: list[Step] = []
    pairs = dict.fromkeys(
        (clock.prefill, clock.decode)
        for clock in clocks
        if clock.prefill and clock.decode and clock.prefill != clock.decode
    )
    for pair in pairs:
        exchanges = {
            index: exchange
            for index, clock in enumerate(clocks)
            if (clock.prefill, clock.decode) == pair
            and (exchange := exchange_of(records[index].timestamps_ns, records[index].more_timestamps_ns)) is not None
        }
        order = sorted(exchanges, key=lambda index: exchanges[index].asked)
        estimates, pair_steps = estimate_offsets([exchanges[index] for index in order])
        steps.extend(pair_steps)
        for index, one in zip(order, estimates, strict=True):
            clocks[index] = replace(clocks[index], offset_ns=one.offset_ns, error_ns=one.error_ns, reason=one.reason)
    return tuple(clocks), tuple(steps)


def estimate_offsets(exchanges: Sequence[StampedExchange]) -> tuple[tuple[Offset, ...], tuple[Step, ...]]:
    """The offset at each exchange, and where a clock was set. `exchanges`: by time."""
    estimates: list[Offset] = []
    steps: list[Step] = []
    begin = 0
    while begin < len(exchanges):
        end = _find_segment_end(exchanges, begin)
        line = _Line(exchanges[begin:end])
        if line.exists:
            estimates += [_center_of(*line.bound_offset(exchange.asked)) for exchange in exchanges[begin:end]]
        else:
            estimates.append(Offset(None, None, SET_DURING))
        if end < len(exchanges):
            steps.append(_describe_step(exchanges, begin, end, line))
        begin = end
    for step in steps:
        for index in range(step.first, step.last + 1):
            estimates[index] = Offset(None, None, estimates[index].reason or step.text)
    return tuple(estimates), tuple(steps)


def _center_of(low_ns: float, high_ns: float) -> Offset:
    return Offset(round((low_ns + high_ns) / 2), math.ceil((high_ns - low_ns) / 2) + 1)


def _find_segment_end(exchanges: Sequence[StampedExchange], begin: int) -> int:
    """The end (exclusive) of the longest segment from `begin` that has a line; at least one exchange."""
    ends = range(begin + 2, len(exchanges) + 1)
    return begin + 1 + bisect.bisect_left(ends, True, key=lambda end: not _Line(exchanges[begin:end]).exists)


def _describe_step(exchanges: Sequence[StampedExchange], begin: int, end: int, before: _Line) -> Step:
    """The step that separates `exchanges[end]` from the segment that begins at `begin`.

    It may come before any exchange that shares a line with `exchanges[end]`, so those have no offset either.
    """
    starts = range(begin, end)
    low = begin + bisect.bisect_left(starts, True, key=lambda start: _Line(exchanges[start : end + 1]).exists)
    after = _Line(exchanges[end : _find_segment_end(exchanges, end)])
    by_ms = None
    if before.exists and after.exists:
        at = exchanges[end].asked
        by_ms = (sum(after.bound_offset(at)) - sum(before.bound_offset(at))) / 2e6
    size = "" if by_ms is None else f" by about {by_ms:+.3g} ms"
    text = f"the clock of one host was set{size} close to this request: its durations between hosts are unknown"
    return Step(max(low - 1, begin), end, by_ms, text)


class _Line:
    """All lines `offset + rate x time` within the bounds of a segment of exchanges."""

    def __init__(self, exchanges: Sequence[StampedExchange]) -> None:
        first = exchanges[0]
        self._t0, self._base = first.asked, first.low_ns  # subtracted as integers: a float64 cannot hold them to the ns
        self._at = np.array([exchange.asked - self._t0 for exchange in exchanges], dtype=np.float64)
        self._low = np.array([exchange.low_ns - self._base for exchange in exchanges], dtype=np.float64)
        self._high = np.array([exchange.high_ns - self._base for exchange in exchanges], dtype=np.float64)
        self._rate = _find_maximum(self._measure_room, -MAX_RATE, MAX_RATE)

    @property
    def exists(self) -> bool:
        return self._measure_room(self._rate) >= -1.0  # a nanosecond for rounding

    def bound_offset(self, t_ns: int) -> tuple[float, float]:
        """Lowest and highest offset (ns) of these lines at `t_ns` of the decode host's clock."""
        at = float(t_ns - self._t0)
        slow, fast = self._rates

        def highest_at(rate: float) -> float:
            return float((self._high - rate * (self._at - at)).min())

        def lowest_at(rate: float) -> float:
            return -float((self._low - rate * (self._at - at)).max())

        top = highest_at(_find_maximum(highest_at, slow, fast))
        bottom = -lowest_at(_find_maximum(lowest_at, slow, fast))
        return self._base + min(top, bottom), self._base + max(top, bottom)

    @cached_property
    def _rates(self) -> tuple[float, float]:
        """Lowest and highest rate of these lines."""
        return self._find_edge(-MAX_RATE), self._find_edge(MAX_RATE)

    def _measure_room(self, rate: float) -> float:
        """Nanoseconds between the bounds for lines of this rate; negative where there is no such line."""
        slope = rate * self._at
        return float((self._high - slope).min() - (self._low - slope).max())

    def _find_edge(self, towards: float) -> float:
        """The farthest rate `towards` a limit at which a line exists."""
        inside, outside = self._rate, towards
        if self._measure_room(outside) >= 0:
            return outside
        for _ in range(_ROUNDS):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if self._measure_room(middle) >= 0 else (inside, middle)
        return inside


def _find_maximum(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a concave function has its maximum (ternary search)."""
    for _ in range(_ROUNDS):
        third = (high - low) / 3
        left, right = low + third, high - third
        low, high = (left, high) if function(left) < function(right) else (low, right)
    return (low + high) / 2
