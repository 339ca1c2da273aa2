"""Short ways to write down what a policy sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results.records.decisions import ClusterView, Decision, InstanceLoad, RoutedRequest

BLOCK = 16


def load(instance: str, bs: int = 0, pp: int = 0, ot: int = 0, **more: Any) -> InstanceLoad:
    """One instance with its BS, PP and OT."""
    return InstanceLoad(instance, num_requests=bs, pending_prefill_tokens=pp, ongoing_tokens=ot, **more)


def view(*loads: InstanceLoad, picks: int = 0, fallbacks: int = 0) -> ClusterView:
    """A cluster of these, in the order of their names."""
    return ClusterView(tuple(sorted(loads, key=lambda one: one.instance)), picks, fallbacks)


def ask(
    tokens: int = 1000,
    cached: Mapping[str, int] | None = None,
    *,
    session: str = "s",
    owner: str = "",
    tried: Sequence[str] = (),
    rejects: Mapping[str, int] | None = None,
    max_tokens: int = 100,
    turn: int = 0,
    block_tokens: int = BLOCK,
) -> RoutedRequest:
    """A request of `tokens` prompt tokens of which each instance in `cached` holds this many."""
    return RoutedRequest(
        request="r",
        session=session,
        turn=turn,
        input_tokens=tokens,
        max_tokens=max_tokens,
        block_tokens=block_tokens,
        cached_tokens=cached or {},
        owner=owner,
        rejects=rejects or {},
        tried=tuple(tried),
    )


def ruled_out(decision: Decision) -> dict[str, str]:
    """Why each instance that could not be picked could not."""
    return {one.instance: one.ruled_out for one in decision.candidates if one.ruled_out}


def is_idle(loads: Sequence[InstanceLoad]) -> bool:
    """Whether every counter of every instance is back at zero."""
    return not any(
        load.num_requests
        or load.pending_prefill_tokens
        or load.ongoing_tokens
        or load.ongoing_decode_tokens
        or load.retained_tokens
        for load in loads
    )
