"""Policies that look at load alone, or at the turn alone, and `leastwork`, which counts work that is really left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from results.records.decisions import ClusterView, Decision, RoutedRequest
from runners.router.policies.weighing import (
    Tie,
    Weighed,
    decision,
    load_terms,
    new_tokens,
    nowhere,
    pickable,
    turn_key,
)

REASONS: Mapping[str, str] = {
    "turn": "it was its turn",
    "least_load": "it had the fewest requests",
    "least_work": "it had the fewest prompt tokens left to compute",
}
SCORE_KEYS: Mapping[str, str] = {
    "prefill_work_tokens": "prompt tokens left to compute, these included",
}


class RoundRobin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The next instance in turn, by name, among those that are up: the `load-balance` baseline."""

    name: ClassVar[str] = "round_robin"
    source: ClassVar[str] = "specs/ear.md 5.1, baseline 1"

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        """The one whose turn it is, by the count of picks."""
        may = pickable(request, cluster)
        if not may.loads:
            return nowhere(self.name, may)
        of = len(may.loads)
        weighed = [
            Weighed(load, (turn_key("rr", place, of, cluster.picks),), load_terms(request, load))
            for place, load in enumerate(may.loads)
        ]
        return decision(self.name, may, weighed, ("turns_away",), "turn")


class LoadOnly(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fewest requests, then the fewest tokens under way; knows neither caches nor sessions."""

    name: ClassVar[str] = "load_only"
    source: ClassVar[str] = "specs/ear.md 3.3 names it (APC 54.1 %), no rule given: the rule is ours"

    tie: Tie = "rr"

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        """argmin (requests, ongoing tokens)."""
        may = pickable(request, cluster)
        if not may.loads:
            return nowhere(self.name, may)
        of = len(may.loads)
        weighed = [
            Weighed(
                load,
                (load.num_requests, load.ongoing_tokens, turn_key(self.tie, place, of, cluster.fallbacks)),
                load_terms(request, load) | {"ongoing_tokens": load.ongoing_tokens},
            )
            for place, load in enumerate(may.loads)
        ]
        keys = ("num_requests", "ongoing_tokens", "turns_away")
        return decision(self.name, may, weighed, keys, "least_load", advances=True)


class LeastWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fewest prompt tokens left to compute, this request's own included, then the fewest requests."""

    name: ClassVar[str] = "leastwork"
    source: ClassVar[str] = "the specs' authors, later than the specs: argmin (PP + new, BS, turn)"

    tie: Tie = "rr"
    spread_cold: Annotated[
        bool,
        msgspec.Meta(
            description="a session's first request is weighed with its whole prompt: a shared system prompt cannot "
            "draw every new session to one idle instance; false = the rule as its authors have it"
        ),
    ] = True

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        """argmin (pending prefill + new tokens, requests)."""
        may = pickable(request, cluster)
        if not may.loads:
            return nowhere(self.name, may)
        of, cold = len(may.loads), self.spread_cold and bool(request.session) and request.turn == 0
        weighed = [
            Weighed(
                load,
                (
                    load.pending_prefill_tokens + (request.input_tokens if cold else new_tokens(request, load)),
                    load.num_requests,
                    turn_key(self.tie, place, of, cluster.fallbacks),
                ),
                load_terms(request, load),
            )
            for place, load in enumerate(may.loads)
        ]
        keys = ("prefill_work_tokens", "num_requests", "turns_away")
        return decision(self.name, may, weighed, keys, "least_work", advances=True)
