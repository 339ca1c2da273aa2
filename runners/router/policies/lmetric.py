"""LMetric: prompt work times batch size, without affinity; and a linear mix of cache share and load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from results.records.decisions import ClusterView, InstanceLoad, RoutedRequest
from runners.router.policies.policy import (
    Draft,
    Pickable,
    Tie,
    WholePolicy,
    cached_share,
    draft_for,
    weigh_instances,
)

REASONS: Mapping[str, str] = {
    "lowest_score": "it had the lowest score",
}
SCORE_KEYS: Mapping[str, str] = {
    "load_less_cache": "load less cached share",
}

BsOffset = Annotated[
    int,
    msgspec.Meta(
        ge=0, le=1, description="added to the requests in the product; 1 keeps an idle instance's score above 0"
    ),
]


def work_by_batch(load: InstanceLoad, new: int, bs_offset: int = 0, p_floor: int = 0) -> int:
    """max(p_floor, pending prefill + new tokens) * (requests + bs_offset)."""
    work = max(p_floor, load.pending_prefill_tokens + new)
    return work * (load.num_requests + bs_offset)


class LMetric(WholePolicy, frozen=True, kw_only=True):
    """The lowest (pending prefill + new tokens) x requests; never reads or writes a session's affinity."""

    name: ClassVar[str] = "lmetric"
    source: ClassVar[str] = "specs/routing_log.md, the pure baseline; LMetric, OSDI'26"
    rule: ClassVar[str] = "((PP + new) x (BS + `bs_offset`), `rr`)"

    tie: Tie = "rr"
    bs_offset: BsOffset = 0

    def _choose_instance(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Draft:
        weighing = weigh_instances(
            request,
            may.loads,
            lambda load, new: (work_by_batch(load, new, self.bs_offset),),
            self.tie,
            cluster.fallbacks,
        )
        keys = ("work_x_requests", "turns_away")
        return draft_for(self.name, may, weighing, keys, "lowest_score", advances=True)


class KvLinear(WholePolicy, frozen=True, kw_only=True):
    """Cache share against load in one sum (the `kvcache-aware + load-balance` baseline); the highest wins."""

    name: ClassVar[str] = "kv_linear"
    source: ClassVar[str] = "specs/ear.md 5.1, baseline 3 (only `linear combination`: the forms are a choice)"
    rule: ClassVar[str] = (
        "highest `w` h/L - (1 - `w`) BS/max BS; or `form=pr1035`: h/L - `beta` (BS - mean)/max(1, mean)"
    )

    form: Annotated[
        Literal["mix", "pr1035"],
        msgspec.Meta(
            description="`mix`: w * cached share - (1 - w) * requests / most requests; "
            "`pr1035`: cached share - beta * (requests - mean) / max(1, mean), as vLLM production-stack PR 1035"
        ),
    ] = "mix"
    w: Annotated[float, msgspec.Meta(ge=0, le=1, description="weight of the cache in `mix`")] = 0.5
    beta: Annotated[float, msgspec.Meta(ge=0, description="weight of the load in `pr1035`")] = 1.0
    tie: Tie = "rr"

    def _choose_instance(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Draft:
        """argmax of the sum; the score is its negative, because the lowest score wins."""
        counts = [load.num_requests for load in may.loads]
        most, mean = max(1, *counts), sum(counts) / len(counts)
        weighing = weigh_instances(
            request,
            may.loads,
            lambda load, new: (-self._sum_terms(request, load, most, mean),),
            self.tie,
            cluster.fallbacks,
            lambda load: {"cached_share": cached_share(request, load.instance)},
        )
        keys = ("load_less_cache", "turns_away")
        return draft_for(self.name, may, weighing, keys, "lowest_score", advances=True)

    def _sum_terms(self, request: RoutedRequest, load: InstanceLoad, most: int, mean: float) -> float:
        share = cached_share(request, load.instance)
        if self.form == "mix":
            return self.w * share - (1 - self.w) * load.num_requests / most
        return share - self.beta * (load.num_requests - mean) / max(1.0, mean)
