"""What an operator sees of a running cell: percentiles over its last seconds."""

from __future__ import annotations

from collections import deque

from results.records.live import LiveLatency

LIVE_WINDOW_S = 5.0
_MOST_VALUES = 4096
"""At higher rates the window is shorter."""


class RecentValues:
    def __init__(self, window_s: float = LIVE_WINDOW_S) -> None:
        self._window_ns = int(window_s * 1e9)
        self._values: deque[tuple[int, float]] = deque(maxlen=_MOST_VALUES)
        self.add = self._values.append
        """Takes (t_ns, value), t_ns ascending."""

    def quantiles(self, now_ns: int, *levels: float) -> tuple[float | None, ...]:
        """One value per level (nearest rank), None where the window is empty."""
        oldest, values = now_ns - self._window_ns, self._values
        while values and values[0][0] < oldest:
            values.popleft()
        ordered = sorted(value for _, value in values)
        if not ordered:
            return (None,) * len(levels)
        return tuple(ordered[min(len(ordered) - 1, int(level * len(ordered)))] for level in levels)


class Latencies:
    """Recent TTFT and TPOT of a load or of one instance, in seconds."""

    def __init__(self, window_s: float = LIVE_WINDOW_S) -> None:
        self.ttft, self.tpot = RecentValues(window_s), RecentValues(window_s)

    def summarize(self, now_ns: int) -> LiveLatency:
        return LiveLatency(*self.ttft.quantiles(now_ns, 0.5, 0.9), *self.tpot.quantiles(now_ns, 0.5, 0.9))
