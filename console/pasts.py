"""What the view forgets of cells that were routed: the pending prefill of their instances, and where sessions lived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from state.bindings import Lives
from state.events import RouterSampled
from state.routing import RoutingView

PAST_SAMPLES = 600
"""Moments kept per cell: where there are more, two neighbours become one, with the higher of their values."""

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
class _Kept:
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
        self._kept: dict[str, _Kept] = {}

    def add(self, t_unix_s: float, event: RouterSampled, attempt: int) -> None:
        """One more second; another attempt at a cell takes the place of the one before."""
        kept = self._kept.get(event.cell)
        if kept is None or kept.attempt != attempt:
            kept = self._kept[event.cell] = _Kept(attempt, event.policy)
        kept.frozen = None
        kept.instances |= {load.instance: load.engine or load.instance for load in event.instances}
        _merge(kept, t_unix_s, {load.instance: load.pending_prefill_tokens for load in event.instances})
        if len(kept.pending) > PAST_SAMPLES:
            kept.step_s *= 2
            old, kept.pending = kept.pending, []
            for at, pending in old:
                _merge(kept, at, pending)

    def remember(self, routing: RoutingView) -> None:
        """Keep where the sessions of the cell are known to have lived."""
        kept = self._kept.get(routing.cell)
        if kept is not None and kept.lives is not routing.lives:
            kept.lives, kept.frozen = routing.lives, None

    def frozen(self) -> Mapping[str, Past]:
        """By cell, in the order in which they were routed."""
        for cell, kept in self._kept.items():
            if kept.frozen is None:
                pending = tuple((at, dict(each)) for at, each in kept.pending)
                kept.frozen = Past(cell, kept.policy, kept.step_s, dict(kept.instances), pending, kept.lives)
        return {cell: kept.frozen for cell, kept in self._kept.items() if kept.frozen is not None}


def _merge(kept: _Kept, t_unix_s: float, pending: dict[str, int]) -> None:
    """Into the last moment where it is of the same step, else as one of its own."""
    if kept.pending and t_unix_s // kept.step_s == kept.pending[-1][0] // kept.step_s:
        last = kept.pending[-1][1]
        last.update({name: max(tokens, last.get(name, 0)) for name, tokens in pending.items()})
    else:
        kept.pending.append((t_unix_s, pending))
