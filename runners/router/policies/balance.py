"""Policies by load or by turn alone, and `leastwork`, by the prompt tokens left to compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from results.records.decisions import ClusterView, InstanceLoad, RoutedRequest
from runners.router.policies.policy import Draft, Pickable, Tie, WholePolicy, draft_for, weigh_instances

REASONS: Mapping[str, str] = {
    "turn": "it was its turn",
    "least_load": "it had the fewest requests",
    "least_work": "it had the fewest prompt tokens left to compute",
}
SCORE_KEYS: Mapping[str, str] = {
    "prefill_work_tokens": "prompt tokens left to compute, these included",
}


class RoundRobin(WholePolicy, frozen=True, kw_only=True):
    """The next instance in turn, by name, among those that are up: the `load-balance` baseline."""

    name: ClassVar[str] = "round_robin"
    source: ClassVar[str] = "specs/ear.md 5.1, baseline 1"
    rule: ClassVar[str] = "the next available instance by name"

    def _choose_instance(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Draft:
        weighing = weigh_instances(request, may.loads, lambda load, new: (), "rr", cluster.picks)
        turn = may.loads[cluster.picks % len(may.loads)]  # no two are equally far from it: scores are for the record
        return draft_for(self.name, may, weighing, ("turns_away",), "turn", winner=turn)


class LoadOnly(WholePolicy, frozen=True, kw_only=True):
    """The fewest requests, then the fewest tokens under way; knows neither caches nor sessions."""

    name: ClassVar[str] = "load_only"
    source: ClassVar[str] = "specs/ear.md 3.3 names it (APC 54.1 %), no rule given: the rule is ours"
    rule: ClassVar[str] = "(BS, OT, `rr`): our rule, the specification has none"

    tie: Tie = "rr"

    def _choose_instance(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Draft:
        weighing = weigh_instances(
            request,
            may.loads,
            lambda load, new: (load.num_requests, load.ongoing_tokens),
            self.tie,
            cluster.fallbacks,
            lambda load: {"ongoing_tokens": load.ongoing_tokens},
        )
        keys = ("num_requests", "ongoing_tokens", "turns_away")
        return draft_for(self.name, may, weighing, keys, "least_load", advances=True)


class LeastWork(WholePolicy, frozen=True, kw_only=True):
    """The fewest prompt tokens left to compute, this request's own included, then the fewest requests."""

    name: ClassVar[str] = "leastwork"
    source: ClassVar[str] = "the specs' authors, later than the specs: argmin (PP + new, BS, turn)"
    rule: ClassVar[str] = "(PP + new, BS, `rr`)"

    tie: Tie = "rr"
    spread_cold: Annotated[
        bool,
        msgspec.Meta(
            description="a session's first request is weighed with its whole prompt: a shared system prompt cannot "
            "draw every new session to one idle instance; false = the rule as its authors have it"
        ),
    ] = False

    def _choose_instance(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Draft:
        cold = self.spread_cold and bool(request.session) and request.turn == 0

        def score(load: InstanceLoad, new: int) -> tuple[float, ...]:
            return load.pending_prefill_tokens + (request.input_tokens if cold else new), load.num_requests

        weighing = weigh_instances(request, may.loads, score, self.tie, cluster.fallbacks)
        keys = ("prefill_work_tokens", "num_requests", "turns_away")
        return draft_for(self.name, may, weighing, keys, "least_work", advances=True)


class LeastWorkSpread(LeastWork, frozen=True, kw_only=True):
    """As leastwork, but a session's first request is weighed with its whole prompt, whatever is cached."""

    name: ClassVar[str] = "leastwork_spread"
    source: ClassVar[str] = "leastwork, with a rule of Tracon's own for new sessions"
    rule: ClassVar[str] = (
        "as `leastwork`; for a session's first request with L in place of new, so that a shared system prompt "
        "attracts no sessions"
    )

    spread_cold: Annotated[bool, msgspec.Meta(description="as in leastwork, on")] = True
