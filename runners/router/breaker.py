"""The circuit breaker of an instance, driven by its requests and probes: a pure state machine.

closed --(failures in a row, or a dead connection)--> open --(its time is over and /health answers)--> half open
half open --(a trial's first byte)--> closed; --(a trial fails)--> open, for twice as long.
A half-open breaker allows one trial at a time, and doubles that with every further /health that answers, so that an
instance that has recovered takes its share of a burst.
A 4xx is the request's own fault and is no evidence. Nor is a 5xx that every instance answers (`request_lifecycle`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from results.records.router_spec import HealthRules

TRIALS_MAX = 1 << 20


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Breaker:
    """The state of one instance's breaker; every method returns the next state."""

    rules: HealthRules
    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    """Requests in a row that failed while closed."""
    silent_probes: int = 0
    """Probes in a row that failed."""
    opened: int = 0
    """Times in a row that it opened without a success in between."""
    until_s: float = 0.0
    """It stays open at least until then."""
    broken: int = 0
    """Responses in a row that failed after their first byte. Another response's first byte does not reset it."""
    trials: int = 0
    """Half open: trial requests in flight."""
    trials_at_once: int = 1
    """Half open: the limit of `trials`."""
    why: str = ""

    @property
    def lets_pass(self) -> bool:
        """Whether another request may be sent."""
        return self.state is BreakerState.CLOSED or (
            self.state is BreakerState.HALF_OPEN and self.trials < self.trials_at_once
        )

    def note_dispatch(self) -> Breaker:
        return replace(self, trials=self.trials + 1) if self.state is BreakerState.HALF_OPEN else self

    def note_success(self) -> Breaker:
        """A request got its first byte. Ignored while open: the request was sent before it opened."""
        if self.state is BreakerState.OPEN:
            return self
        if self.state is BreakerState.CLOSED and not (self.failures or self.silent_probes or self.opened or self.why):
            return self
        return Breaker(self.rules, broken=self.broken)

    def note_whole(self) -> Breaker:
        """A response completed."""
        return replace(self, broken=0) if self.broken else self

    def release_trial(self) -> Breaker:
        """A request ended without evidence: 4xx, or the client left."""
        return replace(self, trials=self.trials - 1) if self.trials else self

    def note_failure(self, now_s: float, why: str, *, dead: bool = False, begun: bool = False) -> Breaker:
        """A request failed; `dead`: no connection could be made, which alone opens the breaker.

        `begun`: its response had begun.
        """
        if self.state is BreakerState.OPEN:
            return self
        failures, broken = (self.failures, self.broken + 1) if begun else (self.failures + 1, self.broken)
        enough = max(failures, broken) >= self.rules.failures_to_open
        if self.state is BreakerState.CLOSED and not dead and not enough:
            return replace(self, failures=failures, broken=broken, why=why)
        return self._open_breaker(now_s, why)

    def note_probe(self, now_s: float, why: str, *, refused: bool = False) -> Breaker:
        """A probe ended; `why` it failed, empty = /health returned 200. `refused`: no process listens there."""
        if not why:
            well = replace(self, silent_probes=0)
            if self.state is BreakerState.OPEN and now_s >= self.until_s:
                return replace(well, state=BreakerState.HALF_OPEN, trials=0, trials_at_once=1)
            if self.state is BreakerState.HALF_OPEN:
                return replace(well, trials_at_once=min(TRIALS_MAX, 2 * self.trials_at_once))
            return well
        silent = self.silent_probes + 1
        if self.state is BreakerState.OPEN:
            return replace(self, silent_probes=silent, why=why)
        if refused or silent >= self.rules.unhealthy_after:
            return replace(self._open_breaker(now_s, why), silent_probes=silent)
        return replace(self, silent_probes=silent)

    def _open_breaker(self, now_s: float, why: str) -> Breaker:
        opened = self.opened + 1
        held_s = min(self.rules.open_max_s, self.rules.open_s * 2.0 ** min(opened - 1, 30))
        return Breaker(self.rules, BreakerState.OPEN, opened=opened, until_s=now_s + held_s, why=why)
