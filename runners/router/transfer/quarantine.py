"""The quarantine of pairs of instances whose transfers fail: a pure state machine per pair.

open --(failures within a window, no success in between)--> quarantined --(its time is over)--> one probe
probe --(it succeeds)--> open; --(it fails)--> quarantined, for twice as long.
A single failure never quarantines, and no quarantine is permanent (specs/load_floor.md Q1.D).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from results.records.router_spec import TransferRules

DOUBLINGS = 30
"""Limit of the exponent: the longest quarantine is reached long before."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The state of one pair; every method returns the next state. Times are seconds of the router's clock."""

    rules: TransferRules
    failed_s: tuple[float, ...] = ()
    """Times of the failures within the window, since the last success."""
    times: int = 0
    """Quarantines in a row; 0 = not quarantined."""
    until_s: float = 0.0
    probing: bool = False
    """The one transfer that may end the quarantine is in progress."""
    why: str = ""
    """The last failure."""

    def explain_refusal(self, now_s: float) -> str:
        """Why no transfer may begin now; empty = one may."""
        if not self.times:
            return ""
        if self.probing:
            return f"quarantined, its probe is on the way ({self.why})"
        left_s = self.until_s - now_s
        return f"quarantined for {left_s:.1f} s more ({self.why})" if left_s > 0 else ""

    def begin_transfer(self) -> Quarantine:
        """A transfer that was not refused has begun; in a quarantine it is the probe."""
        return replace(self, probing=True) if self.times else self

    def note_success(self, *, probe: bool) -> Quarantine:
        """A transfer has succeeded. Ignored if it began before the quarantine."""
        return self if self.times and not probe else Quarantine(self.rules)

    def release_probe(self, *, probe: bool) -> Quarantine:
        """A transfer has ended without evidence: the client left, or the request itself was at fault."""
        return replace(self, probing=False) if probe else self

    def note_failure(self, now_s: float, why: str, *, probe: bool) -> Quarantine:
        if self.times and not probe:
            return self
        counted = (*(at_s for at_s in self.failed_s if now_s - at_s <= self.rules.window_s), now_s)
        if not self.times and len(counted) < self.rules.failures_to_quarantine:
            return replace(self, failed_s=counted, why=why)
        held_s = min(self.rules.quarantine_max_s, self.rules.quarantine_s * 2.0 ** min(self.times, DOUBLINGS))
        return Quarantine(self.rules, times=self.times + 1, until_s=now_s + held_s, why=why)

    def allow_probe(self, now_s: float) -> Quarantine:
        """One of the two instances may be a new process: a quarantined pair may be probed at once."""
        if not self.times:
            return Quarantine(self.rules)
        return replace(self, until_s=min(self.until_s, now_s))


class Pairs:
    """The pairs (source, target) of one router. Only pairs with failures are stored."""

    def __init__(self, rules: TransferRules, clock: Callable[[], float]) -> None:
        self._sound = Quarantine(rules)
        self._clock = clock
        self._marked: dict[tuple[str, str], Quarantine] = {}

    def __len__(self) -> int:
        """Pairs with failures."""
        return len(self._marked)

    def explain_refusal(self, source: str, target: str) -> str:
        """As `Quarantine.explain_refusal`, now."""
        return self._find_state(source, target).explain_refusal(self._clock())

    def list_quarantined(self) -> Mapping[tuple[str, str], str]:
        """The pairs that refuse transfers now, with the reason."""
        now_s = self._clock()
        return {pair: why for pair, state in self._marked.items() if (why := state.explain_refusal(now_s))}

    def begin_transfer(self, source: str, target: str) -> bool:
        """Begin a transfer that was not refused; returns whether it is a probe, as `count_end` needs."""
        before = self._find_state(source, target)
        self._store_state(source, target, before.begin_transfer())
        return before.times > 0

    def count_end(self, source: str, target: str, *, probe: bool, succeeded: bool, why: str | None) -> None:
        """Update the pair at the end of a transfer; neither `succeeded` nor a failure (`why`) = no evidence."""
        state = self._find_state(source, target)
        if succeeded:
            state = state.note_success(probe=probe)
        elif why is None:
            state = state.release_probe(probe=probe)
        else:
            state = state.note_failure(self._clock(), why, probe=probe)
        self._store_state(source, target, state)

    def allow_probe(self, instance: str) -> None:
        """The instance may be a new process: its pairs may be probed at once."""
        now_s = self._clock()
        for pair, state in tuple(self._marked.items()):
            if instance in pair:
                self._store_state(*pair, state.allow_probe(now_s))

    def remove_instance(self, instance: str) -> None:
        self._marked = {pair: state for pair, state in self._marked.items() if instance not in pair}

    def _find_state(self, source: str, target: str) -> Quarantine:
        return self._marked.get((source, target), self._sound)

    def _store_state(self, source: str, target: str, state: Quarantine) -> None:
        if state == self._sound:
            self._marked.pop((source, target), None)
        else:
            self._marked[source, target] = state
