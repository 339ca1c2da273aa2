"""What the view drops of routed cells: the pending prefill of their instances, and the instances of their sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from results.records.events import RouterSampled
from state.bindings import Lives
from state.routing import RoutingView

PAST_SAMPLES = 600
"""Moments stored per cell: where there are more, two neighbors become one, with the higher of their values."""

Pending = tuple[float, Mapping[str, int]]
"""Unix seconds, and the pending prefill tokens of every instance."""


@dataclass(frozen=True, slots=True)
class Past:
    """One routed cell, from its first second to its last."""

    cell: str
    policy: str
    step_s: float
    """Seconds between two of `pending`."""
    instances: Mapping[str, str]
    """The router's name of each instance -> what the rest of the run calls it."""
    pending: tuple[Pending, ...]
    """Oldest first."""
    lives: Lives


@dataclass(slots=True)
class _Building:
    attempt: int
    policy: str
    step_s: float = 1.0
    instances: dict[str, str] = field(default_factory=dict)
    pending: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    lives: Lives = field(default_factory=dict)
    frozen: Past | None = None


class Pasts:
    """Fed with every second of every router."""

    def __init__(self) -> None:
        self._pasts: dict[str, _Building] = {}

    def add(self, t_unix_s: float, event: RouterSampled, attempt: int) -> None:
        """One more second; another attempt at a cell replaces the previous one."""
        past = self._pasts.get(event.cell)
        if past is None or past.attempt != attempt:
            past = self._pasts[event.cell] = _Building(attempt, event.policy)
        past.frozen = None
        past.instances |= {load.instance: load.engine or load.instance for load in event.instances}
        _merge_moment(past, t_unix_s, {load.instance: load.pending_prefill_tokens for load in event.instances})
        if len(past.pending) > PAST_SAMPLES:
            past.step_s *= 2
            old, past.pending = past.pending, []
            for at, pending in old:
                _merge_moment(past, at, pending)

    def remember(self, routing: RoutingView) -> None:
        """Store which instances the sessions of the cell were bound to."""
        past = self._pasts.get(routing.cell)
        if past is not None and past.lives is not routing.lives:
            past.lives, past.frozen = routing.lives, None

    def frozen(self) -> Mapping[str, Past]:
        """By cell, in the order in which they were routed."""
        for cell, past in self._pasts.items():
            if past.frozen is None:
                pending = tuple((at, dict(each)) for at, each in past.pending)
                past.frozen = Past(cell, past.policy, past.step_s, dict(past.instances), pending, past.lives)
        return {cell: past.frozen for cell, past in self._pasts.items() if past.frozen is not None}


def _merge_moment(past: _Building, t_unix_s: float, pending: dict[str, int]) -> None:
    """Add to the last moment where both are in the same step, else as a moment of its own."""
    if past.pending and t_unix_s // past.step_s == past.pending[-1][0] // past.step_s:
        last = past.pending[-1][1]
        last.update({name: max(tokens, last.get(name, 0)) for name, tokens in pending.items()})
    else:
        past.pending.append((t_unix_s, pending))
